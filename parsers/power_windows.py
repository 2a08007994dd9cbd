"""Power samples to energy over a window, two ways: the devices' own counters, and watts integrated over time.

Only time between two neighbouring readings counts: a cell without a number or a gap ends a stretch, and a window that
is not covered by stretches has no energy, only the mean power of what was seen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median

from msgspec import structs

from parsers.power import PowerLog, Sample, read_power
from parsers.record import Power, Record, Step

_GAP = 5.0
"""Two readings further apart than so many usual distances have a gap between them."""
_DISAGREE = 0.05


@dataclass(frozen=True, slots=True)
class DeviceEnergy:
    """One device in a window, from its first to its last reading there: seconds and joules, None where not covered."""

    device: str
    seconds: float
    counter_j: float | None
    integrated_j: float | None
    mean_power_w: float | None


def device_energies(
    samples: Iterable[Sample], start_s: float | None = None, end_s: float | None = None
) -> list[DeviceEnergy]:
    """Per device, over the readings with a time in the window (all of them where it is open)."""
    by_device: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        inside = sample.time_s is not None and (start_s is None or start_s <= sample.time_s)
        if inside and (end_s is None or (sample.time_s or 0.0) <= end_s):
            by_device[sample.device].append(sample)
    found = (_device(device, sorted(each, key=_time)) for device, each in sorted(by_device.items()))
    return [energy for energy in found if energy is not None]


def _device(device: str, samples: Sequence[Sample]) -> DeviceEnergy | None:
    distances = [_time(b) - _time(a) for a, b in pairwise(samples)]
    if not distances or samples[-1].time_s == samples[0].time_s:
        return None
    usual, seconds = median(distances), _time(samples[-1]) - _time(samples[0])
    joules, covered = 0.0, 0.0
    for (a, b), distance in zip(pairwise(samples), distances, strict=True):
        if a.power_w is not None and b.power_w is not None and distance <= _GAP * usual:
            joules += (a.power_w + b.power_w) / 2 * distance
            covered += distance
    whole = covered >= seconds * (1 - 1e-9)
    counter = _counted(samples)
    return DeviceEnergy(device, seconds, counter, joules if whole else None, joules / covered if covered else None)


def _counted(samples: Sequence[Sample]) -> float | None:
    """What the counter gained between the first and the last reading; None where it is missing there or went back."""
    counts = [sample.energy_j for sample in samples]
    first, last = counts[0], counts[-1]
    known = [count for count in counts if count is not None]
    rises = all(b >= a for a, b in pairwise(known))
    return last - first if first is not None and last is not None and rises else None


def window(log: PowerLog, start_s: float | None = None, end_s: float | None = None) -> Power | None:
    """All devices of a file together; None without two readings of one."""
    devices = device_energies(log.samples, start_s, end_s)
    if not devices:
        return None
    return Power(
        kind=log.kind,
        source=log.source,
        gpus=len(devices) if log.kind == "gpu" else None,
        seconds=sum(device.seconds for device in devices) / len(devices),
        energy_counter_j=_sum(device.counter_j for device in devices),
        energy_integrated_j=_sum(device.integrated_j for device in devices),
        mean_power_w=_sum(device.mean_power_w for device in devices),
    )


def over_steps(log: PowerLog, steps: Sequence[Step]) -> Power | None:
    """The window from the end of the first step to that of the last, where they have the samples' clock: the monotonic
    one of our own marks, or the world's (MLPerf's lines carry it). Hours without a time zone are no clock."""
    for clock, end_of in (("monotonic", _end_monotonic_s), ("unix", _end_unix_s)):
        ours = replace(log, samples=tuple(sample for sample in log.samples if sample.clock == clock))
        ends = [(step.step, end) for step in steps if (end := end_of(step)) is not None] if ours.samples else []
        if len(ends) < 2:
            continue
        (first, start_s), (last, end_s) = ends[0], ends[-1]
        found = window(ours, start_s, end_s)
        return None if found is None else structs.replace(found, first_step=first + 1, last_step=last)
    return None


def _end_monotonic_s(step: Step) -> float | None:
    return step.end_monotonic_s


def _end_unix_s(step: Step) -> float | None:
    return step.metrics.get("logged_at_unix_s")


def with_power(record: Record, path: Path, alone: bool = True) -> Record:
    """`record` with the energy in a file of samples: over its steps where the clocks are one, else over the whole file.
    alone: whether no other run can have drawn it; without a common clock it is then nobody's.

    InputError: no file of power samples.
    """
    log = read_power(path)
    aligned = over_steps(log, record.steps)
    if aligned is None and not alone:
        note = f"power: {log.source} and the steps have no common clock: which of the runs drew it is not told"
        return structs.replace(record, notes=(*record.notes, note))
    found = (*log.windows, *(one for one in (aligned or window(log),) if one is not None))
    return structs.replace(
        record, power=(*record.power, *found), notes=(*record.notes, *_notes(log, found, aligned is not None))
    )


def _notes(log: PowerLog, found: Sequence[Power], aligned: bool) -> Iterator[str]:
    yield from log.notes
    if log.samples and not found:
        yield f"power: {log.source} gives {len(log.samples)} samples and no time between two of them: no energy"
    if log.samples and found and not aligned:
        yield f"power: the samples of {log.source} and the steps have no common clock; the energy is of the whole file"
    for one in found:
        a, b = one.energy_counter_j, one.energy_integrated_j
        if a and b and abs(a - b) > _DISAGREE * max(a, b):
            yield f"power: counters say {a:.0f} J, integrated power {b:.0f} J ({b / a - 1:+.1%})"


def _sum(values: Iterable[float | None]) -> float | None:
    """None where one is missing: a sum over some of the devices would pass for that of all."""
    listed = list(values)
    return None if None in listed else sum(value for value in listed if value is not None)


def _time(sample: Sample) -> float:
    return sample.time_s if sample.time_s is not None else 0.0
