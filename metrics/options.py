"""Ways to train, out of runs: the repeats of one experiment on one kind of GPU, as pooled figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from metrics.basis import count
from metrics.peak import device_of
from metrics.quantity import Quantity
from metrics.repeats import experiment_key, pooled
from metrics.summary import summarise
from parsers.find import Run
from parsers.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """gpus: devices that the runs used. A package may be two devices; prices and power prices are of packages."""

    label: str
    runs: int
    hardware: str | None
    gpus: int | None
    devices_per_package: int
    tokens_per_s_per_gpu: Quantity
    power_w_per_gpu: Quantity


def options(runs: Sequence[Run]) -> tuple[Option, ...]:
    """One option for each set of repeats that completed, in the order of their first runs. A rehearsal is none."""
    members: dict[tuple[str, ...], list[Record]] = {}
    for run in runs:
        if run.record.status == "completed" and run.record.provenance != "rehearsed":
            members.setdefault(experiment_key(run.record), []).append(run.record)
    found = [_option(records) for records in members.values()]
    labels = [option.label for option in found]
    return tuple(
        option if labels.count(option.label) == 1 else _numbered(option, labels[: i + 1].count(option.label))
        for i, option in enumerate(found)
    )


def _option(records: Sequence[Record]) -> Option:
    first, device = records[0], device_of(records[0])
    hardware = device.name if device else first.hardware
    place = f"{hardware or 'unknown GPU'} ×{count(first, 'world_size') or '?'}"
    label = f"{first.name} {place}" + (" (estimated)" if first.provenance == "estimated" else "")
    return option_of(label, records, [summarise(record) for record in records])


def option_of(label: str, records: Sequence[Record], figures: Sequence[Mapping[str, Quantity]]) -> Option:
    """The option that repeats of one experiment make. figures: `summarise` of each."""
    first, device = records[0], device_of(records[0])
    return Option(
        label=label,
        runs=len(records),
        hardware=device.name if device else first.hardware,
        gpus=count(first, "world_size"),
        devices_per_package=device.devices_per_package if device else 1,
        tokens_per_s_per_gpu=_pooled(figures, "tokens_per_s_per_gpu", "tokens/s/GPU"),
        power_w_per_gpu=_pooled(figures, "power_w_per_gpu", "W/GPU"),
    )


def _pooled(figures: Sequence[Mapping[str, Quantity]], name: str, unit: str) -> Quantity:
    """An estimate may lack a metric altogether."""
    return pooled([found.get(name, Quantity(None, unit, "assumed", note=f"no {name}")) for found in figures])


def _numbered(option: Option, number: int) -> Option:
    return replace(option, label=f"{option.label} ({number})")
