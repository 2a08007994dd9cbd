"""Open and check a corpus as Megatron keeps it (P.bin, P.idx), and predict the order in which a run will see it.

The order is that of Megatron-Core's GPTDataset, BlendedDataset and their builder (megatron/core/datasets, the same in
0.15.3, 0.16.1 and d3528a2, Primus' pin) and of the loader `single`, worked out without torch. Needs numpy alone."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rank_program import Refused

HEADER = b"MMIDIDX\0\0"
HEAD_BYTES = 34  # header, uint64 version, uint8 type, uint64 sequences, uint64 boundaries of documents
TYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}  # Megatron's codes; 6 and 7 are floats: no ids
HASHED_BYTES = 2**30  # a larger .bin has no hash in a record: a run must not wait minutes for it
_CHUNK = 2**24  # tokens read at a time
_SAMPLED = 64  # chunks that are read of a larger corpus


ALL_TRAINS = "100,0,0"
PARTS = ("training", "validation", "test")
_SURPLUS = 0.005  # mid_level_dataset_surplus: of a blend, so many more samples are built than are drawn
_COUNTED = 2**20  # samples of a blend that are counted one by one; of more, the surplus is far above any rounding


@dataclass(frozen=True)
class Reading:
    """How a run reads its data. samples: those that it trains on, all in all. split: Megatron's weights of training,
    validation and test. validated: samples of the validation part that the stacks ask for, all in all."""

    seq_length: int
    global_batch_size: int
    samples: int
    seed: int
    split: str = ALL_TRAINS
    validated: int = 0


@dataclass(frozen=True)
class Corpus:
    """A corpus on disk, with lengths and offsets (in tokens) of its sequences, which Megatron shuffles as documents."""

    prefix: str
    dtype: np.dtype[Any]
    lengths: NDArray[np.int32]
    offsets: NDArray[np.int64]
    documents: int

    @property
    def tokens(self) -> int:
        """Return the number of tokens in all sequences, the ends of documents among them."""
        return int(self.lengths.sum(dtype=np.int64))

    def ids(self) -> NDArray[Any]:
        """Return all token ids, mapped into memory and not read."""
        return np.memmap(f"{self.prefix}.bin", self.dtype, "r")


def open_corpus(prefix: str) -> Corpus:
    """Open the corpus at `prefix`, which is the path without .bin and .idx.
    Raises Refused: it is missing, or its two files are damaged or do not belong together."""
    binary, index = Path(f"{prefix}.bin"), Path(f"{prefix}.idx")
    missing = [path.suffix for path in (binary, index) if not path.is_file()]
    if missing:
        attempt = prefix[:-4] if prefix.endswith((".bin", ".idx")) else "the path without .bin and .idx"
        if Path(f"{prefix}.partial").is_dir():
            attempt = "it is unfinished: the tprimat data tokenize that made PREFIX.partial goes on"
        elif Path(prefix).exists() and not prefix.endswith((".bin", ".idx")):
            attempt = f"of text: tprimat data tokenize {prefix} tokenizer=TOKENIZER -o PREFIX"
        raise Refused.of(prefix, "no corpus is here", f"no {' and no '.join(missing)}", "P.bin and P.idx", attempt)
    corpus = _read_index(prefix, index.read_bytes())
    size, expected = binary.stat().st_size, corpus.tokens * corpus.dtype.itemsize
    if size != expected:
        what = "is truncated" if size < expected else "does not belong to this .idx, or another one wrote into it"
        allowed = f"{expected:,} bytes, as {index.name} says"
        raise Refused.of(str(binary), what, f"{size:,} bytes", allowed, "copy both files again, or preprocess again")
    return corpus


def _read_index(prefix: str, raw: bytes) -> Corpus:
    where, attempt = f"{prefix}.idx", "copy both files again, or preprocess again"
    if len(raw) < HEAD_BYTES or not raw.startswith(HEADER):
        begin = f"{len(raw):,} bytes that begin with {raw[:9]!r}"
        raise Refused.of(where, "is not an index of Megatron", begin, f"a file that begins with {HEADER!r}", attempt)
    version, code, sequences, boundaries = struct.unpack_from("<QBQQ", raw, len(HEADER))
    if version != 1 or code not in TYPES:
        kind = f"version {version}, type {code}"
        raise Refused.of(where, "cannot be read", kind, f"version 1, types {', '.join(map(str, TYPES))}", attempt)
    size = HEAD_BYTES + 12 * sequences + 8 * boundaries
    if len(raw) != size or not sequences:
        length = f"{len(raw):,} bytes"
        raise Refused.of(where, "is damaged", length, f"{size:,} bytes for {sequences:,} sequences", attempt)
    lengths = np.frombuffer(raw, "<i4", sequences, HEAD_BYTES)
    offsets = np.frombuffer(raw, "<i8", sequences, HEAD_BYTES + 4 * sequences)
    limits = np.frombuffer(raw, "<i8", boundaries, HEAD_BYTES + 12 * sequences)
    dtype = np.dtype(TYPES[code])
    expected = np.cumsum(lengths, dtype=np.int64) - lengths
    ordered = lengths.min() >= 0 and np.array_equal(offsets, expected * dtype.itemsize)
    if not ordered or limits[0] != 0 or limits[-1] != sequences or (np.diff(limits) < 0).any():
        raise Refused.of(where, "is damaged", "lengths, offsets and documents that contradict each other", "", attempt)
    return Corpus(prefix, dtype, lengths, expected, boundaries - 1)


def index_of(lengths: NDArray[Any], begins: NDArray[Any], dtype: np.dtype[Any]) -> bytes:
    """Return the .idx of sequences, one a document. begins: their first bytes in the .bin."""
    n, code = lengths.size, next(code for code, name in TYPES.items() if np.dtype(name) == dtype)
    head = HEADER + struct.pack("<QBQQ", 1, code, n, n + 1)
    return head + b"".join(
        a.tobytes() for a in (lengths.astype("<i4"), begins.astype("<i8"), np.arange(n + 1, dtype="<i8"))
    )


def describe(corpus: Corpus, complete: bool = False) -> dict[str, Any]:
    """Return what the manifest of `corpus` would say: read from its files, whoever wrote them. Unless `complete`, a
    large .bin is sampled for its ids, and its hash is None."""
    binary, index = Path(f"{corpus.prefix}.bin"), Path(f"{corpus.prefix}.idx")
    least, most = id_range(corpus, complete)
    return {
        "documents": corpus.documents,
        "tokens": corpus.tokens,
        "dtype": corpus.dtype.name,
        "least_id": least,
        "largest_id": most,
        "bin_bytes": binary.stat().st_size,
        "idx_bytes": index.stat().st_size,
        "bin_sha256": sha256(binary) if complete or binary.stat().st_size <= HASHED_BYTES else None,
        "idx_sha256": sha256(index),
    }


def id_range(corpus: Corpus, complete: bool = False) -> tuple[int, int]:
    """Return the least and the largest token id: of every token if `complete`, else of chunks spread over a large
    corpus."""
    ids = corpus.ids()
    starts = np.arange(0, ids.size, _CHUNK)
    if not complete and starts.size > _SAMPLED:
        starts = starts[np.linspace(0, starts.size - 1, _SAMPLED, dtype=np.int64)]
    ranges = [(int(chunk.min()), int(chunk.max())) for chunk in (ids[at : at + _CHUNK] for at in starts)]
    return min(least for least, _ in ranges), max(most for _, most in ranges)


def has_id(corpus: Corpus, wanted: int) -> bool:
    """Return whether any token is `wanted`, of all of them."""
    ids = corpus.ids()
    return any(bool((ids[at : at + _CHUNK] == wanted).any()) for at in range(0, ids.size, _CHUNK))


def check_ids(corpus: Corpus, vocab_size: int, least: int, most: int) -> None:
    if least < 0 or most >= vocab_size:
        what, allowed = "has ids that the model does not have", f"0 to {vocab_size - 1:,} (vocab_size {vocab_size:,})"
        attempt = "the model whose tokenizer made this corpus, or preprocess with this model's"
        raise Refused.of(f"{corpus.prefix}.bin", what, f"ids {least:,} to {most:,}", allowed, attempt)


class Member(NamedTuple):
    """One corpus of a blend, and its weight; None: it is all there is."""

    weight: float | None
    prefix: str


def members(path: str) -> list[Member]:
    """Return the corpora that a data path names: one by its path, or those of a blend, each behind its weight, as in
    Megatron's --data-path: `0.7 /corpora/wiki 0.3 /corpora/code`."""
    words = path.split()
    if len(words) < 4 or len(words) % 2 or not re.fullmatch(r"[\d.]+(e-?\d+)?", words[0]):
        return [Member(None, path)]
    return [Member(float(weight), prefix) for weight, prefix in zip(words[::2], words[1::2], strict=True)]


