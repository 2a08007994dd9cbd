"""Small trainings of the embedded engine, run as a user would: what whole steps take that no kernel alone shows."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median, pstdev

from msgspec.structs import replace

import parsers
from conf.errors import some
from conf.machine import Machine, Training
from estimate import resident
from estimate.jobs import Column
from estimate.of_machine import learned, trained
from estimate.of_record import columns_of_record
from launchers.plan import Plan
from launchers.runner import Ending, execute
from parsers.storage import RUN_FILE

RUNS, WARM_UP, STEPS = "trainings", 3, 16
SEEDS = (1234, 1235, 1236)
"""Each training runs once with each, as time allows; the fastest counts, for others only slow a machine down."""
HANG_S = 300.0
LEAST = 4
"""Trainings of which something is learned."""
_AGAIN = tuple(f"training.recompute_{key}" for key in ("granularity=full", "method=uniform", "num_layers=1"))
_TINY, _MOE = ("model=llama_tiny",), ("model=moe_tiny",)
_WIDE = (
    *("model=llama_tiny", "model.num_layers=2", "model.hidden_size=512", "model.ffn_hidden_size=1376"),
    *("model.kv_channels=64", "model.vocab_size=8192", "model.max_position_embeddings=512"),
    *("training.seq_length=256", "training.global_batch_size=2"),
)
"""Its tensors take as much as the framework; by those of llama_tiny, a tenth of it, no share of tensors is learned."""


def _split(processes: int, **sizes: int) -> tuple[str, ...]:
    return (f"gpus_per_node={processes}", *(f"layout.{name}_parallel_size={size}" for name, size in sizes.items()))


def _batch(sequences: int, micro: int = 1) -> tuple[str, ...]:
    return (f"training.global_batch_size={sequences}", f"training.micro_batch_size={micro}")


_QUICK = (
    (*_TINY, *_split(1), *_batch(6, 2)),
    (*_WIDE, *_split(1)),
    (*_TINY, *_split(1), *_batch(6)),
    (*_TINY, *_split(2), *_batch(12)),
    (*_TINY, *_split(2, tensor_model=2), *_batch(6)),
    (*_TINY, *_split(2, pipeline_model=2), *_batch(6)),
    (*_MOE, *_split(1), *_batch(6)),
    (*_MOE, *_split(2, expert_model=2), *_batch(6)),
)
_FULL = (
    *_QUICK,
    (*_TINY, *_split(2, context=2), *_batch(6)),
    (*_WIDE, *_split(2)),
    (*_WIDE, *_split(2, tensor_model=2)),
    (*_TINY, *_split(4, tensor_model=2, pipeline_model=2), *_batch(6)),
    (*_TINY, *_split(4), *_batch(12)),
    (*_TINY, *_split(4, pipeline_model=4), *_batch(6)),
    (*_MOE, *_split(4, expert_model=4), *_batch(12)),
    (*_MOE, *_split(2, pipeline_model=2), *_batch(6, 2)),
    (*_TINY, *_split(1), *_batch(6), *_AGAIN),
    (*_TINY, *_split(2), *_batch(12, 2)),
    (*_TINY, *_split(2, tensor_model=2), *_batch(6, 2)),
    (*_MOE, *_split(1), *_batch(6, 2)),
    (*_WIDE, *_split(2, pipeline_model=2)),
)
_1B = (
    *("framework=megatron", "model=llama32_1b", "precision=bf16", "nodes=1", "layout=data_parallel"),
    "training.seq_length=4096",
)
_ON_GPUS = (
    (*_1B, *_split(1), *_batch(4)),
    (*_1B, *_split(1), *_batch(8, 2)),
    (*_1B, *_split(1), *_batch(8, 4)),
    (*_1B, *_split(1), *_batch(4), *_AGAIN),
    *(
        (*_1B, *_split(count, **layout), *_batch(2 * count))
        for count in (2, 4, 8)
        for layout in ({}, {"tensor_model": count}, {"pipeline_model": count})
    ),
    (*_1B, *_split(2, context=2), *_batch(4)),
)
"""Trainings on GPUs, of a model that keeps one busy."""


@dataclass(frozen=True, slots=True)
class Done:
    """A training that completed, its columns of Jobs, and the most resident memory of a process; None where no step
    says it."""

    training: Training
    columns: dict[str, Column]
    memory_bytes: float | None = None


def overrides(ranks: int, full: bool, accelerator: bool = False) -> list[tuple[str, ...]]:
    """Return the trainings of at most so many ranks."""
    known = _ON_GPUS if accelerator else _FULL if full else _QUICK
    return [run for run in known if any(f"gpus_per_node={count}" in run for count in range(1, ranks + 1))]


def run(
    folder: Path, runs: Sequence[tuple[str, ...]], ends: float, say: Callable[[str], None]
) -> tuple[Ending | None, str]:
    """Run trainings, those that are done excepted, all of them once, then again, until less is left before the
    monotonic time `ends` than the last one took, or somebody ends it. Return then how that one ended, and those that
    failed, in words."""
    failed, took_s = list[str](), 0.0
    for seed, (number, words) in product(SEEDS, enumerate(runs)):
        if time.monotonic() + took_s > ends:
            break
        say(f"measure: training {number + 1} of {len(runs)}, seed {seed}")
        argv = (sys.executable, "-m", "tensorprimat", "launch", *typed(folder, number, seed, words))
        plan = Plan(argv=argv, files={}, env={}, log=f"{RUNS}-{number:02}-{seed}.log")
        ending = execute(plan, folder, HANG_S, lambda line: True)
        took_s = ending.wall_time_s
        if ending.signal_sent:
            return ending, ""
        if ending.exit_code:
            failed.append(f"training {number + 1} failed with exit code {ending.exit_code}, {plan.log} says of what")
    return None, some(failed, between="; ")


def typed(folder: Path, number: int, seed: int, words: tuple[str, ...]) -> tuple[str, ...]:
    """Return what is typed for one training, which `launch` runs only where it is not done."""
    steps = (f"training.train_iters={WARM_UP + STEPS}", f"training.seed={seed}")
    where = () if words in _ON_GPUS else ("platform=cpu",)
    return (*words, *where, *steps, f"runs_dir={folder.resolve() / RUNS}", f"name={number:02}")


def done(folder: Path, runs: Sequence[tuple[str, ...]]) -> Iterator[Done]:
    """Yield the trainings that completed, each as its fastest run."""
    for number, words in enumerate(runs):
        if known := [*_completed(folder, number, words)]:
            yield min(known, key=lambda one: one.training.step_time_s)


def _completed(folder: Path, number: int, words: tuple[str, ...]) -> Iterator[Done]:
    for path in sorted((folder / RUNS / f"{number:02}").glob(f"*/{RUN_FILE}")):
        found = parsers.read(path.parent)
        seconds = [step.step_time_s for step in found.steps[WARM_UP:] if step.step_time_s]
        if found.status == "completed" and seconds:
            usual = median(seconds)
            training = Training(words, usual, len(seconds), pstdev(seconds) / usual)
            memory_bytes = max(step.memory_bytes or 0 for step in found.steps)
            yield Done(training, columns_of_record(found), memory_bytes or None)


def with_trainings(machine: Machine, every: Sequence[Done], expected: int, ended: str = "") -> Machine:
    """Return the machine with what its trainings say: factors by all, and what each is predicted as by the others.
    expected: how many were to complete; ended: what ended it before its time."""
    if len(every) < expected:
        why = ended or f"it takes more minutes, or {RUNS}/ says what failed"
        reason = f"{len(every)} of {expected} completed: {why}"
        machine = replace(machine, unknown={**machine.unknown, "trainings": reason})
    if len(every) < LEAST:
        unknown = {**machine.unknown, "factors": f"{len(every)} trainings completed, {LEAST} are needed"}
        return replace(machine, trainings=tuple(one.training for one in every), unknown=unknown)
    kept = resident.learned(machine, [(one.columns, one.memory_bytes) for one in every if one.memory_bytes])
    machine = replace(machine, figures=(*machine.figures, *kept))
    columns, times = [one.columns for one in every], [one.training.step_time_s for one in every]
    trainings = []
    for i, one in enumerate(every):
        others = learned(machine, columns[:i] + columns[i + 1 :], times[:i] + times[i + 1 :])
        trainings.append(replace(one.training, left_out_s=float(f"{trained(machine, one.columns, others):.4g}")))
    return replace(machine, trainings=tuple(trainings), factors=learned(machine, columns, times))
