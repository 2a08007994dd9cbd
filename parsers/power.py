"""Power samples and the energy of a run: nvidia-smi, amd-smi, rocm-smi, NVML, our own jsonl, Zeus, MLPerf power logs.

The format follows from the content. A cell that holds no number is None: nothing is interpolated, and a sample without
a clock stays without one. What the sensor sees: a GPU (its own sensor), a board, or a node (a meter at the wall).

Energy is taken two ways: by the devices' own counters, and as watts integrated over time. Only time between two
neighbouring readings counts: a cell without a number or a gap ends a stretch, and a window that is not covered by
stretches has no energy, only the mean power of what was seen."""

from __future__ import annotations

import csv
import fnmatch
import io
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any

from msgspec import structs

from conf.errors import InputError, Problem
from parsers.record import Power, Record, Sensor, Step
from parsers.scan import read_blocks
from parsers.text import json_object
from parsers.values import number, real

LARGEST = 256 << 20
LOOKS_FOR = (
    "nvidia-smi --query-gpu=…,power.draw --format=csv; amd-smi metric --csv or --json; rocm-smi text, --csv or --json; "
    'jsonl with "power_w"; Zeus events; MLPerf power_reading lines'
)
_MLLOG = re.compile(r":::MLLOG (\{.{1,4000})")
_PACKAGE_POWER = "*Package Power (W)*"
_PACKAGE = re.compile(r"GPU\[(\d{1,4})\]\s{0,8}: [\w ()]{0,60}Package Power \(W\): (\S{1,20})")
_GAP = 5.0  # two readings further apart than so many usual distances have a gap between them
_DISAGREE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One reading of one device. clock: "monotonic", "unix", "local" (no time zone stated), or None without a time.
    energy_j: the device's own counter. clock_mhz: of its compute units; these two of our own jsonl alone."""

    device: str
    time_s: float | None = None
    clock: str | None = None
    power_w: float | None = None
    energy_j: float | None = None
    clock_mhz: float | None = None
    temperature_c: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerLog:
    """A file of samples, in its order; or the windows that a tool summed up itself (Zeus). kind: gpu, board or node."""

    source: str
    kind: Sensor = "gpu"
    samples: tuple[Sample, ...] = ()
    windows: tuple[Power, ...] = ()
    notes: tuple[str, ...] = ()


def read_power(path: Path) -> PowerLog:
    """Read the samples in a file. InputError: unreadable, larger than 256 MB, or no such file."""
    data = bytearray()
    for block in read_blocks(path):
        data += block
        if len(data) > LARGEST:
            raise InputError(Problem(str(path), "is too large for power samples", allowed=f"{LARGEST >> 20} MB"))
    log = power_of(data.decode("utf-8", "replace"))
    if log is None:
        raise InputError(Problem(str(path), "has no power samples in a format that we know", allowed=LOOKS_FOR))
    return log


def power_of(text: str) -> PowerLog | None:
    """Return the samples in a text, None where no format is recognised. No text makes it raise."""
    logs = (read(text) for read in (_json_lines, _mlperf, _tables, _json_document, _rocm_text))
    return next((log for log in logs if log is not None and (log.samples or log.windows)), None)


def _sample(device: Any, clock: str, time_s: float | None, power_w: Any, energy_j: Any = None) -> Sample:
    """Return a sample, without a clock where it has no time."""
    clocked = None if time_s is None else clock
    return Sample(device=str(device), time_s=time_s, clock=clocked, power_w=_value(power_w), energy_j=_value(energy_j))


def _json_lines(text: str) -> PowerLog | None:
    """Read NVML jsonl (a line a sample with a list of GPUs), ours (a line a GPU and sample), or Zeus events."""
    if text.lstrip()[:1] != "{":
        return None
    entries = [entry for line in text.splitlines() if (entry := _object(line)) is not None]
    windows = tuple(window for entry in entries if (window := _zeus(entry)) is not None)
    if windows:
        return PowerLog(source="zeus", windows=windows)
    samples = tuple(sample for entry in entries for sample in _of_line(entry))
    # One without a number marks that something was missed, but all without one report nothing.
    if all(sample.power_w is None and sample.energy_j is None for sample in samples):
        samples = ()
    tools = {str(entry["tool"]) for entry in entries if "tool" in entry}
    return PowerLog(source=", ".join(sorted(tools)) or "nvml", samples=samples)


