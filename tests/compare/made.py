"""Records made by hand for these tests: plausible, and with numbers that are easy to follow."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

import compare
from conf.vocabulary import vocabulary
from metrics.bill import Terms
from parsers import Reading, Record, Step, differences, write

SCHEMA = json.loads(Path(compare.__file__).with_name("compare.schema.json").read_text(encoding="utf-8"))

SETTINGS: Mapping[str, Any] = {
    **dict.fromkeys(vocabulary(), 1),
    **dict(seq_length=100, global_batch_size=8, world_size=2, data_parallel_size=2, train_iters=12, lr=0.003),
    **dict(seed=1, params_dtype="float32", fp8=None, fp8_recipe=None, recompute_granularity=None),
    **dict(attention_backend="sdpa", layout="explicit"),
}
TP2 = {"tensor_model_parallel_size": 2, "data_parallel_size": 1, "num_micro_batches": 2}


def made(name: str, seconds: float = 2.0, over: Mapping[str, Any] | None = None, **known: Any) -> Record:
    """A completed run of 12 steps of `seconds` each; over: settings that stand over SETTINGS."""
    settings = {**SETTINGS, **(over or {})}
    steps = tuple(
        Step(
            step=i,
            line=i + 1,
            iteration=i + 1,
            loss=6.0 - 0.1 * i,
            step_time_s=seconds,
            consumed_samples=8 * (i + 1),
            end_monotonic_s=100 + seconds * i,
            memory_bytes=2_000_000_000,
            memory_kind="rss",
        )
        for i in range(12)
    )
    record = Record(
        id=name,
        name=name,
        provenance="measured",
        status="completed",
        framework="megatron",
        platform="cpu",
        hardware="cpu",
        requested=settings,
        effective={key: Reading(value, 3) for key, value in settings.items() if key != "layout"},
        environment={"host": "box", "device_name": "a processor"},
        steps=steps,
    )
    return replace(record, **known)


def ran(record: Record, **effective: Any) -> Record:
    """`record` as if its log reported other values than were requested; None of a name: the log does not report it."""
    expected = {**record.effective, **{name: Reading(value, 4) for name, value in effective.items()}}
    return replace(record, effective=expected, differences=differences(record.requested, expected))


def silent(record: Record, *names: str) -> Record:
    """`record` as if its log did not report these settings."""
    return replace(record, effective={k: v for k, v in record.effective.items() if k not in names})


def without(record: Record, *names: str) -> Record:
    """`record` as if these settings had not been requested."""
    return replace(record, requested={k: v for k, v in record.requested.items() if k not in names})


def compared(*records: Record, terms: Terms | None = None, **question: Any) -> compare.Comparison:
    """Their comparison; each run is in a directory of its own name, below its place among them."""
    runs = [compare.Run(f"{place}/{record.name}", record) for place, record in enumerate(records)]
    return compare.compare(runs, compare.Question(**question), terms)


def save(directory: Path, *records: Record) -> None:
    """Each in a directory of its own name."""
    for record in records:
        write(record, directory / record.name)


def repeats(name: str, times: tuple[float, ...], over: Mapping[str, Any] | None = None) -> list[Record]:
    """A group of runs that differ in seed and pace."""
    seeds = enumerate(times, start=1)
    return [made(f"{name}_{seed}", seconds, {**(over or {}), "seed": seed}) for seed, seconds in seeds]
