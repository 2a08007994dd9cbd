"""Ways to train, out of runs: the repeats of one experiment on one kind of GPU, as pooled figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from metrics.peak import device_of
from metrics.quantity import Quantity
from metrics.repeats import pooled
from metrics.summary import summarise
from parsers.find import Run
from parsers.record import Record

_NOT_A_DIFFERENCE = "seed"


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
            members.setdefault(_key(run.record), []).append(run.record)
    found = [_option(records) for records in members.values()]
    labels = [option.label for option in found]
    return tuple(
        option if labels.count(option.label) == 1 else _numbered(option, labels[: i + 1].count(option.label))
        for i, option in enumerate(found)
    )


def _key(record: Record) -> tuple[str, ...]:
    asked = record.requested or {name: reading.value for name, reading in record.effective.items()}
    facts = (record.provenance, record.platform, record.hardware, record.framework, record.image)
    settings = (f"{name}={value!r}" for name, value in sorted(asked.items()) if name != _NOT_A_DIFFERENCE)
    return (*map(repr, facts), *settings)


def _option(records: Sequence[Record]) -> Option:
    first, device = records[0], device_of(records[0])
    figures = [summarise(record) for record in records]
    gpus = first.setting("world_size")
    known = gpus if type(gpus) is int and gpus > 0 else None
    hardware = device.name if device else first.hardware
    place = f"{hardware or 'unknown GPU'} ×{known or '?'}"
    return Option(
        label=f"{first.name} {place}" + (" (estimated)" if first.provenance == "estimated" else ""),
        runs=len(records),
        hardware=hardware,
        gpus=known,
        devices_per_package=device.devices_per_package if device else 1,
        tokens_per_s_per_gpu=_pooled(figures, "tokens_per_s_per_gpu", "tokens/s/GPU"),
        power_w_per_gpu=_pooled(figures, "power_w_per_gpu", "W/GPU"),
    )


def _pooled(figures: Sequence[dict[str, Quantity]], name: str, unit: str) -> Quantity:
    """An estimate may lack a metric altogether."""
    return pooled([found.get(name, Quantity(None, unit, "assumed", note=f"no {name}")) for found in figures])


def _numbered(option: Option, number: int) -> Option:
    return replace(option, label=f"{option.label} ({number})")