def _of_line(entry: Mapping[str, Any]) -> Iterator[Sample]:
    if isinstance(entry.get("gpus"), list):
        for gpu in (gpu for gpu in entry["gpus"] if isinstance(gpu, dict)):
            device = gpu.get("gpu_id", gpu.get("index", "?"))
            yield _sample(device, "unix", _value(entry.get("timestamp")), gpu.get("power_w"))
    elif "power_w" in entry:
        monotonic = _value(entry.get("monotonic_s")) is not None
        clock, key = ("monotonic", "monotonic_s") if monotonic else ("unix", "time_unix_s")
        device, time_s = entry.get("device", "?"), _value(entry.get(key))
        sample = _sample(device, clock, time_s, entry.get("power_w"), entry.get("energy_j"))
        degrees = _value(entry.get("temperature_c"))
        yield replace(sample, clock_mhz=_value(entry.get("clock_mhz")), temperature_c=degrees)


def _zeus(entry: Mapping[str, Any]) -> Power | None:
    """Return one interval that Zeus measured: its counters' sum over all of the job's GPUs; its steps count from 1."""
    metrics: Any = entry.get("payload") if entry.get("event_type") == "interval" else None
    for key in ("interval_metrics", "zeus"):
        metrics = metrics.get(key) if isinstance(metrics, dict) else None
    if not isinstance(metrics, dict) or _value(metrics.get("energy_j")) is None:
        return None
    steps = [metrics.get(key) for key in ("step_start", "step_end")]
    first, last = (step - 1 if type(step) is int and step > 0 else None for step in steps)
    names = {"seconds": "time_s", "energy_counter_j": "energy_j", "mean_power_w": "avg_power_w"}
    values: dict[str, Any] = {ours: _value(metrics.get(name)) for ours, name in names.items()}
    return Power(kind="gpu", source="zeus", first_step=first, last_step=last, **values)


def _mlperf(text: str) -> PowerLog | None:
    """Read MLPerf's power_reading: of a node, in W, on the AC or DC side as it says."""
    if '"power_reading"' not in text:
        return None
    samples, notes = [], []
    for entry in filter(None, map(_object, _MLLOG.findall(text))):
        metadata = entry["metadata"] if isinstance(entry.get("metadata"), dict) else {}
        time_ms, value = _value(entry.get("time_ms")), _value(entry.get("value"))
        if entry.get("key") == "power_reading":
            time_s = None if time_ms is None else time_ms / 1000
            samples.append(_sample(metadata.get("host", "node"), "unix", time_s, value))
        elif entry.get("key") == "conversion_eff":
            notes.append(f"conversion efficiency {value}, measured at {metadata.get('measurement_type', 'unknown')}")
    return PowerLog(source="mlperf", kind="node", samples=tuple(samples), notes=tuple(notes))


# The columns of each tool's CSV, without units (power, device; of several the first that is there), and the clock of
# its time stamps.
_TABLES = {
    "nvidia-smi": (("power.draw", "power.draw.average"), ("index", "pci.bus_id", "uuid", "gpu_bus_id"), "local"),
    "amd-smi": (("socket_power", "average_socket_power"), ("gpu",), "unix"),
    "rocm-smi": ((_PACKAGE_POWER,), ("device",), ""),
}


