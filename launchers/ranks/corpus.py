"""Make or check the one corpus that all stacks share. Needs numpy alone: it runs in any container.

    python corpus.py --prefix P --vocab-size V --seed S --tokens N      makes P.bin, P.idx and P.json
    python corpus.py --prefix P --vocab-size V --seed S --text          makes them of text that Python ships with
    python corpus.py --prefix P --vocab-size V --seed S --check         reads only; a corpus of any origin, or a blend

With --seq-length, --global-batch-size and --samples also: that each part of the split can be read, and the fingerprint
of the first global batch. The last line that it prints is a mark of facts for the record. Exit code 2: refused."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import corpus_order as order
import numpy as np
from numpy.typing import NDArray
from rank_program import Problem, Refused, mark

GENERATOR = "tensorprimat corpus 1"  # counts up when the same arguments give other bytes

_SHORTEST, _LONGEST = 33, 257  # tokens of a document, its end among them
_WALK, _LANES = 256, 2**14  # tokens of one unbroken walk, and how many walks are made at a time
_QUANTILES = 2**20
_BYTES = 256


@dataclass(frozen=True)
class Spec:
    """Everything that decides the bytes of a corpus of ours: either tokens or documents is a number."""

    vocab_size: int
    eod: int
    seed: int
    tokens: int | None = None
    documents: int | None = None


@dataclass(frozen=True)
class Text:
    """A corpus of the language reference that every Python has for its help(), by the bytes of its UTF-8: documents are
    its topics, in the order of their names. sha256: of the text, which other versions of Python have other words in."""

    vocab_size: int
    eod: int
    sha256: str


def python_topics() -> list[bytes]:
    """Return the texts of help('TOPIC'). Raises Refused: this Python came without them."""
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise Refused.of(
            "data", "this Python has no pydoc_data", sys.version.split()[0], "", "data=synthetic"
        ) from error
    return [topics[name].encode() for name in sorted(topics)]


def text_spec(vocab_size: int, eod: int) -> Text:
    """Return the spec of the corpus of Python's own text. Raises Refused: the vocabulary lacks 256 bytes and an end."""
    if min(vocab_size, eod) < _BYTES:
        size, allowed = (
            f"vocab_size {vocab_size:,}, eod {eod:,}",
            f"vocab_size {_BYTES + 1} or more, eod {_BYTES} or more",
        )
        raise Refused.of("data=tiny", "has the 256 bytes as its ids, and one more", size, allowed, "another model")
    return Text(vocab_size, eod, hashlib.sha256(b"\0".join(python_topics())).hexdigest())


