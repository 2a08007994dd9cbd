"""An estimate and a search as a page: bars of a step's parts, and the layouts that no other beats in speed, cost and
memory as a picture. One file without scripts, which opens anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

import numpy as np

from conf.errors import writing
from estimate.explained import Swing, sensitivities
from estimate.figures import Estimate, gpus_of
from estimate.jobs import GB, Jobs
from estimate.roofline import Bound, rooflines
from estimate.search import Found, Search
from metrics.bill import Terms, bill
from metrics.quantity import shown

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 60em; padding: 0 1em; color: #1c2733; }
h1 { font-size: 1.4em } h2 { font-size: 1.1em; margin-top: 2em } pre { overflow-x: auto; font-size: 12px }
svg text { font-size: 12px; fill: #1c2733 } .axis { stroke: #75828f } .bar { fill: #2f6fab } .soft { fill: #75828f }
.front { fill: #2f6fab; fill-opacity: .55; stroke: #1c2733 }
.of0 { fill: #2f6fab } .of1 { fill: #d9822b } .of2 { fill: #3a8f5c } .of3 { fill: #9b4f96 } .of4 { fill: #75828f }
"""
_ROW, _LEFT, _WIDE, _END = 22, 180, 420, 760  # of bars
_WIDTH, _HEIGHT, _EDGE = 760, 360, 80  # of the picture
_COLOURS = 5
_SMALLEST, _LARGEST = 4.0, 16.0  # radius of a layout that needs none and all of the memory


class _Point(NamedTuple):
    """A layout: tokens/s/GPU, money (or energy), memory in GB, the share of the GPU's memory, its name and whose it
    is."""

    speed: float
    money: float
    memory_gb: float
    share: float
    name: str
    label: str


def write_estimate(path: Path, result: Estimate, lines: Iterable[str]) -> None:
    """Write the page of one estimate. lines: its table, as the terminal has it. InputError: it cannot be written."""
    parts = result.time.parts.of(0)
    memory = result.memory.parts(0)
    e = result.experiment
    body = (
        _titled("The parts of a step", bars(parts, "s")),
        _titled("Memory of the fullest GPU", bars(memory, "GB", 1 / GB)),
        _titled("Roofline of the modules of a layer", roofline(result.jobs)),
        _titled(
            "Change of the step time where each is 10 % larger", swings(sensitivities(result.jobs, result.parameters))
        ),
        _titled("All figures", f"<pre>{escape(chr(10).join(lines))}</pre>"),
    )
    _write(path, f"{e.model.name} on {gpus_of(e)}, {e.layout} (estimated)", body)


def write_search(path: Path, result: Search, terms: Terms, lines: Iterable[str]) -> None:
    """Write the page of a search. InputError: it cannot be written."""
    best = result.best[0]
    body = (
        _titled("Not beaten in speed, cost and memory at once", picture(result.front, terms)),
        _titled(f"The parts of a step of the best, {best.estimate.experiment.layout}", bars(best.parts, "s")),
        _titled("All figures", f"<pre>{escape(chr(10).join(lines))}</pre>"),
    )
    labels = ", ".join(space.label for space in result.spaces)
    _write(path, f"{result.spaces[0].layouts.request.model.name} on {labels}: layouts (estimated)", body)


def bars(parts: Mapping[str, float], unit: str, scale: float = 1.0) -> str:
    """Return a bar for each part, the largest first, as SVG."""
    rows = sorted(((name, value) for name, value in parts.items() if value > 0), key=lambda row: -row[1])
    whole = sum(value for _, value in rows)
    drawn = []
    for at, (name, value) in enumerate(rows):
        y, length = at * _ROW, _WIDE * value / rows[0][1]
        text = f"{shown(value * scale, 3)} {unit}, {100 * value / whole:.1f} %"
        drawn.append(f'<text x="{_LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(name.replace("_", " "))}</text>')
        drawn.append(f'<rect class="bar" x="{_LEFT}" y="{y + 3}" width="{length:.1f}" height="{_ROW - 6}"/>')
        drawn.append(f'<text x="{_LEFT + length + 8:.1f}" y="{y + 15}">{escape(text)}</text>')
    return _svg(_END, _ROW * len(rows), drawn)