def _tables(text: str) -> PowerLog | None:
    """Read CSV with a header: nvidia-smi, amd-smi, rocm-smi."""
    header = next((line for line in text.splitlines()[:50] if "," in line and "ower" in line), None)
    if header is None:
        return None
    rows = csv.reader(io.StringIO(text[text.index(header) :].replace("\0", ""), newline=""), skipinitialspace=True)
    try:
        names = [name.strip().split(" [")[0] for name in next(rows)]
        entries = [dict(zip(names, (cell.strip() for cell in row), strict=False)) for row in rows if len(row) > 1]
    except (csv.Error, StopIteration):
        return None
    for tool, (powers, devices, clock) in _TABLES.items():
        power = next((name for pattern in powers for name in fnmatch.filter(names, pattern)), None)
        device = next((name for name in devices if name in names), "")
        if power is not None and (device or clock):
            samples = (_row(entry, entry.get(device, "?"), entry.get(power), clock) for entry in entries)
            return PowerLog(source=tool, samples=tuple(samples))
    return None


def _row(entry: Mapping[str, str], device: str, watts: str | None, clock: str) -> Sample:
    stamp, joules = entry.get("timestamp", ""), entry.get("total_energy_consumption")
    time_s = None if not clock else _local(stamp) if clock == "local" else _value(stamp)
    return _sample(device.removeprefix("card"), clock, time_s, watts, joules)


def _json_document(text: str) -> PowerLog | None:
    """Read amd-smi metric --json (a list of GPUs) or rocm-smi --json ({"card0": …})."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(content, dict) and any(str(key).startswith("card") for key in content):
        cards = [(key, card) for key, card in content.items() if isinstance(card, dict)]
        powers = [(key, _value(card[name])) for key, card in cards for name in fnmatch.filter(card, _PACKAGE_POWER)[:1]]
        samples = [Sample(device=key.removeprefix("card"), power_w=power) for key, power in powers if power is not None]
        return PowerLog(source="rocm-smi", samples=tuple(samples))
    gpus = content.get("gpu_data") if isinstance(content, dict) else content
    if not isinstance(gpus, list):
        return None
    samples = [_amd_json(gpu) for gpu in gpus if isinstance(gpu, dict) and isinstance(gpu.get("power"), dict)]
    return PowerLog(source="amd-smi", samples=tuple(samples))


def _amd_json(gpu: Mapping[str, Any]) -> Sample:
    energy = gpu.get("energy")
    total = energy.get("total_energy_consumption") if isinstance(energy, dict) else None
    watts = _in_unit(gpu["power"].get("socket_power"), "W")
    return Sample(device=str(gpu.get("gpu", "?")), power_w=watts, energy_j=_in_unit(total, "J"))


def _in_unit(entry: Any, unit: str) -> float | None:
    """Read {"value": 288, "unit": "W"}, in this unit or not at all; or the bare number."""
    if isinstance(entry, dict):
        return _value(entry.get("value")) if entry.get("unit") == unit else None
    return _value(entry)


def _rocm_text(text: str) -> PowerLog | None:
    samples = (Sample(device=device, power_w=_value(watts)) for device, watts in _PACKAGE.findall(text))
    return PowerLog(source="rocm-smi", samples=tuple(samples))


def _local(text: str) -> float | None:
    """Read nvidia-smi's time stamp, which names no time zone: differences count, the origin does not."""
    for form in ("%Y/%m/%d %H:%M:%S.%f", "%Y/%m/%d %H:%M:%S"):
        try:
            return datetime.strptime(text.strip(), form).replace(tzinfo=timezone.utc).timestamp()
        except ValueError:
            continue
    return None


def _object(line: str) -> dict[str, Any] | None:
    return json_object(line, constant=lambda _: None)


def _value(cell: Any) -> float | None:
    """Read 288, or as text "187.80 W", "288", "[N/A]"."""
    return number(cell.removesuffix("W").strip()) if isinstance(cell, str) else real(cell)


def window(log: PowerLog, start_s: float = -math.inf, end_s: float = math.inf) -> Power | None:
    """Return the energy of all devices of a file together, over their readings with a time in the window; None without
    two readings of one."""
    by_device: dict[str, list[tuple[float, Sample]]] = defaultdict(list)
    for sample in log.samples:
        if sample.time_s is not None and start_s <= sample.time_s <= end_s:
            by_device[sample.device].append((sample.time_s, sample))
    readings = [sorted(each, key=itemgetter(0)) for _, each in sorted(by_device.items())]
    devices = [_device(log, each) for each in readings if each[0][0] < each[-1][0]]
    if not devices:
        return None
    seconds = sum(device.seconds or 0.0 for device in devices) / len(devices)
    names = ("energy_counter_j", "energy_integrated_j", "mean_power_w")
    columns = {name: [getattr(device, name) for device in devices] for name in names}
    # A sum over some of the devices would pass for that of all.
    sums = {name: None if None in values else sum(values) for name, values in columns.items()}
    return structs.replace(devices[0], gpus=len(devices) if log.kind == "gpu" else None, seconds=seconds, **sums)


