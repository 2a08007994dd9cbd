"""The lines that our own programs add to any framework's log, each `[tprimat] KIND {JSON}`:

facts       what the program read of its host, device and versions
effective   canonical setting to value, read from the built objects of the run: ahead of the log's own dump
requested   the same of the experiment, where a rendered bundle ran without us
configured  the same of objects that were built and not run: kept apart
step        of one step, "iteration" (from 1) or "step" (from 0): full precision, its own rate, a clock, memory
validation  "iteration" (from 1) it was made after, "loss": in full precision
rehearsed   "rank", "world": this process played that rank of a job, up to its first step
resumed     "iteration": so many were done where the run goes on from a checkpoint
stopped     "iteration": so many are done where the ranks have saved and end, as their batch system wants it"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from parsers.record import Step, Validation
from parsers.text import json_object
from parsers.values import real

LOOKS_FOR = "our own marks: '[tprimat] facts {…}', '[tprimat] step {…}'"
MARK = b"[tprimat] "
SETTINGS = ("effective", "configured", "requested")


def read(kind: str, text: str) -> Mapping[str, Any] | None:
    """Return what this line's mark of a kind says, such as facts or settings."""
    _, mark, rest = text.partition(f"[tprimat] {kind} ")
    return json_object(rest, constant=lambda _: None) if mark else None


def read_step(text: str) -> tuple[int, Mapping[str, Any]] | None:
    """Return the number of a step, from 0, and its fields in this line."""
    values = read("step", text) or {}
    for key, first in (("step", 0), ("iteration", 1)):
        if type(values.get(key)) is int and values[key] >= first:
            return values[key] - first, values
    return None


def read_resumed(text: str) -> int | None:
    """Return the iterations that were done where the run goes on from a checkpoint."""
    done = (read("resumed", text) or {}).get("iteration")
    return done if type(done) is int and done >= 0 else None


def read_validation(text: str, line: int) -> Validation | None:
    """Return the validation of a mark in this line, in full precision."""
    values = read("validation", text) or {}
    iteration, loss = values.get("iteration"), real(values.get("loss"))
    if type(iteration) is not int or iteration < 1 or loss is None:
        return None
    return Validation(line=line, step=iteration - 1, iteration=iteration, loss=loss)


def refine(step: Step, mark: Mapping[str, Any]) -> Step:
    """Return `step` with what `mark` says; a field that the mark lacks or holds in a wrong type stays as it was."""
    numbers = {name: real(mark.get(name)) for name in ("lr_used", "loss", "grad_norm", "end_monotonic_s")}
    known: dict[str, Any] = {name: value for name, value in numbers.items() if value is not None}
    if type(mark.get("memory_bytes")) is int and mark["memory_bytes"] >= 0 and isinstance(mark.get("memory_kind"), str):
        known.update(memory_bytes=mark["memory_bytes"], memory_kind=mark["memory_kind"])
    if mark.get("nonfinite") is True:
        gone = {name for name in ("loss", "grad_norm") if name in mark and mark[name] is None}
        known.update(dict.fromkeys(gone), nonfinite=tuple(sorted(gone | set(step.nonfinite))))
    return replace(step, **known)


def step_of(number: int, mark: Mapping[str, Any], line: int) -> Step:
    """Return the step that a mark reports on its own, where the framework's line is lost."""
    iteration = mark["iteration"] if type(mark.get("iteration")) is int else None
    return refine(Step(step=number, line=line, iteration=iteration), mark)