def swings(found: Sequence[Swing]) -> str:
    """Return a bar for each sensitivity as SVG: to the left the step is faster, to the right slower."""
    most = max((abs(one.change) for one in found), default=1.0)
    middle, drawn = _LEFT + _WIDE / 2, list[str]()
    for at, one in enumerate(found):
        y, length = at * _ROW, _WIDE / 2 * abs(one.change) / most
        left = middle - length if one.change < 0 else middle
        drawn.append(f'<text x="{_LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(one.name)}</text>')
        drawn.append(f'<rect class="bar" x="{left:.1f}" y="{y + 3}" width="{length:.1f}" height="{_ROW - 6}"/>')
        drawn.append(f'<text x="{_LEFT + _WIDE + 8}" y="{y + 15}">{100 * one.change:+.2f} %</text>')
    drawn.append(f'<path class="axis" d="M {middle} 0 V {_ROW * len(found)}"/>')
    return _svg(_END, _ROW * len(found), drawn)


def roofline(jobs: Jobs) -> str:
    """Return the modules of job 0 under what the data sheet allows, as SVG: FLOP for each byte against FLOP/s, both in
    powers of ten; the roof is the memory's rate on the left, the matrix units' peak on the right. FLOP/s are the most
    that a module can reach, not measured."""
    bounds = rooflines(jobs)
    reached = [bound.flop / bound.least_s for bound in bounds]
    peak, rate = (float(np.asarray(getattr(jobs, name)).reshape(-1)[0]) for name in ("peak_flops", "memory_bandwidth"))
    ends = [min(bound.intensity for bound in bounds) / 2, max(*(bound.intensity for bound in bounds), peak / rate) * 2]
    low, high = (float(np.log10(end)) for end in ends)
    top, bottom = float(np.log10(peak)) + 0.2, float(np.log10(min(reached))) - 0.2

    def at(intensity: float, flop_s: float) -> tuple[float, float]:
        across = (float(np.log10(intensity)) - low) / (high - low)
        down = (top - float(np.log10(flop_s))) / (top - bottom)
        return _EDGE + across * (_WIDTH - _EDGE - 150), 10 + down * (_HEIGHT - 50)

    roof = [at(ends[0], ends[0] * rate), at(peak / rate, peak), at(ends[1], peak)]
    line = " L ".join(f"{x:.1f} {y:.1f}" for x, y in roof)
    drawn = [
        f'<path class="axis" fill="none" d="M {_EDGE} 10 V {_HEIGHT - 40} H {_WIDTH - 150}"/>',
        f'<path class="axis" fill="none" d="M {line}"/>',
        f'<text x="{_WIDTH - 150}" y="{_HEIGHT - 4}" text-anchor="end">FLOP/byte, {shown(ends[0], 2)} to '
        f"{shown(ends[1], 2)}; the roof bends at {shown(peak / rate, 3)}</text>",
        f'<text x="{roof[1][0] - 8:.1f}" y="{roof[1][1]:.1f}" text-anchor="end">{shown(peak / 1e12, 4)} TFLOP/s</text>',
    ]
    for bound, flop_s in zip(bounds, reached, strict=True):
        x, y = at(bound.intensity, flop_s)
        about = f"{bound.module}: {shown(bound.intensity, 3)} FLOP/byte, at most {shown(flop_s / 1e12, 3)} TFLOP/s"
        drawn.append(f'<circle class="front" cx="{x:.1f}" cy="{y:.1f}" r="5"><title>{escape(about)}</title></circle>')
    return _svg(_WIDTH, _HEIGHT, drawn) + _legend(bounds)


def _legend(bounds: Sequence[Bound]) -> str:
    rows = (f"{one.module} {shown(one.intensity, 3)} FLOP/byte, {one.limit}" for one in bounds)
    return f"<p>{escape('; '.join(rows))}</p>"


