"""The metrics of a run. To add one: a function from Basis to Quantity, and its line in METRICS."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from metrics.pace import Pace, pace
from metrics.quantity import Quantity
from parsers.record import Record

_ENOUGH_FOR_P95 = 20


@dataclass(frozen=True, slots=True)
class Basis:
    """What every metric is made of."""

    record: Record
    pace: Pace


def summarise(record: Record) -> dict[str, Quantity]:
    """Every metric of METRICS; None where the record does not say enough.

    A record without steps (an estimate) keeps the summary that it came with.
    """
    if not record.steps and record.summary:
        return {name: Quantity.from_json(entry) for name, entry in record.summary.items()}
    basis = Basis(record, pace(record))
    return {name: metric(basis) for name, metric in METRICS.items()}


def summary_json(record: Record) -> dict[str, dict[str, Any]]:
    """`summarise`, as Record.summary keeps it."""
    return {name: quantity.to_json() for name, quantity in summarise(record).items()}


def _tokens_per_s(basis: Basis) -> Quantity:
    return Quantity.of(_rate(basis), "tokens/s", basis.pace.clock)


def _tokens_per_s_per_gpu(basis: Basis) -> Quantity:
    rate, gpus = _rate(basis), _count(basis.record, "world_size")
    value = None if rate is None or gpus is None else rate / gpus
    return Quantity.of(value, "tokens/s/GPU", basis.pace.clock)


def _rate(basis: Basis) -> float | None:
    """Tokens over the wall time between two step ends."""
    counted, length = basis.pace.counted, _count(basis.record, "seq_length")
    samples = [interval.samples for interval in counted]
    known = [count for count in samples if count is not None]
    if not counted or length is None or len(known) < len(samples):
        return None
    return sum(known) * length / sum(interval.seconds for interval in counted)


def _step_time_mean(basis: Basis) -> Quantity:
    counted = basis.pace.counted
    iterations = sum(interval.iterations for interval in counted)
    value = sum(interval.seconds for interval in counted) / iterations if iterations else None
    return Quantity.of(value, "s", basis.pace.clock)


def _step_time_median(basis: Basis) -> Quantity:
    times = _single_steps(basis)
    return Quantity.of(statistics.median(times) if times else None, "s", basis.pace.clock)


def _step_time_p95(basis: Basis) -> Quantity:
    times = _single_steps(basis)
    enough = len(times) >= _ENOUGH_FOR_P95
    value = statistics.quantiles(times, n=20, method="inclusive")[-1] if enough else None
    return Quantity.of(value, "s", basis.pace.clock)


def _step_time_stdev(basis: Basis) -> Quantity:
    times = _single_steps(basis)
    return Quantity.of(statistics.stdev(times) if len(times) >= 2 else None, "s", basis.pace.clock)


def _single_steps(basis: Basis) -> list[float]:
    """Times of single steps: none where a line prints the mean over several."""
    return [i.seconds for i in basis.pace.counted] if basis.pace.iterations_a_line == 1 else []


def _warmup_steps(basis: Basis) -> Quantity:
    dropped = basis.pace.intervals[: basis.pace.warmup.count]
    return Quantity.of(sum(i.iterations for i in dropped) if basis.pace.intervals else None, "steps", "computed")


def _counted_steps(basis: Basis) -> Quantity:
    return Quantity.of(sum(i.iterations for i in basis.pace.counted), "steps", "computed")


def _peak_memory(basis: Basis) -> Quantity:
    """The unit carries the kind (allocated, rss); kinds that are mixed give no number."""
    kinds = {step.memory_kind for step in basis.record.steps if step.memory_bytes is not None}
    sizes = [step.memory_bytes for step in basis.record.steps if step.memory_bytes is not None]
    kind = kinds.pop() if len(kinds) == 1 else None
    unit = "bytes" if kind is None else f"bytes ({kind})"
    return Quantity.of(max(sizes) if sizes and not kinds else None, unit, "measured")


def _loss_first(basis: Basis) -> Quantity:
    steps = basis.record.steps
    return Quantity.of(steps[0].loss if steps else None, "nats/token", "log")


def _loss_last(basis: Basis) -> Quantity:
    steps = basis.record.steps
    return Quantity.of(steps[-1].loss if steps else None, "nats/token", "log")


def _wall_time(basis: Basis) -> Quantity:
    return Quantity.of(basis.record.wall_time_s, "s", "measured")


def _count(record: Record, setting: str) -> int | None:
    value = record.setting(setting)
    return value if type(value) is int and value > 0 else None


METRICS: Mapping[str, Callable[[Basis], Quantity]] = {
    "tokens_per_s": _tokens_per_s,
    "tokens_per_s_per_gpu": _tokens_per_s_per_gpu,
    "step_time_mean_s": _step_time_mean,
    "step_time_median_s": _step_time_median,
    "step_time_p95_s": _step_time_p95,
    "step_time_stdev_s": _step_time_stdev,
    "warmup_steps": _warmup_steps,
    "counted_steps": _counted_steps,
    "peak_memory_bytes": _peak_memory,
    "loss_first": _loss_first,
    "loss_last": _loss_last,
    "wall_time_s": _wall_time,
}
