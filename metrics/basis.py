"""What every metric of a run is made of, worked out once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from conf.schema import Hardware
from metrics.pace import Pace, pace
from metrics.peak import device_of, precision_of
from metrics.quantity import Quantity
from metrics.shape import Facts, ShapeOrMissing, facts_of, shape_from
from parsers.record import Record


@dataclass(frozen=True, slots=True)
class Basis:
    """device: what the run ran on, precision: what it multiplied in; None where unknown. memory: the largest figure
    of each kind that the steps tell (allocated, max_memory_reserved_bytes …), in bytes."""

    record: Record
    pace: Pace
    facts: Facts
    shape: ShapeOrMissing
    device: Hardware | None
    precision: str | None
    memory: Mapping[str, float]


Metric = Callable[[Basis], Quantity]
Metrics = Mapping[str, Metric]


def basis(record: Record) -> Basis:
    """Of a record."""
    facts = facts_of(record)
    device, precision = device_of(record), precision_of(facts)
    return Basis(record, pace(record), facts, shape_from(facts), device, precision, _memory(record))


def _memory(record: Record) -> Mapping[str, float]:
    """Of a rehearsal none: it runs at toy size, on the wrong machine."""
    peaks: dict[str, float] = {}
    told: dict[str, list[float]] = {}
    if record.provenance == "rehearsed":
        return peaks
    for step in record.steps:
        if step.memory_bytes is not None:
            told.setdefault(step.memory_kind or "", []).append(step.memory_bytes)
        if step.metrics:
            for name, value in step.metrics.items():
                if "memory" in name:
                    peaks[name] = max(peaks.get(name, 0.0), value)
    return {**{kind: max(0, *values) for kind, values in told.items()}, **peaks}


def count(record: Record, setting: str) -> int | None:
    """A setting that was read back as a positive whole number, else None."""
    value = record.setting(setting)
    return value if type(value) is int and value > 0 else None
