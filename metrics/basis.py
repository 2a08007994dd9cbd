"""The facts that every metric of a run is derived from, computed once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain

from conf.schema import Hardware
from metrics.peak import device_of, precision_of
from metrics.quantity import Quantity
from metrics.shape import Facts, ShapeOrMissing, facts_of, shape_from
from metrics.step_times import StepTimes, step_times
from parsers.record import Record, columns


@dataclass(frozen=True, slots=True)
class Basis:
    """What the metrics of a run share. device: that it ran on; precision: of its matrix products; None where unknown.
    memory: the largest figure of each kind in the steps (allocated, max_memory_reserved_bytes …), in bytes."""

    record: Record
    times: StepTimes
    facts: Facts
    shape: ShapeOrMissing
    device: Hardware | None
    precision: str | None
    memory: Mapping[str, float]


Metric = Callable[[Basis], Quantity]
Metrics = Mapping[str, Metric]


def basis(record: Record) -> Basis:
    """Return the basis of a record's metrics."""
    facts = facts_of(record)
    device, precision = device_of(record), precision_of(facts)
    return Basis(record, step_times(record), facts, shape_from(facts), device, precision, _memory(record))


def _memory(record: Record) -> Mapping[str, float]:
    if record.provenance == "rehearsed":  # at toy size, on the wrong machine
        return {}
    sizes, kinds, metrics = columns(record.steps, "memory_bytes", "memory_kind", "metrics")
    sizes_by_kind: dict[str, list[float]] = {}
    for size, kind in zip(sizes, kinds, strict=True):
        if size:  # a build without the vendor's library prints 0
            sizes_by_kind.setdefault(kind or "", []).append(size)
    for name, value in chain.from_iterable(values.items() for values in metrics if values):
        if value and "memory" in name:
            sizes_by_kind.setdefault(name, []).append(value)
    return {kind: max(values) for kind, values in sizes_by_kind.items()}


def count(record: Record, setting: str) -> int | None:
    """Return a setting that was read back as a positive integer, else None."""
    value = record.setting(setting)
    return value if type(value) is int and value > 0 else None
