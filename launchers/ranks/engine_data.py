"""Synthetic training data that can be learned: every sample is a function of the seed and its global index alone.

No files, no tokenizer and no state, so any layout and any rank can compute the samples it needs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_SYMBOLS = 256  # few, so that even a large vocabulary is learned within tens of steps
_STRIDE = 7
_NOISE_PERCENT = 20


@dataclass(frozen=True, slots=True)
class SyntheticData:
    """Noisy walks: the next token is the last one plus a fixed stride, but for every fifth, which is random."""

    vocab_size: int
    seq_length: int
    micro_batch_size: int
    global_batch_size: int
    seed: int

    def samples(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Tokens [len(indices), seq_length + 1] of the samples with these global indices."""
        length = self.seq_length + 1
        key = _mix(np.array([self.seed], np.uint64))
        sample = _mix(key ^ indices.astype(np.uint64)[:, None])
        draws = _mix(sample + np.arange(1, length + 1, dtype=np.uint64))
        symbols = min(self.vocab_size, _SYMBOLS)
        walk = (sample % np.uint64(symbols)).astype(np.int64) + _STRIDE * np.arange(length)
        noisy = draws % np.uint64(100) < _NOISE_PERCENT
        random = (draws >> np.uint64(32)).astype(np.int64)
        # spread over the vocabulary: every tensor parallel rank gets its share of the embedding rows to look up
        return np.where(noisy, random, walk) % symbols * (self.vocab_size // symbols)

    def rank_batches(self, step: int, data_rank: int, data_size: int) -> NDArray[np.int64]:
        """Tokens [micro-batches, micro_batch_size, seq_length + 1] of one data parallel rank in step 0, 1, ...

        Micro-batch j of rank r holds samples (j * data_size + r) * micro_batch_size onwards, so the samples of a step,
        and their split into micro-batches, are the same in every layout.
        """
        first = step * self.global_batch_size
        order = np.arange(first, first + self.global_batch_size).reshape(-1, data_size, self.micro_batch_size)
        mine = order[:, data_rank]
        return self.samples(mine.ravel()).reshape(*mine.shape, self.seq_length + 1)


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The splitmix64 finaliser (https://prng.di.unimi.it/splitmix64.c): counter in, 64 random bits out."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
