"""Name a tokenizer by its files, and hash them: the same in a corpus' manifest, in a plan, and inside the ranks.

A tokenizer is a file (tokenizer.json, a model of sentencepiece, a vocabulary of tiktoken) or a folder of Hugging
Face's. Its sha256 is that of the file, as `sha256sum FILE` prints it; of a folder that of the lines which `sha256sum`
prints of those of FILES that it has, in alphabetical order. Standard library only."""

from __future__ import annotations

import hashlib
from pathlib import Path

from rank_program import Refused

FILES = (
    "added_tokens.json",
    "merges.txt",
    "sentencepiece.bpe.model",
    "special_tokens_map.json",
    "spiece.model",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)
"""Files of a folder that decide what its tokenizer does, sorted."""
KINDS = ("huggingface", "sentencepiece", "tiktoken")
MEGATRON_TYPES = dict(zip(KINDS, ("HuggingFaceTokenizer", "SentencePieceTokenizer", "TikTokenizer"), strict=True))
"""Megatron's names of them, its --tokenizer-type."""
LIBRARIES = dict(zip(KINDS, ("transformers", "sentencepiece", "tiktoken"), strict=True))
"""By which stacks open each."""


def kind_of(path: str | Path) -> str:
    """Return which of KINDS the tokenizer at `path` is, by what the file begins with. Raises Refused: no tokenizer."""
    path = Path(path)
    if path.is_dir():
        files_of(path)
        return "huggingface"
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise Refused.of(str(path), "is no regular file", "", "", "a file, or a folder of files")
        with path.open("rb") as file:
            head = file.read(4096)
    except OSError as error:
        why = error.strerror or str(error)
        raise Refused.of(str(path), "no tokenizer can be read here", why, "", "a file, or a folder of files") from error
    begin = head.lstrip()
    if path.suffix == ".json":
        return "tiktoken" if begin.startswith(b"[") else "huggingface"
    first, _, rank = begin.partition(b"\n")[0].strip().partition(b" ")
    if first and rank.isdigit() and first.isascii():
        return "tiktoken"
    if head.startswith(b"\x0a"):  # the first piece of a ModelProto
        return "sentencepiece"
    allowed = "tokenizer.json, a model of sentencepiece, a vocabulary of tiktoken"
    raise Refused.of(str(path), "is not a tokenizer", f"a file that begins with {head[:12]!r}", allowed)


def kind_by_name(path: str | Path) -> str:
    """Return which of KINDS a run takes the tokenizer at `path` for, which may be on another machine: MODEL.model is
    sentencepiece's, VOCABULARY.json tiktoken's in Megatron's form, and anything else a folder of Hugging Face's."""
    return {".model": "sentencepiece", ".json": "tiktoken"}.get(Path(path).suffix, "huggingface")


def files_of(path: str | Path) -> list[Path]:
    """Return the files that a tokenizer consists of. Raises Refused: the folder has none of FILES."""
    path = Path(path)
    if not path.is_dir():
        return [path]
    files = [path / name for name in FILES if (path / name).is_file()]
    if not files:
        raise Refused.of(str(path), "no tokenizer is in this folder", "", f"one of {', '.join(FILES)}")
    return files


def sha256_of(path: str | Path) -> str:
    """Return the sha256 of the tokenizer at `path`. Raises Refused: it cannot be read."""
    files = files_of(path)
    try:
        sums = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    except OSError as error:
        why = error.strerror or str(error)
        raise Refused.of(str(error.filename or path), "no tokenizer can be read here", why) from error
    if not Path(path).is_dir():
        return sums[files[0].name]
    return hashlib.sha256("".join(f"{digest}  {name}\n" for name, digest in sums.items()).encode()).hexdigest()