def picture(front: Sequence[Found], terms: Terms) -> str:
    """Return the layouts as circles, as SVG: to the right is faster, down is cheaper, larger needs more memory; of
    several candidates each has a colour."""
    priced = all(bill(found.estimate.option, terms)["total"].value is not None for found in front)
    points = [_point(found, terms, "total" if priced else "energy_mwh") for found in front]
    unit = terms.prices.currency if priced else "MWh"
    colours = {label: f"of{n % _COLOURS}" for n, label in enumerate(dict.fromkeys(p.label for p in points))}
    xs, ys = _scale([p.speed for p in points], 1), _scale([p.money for p in points], -1)
    drawn = [
        f'<path class="axis" fill="none" d="M {_EDGE} 10 V {_HEIGHT - 40} H {_WIDTH - 10}"/>',
        f'<text x="{_WIDTH - 10}" y="{_HEIGHT - 4}" text-anchor="end">tokens/s/GPU; a larger circle needs more of the '
        f"GPU's memory</text>",
        f'<text class="soft" x="4" y="{_HEIGHT - 4}">{escape(unit)} for {terms.tokens:g} tokens</text>',
    ]
    for point, x, y in sorted(zip(points, xs, ys, strict=True), key=lambda row: -row[0].share):
        radius = _SMALLEST + (_LARGEST - _SMALLEST) * min(point.share, 1.0)
        about = (
            f"{point.name}: {shown(point.speed)} tokens/s/GPU, {shown(point.money)} {unit}, {point.memory_gb:.1f} GB"
        )
        circle = f'<circle class="front {colours[point.label]}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}">'
        drawn.append(f"{circle}<title>{escape(about)}</title></circle>")
    for one, at in ((min(points, key=lambda p: p.speed), "start"), (max(points, key=lambda p: p.speed), "end")):
        x = xs[points.index(one)]
        drawn.append(f'<text x="{x:.1f}" y="{_HEIGHT - 24}" text-anchor="{at}">{shown(one.speed)}</text>')
    for one in {min(points, key=lambda p: p.money), max(points, key=lambda p: p.money)}:
        drawn.append(
            f'<text x="{_EDGE - 6}" y="{ys[points.index(one)]:.1f}" text-anchor="end">{shown(one.money)}</text>'
        )
    for n, (label, colour) in enumerate(colours.items() if len(colours) > 1 else ()):
        drawn.append(f'<rect class="{colour}" x="{_EDGE + 8}" y="{12 + n * _ROW}" width="12" height="12"/>')
        drawn.append(f'<text x="{_EDGE + 26}" y="{22 + n * _ROW}">{escape(label)}</text>')
    return _svg(_WIDTH, _HEIGHT, drawn)


def _point(found: Found, terms: Terms, money: str) -> _Point:
    e, taken = found.estimate.experiment, float(found.space.memory_bytes[found.index])
    speed = found.estimate.figures["tokens_per_s_per_gpu"].value or 0.0
    name = f"{e.layout}, micro-batch {e.training.micro_batch_size}, {found.space.label}"
    cost = bill(found.estimate.option, terms)[money].value or 0.0
    return _Point(speed, cost, taken / GB, taken / found.space.room_bytes, name, found.space.label)


def _scale(values: Sequence[float], direction: int) -> list[float]:
    """Return places on an axis of which the least and the largest value are the ends; direction -1: from below up."""
    low, high = min(values), max(values)
    near, far = (_EDGE + 30, _WIDTH - 40) if direction > 0 else (_HEIGHT - 70, 40)
    return [near + (far - near) * ((value - low) / (high - low) if high > low else 0.5) for value in values]


def _svg(width: int, height: int, drawn: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {width} {height}" width="100%" role="img">{"".join(drawn)}</svg>'


def _titled(title: str, content: str) -> str:
    return f"<h2>{escape(title)}</h2>{content}"


def _write(path: Path, title: str, body: Sequence[str]) -> None:
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    with writing(path):
        path.write_text(f"{head}<h1>{escape(title)}</h1>{''.join(body)}</html>\n", encoding="utf-8")
