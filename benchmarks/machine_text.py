"""A gigabyte of text from this machine alone, in two files, and a tokenizer trained on Python's documentation: for
benchmarks and drills of `tprimat data`, which need more than a test has.

    python benchmarks/machine_text.py FOLDER --python-docs DIR [--bytes 1_000_000_000]

FOLDER/docs.jsonl has prose: DIR (the sources of Python's documentation: Doc/ of CPython, or what Debian's
python3.11-doc has in _sources), manual pages and /usr/share/doc. FOLDER/code.jsonl has sources in Python and C until
both have --bytes of text. A file whose bytes came before is left out, and none is repeated. FOLDER/tokenizer is a
byte-level BPE of 32,000 tokens at most, trained on DIR alone."""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

PROSE, CODE = (".rst", ".md", ".txt"), (".py", ".pyi", ".h", ".c")
END, VOCABULARY = "<|endoftext|>", 32_000
LEFT_OUT = {"/proc", "/sys", "/dev", "/tmp", "/run"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python-docs", type=Path, required=True)
    parser.add_argument("--bytes", type=int, default=10**9, help="of text, in both files together")
    a = parser.parse_args()
    a.folder.mkdir(parents=True, exist_ok=True)
    seen, left = set[bytes](), a.bytes
    prose = (*_files(a.python_docs, (".txt", ".rst")), *_files(Path("/usr/share/man"), (".gz",)))
    prose += (*_files(Path("/usr/share/doc"), (".gz", "", *PROSE)),)
    for name, paths in (("docs", iter(prose)), ("code", _files(Path("/"), CODE))):
        left -= _write(a.folder / f"{name}.jsonl", paths, seen, left)
    print(f"{a.bytes - left:,} bytes of text" + (f": {left:,} fewer than wanted" if left > 0 else ""))
    _train(a.python_docs, a.folder / "tokenizer")
    return 0


def _files(root: Path, ends: tuple[str, ...]) -> Iterator[Path]:
    """Yield files of `root` in the order of their names."""
    for folder, names, inside in os.walk(root):
        names[:] = sorted(name for name in names if f"{folder}/{name}".replace("//", "/") not in LEFT_OUT)
        yield from (Path(folder, name) for name in sorted(inside) if Path(name).suffix in ends)


def _write(target: Path, paths: Iterator[Path], seen: set[bytes], most: int) -> int:
    """Write texts as lines of JSON until they have `most` bytes. Return their bytes."""
    written = 0
    with target.open("w", encoding="utf-8") as file:
        for path in paths:
            if written >= most:
                break
            try:
                raw = path.read_bytes()
                raw = gzip.decompress(raw) if path.suffix == ".gz" else raw
                text = raw.decode("utf-8")
            except (OSError, EOFError, zlib.error, UnicodeDecodeError):
                continue
            digest = hashlib.sha256(raw).digest()
            if digest not in seen and text.strip() and "\0" not in text:
                seen.add(digest)
                file.write(json.dumps({"text": text, "path": str(path)}) + "\n")
                written += len(raw)
    return written


def _train(docs: Path, folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train([str(path) for path in _files(docs, (".txt", ".rst"))], trainer)
    folder.mkdir(exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "model_max_length": 10**9}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
