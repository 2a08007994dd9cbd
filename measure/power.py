"""Power of a machine: idle, bound by memory, by products (at parts of the time, too) and training, from samples of
the vendor's tool or from the processor's own counters. Pure, but for what a counter's folder says."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from statistics import fmean, median
from typing import Any

from conf.machine import Figure
from launchers import power
from measure.cases import Case, Scope
from parsers.power import Sample, read_power

RAPL = Path("/sys/class/powercap")
SETTLES_S = 1.0
"""Start of a phase, before the sensor's mean over time is of this phase alone."""
_SHARES = (0.25, 0.5, 0.75, 1.0)


def counter() -> Path | None:
    """Return the folder of the processor's energy counters, None where none can be read."""
    return RAPL if any(map(_readable, RAPL.glob("*rapl:?/energy_uj"))) else None


def zones(folder: Path) -> list[Path]:
    """Return the counters of the processors, without that of the whole platform (psys of a laptop), which has them in
    it."""
    return [zone for zone in sorted(folder.glob("*rapl:?")) if _text(zone / "name") != "psys"]


def _text(path: Path) -> str:
    return path.read_text(encoding="ascii").strip() if path.is_file() else ""


def _readable(path: Path) -> bool:
    try:
        return path.read_text(encoding="ascii").strip().isdigit()
    except OSError:
        return False


def counter_limit_w(folder: Path) -> float | None:
    """Return the processors' own sustained limit, W, all packages together; None where one states none."""
    limits = []
    for zone in zones(folder):
        path = zone / "constraint_0_power_limit_uw"
        if not _readable(path):
            return None
        limits.append(int(path.read_text(encoding="ascii")) / 1e6)
    return sum(limits) or None


def phases(scope: Scope, known: Sequence[Case]) -> list[dict[str, Any]]:
    """Return what is run for so many seconds each: a case of every rank at once, for a share of the time."""
    seconds = 15.0 if scope.full else 6.0
    all_ranks = [case for case in known if case["ranks"] == scope.ranks]
    dtype = "bfloat16" if scope.accelerator else "float32"
    own = [case for case in all_ranks if case["dtype"] == dtype]
    products = [case for case in own if case["kind"] == "gemm" and "layer" not in case]
    largest = max(products, key=lambda case: case["m"] * case["n"] * case["k"], default=None)
    triad = next((case for case in own if case["kind"] == "triad"), None)
    step = next((case for case in all_ranks if case["kind"] == "jitter"), None)
    found: list[dict[str, Any]] = [{"phase": "idle", "share": 0.0, "case": triad}]
    found += [{"phase": f"products {share:.0%}", "share": share, "case": largest} for share in _SHARES]
    found += [{"phase": "memory-bound", "share": 1.0, "case": triad}, {"phase": "training", "share": 1.0, "case": step}]
    return [{**one, "seconds": seconds} for one in found if one["case"]]


def figures(
    folder: Path, known: Sequence[Mapping[str, Any]], limit_w: float | None, ranks: int | None = None
) -> Iterator[Figure]:
    """Yield power of each phase that ran, its share of the limit (W of a device, or of all of a CPU), and the energy of
    a token. known: the phases; ranks: of the first node, whose power it is (default: all)."""
    samples = _of_working(_samples(folder), ranks)
    lines = [line for line in _lines(folder) if ranks is None or line.get("rank", 0) < ranks]
    if limit_w:
        yield Figure("power_limit", limit_w, "W", "the limit that is set, as its tool states it", {}, None, 1, 1)
    for one in known:
        own = [line for line in lines if line["phase"] == one["phase"]]
        yield from _of_clock(own, samples, {"phase": one["phase"]})
        watts = _watts(own, samples)
        if watts is None:
            continue
        of, count = {"phase": one["phase"]}, len(own)
        text = "joules of the processor's counters / s" if _counted(own) else "mean of samples after the first second"
        yield Figure("power", watts, "W", text, of, None, count, count)
        if limit_w:
            yield Figure("power_share", watts / limit_w, "1", "power / the limit that is set", of, None, count, count)
        if one["phase"] == "training":
            tokens = sum(line["calls"] for line in own) * one["case"]["batch"] * one["case"]["seq"]
            devices = 1 if _counted(own) else len({sample.device for sample in samples})
            seconds = max(line["end_s"] - line["begin_s"] for line in own)
            text = "power × devices × s / tokens of the standard model's steps, all devices"
            yield Figure(
                "energy_per_token", watts * devices * seconds / tokens, "J/token", text, of, None, count, count
            )