def _device(log: PowerLog, readings: Sequence[tuple[float, Sample]]) -> Power:
    """Return the energy of one device from its first to its last reading, each with its time; None what is not
    covered."""
    usual, seconds = median(b - a for (a, _), (b, _) in pairwise(readings)), readings[-1][0] - readings[0][0]
    joules, covered = 0.0, 0.0
    for (start_s, a), (end_s, b) in pairwise(readings):
        if a.power_w is not None and b.power_w is not None and end_s - start_s <= _GAP * usual:
            joules += (a.power_w + b.power_w) / 2 * (end_s - start_s)
            covered += end_s - start_s
    # What the counter gained, unless its first or last reading is missing, or it went back.
    counts = [sample.energy_j for _, sample in readings]
    known = [count for count in counts if count is not None]
    complete = counts[0] is not None and counts[-1] is not None and known == sorted(known)
    counted = known[-1] - known[0] if complete else None
    return Power(
        kind=log.kind,
        source=log.source,
        seconds=seconds,
        energy_counter_j=counted,
        energy_integrated_j=joules if covered >= seconds * (1 - 1e-9) else None,
        mean_power_w=joules / covered if covered else None,
    )


def over_steps(log: PowerLog, steps: Sequence[Step]) -> Power | None:
    """Return the window from the end of the first step to that of the last, where they have the samples' clock: the
    monotonic one of our own marks, or the world's (MLPerf's lines carry it). Hours without a time zone are no clock."""
    clocks = {"monotonic": [step.end_monotonic_s for step in steps]}
    clocks["unix"] = [step.metrics.get("logged_at_unix_s") for step in steps]
    for clock, times in clocks.items():
        ours = replace(log, samples=tuple(sample for sample in log.samples if sample.clock == clock))
        ends = [(step.step, end) for step, end in zip(steps, times, strict=True) if end is not None]
        if ours.samples and len(ends) > 1:
            power = window(ours, ends[0][1], ends[-1][1])
            return power and structs.replace(power, first_step=ends[0][0] + 1, last_step=ends[-1][0])
    return None


def with_power(record: Record, path: Path, alone: bool = True) -> Record:
    """Return `record` with the energy in a file of samples: over its steps where the clocks are one, else over all of
    the file. alone: whether no other run can have drawn it; without a common clock it is then nobody's.

    InputError: no file of power samples."""
    log = read_power(path)
    aligned = over_steps(log, record.steps)
    if aligned is None and not alone:
        note = f"power: {log.source} and the steps have no common clock: which of the runs drew it is not known"
        return structs.replace(record, notes=(*record.notes, note))
    power = aligned or window(log)
    powers = log.windows if power is None else (*log.windows, power)
    notes = (*record.notes, *_notes(log, powers, aligned is not None))
    return structs.replace(record, power=(*record.power, *powers), notes=notes)


def _notes(log: PowerLog, powers: Sequence[Power], aligned: bool) -> Iterator[str]:
    yield from log.notes
    if log.samples and not powers:
        yield f"power: {log.source} gives {len(log.samples)} samples and no time between two of them: no energy"
    if log.samples and powers and not aligned:
        yield f"power: the samples of {log.source} and the steps have no common clock; the energy is of all of the file"
    for one in powers:
        a, b = one.energy_counter_j, one.energy_integrated_j
        if a and b and abs(a - b) > _DISAGREE * max(a, b):
            yield f"power: counters say {a:.0f} J, integrated power {b:.0f} J ({b / a - 1:+.1%})"
