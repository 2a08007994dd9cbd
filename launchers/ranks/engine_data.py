"""Read what the engine trains on: Megatron-Core's own GPTDataset over an indexed corpus, or its own mock data.

The corpus exists before the engine starts (corpus.py makes it). All of it trains; only one epoch is read.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from corpus_order import fingerprint
from engine_settings import Settings
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig, MockGPTDataset
from numpy.typing import NDArray


class TokenData:
    """The samples of a run, in the order of Megatron's loader `single`, which every layout and every stack shares."""

    def __init__(self, settings: Settings) -> None:
        """Build the dataset; every rank must."""
        self.micro_batch_size, self.global_batch_size = settings.micro_batch_size, settings.global_batch_size
        self.name, self.dataset = settings.data, _dataset(settings)

    def rank_batches(self, step: int, data_rank: int, data_size: int) -> NDArray[np.int64]:
        """Return tokens [micro-batches, micro_batch_size, seq_length + 1] of one data parallel rank in step 0, 1, ...
        Micro-batch j of rank r has samples (j * data_size + r) * micro_batch_size onwards, so the samples of a step,
        and their split into micro-batches, are the same in every layout."""
        first = step * self.global_batch_size
        order = np.arange(first, first + self.global_batch_size).reshape(-1, data_size, self.micro_batch_size)
        return np.stack([[self._sample(index) for index in batch] for batch in order[:, data_rank].tolist()])

    def first_batch(self) -> str | None:
        """Return the fingerprint of the first global batch as this rank reads it; None of mock data, which no stack
        shares."""
        if self.dataset.config.mock:
            return None
        return fingerprint(np.stack([self._sample(index) for index in range(self.global_batch_size)]))

    def effective(self) -> dict[str, Any]:
        """Return the settings of the dataset that was built, under their canonical names."""
        config = self.dataset.config
        return {
            "data": "mock" if config.mock else self.name,
            "data_path": self.dataset.dataset_path,
            "split": config.split,
            "seed": config.random_seed,
            "vocab_size": config.tokenizer.eod + 1,
        }

    def _sample(self, index: int) -> NDArray[np.int64]:
        item = self.dataset[index]
        return np.append(item["tokens"].numpy(), item["labels"][-1:].numpy())  # a label is the next token


class _Tokenizer:
    """Be what GPTDataset needs of a tokenizer where the corpus is ids already."""

    def __init__(self, vocab_size: int) -> None:
        self.eod = vocab_size - 1
        self.unique_identifiers = {"class": "ids", "eod": self.eod}


def _dataset(s: Settings) -> Any:
    logging.getLogger(GPTDataset.__module__).setLevel(logging.ERROR)  # it warns that there is no cache: see below
    corpus = s.data_path is not None
    config = GPTDatasetConfig(
        random_seed=s.seed,
        sequence_length=s.seq_length,
        blend=([s.data_path], None) if corpus else None,
        split=s.split,
        # Empty, not None: every rank works the order out for itself, in milliseconds. A cache on disk is looked up by
        # the corpus' path, not its contents (gpt_dataset.py), and its ranks must share a file system.
        path_to_cache="",
        tokenizer=_Tokenizer(s.vocab_size),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    sizes = [s.train_iters * s.global_batch_size, 0, 0]
    kind = GPTDataset if corpus else MockGPTDataset
    return BlendedMegatronDatasetBuilder(kind, sizes, lambda: True, config).build()[0]
