"""Files of power samples: nvidia-smi, amd-smi and rocm-smi, NVML and our own jsonl, Zeus events, MLPerf power logs.

Found out from the content. A cell that holds no number is None: nothing is interpolated, and a sample without a clock
stays without one. What the sensor sees: a GPU (its own sensor), a board, or a node (a meter at the wall).
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from conf.errors import InputError, Problem
from parsers.record import Power, Sensor
from parsers.scan import read_blocks
from parsers.values import number

LARGEST = 256 << 20
LOOKS_FOR = (
    "nvidia-smi --query-gpu=…,power.draw --format=csv; amd-smi metric --csv or --json; rocm-smi text, --csv or --json; "
    'jsonl with "power_w"; Zeus events; MLPerf power_reading lines'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One reading of one device. clock: "monotonic", "unix", "local" (no time zone told), or None without a time.
    energy_j: the device's own counter."""

    device: str
    time_s: float | None = None
    clock: str | None = None
    power_w: float | None = None
    energy_j: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerLog:
    """A file of samples, in its order; or the windows that a tool summed up itself (Zeus). kind: gpu, board or node."""

    source: str
    kind: Sensor
    samples: tuple[Sample, ...] = ()
    windows: tuple[Power, ...] = ()
    notes: tuple[str, ...] = ()


def read_power(path: Path) -> PowerLog:
    """The samples in a file. InputError: unreadable, larger than 256 MB, or no such file."""
    data = bytearray()
    for block in read_blocks(path):
        data += block
        if len(data) > LARGEST:
            raise InputError(Problem(str(path), "is too large for power samples", allowed=f"{LARGEST >> 20} MB"))
    found = power_of(data.decode("utf-8", "replace"))
    if found is None:
        raise InputError(Problem(str(path), "holds no power samples that we know", allowed=LOOKS_FOR))
    return found


def power_of(text: str) -> PowerLog | None:
    """The samples in a text, None where no format is recognised. Total."""
    for read in (_json_lines, _mlperf, _tables, _json_whole, _rocm_text):
        found = read(text)
        if found is not None and (found.samples or found.windows):
            return found
    return None


def _json_lines(text: str) -> PowerLog | None:
    """NVML jsonl (a line a sample with a list of GPUs), ours (a line a GPU and sample), Zeus events."""
    if text.lstrip()[:1] != "{":
        return None
    entries = [entry for line in text.splitlines() if (entry := _object(line)) is not None]
    windows = tuple(window for entry in entries if (window := _zeus(entry)) is not None)
    if windows:
        return PowerLog(source="zeus", kind="gpu", windows=windows)
    samples: list[Sample] = []
    for entry in entries:
        gpus = entry.get("gpus")
        if isinstance(gpus, list):
            time_s, clock = _number(entry.get("timestamp")), "unix"
            samples += [_nvml(gpu, time_s, clock) for gpu in gpus if isinstance(gpu, dict)]
        elif "power_w" in entry:
            samples.append(_ours(entry))
    tools = {str(entry["tool"]) for entry in entries if "tool" in entry}
    source = ", ".join(sorted(tools)) or "nvml"
    return PowerLog(source=source, kind="gpu", samples=_if_any(samples))


def _if_any(samples: list[Sample]) -> tuple[Sample, ...]:
    """All of them, if one tells anything: one without a number marks that something was missed."""
    return tuple(samples) if any(s.power_w is not None or s.energy_j is not None for s in samples) else ()


def _nvml(gpu: Mapping[str, Any], time_s: float | None, clock: str) -> Sample:
    device = str(gpu.get("gpu_id", gpu.get("index", "?")))
    return Sample(
        device=device, time_s=time_s, clock=clock if time_s is not None else None, power_w=_number(gpu.get("power_w"))
    )


