"""The pictures of groups' figures: one figure of every run, cost against speed, scaling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from xml.etree.ElementTree import Element

from compare.comparison import Comparison
from compare.pictures.drawing import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Axis,
    Picture,
    axis,
    canvas,
    grid,
    line,
    look,
    marker,
    tick_text,
)
from compare.pictures.legend import titled
from compare.pictures.markup import Child, h
from conf.errors import listed
from metrics import Quantity


def figure_picture(comparison: Comparison, metric: str, title: str, unit: str) -> Picture:
    """Every run a point, and each group's mean with its interval, from zero."""
    used = [(place, g) for place, g in enumerate(comparison.groups) if g.shown]
    found = {g.label: _known([comparison.run_figures[run.path][metric] for run in g.shown]) for _, g in used}
    ends = [end for _, g in used for end in comparison.group_figures[g.label][metric].interval or ()]
    height = TOP + _ROW * len(used) + 44
    x = axis([*(value for values in found.values() for value in values), *ends], 14, RIGHT - 16, from_zero=True)
    parts: list[Child] = [_foot(x, height - 40, unit)]
    for row, (place, group) in enumerate(used):
        y = TOP + _ROW * row
        parts.append(h("text", titled(group), x=14, y=y, class_="label strong"))
        parts += [marker(place, x.at(value), y + 10) for value in found[group.label]]
        parts.append(_mean(comparison.group_figures[group.label][metric], x, y + 20, place))
        parts += [] if found[group.label] else [h("text", "unknown", x=14, y=y + 16, class_="tick")]
    told = f"{title} of every run, in {unit}, and each group's mean with its 95 % interval: the table has the numbers"
    return Picture(title, canvas(told, WIDTH, height, parts), told, "A shape is a run, a bar a 95 % interval.")


_ROW = 46.0


def _known(found: Sequence[Quantity]) -> list[float]:
    return [float(q.value) for q in found if q.value is not None]


def _mean(pooled: Quantity, x: Axis, y: float, place: int) -> Element | None:
    if pooled.value is None or pooled.interval is None:
        return None
    low, high = (x.at(end) for end in pooled.interval)
    ends = [line(at, y - 4, at, y + 4, "whisker") for at in (low, high, x.at(pooled.value))]
    return h("g", line(low, y, high, y, "whisker"), ends, class_=look(place))


def _foot(x: Axis, y: float, label: str) -> Element:
    parts: list[Child] = [line(x.start, y, x.end, y, "axis")]
    for value in x.ticks():
        parts += [line(x.at(value), y, x.at(value), y + 4, "axis"), line(x.at(value), 12, x.at(value), y, "rule")]
        parts += [h("text", tick_text(value, x), x=x.at(value), y=y + 17, class_="tick middle")]
    return h("g", parts, h("text", label, x=x.end, y=y + 33, class_="label end"), aria_hidden="true")


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
    x = axis([v for spot in spots for v in _ends(spot.across)], LEFT, RIGHT, from_zero=True)
    y = axis([v for spot in spots for v in _ends(spot.up)], BOTTOM, TOP, from_zero=True)
    parts: list[Child] = [grid(x, y, *units), _even(y.at(even), comparison.baseline, x)]
    parts += [_spot(spot, x, y) for spot in spots]
    told = f"{units[1]} against {units[0]} of {listed([s.label for s in spots])}: the tables have the numbers"
    caption = (
        "Right is faster, low is cheaper. The lines across a shape are its 95 % intervals. "
        f"Below the dashed line a token costs less than with {comparison.baseline}."
    )
    caption += " The prices are an example, not yours." if comparison.terms.prices.example else ""
    return Picture("Cost against speed", canvas(told, WIDTH, HEIGHT, parts), told, caption)


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
    x = replace(axis(gpus, LEFT, RIGHT, from_zero=True), marks=(0.0, *gpus))
    linear = [bases[s.smallest] * most / s.smallest_gpus for s, _ in found]
    y = axis([*(end for _, q in found for end in _ends(q)), *linear], BOTTOM, TOP, from_zero=True)
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
    return Picture("Scaling", canvas(told, WIDTH, HEIGHT, parts), told, caption)
