"""Runs of Llama 3.1 8B made by hand, with speeds that are easy to follow."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from conf.load import model_named
from conf.vocabulary import requested, vocabulary
from parsers import Reading, Record, Step, write

ROOT = Path(__file__).parents[2]
SEQ, BATCH, GPUS = 8192, 128, 8
FLOPS = 5.1470e10
"""FLOPs of Llama 3.1 8B for a token of 8,192, as Megatron counts."""
TRAINING: Mapping[str, Any] = {
    "seq_length": SEQ,
    "global_batch_size": BATCH,
    "world_size": GPUS,
    "seed": 1,
    "params_dtype": "bfloat16",
    "fp8": None,
    "recompute_granularity": None,
}


def settings(name: str = "llama31_8b", **other: Any) -> dict[str, Any]:
    """Return the requested settings of such a run, by canonical name."""
    return {**requested(SimpleNamespace(model=model_named(name)), partial=True), **TRAINING, **other}


def made(tokens_per_s_per_gpu: float = 10_000, steps: int = 12, **known: Any) -> Record:
    """Return a completed run of 8 MI355X whose log reports everything, at an even speed."""
    stated = known.pop("settings", settings())
    effective = {k: Reading(v, 1) for k, v in stated.items() if k not in vocabulary() or vocabulary()[k].dump}
    seconds = BATCH * SEQ / GPUS / tokens_per_s_per_gpu
    made_ = Record(
        id="a",
        name="llama31_8b-amd",
        provenance="measured",
        status="completed",
        hardware="mi355x",
        requested=stated,
        effective=effective,
        steps=tuple(Step(step=i, line=i + 1, iteration=i + 1, step_time_s=seconds) for i in range(steps)),
    )
    return replace(made_, **known)


def repeats(folder: Path, hardware: str, *speeds: float, **known: Any) -> None:
    """Write runs of one experiment on `hardware` below `folder`, one for each speed."""
    for seed, speed in enumerate(speeds):
        record = made(speed, hardware=hardware, name=f"llama31_8b-{hardware}", settings=settings(seed=seed), **known)
        write(replace(record, id=f"{hardware}-{seed}"), folder / hardware / str(seed))
