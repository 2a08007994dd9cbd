"""The pictures of a report, in SVG: curves, ratios, figures a run, speed against price, scaling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from xml.etree.ElementTree import Element

from compare.comparison import Comparison
from compare.drawing import Axis, axis, canvas, cross, grid, line, look, marker, per_column, polyline, tick_text
from compare.html_markup import Child, h
from compare.report_blocks import Picture
from compare.report_series import Curves
from compare.report_words import titled
from compare.statistics import Ratio
from conf.errors import listed
from metrics import Quantity

_WIDTH, _HEIGHT = 520.0, 280.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 58.0, 506.0, 26.0, 236.0
_MARKED = 6  # points of a line that wear their group's shape


def curve_picture(curves: Curves, groups: int) -> Picture:
    """Every run's line, in the colour, dash and shape of its group; what was no number as a cross at the foot."""
    xs = [point[0] for series in curves.series for point in series.points if point]
    xs += [x for series in curves.series for x, _ in series.broken]
    ys = [point[1] for series in curves.series for point in series.points if point]
    x = axis(xs, _LEFT, _RIGHT)
    y = axis(ys, _BOTTOM, _TOP, curves.from_zero)
    parts: list[Child] = [grid(x, y, curves.x, curves.y)]
    for series in curves.series:
        drawn = list(per_column(series.points, x, y))
        name = h("title", f"{series.label}, {series.run}")
        parts.append(h("path", name, d=polyline(drawn), class_=f"curve {look(series.place)}"))
        parts += [marker(series.place, *at) for at in _marked(drawn, series.place, groups)]
    parts += [cross(x.at(where), _BOTTOM - 5, what) for series in curves.series for where, what in series.broken]
    return Picture(curves.title, canvas(_told(curves), _WIDTH, _HEIGHT, parts), _told(curves), _noted(curves))