def provide(prefix: str, spec: Spec | Text) -> None:
    """Make the corpus at `prefix`, or leave it where it is this one already; a damaged one is made again.
    Raises Refused: something else is there (nothing is overwritten), or the disk is too small."""
    manifest, files = _manifest(prefix), [Path(prefix + suffix) for suffix in (".bin", ".idx", ".json")]
    ours = manifest.get("generator") == GENERATOR and manifest.get("arguments") == asdict(spec)
    if ours and all(
        file.is_file() and order.sha256(file) == manifest.get(f"{file.suffix[1:]}_sha256") for file in files[:2]
    ):
        return
    there = [file.suffix for file in files if file.exists()]
    if there and not ours:
        others = f"{' and '.join(there)} of another corpus"
        raise Refused.of(prefix, "is not overwritten", others, "", "remove them, or data.path=/another/prefix")
    dtype = np.dtype("<u2" if spec.vocab_size < 65500 else "<i4")  # Megatron's DType.optimal_dtype
    lengths, tokens = _made(spec)
    folder = Path(prefix).absolute().parent
    folder.mkdir(parents=True, exist_ok=True)
    needed, free = int(lengths.sum(dtype=np.int64)) * dtype.itemsize + lengths.size * 20, shutil.disk_usage(folder).free
    if free < needed:
        attempt = "data.path=/on/a/larger/disk/corpus, or fewer iterations"
        raise Refused.of(str(folder), "has no room for the corpus", f"{free:,} bytes free", f"{needed:,}", attempt)
    with tempfile.TemporaryDirectory(prefix=".corpus-", dir=folder) as name:
        made = Path(name, "made")
        _write(made, tokens, lengths, dtype)
        manifest = {"generator": GENERATOR, "arguments": asdict(spec)}
        manifest |= order.describe(order.open_corpus(str(made)), complete=True)
        made.with_suffix(".json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        for file in files:  # the manifest last: without it a corpus does not count as ours
            os.replace(made.with_suffix(file.suffix), file)


def _manifest(prefix: str) -> dict[str, Any]:
    try:
        manifest = json.loads(Path(f"{prefix}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def _made(spec: Spec | Text) -> tuple[NDArray[np.int32], Iterator[NDArray[np.int32]]]:
    """Return the lengths of all documents, and their tokens."""
    if isinstance(spec, Text):
        documents = [np.append(np.frombuffer(text, np.uint8).astype(np.int32), spec.eod) for text in python_topics()]
        return np.array([document.size for document in documents], np.int32), iter(documents)
    draw = np.random.RandomState(spec.seed)  # numpy guarantees this stream for all its versions
    lengths = _lengths(draw, spec)
    return lengths, _stream(draw, lengths, spec)


def _lengths(draw: np.random.RandomState, spec: Spec) -> NDArray[np.int32]:
    """Draw the number of tokens of each document; the last one is cut so that their sum is exact."""
    if spec.documents is not None:
        return np.asarray(draw.randint(_SHORTEST, _LONGEST + 1, spec.documents, np.int32))
    parts: list[NDArray[np.int32]] = []
    wanted, drawn = spec.tokens or 0, 0
    while drawn < wanted:
        parts.append(draw.randint(_SHORTEST, _LONGEST + 1, (wanted - drawn) // _LONGEST + 1, np.int32))
        drawn += int(parts[-1].sum(dtype=np.int64))
    lengths = np.concatenate(parts)
    ends = np.cumsum(lengths, dtype=np.int64)
    last = int(np.searchsorted(ends, wanted))
    lengths[last] -= ends[last] - wanted
    return lengths[: last + 1]


def _stream(draw: np.random.RandomState, lengths: NDArray[np.int32], spec: Spec) -> Iterator[NDArray[np.int32]]:
    """Yield the tokens of all documents, some millions at a time.

    Every token has a fixed successor, which follows it three times in four; else comes one drawn from a Zipf-like
    distribution over the complete vocabulary, from which the successors were drawn, too. So there is something to learn
    in ten steps (which tokens are frequent) and in hundreds (what follows what). Integers only: a corpus must not
    depend on how a processor rounds."""
    ids = draw.permutation(np.delete(np.arange(spec.vocab_size, dtype=np.int32), spec.eod))
    limits = np.cumsum(2**36 // np.arange(3, len(ids) + 3, dtype=np.int64))  # the n-th of them, from 0: as 1 / (n + 3)
    common = np.repeat(ids, np.diff(limits * _QUANTILES // limits[-1], prepend=0))  # quantiles of the distribution
    successor = common[draw.randint(0, _QUANTILES, spec.vocab_size, np.int64)]
    ends = np.cumsum(lengths, dtype=np.int64) - 1
    done, total = 0, int(ends[-1]) + 1
    while done < total:
        lanes = min(_LANES, -(-(total - done) // _WALK))
        bits = draw.randint(0, 2**32, (_WALK, lanes), np.uint32)
        tokens, follows = common[bits >> np.uint32(12)], bits & np.uint32(3) != 0
        for before, now, known in zip(tokens[:-1], tokens[1:], follows[1:], strict=True):
            np.copyto(now, successor[before], where=known)
        part = tokens.T.ravel()[: total - done]
        first, last = np.searchsorted(ends, (done, done + part.size))
        part[ends[first:last] - done] = spec.eod
        done += part.size
        yield part


def _write(prefix: Path, parts: Iterator[NDArray[np.int32]], lengths: NDArray[np.int32], dtype: np.dtype[Any]) -> None:
    """Write the corpus `prefix`, one sequence a document."""
    with prefix.with_suffix(".bin").open("wb") as file:
        for part in parts:
            file.write(part.astype(dtype).tobytes())
    begins = (np.cumsum(lengths, dtype="<i8") - lengths) * dtype.itemsize
    prefix.with_suffix(".idx").write_bytes(order.index_of(lengths, begins, dtype))


def check(path: str, vocab_size: int, reading: order.Reading | None) -> dict[str, Any]:
    """Return facts of the corpora at `path` for the record; of a blend a list of each.
    Raises Refused: one is damaged, has ids beyond the vocabulary, or is too short for its part of the run."""
    described = []
    for member in order.members(path):
        corpus = order.open_corpus(member.prefix)
        described.append(order.describe(corpus))
        order.check_ids(corpus, vocab_size, described[-1]["least_id"], described[-1]["largest_id"])
    alone = described[0] if len(described) == 1 else {name: [one[name] for one in described] for name in described[0]}
    facts = {f"data_{name}": value for name, value in alone.items()}
    if reading is not None:
        order.check_reading(path, reading)
        mixture = order.mix(path, reading)
        epochs = [part.epochs for part in mixture.parts]
        facts["data_epochs"] = epochs[0] if len(epochs) == 1 else epochs
        facts["data_first_batch_predicted"] = order.fingerprint(next(mixture.batches(reading.global_batch_size)))
    return facts


def cut(path: str, split: str, folder: Path) -> dict[str, str]:
    """Write the training and the validation part of each corpus at `path` into `folder` as corpora of their own, for a
    stack that takes one path a part (Primus): an index of the part's documents beside a link to the tokens. Their order
    is the same: documents are shuffled by their places. Return of what it was cut, and the data path of what trains."""
    folder.mkdir(parents=True, exist_ok=True)
    named = order.members(path)
    for number, member in enumerate(named):
        corpus = order.open_corpus(member.prefix)
        for part, name in enumerate(order.PARTS[:2]):
            first, last = order.part_of(corpus, split, part)
            lengths, begins = corpus.lengths[first:last], corpus.offsets[first:last] * corpus.dtype.itemsize
            made, linked = folder / f"{name}-{number}", Path(f"{member.prefix}.bin").absolute()
            made.with_suffix(".idx").write_bytes(order.index_of(lengths, begins, corpus.dtype))
            made.with_suffix(".bin").unlink(missing_ok=True)
            made.with_suffix(".bin").symlink_to(linked)
    trained = [str((folder / f"{order.PARTS[0]}-{number}").absolute()) for number in range(len(named))]
    weights = None if named[0].weight is None else [member.weight or 0.0 for member in named]
    return {"path": path, "split": split, "parts": order.stated(trained, weights)}


def of_tokenizer(path: str, tokenizer: str, vocab_size: int, sha256: str | None) -> dict[str, Any]:
    """Return facts of the tokenizer of the corpora at `path`. Raises Refused: it is not theirs, or not the model's."""
    import tokenizer_facts  # which a bundle has no need of

    prefixes = [member.prefix for member in order.members(path)]
    told = tokenizer_facts.manifests(prefixes)
    if refused := [*tokenizer_facts.problems(tokenizer, vocab_size, sha256, told)]:
        raise Refused(*refused)
    facts = tokenizer_facts.read(tokenizer, vocab_size)
    pad = facts["tokenizer_pad"]
    if pad is not None and pad not in (facts["tokenizer_eod"], facts["tokenizer_bos"]):
        for prefix in prefixes:
            if order.has_id(order.open_corpus(prefix), pad):
                what = "has the tokenizer's id of padding, which some stacks mask and others train on"
                raise Refused.of(prefix, what, str(pad), "an id of its own", "another pad_token, none of text")
    return facts


def main(argv: Sequence[str] | None = None) -> int:
    a = _parser().parse_args(argv)
    try:
        if not a.check:
            eod = a.vocab_size - 1 if a.eod is None else a.eod
            if eod >= a.vocab_size:
                allowed = f"0 to {a.vocab_size - 1}"
                raise Refused.of("--eod", "is beyond the vocabulary", str(eod), allowed, "leave it out")
            made = Spec(a.vocab_size, eod, a.seed, a.tokens, a.documents)
            provide(a.prefix, text_spec(a.vocab_size, eod) if a.text else made)
        sizes = (a.seq_length, a.global_batch_size, a.samples)
        reading = order.Reading(*sizes, a.seed, a.split, a.validated) if all(sizes) else None
        facts = check(a.prefix, a.vocab_size, reading)
        if a.tokenizer:
            facts |= of_tokenizer(a.prefix, a.tokenizer, a.vocab_size, a.tokenizer_sha256)
        if a.parts:
            facts["data_cut"] = cut(a.prefix, a.split, a.parts)
    except (Refused, OSError) as error:
        if isinstance(error, OSError):
            what, hint = str(error.strerror or error), "data.path=/another/prefix"
            error = Refused(Problem(str(error.filename or a.prefix), what, hint=hint))
        print(f"corpus.py: error: {error}", file=sys.stderr)
        return 2
    mark("facts", facts)
    if a.tokenizer:
        mark("effective", {"tokenizer_sha256": facts["tokenizer_sha256"]})
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="corpus.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    words = "path without .bin and .idx; of a blend each one's behind its weight: '0.7 /corpora/wiki 0.3 /corpora/code'"
    parser.add_argument("--prefix", required=True, help=words)
    parser.add_argument("--vocab-size", required=True, type=_integer(2), help="of the model: ids are 0 to this - 1")
    parser.add_argument("--seed", required=True, type=_integer(0, 2**32 - 1), help="of the corpus and of its order")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--tokens", type=_integer(2), help="make a corpus of exactly so many")
    what.add_argument("--documents", type=_integer(1), help="make a corpus of so many")
    what.add_argument("--text", action="store_true", help="make a corpus of English that this Python ships with")
    what.add_argument("--check", action="store_true", help="make nothing")
    parser.add_argument("--eod", type=_integer(0), help="the id that ends a document (vocab size - 1)")
    parser.add_argument("--seq-length", type=_integer(1))
    parser.add_argument("--global-batch-size", type=_integer(1))
    parser.add_argument("--samples", type=_integer(1), help="of the complete run: iterations x global batch size")
    parser.add_argument("--split", default=order.ALL_TRAINS, help="Megatron's weights of training, validation and test")
    parser.add_argument("--tokenizer", metavar="PATH", help="that the corpora were made with")
    parser.add_argument("--tokenizer-sha256", metavar="HASH", help="which it must have")
    parser.add_argument("--parts", type=Path, metavar="FOLDER", help="write each part of the split there")
    parser.add_argument("--validated", type=_integer(0), default=0, help="samples of all validations")
    return parser


def _integer(least: int, most: int = 2**62) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"found {text}; allowed: an integer from {least} to {most}")
        return int(text)

    return number


if __name__ == "__main__":
    sys.exit(main())
