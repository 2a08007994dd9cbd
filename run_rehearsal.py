"""What is special about the record of a rehearsal: when it has passed, what it must not say, one that never began."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from conf.errors import Problem
from conf.parameters import per_stage
from conf.resolve import Experiment
from launchers import rehearse
from parsers import Ending, Outcome, Record, marks

LIMIT_S = {"train": 900.0, "layout": 1800.0}
"""Of a whole rehearsal. A toy takes a minute; two ranks of a large model some minutes each."""
_SPEEDS: dict[str, Any] = dict.fromkeys(
    ("step_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "memory_bytes", "memory_kind", "end_monotonic_s")
)
_SPEED_WORDS = ("mfu", "tflops", "tokens_per", "memory", "elapsed", "throughput", "samples_per")
_SPEED_UNITS = ("_s", "_ms", "_mb", "_gb", "_bytes", "_w")


def outcome(e: Experiment, judged: Outcome, ending: Ending, log: Path) -> Outcome:
    """`judged` as it counts for a rehearsal: one that ends in any way but by itself has not passed; playing ranks has
    no steps, and has passed when each rank came to its first one."""
    if judged.status == "completed" and ending.exit_code != 0:
        return Outcome("failed", judged.notes[0] if judged.notes else f"exit code {ending.exit_code}", judged.notes)
    if e.rehearse != "layout":
        return judged
    wanted, seen = set(rehearse.played(e)), set(_played(log))
    if ending.exit_code == 0 and wanted <= seen:
        return Outcome("completed")
    if judged.status == "failed" and judged.cause and ending.exit_code == 0:
        rank = min(wanted - seen)
        return Outcome("failed", f"rank {rank} of {e.layout.world_size} did not come to a first step: {judged.cause}")
    return judged


def _played(log: Path) -> Iterator[int]:
    """The ranks that came to their first step, by their own marks."""
    with log.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            rank = (marks.read_settings("rehearsed", line) or {}).get("rank")
            if type(rank) is int:
                yield rank


def without_speeds(record: Record) -> Record:
    """`record` without the numbers that a rehearsal has and that mean nothing: times, rates, memory."""
    steps = tuple(
        replace(step, **_SPEEDS, metrics={k: v for k, v in step.metrics.items() if not _is_speed(k)})
        for step in record.steps
    )
    return replace(record, steps=steps)


def _is_speed(name: str) -> bool:
    return name.endswith(_SPEED_UNITS) or any(word in name for word in _SPEED_WORDS)


def against_count(record: Record, e: Experiment) -> Record:
    """`record`, failed where the parameters that were built are not the model's by our own count, or where a rank that
    was played for their sake tells of none."""
    wrong = list(_miscounted(record, e))
    if not wrong or record.status != "completed":
        return replace(record, notes=(*record.notes, *wrong))
    return replace(record, status="failed", cause=wrong[0], notes=(*record.notes, *wrong[1:]))


def _miscounted(record: Record, e: Experiment) -> Iterator[str]:
    if e.rehearse == "layout":
        found = record.environment.get("parameters_by_rank", {})
        for rank, held in rehearse.parameters(e).items():
            if str(rank) not in found:
                yield f"rank {rank} left no word of its parameters: {held.total:,} by our own count"
            elif found[str(rank)] != held.total:
                yield f"rank {rank} holds {found[str(rank)]:,} parameters, and {held.total:,} by our own count"
        return
    built, ours = record.environment.get("parameters"), per_stage(e.model, 1, 1)[0].total
    if built is not None and built != ours:
        yield f"the model has {built:,} parameters, and {ours:,} by our own count"


def refused(about: Record, problems: Iterable[Problem]) -> Record:
    """The record of a rehearsal that could not begin."""
    first, *others = dict.fromkeys(problems)
    texts = [" ".join(str(problem).split()) for problem in (first, *others)]
    return replace(about, status="failed", cause=texts[0], notes=(*about.notes, *texts[1:]), ended_at=about.started_at)
