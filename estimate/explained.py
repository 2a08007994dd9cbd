"""A step taken apart, in words and bars: its parts, its memory, the roofline of each module, and what moves it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace as changed

from estimate.fitted import Parameters, shipped
from estimate.jobs import Jobs
from estimate.roofline import rooflines
from estimate.step_time import step_time
from metrics.quantity import shown

_BAR, _EIGHTHS = 40, " ▏▎▍▌▋▊▉"
_LEAST = 0.0005  # of the step; what moves it less is not listed
_CHANGE = 1.1
MACHINE: Mapping[str, str] = {
    "peak_flops": "peak of the matrix units",
    "memory_bandwidth": "memory bandwidth",
    "link_bandwidth": "links inside a node",
    "nic_bandwidth": "network",
}


class Swing(NamedTuple):
    """The change of a step time, as a share of it, where `name` is 10 % larger. about: its meaning, where its name does
    not say it."""

    name: str
    change: float
    about: str = ""


def sensitivities(jobs: Jobs, parameters: Parameters | None = None) -> tuple[Swing, ...]:
    """Return what moves the step time of job 0, the strongest first: rates of the machine and parameters of the fit, of
    those that only multiply each other the first."""
    known = parameters or shipped()
    usual = float(step_time(jobs, known).total[0])

    def change(of: Jobs, by: Parameters) -> float:
        return float(step_time(of, by).total[0]) / usual - 1

    swings = [Swing(about, change(_faster(jobs, name), known)) for name, about in MACHINE.items()]
    changes: dict[float, str] = {}
    for kind in known.kinds:
        changes.setdefault(round(change(jobs, _larger(known, kind)), 9), kind)
    swings += [Swing(kind.replace("_", " "), size, known.kinds[kind].about) for size, kind in changes.items()]
    return tuple(sorted((s for s in swings if abs(s.change) >= _LEAST), key=lambda s: -abs(s.change)))


def _larger(parameters: Parameters, kind: str) -> Parameters:
    """Return parameters with all of one kind 10 % larger."""
    kinds = {**parameters.kinds, kind: changed(parameters.kinds[kind], prior=parameters.kinds[kind].prior * _CHANGE)}
    own = (name for name in parameters.values if name.partition(".")[0] == kind)
    values = {name: changed(parameters.values[name], value=parameters.values[name].value * _CHANGE) for name in own}
    return changed(parameters, kinds=kinds, values={**parameters.values, **values})


def _faster(jobs: Jobs, name: str) -> Jobs:
    both = {name: getattr(jobs, name) * _CHANGE}
    if name == "peak_flops":
        both["peak_bf16_flops"] = jobs.peak_bf16_flops * _CHANGE
    return replace(jobs, **both)


def bars(parts: Mapping[str, float], unit: str, scale: float = 1.0) -> Iterator[str]:
    """Yield a line with a bar for each part, the largest first; parts below a thousandth of the whole together."""
    whole = sum(parts.values())
    small = sum(value for value in parts.values() if value < whole / 1000)
    large = {name: value for name, value in parts.items() if value >= whole / 1000}
    rows = sorted(large.items(), key=lambda row: -row[1]) + ([("all others", small)] if small > 0 else [])
    for name, value in rows:
        text = f"{shown(value * scale, 3)} {unit}"
        yield f"  {name.replace('_', ' '):<22}{bar(value / whole):<{_BAR}} {100 * value / whole:5.1f} %  {text}"


def bar(share: float) -> str:
    """Return a bar that is `share` of its room long, to an eighth of a letter."""
    eighths = round(max(0.0, min(1.0, share)) * _BAR * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def roofline_lines(jobs: Jobs) -> Iterator[str]:
    """Yield a line for each module of a layer: its work, and the least time that the data sheet allows."""
    peak, rate = (float(np.asarray(getattr(jobs, name)).reshape(-1)[0]) for name in ("peak_flops", "memory_bandwidth"))
    ridge = shown(peak / rate, 3)
    yield f"  one layer and micro-batch on one GPU, forward; above {ridge} FLOP/byte the matrix units bound it"
    for bound in rooflines(jobs):
        work = f"{shown(bound.flop / 1e9, 3)} GFLOP, {shown(bound.moved_bytes / 1e6, 3)} MB"
        rest = f"{shown(bound.intensity, 3)} FLOP/byte, {bound.limit}, at least {shown(bound.least_s * 1e6, 3)} µs"
        yield f"  {bound.module:<22}{work:<32}{rest}"


def swing_lines(swings: Sequence[Swing]) -> Iterator[str]:
    """Yield a line for each sensitivity."""
    yield "  change of the step time where each is 10 % larger"
    for swing in swings:
        yield f"  {swing.name:<28}{100 * swing.change:+6.2f} %  {swing.about}".rstrip()