def stated(prefixes: Sequence[str], weights: Sequence[float] | None) -> str:
    """Return the data path of a blend as Megatron's builder holds it: `members` the other way round."""
    if weights is None:
        return " ".join(prefixes)
    return " ".join(f"{float(weight)!r} {prefix}" for prefix, weight in zip(prefixes, weights, strict=True))


def split_weights(split: str) -> list[float]:
    """Return the shares of training, validation and test, as parse_and_normalize_split of Megatron-Core has them."""
    stated = [float(number) for number in re.findall(r"[.0-9]+", split)]
    weights: list[float] = _normalized([*stated, *[0.0] * (len(PARTS) - len(stated))])
    return weights


def _normalized(weights: Sequence[float]) -> list[float]:
    """Return weights that sum to 1, by numpy's division: the last bit decides which corpus comes next."""
    given = np.array(weights, np.float64)
    normalized: list[float] = (given / np.sum(given)).tolist()
    return normalized


def part_of(corpus: Corpus, split: str, part: int) -> tuple[int, int]:
    """Return the first document of a part (0, 1, 2: PARTS) and the one behind its last: its share of all documents,
    rounded, as _build_megatron_dataset_splits of Megatron-Core cuts them. Nothing: two equal numbers."""
    ends = [0.0, *itertools.accumulate(split_weights(split))]
    if ends[part + 1] <= ends[part]:
        return 0, 0
    count = float(corpus.lengths.size)
    return round(ends[part] * count), round(ends[part + 1] * count)


