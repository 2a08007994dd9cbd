"""Which samples a step sees: the sum of a hash of each. Of what the model is given, where that is on the host; else of
what the training data's loader hands out there, in the same order."""

from __future__ import annotations

import functools
import os
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tprimat_after_import import after

if TYPE_CHECKING:
    from tprimat_probe import Probe

_REHEARSES = any(os.environ.get(name) for name in ("TPRIMAT_REHEARSE", "TPRIMAT_REHEARSED"))
STEPS_LOOKED_AT = 20 if _REHEARSES else 8
"""So many first steps are identified, and their losses read: all that a toy has (launchers/toy.py); few of a real
run's, whose time counts."""
MOST_HELD = 4096
"""Forward passes of one step. More come only where no optimizer's step is seen."""


def install(probe: Probe) -> None:
    """Tell the probe of each batch that a loader hands out, in the process that trains."""

    @after("torch.utils.data.dataloader")
    def loader(module: Any) -> None:
        kind = module._BaseDataLoaderIter
        step = kind.__next__

        def step_and_tell(this: Any) -> Any:
            batch = step(this)
            probe.guarded("on_batch", this, batch)
            return batch

        kind.__next__ = step_and_tell


class Tokens:
    """The samples of this rank, step by step. unknown: why the model's cannot be read. shape: of a micro-batch's
    tokens [samples, sequence]. first: the first sample's first ids."""

    def __init__(self) -> None:
        self.unknown: str | None = None
        self.shape: tuple[int, ...] | None = None
        self.first: list[int] | None = None
        self._held: list[Any] = []
        self._handed: deque[int] = deque()
        self._loader: Callable[[], Any] = lambda: None
        self._samples = self._steps = 0

    @property
    def looks(self) -> bool:
        """Whether batches are still looked at."""
        return self._steps < STEPS_LOOKED_AT

    def given(self, batch: Sequence[Any]) -> None:
        """To the model, in the forward passes of a step."""
        if batch and self.shape is None:
            self.shape, self.unknown = tuple(batch[0].shape), why_unknown(batch[0])
        self._samples = sum(tokens.shape[0] for tokens in batch)
        self._held = list(batch) if self.unknown is None and self.looks else []

    def handed(self, iterator: Any, batch: Any) -> None:
        """Out by a loader's iterator. Of several at a time the first is followed: Megatron-Bridge gives each virtual
        stage one of its own, with the same samples."""
        tokens = batch.get("tokens") if isinstance(batch, Mapping) else None
        if not self.looks or tokens is None or tokens.device.type != "cpu" or not is_training(iterator._dataset):
            return
        if self._loader() is None:  # none yet, or that of an epoch that is over
            self._loader = weakref.ref(iterator)
        if self._loader() is iterator:
            if self.first is None:
                self.first = tokens.reshape(-1)[:8].tolist()
            self._handed.extend(sample_hashes(tokens))

    def step(self) -> Callable[[], dict[str, int | None]]:
        """The end of a step. A function that tells the number of its samples and the sum of their hashes, None where
        not known."""
        samples, held = self._samples, self._held
        self._samples, self._held = 0, []
        self._steps += 1
        if self.first is None and held:
            self.first = held[0].reshape(-1)[:8].tolist()
        handed = [self._handed.popleft() for _ in range(min(samples, len(self._handed)))]
        if not self.looks:
            self._handed.clear()
        return functools.partial(_told, samples, held, handed)


def _told(samples: int, held: Sequence[Any], handed: Sequence[int]) -> dict[str, int | None]:
    """ValueError: the loader handed out others than the model saw."""
    hashes = sample_hashes(*held)
    if hashes and handed and hashes != handed:
        raise ValueError("the loader handed out other samples than the model saw")
    known = hashes or handed
    whole = samples > 0 and len(known) == samples
    return {"samples": samples or None, "tokens_checksum": sum(known) % 2**52 if whole else None}


def is_training(dataset: Any) -> bool:
    """Whether this is Megatron's training split, or a blend of such."""
    first = next(iter(getattr(dataset, "datasets", ())), dataset)
    return getattr(getattr(first, "index_split", None), "name", None) == "train"


def why_unknown(tokens: Any) -> str | None:
    """Why the samples that a model is given cannot be identified; None where they can."""
    if tokens.device.type != "cpu":
        return f"the model's are on {tokens.device.type}, which is not waited for"
    from megatron.core import parallel_state as groups

    if groups.is_initialized() and groups.get_context_parallel_world_size() > 1:
        return "context parallel ranks see parts of the samples"
    return None


def sample_hashes(*batches: Any) -> list[int]:
    """A 32-bit hash of each sample of tokens [samples, sequence], on the host: CRC-32 of its ids as little endian
    int64."""
    import numpy as np

    return [zlib.crc32(row) for tokens in batches for row in np.ascontiguousarray(tokens.detach().numpy(), "<i8")]