def _marked(drawn: Sequence[tuple[float, float] | None], place: int, groups: int) -> list[tuple[float, float]]:
    """Each group marks other points, so that curves that lie on each other are all seen."""
    known = [point for point in drawn if point is not None]
    often = max(1, len(known) // _MARKED)
    return known[int(often * place / max(1, groups)) :: often]


def _told(curves: Curves) -> str:
    labels = listed(list(dict.fromkeys(series.label for series in curves.series)))
    nan = sum(len(series.broken) for series in curves.series)
    crosses = f" Crosses mark where the value is nan or inf: {nan}." if nan else ""
    return f"{curves.title}, {curves.y} against {curves.x}: {len(curves.series)} runs of {labels}.{crosses}"


def _noted(curves: Curves) -> tuple[str, ...]:
    nan = [series for series in curves.series if series.broken]
    notes = [curves.note] if curves.note else []
    if nan:
        count = sum(len(series.broken) for series in nan)
        steps = "1 step is" if count == 1 else f"{count} steps are"
        notes.append(f"× at the foot: {steps} nan or inf, in {listed([s.run for s in nan])}")
    text = "; ".join(notes)
    return (f"{text[:1].upper()}{text[1:]}.",) if notes else ()


def figure_picture(comparison: Comparison, metric: str, title: str, unit: str) -> Picture:
    """Every run a point, and each group's mean with its interval, from zero."""
    used = [(place, g) for place, g in enumerate(comparison.groups) if g.shown]
    found = {g.label: _known([comparison.run_figures[run.path][metric] for run in g.shown]) for _, g in used}
    ends = [end for _, g in used for end in comparison.group_figures[g.label][metric].interval or ()]
    height = _TOP + _ROW * len(used) + 44
    x = axis([*(value for values in found.values() for value in values), *ends], 14, _RIGHT - 16, from_zero=True)
    parts: list[Child] = [_foot(x, height - 40, unit)]
    for row, (place, group) in enumerate(used):
        y = _TOP + _ROW * row
        parts.append(h("text", titled(group), x=14, y=y, class_="label strong"))
        parts += [marker(place, x.at(value), y + 12) for value in found[group.label]]
        parts.append(_mean(comparison.group_figures[group.label][metric], x, y + 12, place))
        parts += [] if found[group.label] else [h("text", "unknown", x=14, y=y + 16, class_="tick")]
    told = f"{title} of every run, in {unit}, and each group's mean with its 95 % interval: the table has the numbers"
    return Picture(title, canvas(told, _WIDTH, height, parts), told, ("A shape is a run, a bar a 95 % interval.",))


_ROW = 40.0


def _known(found: Sequence[Quantity]) -> list[float]:
    return [float(q.value) for q in found if q.value is not None]


def _mean(pooled: Quantity, x: Axis, y: float, place: int) -> Element | None:
    if pooled.value is None or pooled.interval is None:
        return None
    low, high = (x.at(end) for end in pooled.interval)
    ends = [line(at, y - 6, at, y + 6, "whisker") for at in (low, high, x.at(pooled.value))]
    return h("g", line(low, y, high, y, "whisker"), ends, class_=look(place))


def _foot(x: Axis, y: float, label: str) -> Element:
    parts: list[Child] = [line(x.start, y, x.end, y, "axis")]
    for value in x.ticks():
        parts += [line(x.at(value), y, x.at(value), y + 4, "axis"), line(x.at(value), 12, x.at(value), y, "rule")]
        parts += [h("text", tick_text(value, x), x=x.at(value), y=y + 17, class_="tick middle")]
    return h("g", parts, h("text", label, x=x.end, y=y + 33, class_="label end"), aria_hidden="true")


_BAR, _BAR_HEIGHT = 170.0, 20.0
_FACTORS = (10.0, 5.0, 2.0, 1.25)  # whose inverses are short, too
_FINEST = 1.01


def ratio_axis(results: Sequence[Ratio]) -> Axis:
    """One for all bars of a table, of logarithms: half is as far from 1, in the middle, as double."""
    ends = [abs(math.log(value)) for result in results for value in (result.ratio, *(result.interval or ()))]
    most = 1.1 * max([*ends, math.log(_FINEST)])
    return Axis(-most, most, 4, _BAR - 4)


def ratio_bar(result: Ratio, x: Axis, of_interest: float) -> Element:
    """A ratio with its interval against 1 and the band of no interest around it. The row has the numbers."""
    middle = _BAR_HEIGHT / 2
    low, high = (min(max(x.at(math.log(1 + by)), x.start), x.end) for by in (-of_interest, of_interest))
    parts: list[Child] = [h("rect", x=low, y=0, width=high - low, height=_BAR_HEIGHT, class_="band")]
    parts.append(line(x.at(0), 0, x.at(0), _BAR_HEIGHT, "one"))
    if result.interval is not None:
        ends = [x.at(math.log(end)) for end in result.interval]
        parts.append(line(ends[0], middle, ends[1], middle, "whisker"))
        parts += [line(end, middle - 4, end, middle + 4, "whisker") for end in ends]
    parts.append(h("circle", cx=x.at(math.log(result.ratio)), cy=middle, r=3.4, class_="ratio"))
    return _small(parts, _BAR_HEIGHT)


def ratio_scale(x: Axis) -> Element:
    """The ticks above the bars: 1, and the widest round factor that fits."""
    factor = next((f for f in _FACTORS if math.log(f) < x.high), _FINEST)
    ticks = [(f"{value:g}", x.at(math.log(value))) for value in (1 / factor, 1.0, factor)]
    return _small([h("text", text, x=at, y=11, class_="tick middle") for text, at in ticks], 16)


def _small(parts: Sequence[Child], height: float) -> Element:
    return h("svg", parts, viewBox=f"0 0 {_BAR:g} {height:g}", width=_BAR, height=height, aria_hidden="true")


@dataclass(frozen=True, slots=True)
class _Spot:
    place: int
    label: str
    across: Quantity
    up: Quantity


def price_picture(comparison: Comparison, speed: str, cost: str, units: tuple[str, str]) -> Picture | None:
    """What tokens cost against how fast they are trained, and the line on which a group costs what the baseline
    does. None where no two groups have both, in one unit, or may not be compared."""
    spots = [
        _Spot(place, group.label, figures[speed], figures[cost])
        for place, group in enumerate(comparison.groups)
        if (figures := comparison.group_figures.get(group.label))
        and figures[speed].value is not None
        and figures[cost].value is not None
    ]
    even = next((spot.up.value for spot in spots if spot.label == comparison.baseline), None)
    alike = len(spots) > 1 and len({spot.up.unit for spot in spots}) == 1
    if not alike or even is None or comparison.audit.verdict.word != "comparable":
        return None
    x = axis([v for spot in spots for v in _ends(spot.across)], _LEFT, _RIGHT, from_zero=True)
    y = axis([v for spot in spots for v in _ends(spot.up)], _BOTTOM, _TOP, from_zero=True)
    parts: list[Child] = [grid(x, y, *units), _even(y.at(even), comparison.baseline, x)]
    parts += [_spot(spot, x, y) for spot in spots]
    told = f"{units[1]} against {units[0]} of {listed([s.label for s in spots])}: the tables have the numbers"
    caption = (
        "Right is faster, low is cheaper. The lines across a shape are its 95 % intervals. "
        f"Below the dashed line a token costs less than with {comparison.baseline}."
    )
    caption += " The prices are an example, not yours." if comparison.terms.prices.example else ""
    return Picture("Cost against speed", canvas(told, _WIDTH, _HEIGHT, parts), told, (caption,))


def _even(y: float, baseline: str, x: Axis) -> Element:
    text = h("text", f"break-even with {baseline}", x=x.start + 4, y=y + 14, class_="tick")
    return h("g", line(x.start, y, x.end, y, "even"), text, aria_hidden="true")


def _spot(spot: _Spot, x: Axis, y: Axis) -> Element:
    at_x, at_y = x.at(spot.across.value or 0), y.at(spot.up.value or 0)
    across, up = spot.across.interval, spot.up.interval
    spans = [line(x.at(across[0]), at_y, x.at(across[1]), at_y, "whisker")] if across else []
    spans += [line(at_x, y.at(up[0]), at_x, y.at(up[1]), "whisker")] if up else []
    return h("g", spans, marker(spot.place, at_x, at_y, spot.label, 5.5), class_=look(spot.place))


def _ends(quantity: Quantity) -> list[float]:
    return [float(v) for v in (quantity.value, *(quantity.interval or ())) if v is not None]


def scaling_picture(comparison: Comparison) -> Picture:
    """Tokens/s against GPUs, and the straight line from each family's smallest group on which speed grows as they."""
    places = {group.label: place for place, group in enumerate(comparison.groups)}
    found = [(s, comparison.group_figures[s.group]["tokens_per_s"]) for s in comparison.scaling]
    bases = {s.smallest: comparison.group_figures[s.smallest]["tokens_per_s"].value or 0.0 for s, _ in found}
    most = max(s.gpus for s, _ in found)
    gpus = tuple(sorted({float(s.gpus) for s, _ in found}))
    x = replace(axis(gpus, _LEFT, _RIGHT, from_zero=True), marks=(0.0, *gpus))
    linear = [bases[s.smallest] * most / s.smallest_gpus for s, _ in found]
    y = axis([*(end for _, q in found for end in _ends(q)), *linear], _BOTTOM, _TOP, from_zero=True)
    parts: list[Child] = [grid(x, y, "GPUs", "tokens/s")]
    for label, fewest in {s.smallest: s.smallest_gpus for s, _ in found}.items():
        far = y.at(bases[label] * most / fewest)
        ends = line(x.at(0), y.at(0), x.at(most), far, f"linear {look(places[label])}")
        parts.append(ends)
    for scaled, rate in found:
        across = Quantity(scaled.gpus, "GPUs", "computed")
        parts.append(_spot(_Spot(places[scaled.group], scaled.group, across, rate), x, y))
    told = "Tokens/s against GPUs of every group, and dashed the line of linear growth: the table has the numbers"
    caption = "Dashed: linear growth from the group with the fewest GPUs."
    return Picture("Scaling", canvas(told, _WIDTH, _HEIGHT, parts), told, (caption,))
