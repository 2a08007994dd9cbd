"""Ways to train, out of runs: the repeats of one experiment on one kind of GPU, as pooled figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from conf.resolve import SHORT_SIZES
from metrics.basis import count
from metrics.peak import device_of
from metrics.quantity import Quantity
from metrics.repeats import FACTS, SEED, asked, experiment_key, pooled
from metrics.summary import summarise
from parsers.record import Record, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """gpus: devices that the runs used. A package may be two devices; prices and power prices are of packages.
    energy_j_per_token: of the GPUs alone. It is pooled by itself, for speed and power of a run depend on each other."""

    label: str
    runs: int
    hardware: str | None
    gpus: int | None
    devices_per_package: int
    tokens_per_s_per_gpu: Quantity
    power_w_per_gpu: Quantity
    energy_j_per_token: Quantity


def options(runs: Sequence[Run]) -> tuple[Option, ...]:
    """One option for each set of repeats that completed, in the order of their first runs. A rehearsal is none."""
    members: dict[tuple[str, ...], list[Record]] = {}
    for run in runs:
        if run.record.status == "completed" and run.record.provenance != "rehearsed":
            members.setdefault(experiment_key(run.record), []).append(run.record)
    found = [_option(records) for records in members.values()]
    firsts = [records[0] for records in members.values()]
    labels = [option.label for option in found]
    alike = [[one for one, label in zip(firsts, labels, strict=True) if label == mine] for mine in labels]
    return tuple(map(_told_apart, found, firsts, alike))


def _told_apart(option: Option, first: Record, alike: Sequence[Record]) -> Option:
    """With the first things that the options of one label were asked to do differently, as many as tell all apart."""
    if len(alike) == 1:
        return option
    names = sorted({name for record in alike for name in asked(record)} - {*SHORT_SIZES, SEED})
    columns = {
        **{short: [asked(record).get(name) for record in alike] for name, short in SHORT_SIZES.items()},
        **{f"{name}=": [getattr(record, name) for record in alike] for name in FACTS},
        **{f"{name}=": [asked(record).get(name) for record in alike] for name in names},
    }
    cells = [
        [f"{name}{value}" for value in values] for name, values in columns.items() if len(set(map(repr, values))) > 1
    ]
    rows = list(zip(*cells, strict=True))
    enough = next((n for n in range(1, len(cells)) if len({row[:n] for row in rows}) == len(rows)), len(cells))
    mine = next(place for place, record in enumerate(alike) if record is first)
    return replace(option, label=f"{option.label} ({' '.join(rows[mine][:enough])})")


def _option(records: Sequence[Record]) -> Option:
    first, device = records[0], device_of(records[0])
    hardware = device.name if device else first.hardware
    place = f"{hardware or 'unknown GPU'} ×{count(first, 'world_size') or '?'}"
    label = f"{first.name} {place}" + (" (estimated)" if first.provenance == "estimated" else "")
    return option_of(label, records, [summarise(record) for record in records])


def option_of(label: str, records: Sequence[Record], figures: Sequence[Mapping[str, Quantity]]) -> Option:
    """The option that repeats of one experiment make. figures: `summarise` of each."""
    first, device = records[0], device_of(records[0])
    speed = _pooled(figures, "tokens_per_s_per_gpu", "tokens/s/GPU")
    power = _pooled(figures, "power_w_per_gpu", "W/GPU")
    energy = _pooled(figures, "energy_j_per_token", "J/token")
    if energy.value is None:  # as in an estimate, which tells a speed alone
        energy = speed.under(1.0, "J/token").times(power.value, "J/token", power.source, power.note)
    return Option(
        label=label,
        runs=len(records),
        hardware=device.name if device else first.hardware,
        gpus=count(first, "world_size"),
        devices_per_package=device.devices_per_package if device else 1,
        tokens_per_s_per_gpu=speed,
        power_w_per_gpu=power,
        energy_j_per_token=energy,
    )


def _pooled(figures: Sequence[Mapping[str, Quantity]], name: str, unit: str) -> Quantity:
    """An estimate may lack a metric altogether."""
    return pooled([found.get(name, Quantity(None, unit, "assumed", note=f"no {name}")) for found in figures])
