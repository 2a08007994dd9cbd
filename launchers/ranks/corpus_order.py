"""Open and check a corpus as Megatron keeps it (P.bin, P.idx), and predict the order in which a run will see it.

The order is that of Megatron-Core's GPTDataset within one epoch and of the loader `single`, worked out without torch.
Corpora that several prefixes are blended of, and runs of several epochs, are not covered. Needs numpy alone."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rank_program import Refused

HEADER = b"MMIDIDX\0\0"
HEAD_BYTES = 34  # header, uint64 version, uint8 type, uint64 sequences, uint64 boundaries of documents
TYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}  # Megatron's codes; 6 and 7 are floats: no ids
HASHED_BYTES = 2**30  # a larger .bin has no hash in a record: a run must not wait minutes for it
_CHUNK = 2**24  # tokens read at a time
_SAMPLED = 64  # chunks that are read of a larger corpus


@dataclass(frozen=True)
class Reading:
    """How a run reads a corpus, all of which trains (split 100,0,0). samples: in the complete run."""

    seq_length: int
    global_batch_size: int
    samples: int
    seed: int


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


def check_ids(corpus: Corpus, vocab_size: int, least: int, most: int) -> None:
    if least < 0 or most >= vocab_size:
        what, allowed = "has ids that the model does not have", f"0 to {vocab_size - 1:,} (vocab_size {vocab_size:,})"
        attempt = "the model whose tokenizer made this corpus, or preprocess with this model's"
        raise Refused.of(f"{corpus.prefix}.bin", what, f"ids {least:,} to {most:,}", allowed, attempt)


def check_length(corpus: Corpus, reading: Reading) -> None:
    """Refuse a run that needs more samples than one epoch has: every stack would then shuffle over several
    epochs, and already its first batch would be another one."""
    tokens, length = corpus.tokens, reading.seq_length
    samples = max(0, tokens - 1) // length
    if samples == 0:
        here = f"{tokens:,} tokens"
        allowed, attempt = f"at least {length + 1:,}", f"training.seq_length={max(1, tokens - 1)} or less"
        raise Refused.of(corpus.prefix, f"is shorter than a sequence of {length:,}", here, allowed, attempt)
    if reading.samples > samples:
        what = f"a run of {reading.samples:,} samples of {length:,} tokens is more than one epoch"
        here = f"{samples:,} samples in {tokens:,} tokens"
        steps = samples // reading.global_batch_size
        attempt = f"training.train_iters={steps} or fewer" if steps else "a smaller batch, shorter sequences"
        raise Refused.of(corpus.prefix, what, here, f"at most {samples:,} samples", f"{attempt}, or a larger corpus")


def batches(corpus: Corpus, reading: Reading) -> Iterator[NDArray[np.int32]]:
    """Yield the global batches [global_batch_size, seq_length + 1] that every stack will see, from the first on. Micro-
    batch j of data parallel rank r has the samples from (j * DP + r) * micro_batch_size on. As
    `_build_document_sample_shuffle_indices` in megatron/core/datasets/gpt_dataset.py: numpy guarantees RandomState.
    Raises Refused: the run does not fit into one epoch."""
    check_length(corpus, reading)
    draw = np.random.RandomState(reading.seed)
    order = np.arange(corpus.lengths.size, dtype=np.int32)
    draw.shuffle(order)
    ends = np.cumsum(corpus.lengths[order], dtype=np.int64)
    samples = np.arange((int(ends[-1]) - 1) // reading.seq_length, dtype=np.uint32)
    draw.shuffle(samples)
    ids, offsets, lengths = corpus.ids(), corpus.offsets[order], corpus.lengths[order]

    def cut(start: int) -> NDArray[np.int32]:
        """Return a sample of the documents in their order, which ends with the first token of the next one."""
        first, last = np.searchsorted(ends, (start, start + reading.seq_length), side="right")
        used = slice(first, last + 1)
        parts = [ids[at : at + n] for at, n in zip(offsets[used], lengths[used], strict=True)]
        skipped = start - int(ends[first] - lengths[first])
        tokens: NDArray[Any] = np.concatenate(parts)[skipped : skipped + reading.seq_length + 1]
        return tokens.astype(np.int32)

    for at in range(0, reading.samples, reading.global_batch_size):
        numbers = samples[at : at + reading.global_batch_size]
        yield np.stack([cut(int(number) * reading.seq_length) for number in numbers])


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
