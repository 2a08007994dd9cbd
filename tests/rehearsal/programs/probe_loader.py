"""Test what the probe reports of tokens where the model's are not on the host: loaders of torch over data with and
without a split, and models' inputs on the host, or on a device whose memory cannot be read. Prints JSON."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset
from tprimat_probe import Tokens, checksum, install

probe = install(0.0)
TOKENS = torch.arange(64).reshape(8, 8)


class Data(Dataset):
    def __init__(self, split: str) -> None:
        self.index_split = SimpleNamespace(name=split)

    def __len__(self) -> int:
        return len(TOKENS)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"tokens": TOKENS[index]}


def steps(seen: Any, stages: int = 1) -> list[Any]:
    """Checksums of four steps of two samples; seen: what the model is given of a batch. stages: virtual ones, each with
    an iterator of its own."""
    Tokens.__init__(probe.tokens)  # the same object anew: the loaders know it
    probe.faults.clear()
    training, other = iter(DataLoader(Data("train"), batch_size=1)), DataLoader(Data("valid"), batch_size=2)
    reported = list[int | str | None]()
    ahead = next(training)  # a loader that is a batch ahead of the model
    others = [iter(DataLoader(Data("train"), batch_size=1)) for _ in range(stages - 1)]
    for _ in range(4):
        batches = []
        for _ in range(2):
            batch, ahead = ahead, next(training, None)
            batches.append(seen(batch["tokens"]))
        list(other)
        _ = [next(later) for later in others for _ in range(2)]
        try:
            reported.append(checksum(*probe.tokens.step(batches))["tokens_checksum"])
        except ValueError as error:
            reported.append(str(error))
    return reported


reported = {
    "host": steps(lambda tokens: tokens),
    "device": steps(lambda tokens: tokens.to("meta")),
    "virtual": steps(lambda tokens: tokens.to("meta"), stages=2),
    "other": steps(lambda tokens: tokens + 1),
}
assert not probe.faults, probe.faults
print(json.dumps(reported))