def _ours(entry: Mapping[str, Any]) -> Sample:
    monotonic, unix = _number(entry.get("monotonic_s")), _number(entry.get("time_unix_s"))
    clock = "monotonic" if monotonic is not None else "unix" if unix is not None else None
    return Sample(
        device=str(entry.get("device", "?")),
        time_s=unix if monotonic is None else monotonic,
        clock=clock,
        power_w=_number(entry.get("power_w")),
        energy_j=_number(entry.get("energy_j")),
    )


def _zeus(entry: Mapping[str, Any]) -> Power | None:
    """One interval that Zeus measured: its counters' sum over all of the job's GPUs; its steps count from 1."""
    if entry.get("event_type") != "interval":
        return None
    metrics: Any = entry.get("payload")
    for key in ("interval_metrics", "zeus"):
        metrics = metrics.get(key) if isinstance(metrics, dict) else None
    if not isinstance(metrics, dict) or _number(metrics.get("energy_j")) is None:
        return None
    first, last = metrics.get("step_start"), metrics.get("step_end")
    return Power(
        kind="gpu",
        source="zeus",
        seconds=_number(metrics.get("time_s")),
        energy_counter_j=_number(metrics.get("energy_j")),
        mean_power_w=_number(metrics.get("avg_power_w")),
        first_step=first - 1 if type(first) is int and first > 0 else None,
        last_step=last - 1 if type(last) is int and last > 0 else None,
    )


_MLLOG = re.compile(r":::MLLOG (\{.{1,4000})")


def _mlperf(text: str) -> PowerLog | None:
    """MLPerf: power_reading of a whole node in W, AC or DC side as it says."""
    if '"power_reading"' not in text:
        return None
    samples, notes = [], []
    for line in text.splitlines():
        found = _MLLOG.search(line)
        entry = _object(found[1]) if found else None
        if entry is None:
            continue
        told = entry.get("metadata")
        metadata: dict[str, Any] = told if isinstance(told, dict) else {}
        time_ms, value = _number(entry.get("time_ms")), _number(entry.get("value"))
        if entry.get("key") == "power_reading":
            time_s = None if time_ms is None else time_ms / 1000
            clock = None if time_s is None else "unix"
            samples.append(Sample(device=str(metadata.get("host", "node")), time_s=time_s, clock=clock, power_w=value))
        elif entry.get("key") == "conversion_eff":
            notes.append(f"conversion efficiency {value}, measured at {metadata.get('measurement_type', 'unknown')}")
    return PowerLog(source="mlperf", kind="node", samples=tuple(samples), notes=tuple(notes))


_Column = Callable[[Mapping[str, str]], Iterator[Sample]]


def _tables(text: str) -> PowerLog | None:
    """CSV with a header: nvidia-smi, amd-smi, rocm-smi."""
    header = next((line for line in text.splitlines()[:50] if "," in line and "ower" in line), None)
    if header is None:
        return None
    begin = text.index(header)
    rows = csv.reader(io.StringIO(text[begin:].replace("\0", ""), newline=""), skipinitialspace=True)
    try:
        names = [name.strip() for name in next(rows)]
        entries = [dict(zip(names, (cell.strip() for cell in row), strict=False)) for row in rows if len(row) > 1]
    except (csv.Error, StopIteration):
        return None
    plain = {name.split(" [")[0]: name for name in names}
    if "power.draw" in plain or "power.draw.average" in plain:
        return PowerLog(source="nvidia-smi", kind="gpu", samples=tuple(_nvidia(entries, plain)))
    if "socket_power" in names or "average_socket_power" in names:
        return PowerLog(source="amd-smi", kind="gpu", samples=tuple(_amd(entries)))
    package = next((name for name in names if "Package Power (W)" in name), None)
    if package is not None and "device" in names:
        cards = (Sample(device=_card(e.get("device", "?")), power_w=_cell(e.get(package))) for e in entries)
        return PowerLog(source="rocm-smi", kind="gpu", samples=tuple(cards))
    return None