def _of_working(samples: Sequence[Sample], ranks: int | None) -> list[Sample]:
    """Return the samples of the devices that work: where more report than there are ranks, those that take the most."""
    watts: dict[str, list[float]] = {}
    for one in samples:
        if one.power_w is not None:
            watts.setdefault(one.device, []).append(one.power_w)
    most = sorted(watts, key=lambda device: -fmean(watts[device]))[:ranks]
    return [one for one in samples if one.device in most]


def _of_clock(
    own: Sequence[Mapping[str, Any]], samples: Sequence[Sample], of: Mapping[str, int | str]
) -> Iterator[Figure]:
    """Yield the slowest device's clock and the hottest one's temperature, where ranks could read them, else of the
    samples."""
    text = "median of readings ten times a second, of the slowest device"
    clocks = [line["clock_mhz"] for line in own if "clock_mhz" in line]
    degrees = [line["temperature_c"] for line in own if "clock_mhz" in line]
    if not clocks:
        text = "median of samples of the vendor's tool after the first second, of the slowest device"
        seen, by_device = _within(own, samples), defaultdict[str, list[float]](list)
        for one in seen:
            if one.clock_mhz is not None:
                by_device[one.device].append(one.clock_mhz)
        clocks = [median(each) for each in by_device.values()]
        degrees = [one.temperature_c for one in seen if one.temperature_c is not None]
    if clocks:
        yield Figure("clock", 1e6 * min(clocks), "Hz", text, of, None, len(clocks), len(clocks))
    if degrees:
        yield Figure("temperature", max(degrees), "°C", "most of such readings of all", of, None, 1, len(degrees))


def _within(own: Sequence[Mapping[str, Any]], samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples while all ranks did the work, but of its first second."""
    begin, end = max((one["begin_s"] for one in own), default=inf), min((one["end_s"] for one in own), default=-inf)
    return [one for one in samples if one.time_s is not None and begin + SETTLES_S <= one.time_s <= end]


def _counted(own: Sequence[Mapping[str, Any]]) -> bool:
    return any(line.get("joules") is not None for line in own)


def _watts(own: Sequence[Mapping[str, Any]], samples: Sequence[Sample]) -> float | None:
    if not own:
        return None
    for line in own:
        if line.get("joules") is not None:
            return float(line["joules"] / (line["end_s"] - line["begin_s"]))
    within = [one.power_w for one in _within(own, samples) if one.power_w is not None]
    return fmean(within) if within else None


def _lines(folder: Path) -> list[dict[str, Any]]:
    found = []
    for path in sorted(folder.glob("phases-*.jsonl")):
        for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                line = json.loads(text)
            except ValueError:  # cut by a kill
                continue
            if isinstance(line, dict) and {"phase", "begin_s", "end_s", "calls"} <= line.keys():
                found.append(line)
    return found


def done(folder: Path, known: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether every phase ran."""
    return {one["phase"] for one in known} <= {line["phase"] for line in _lines(folder)}


def _samples(folder: Path) -> tuple[Sample, ...]:
    path = folder / power.FILE
    if not path.is_file() or not path.stat().st_size:
        return ()
    return tuple(one for one in read_power(path).samples if one.clock == "monotonic")