@dataclass(frozen=True)
class Part:
    """The samples of a part of one corpus in the order in which they are read. epochs: how often its documents are
    gone through for as many samples as the run asks for; apart: the last of them is shuffled by itself. Both decide the
    order from the first sample on. order: documents; ends: their ends in the stream of tokens; samples: their numbers
    in the stream."""

    corpus: Corpus
    seq_length: int
    epochs: int
    apart: bool
    order: NDArray[np.int32]
    ends: NDArray[np.int64]
    samples: NDArray[np.uint32]

    def sample(self, at: int) -> NDArray[np.int32]:
        """Return sample `at`: seq_length tokens and the one that follows them."""
        start = int(self.samples[at]) * self.seq_length
        first, last = np.searchsorted(self.ends, (start, start + self.seq_length), side="right")
        documents = self.order[first : last + 1]
        places = zip(self.corpus.offsets[documents], self.corpus.lengths[documents], strict=True)
        ids = self.corpus.ids()
        parts = [ids[offset : offset + length] for offset, length in places]
        skipped = start - int(self.ends[first] - self.corpus.lengths[self.order[first]])
        tokens: NDArray[Any] = np.concatenate(parts)[skipped : skipped + self.seq_length + 1]
        return tokens.astype(np.int32)


def read_part(corpus: Corpus, reading: Reading, part: int, wanted: int) -> Part:
    """Return a part of `corpus` in the order of a run that asks for `wanted` samples of it, as
    `_build_document_sample_shuffle_indices` in megatron/core/datasets/gpt_dataset.py: numpy guarantees RandomState.
    Raises Refused: the part has no documents, or is shorter than one sequence."""
    begin, end = part_of(corpus, reading.split, part)
    tokens, length = int(corpus.lengths[begin:end].sum(dtype=np.int64)), reading.seq_length
    _check_part(corpus, reading, part, end - begin, tokens)
    epochs = max(1, -(-(wanted * length + 1) // tokens))
    before, total = ((epochs - 1) * tokens - 1) // length, (epochs * tokens - 1) // length
    apart = epochs > 1 and wanted - before < int(0.80 * ((tokens - 1) // length))
    draw = np.random.RandomState(reading.seed)
    order: NDArray[np.int32] = np.concatenate(
        [_shuffled(np.tile(np.arange(begin, end, dtype=np.int32), n), draw) for n in _epochs(epochs, apart)]
    )
    cuts = (0, before, total) if apart else (0, total)
    numbers = np.concatenate([_shuffled(np.arange(a, b, dtype=np.uint32), draw) for a, b in itertools.pairwise(cuts)])
    ends = np.cumsum(corpus.lengths[order], dtype=np.int64)
    return Part(corpus, length, epochs, apart, order, ends, numbers)


def _epochs(epochs: int, apart: bool) -> tuple[int, ...]:
    """Return how many epochs are shuffled together, one number a shuffle."""
    return (epochs - 1, 1) if apart else (epochs,)


def _shuffled(numbers: NDArray[Any], draw: np.random.RandomState) -> NDArray[Any]:
    draw.shuffle(numbers)
    return numbers


def _check_part(corpus: Corpus, reading: Reading, part: int, documents: int, tokens: int) -> None:
    what, attempt = f"{PARTS[part]} part of split {reading.split}", "data.split= with a larger share of it"
    if not documents:
        here = f"0 of {corpus.lengths.size:,} documents"
        raise Refused.of(
            corpus.prefix, f"has nothing in the {what}: stacks would look for it for ever", here, "", attempt
        )
    if tokens <= reading.seq_length:
        where = "" if reading.split == ALL_TRAINS else f" in the {what}"
        here, allowed = f"{tokens:,} tokens", f"at least {reading.seq_length + 1:,}"
        attempt = f"training.seq_length={max(1, tokens - 1)} or less, or a larger corpus"
        raise Refused.of(
            corpus.prefix, f"is shorter than a sequence of {reading.seq_length:,}{where}", here, allowed, attempt
        )


@dataclass(frozen=True)
class Mixture:
    """A part of all corpora of a data path, in the order of a run. weights: None of one corpus; size: its samples."""

    parts: tuple[Part, ...]
    weights: tuple[float, ...] | None
    size: int

    def places(self) -> Iterator[tuple[int, int]]:
        """Yield the corpus and the number of its sample of each sample of the run: each time that corpus which is
        furthest behind its weight (build_blending_indices in megatron/core/datasets/helpers.cpp)."""
        if self.weights is None:
            yield from ((0, at) for at in range(self.size))
            return
        drawn = [0] * len(self.weights)
        for at in range(self.size):
            behind = [weight * max(float(at), 1.0) - count for weight, count in zip(self.weights, drawn, strict=True)]
            chosen = behind.index(max(behind))
            yield chosen, drawn[chosen]
            drawn[chosen] += 1

    def batches(self, size: int) -> Iterator[NDArray[np.int32]]:
        """Yield the batches [size, seq_length + 1] that every stack reads, from the first on."""
        places = self.places()
        while batch := list(itertools.islice(places, size)):
            yield np.stack([self.parts[corpus].sample(at) for corpus, at in batch])


def mix(path: str, reading: Reading, part: int = 0) -> Mixture:
    """Return the training (0) or validation (1) part of the corpora at `path` in the order of a run.
    Raises Refused: a corpus is missing, damaged, too short for its part, or would be drawn from more often than built.
    """
    named, wanted = members(path), (reading.samples, reading.validated)[part]
    corpora = [open_corpus(member.prefix) for member in named]
    if named[0].weight is None:
        return Mixture((read_part(corpora[0], reading, part, wanted),), None, wanted)
    weights = _normalized([member.weight or 0.0 for member in named])
    drawn = [math.ceil(wanted * weight) for weight in weights]
    built = [math.ceil(n * (1 + _SURPLUS)) for n in drawn]
    parts = [read_part(corpus, reading, part, n) for corpus, n in zip(corpora, built, strict=True)]
    mixture = Mixture(tuple(parts), tuple(_normalized(weights)), sum(drawn))
    _check_drawn(mixture)
    return mixture


def _check_drawn(mixture: Mixture) -> None:
    """Refuse a blend that asks one of its corpora for more samples than are built of it: the stacks would raise."""
    if mixture.size > _COUNTED:
        return
    counts = np.bincount([corpus for corpus, _ in mixture.places()], minlength=len(mixture.parts))
    for part, count in zip(mixture.parts, counts.tolist(), strict=True):
        if count > part.samples.size:
            what, attempt = (
                "is drawn from more often than the stacks build samples of it",
                "another weight, or more iterations",
            )
            raise Refused.of(part.corpus.prefix, what, f"{count:,}", f"{part.samples.size:,}", attempt)


def check_reading(path: str, reading: Reading) -> None:
    """Refuse corpora of which a part that the split names cannot be read: mix() says why."""
    shares = split_weights(reading.split)
    for part in (part for part, share in enumerate(shares) if share > 0):
        if part < 2:
            mix(path, reading, part)
            continue
        for corpus in (open_corpus(member.prefix) for member in members(path)):
            begin, end = part_of(corpus, reading.split, part)
            if begin == end:
                _check_part(corpus, reading, part, 0, 0)


def batches(path: str, reading: Reading, part: int = 0) -> Iterator[NDArray[np.int32]]:
    """Yield the global batches [global_batch_size, seq_length + 1] that every stack will see, from the first on. Micro-
    batch j of data parallel rank r has the samples from (j * DP + r) * micro_batch_size on. part: 1 for those that it
    validates on, of all its validations one after another. Raises Refused, as mix() does."""
    return mix(path, reading, part).batches(reading.global_batch_size)


def batch_of(dataset: Any, indices: Iterable[int]) -> NDArray[np.int64]:
    """Return those samples [samples, seq_length + 1] of Megatron's own dataset: a label is the next token."""
    items = [dataset[index] for index in indices]
    return np.stack([np.append(item["tokens"].numpy(), item["labels"][-1:].numpy()) for item in items])


def fingerprint(batch: NDArray[Any]) -> str:
    """Return the sha256 of a global batch of token ids, in the order of its samples, as little endian int32."""
    return hashlib.sha256(np.ascontiguousarray(batch, "<i4").tobytes()).hexdigest()


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(2**24):
            digest.update(part)
    return digest.hexdigest()