def _nvidia(entries: Iterable[Mapping[str, str]], names: Mapping[str, str]) -> Iterator[Sample]:
    draw = names.get("power.draw", names.get("power.draw.average", ""))
    device = next((names[name] for name in ("index", "pci.bus_id", "uuid", "gpu_bus_id") if name in names), None)
    for entry in entries:
        time_s = _local(entry.get(names.get("timestamp", ""), ""))
        label = entry.get(device, "?") if device else "?"
        yield Sample(
            device=label, time_s=time_s, clock=None if time_s is None else "local", power_w=_cell(entry.get(draw))
        )


def _amd(entries: Iterable[Mapping[str, str]]) -> Iterator[Sample]:
    for entry in entries:
        time_s = _cell(entry.get("timestamp"))
        watts = _cell(entry.get("socket_power", entry.get("average_socket_power")))
        energy = _cell(entry.get("total_energy_consumption"))
        yield Sample(
            device=entry.get("gpu", "?"),
            time_s=time_s,
            clock=None if time_s is None else "unix",
            power_w=watts,
            energy_j=energy,
        )


def _json_whole(text: str) -> PowerLog | None:
    """amd-smi metric --json (a list of GPUs) and rocm-smi --json ({"card0": …})."""
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(whole, dict) and any(str(key).startswith("card") for key in whole):
        cards = [(key, card) for key, card in whole.items() if isinstance(card, dict)]
        samples = [Sample(device=_card(key), power_w=_package(card)) for key, card in cards]
        return PowerLog(source="rocm-smi", kind="gpu", samples=tuple(s for s in samples if s.power_w is not None))
    listed = whole.get("gpu_data") if isinstance(whole, dict) else whole
    if not isinstance(listed, list):
        return None
    gpus = [gpu for gpu in listed if isinstance(gpu, dict) and isinstance(gpu.get("power"), dict)]
    return PowerLog(source="amd-smi", kind="gpu", samples=tuple(_amd_json(gpu) for gpu in gpus))


def _amd_json(gpu: Mapping[str, Any]) -> Sample:
    watts, energy = gpu["power"].get("socket_power"), gpu.get("energy")
    total = energy.get("total_energy_consumption") if isinstance(energy, dict) else None
    return Sample(device=str(gpu.get("gpu", "?")), power_w=_valued(watts, "W"), energy_j=_valued(total, "J"))


def _valued(entry: Any, unit: str) -> float | None:
    """{"value": 288, "unit": "W"}, in this unit or not at all; or the bare number."""
    if isinstance(entry, dict):
        return _number(entry.get("value")) if entry.get("unit") == unit else None
    return _number(entry)


_PACKAGE = re.compile(r"GPU\[(\d{1,4})\]\s{0,8}: [\w ()]{0,60}Package Power \(W\): (\S{1,20})")


def _rocm_text(text: str) -> PowerLog | None:
    samples = (Sample(device=device, power_w=_cell(watts)) for device, watts in _PACKAGE.findall(text))
    return PowerLog(source="rocm-smi", kind="gpu", samples=tuple(samples))


def _package(card: Mapping[str, Any]) -> float | None:
    told = next((value for name, value in card.items() if "Package Power (W)" in str(name)), None)
    return _cell(told) if isinstance(told, str) else _number(told)


def _card(name: str) -> str:
    return name.removeprefix("card")


def _cell(text: str | None) -> float | None:
    """ "187.80 W", "288", "[N/A]"."""
    return number((text or "").removesuffix("W").strip())


def _local(text: str) -> float | None:
    """nvidia-smi's time stamp, of which zone it does not say: differences count, the origin does not."""
    for form in ("%Y/%m/%d %H:%M:%S.%f", "%Y/%m/%d %H:%M:%S"):
        try:
            return datetime.strptime(text.strip(), form).replace(tzinfo=timezone.utc).timestamp()
        except ValueError:
            continue
    return None


def _object(line: str) -> dict[str, Any] | None:
    try:
        entry, _ = json.JSONDecoder(parse_constant=lambda _: None).raw_decode(line.strip())
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None


def _number(value: Any) -> float | None:
    whole = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number(repr(value)) if whole and abs(value) < 1e18 else None
