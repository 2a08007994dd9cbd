"""The picture of a curve of every run: loss, learning rate or step time."""

from __future__ import annotations

from collections.abc import Sequence

from compare.pictures.drawing import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Picture,
    axis,
    canvas,
    cross,
    grid,
    look,
    marker,
    per_column,
    polyline,
)
from compare.pictures.markup import Child, h
from compare.pictures.series import Curves
from conf.errors import listed

_MARKED = 6  # points of a line that wear their group's shape


def curve_picture(curves: Curves, groups: int) -> Picture:
    """Every run's line, in the colour, dash and shape of its group; what was no number as a cross at the foot."""
    xs = [point[0] for series in curves.series for point in series.points if point]
    xs += [x for series in curves.series for x, _ in series.broken]
    ys = [point[1] for series in curves.series for point in series.points if point]
    x = axis(xs, LEFT, RIGHT)
    y = axis(ys, BOTTOM, TOP, curves.from_zero)
    parts: list[Child] = [grid(x, y, curves.x, curves.y)]
    for series in curves.series:
        drawn = list(per_column(series.points, x, y))
        name = h("title", f"{series.label}, {series.run}")
        parts.append(h("path", name, d=polyline(drawn), class_=f"curve {look(series.place)}"))
        parts += [marker(series.place, *at) for at in _marked(drawn, series.place, groups)]
    parts += [cross(x.at(where), BOTTOM - 5, what) for series in curves.series for where, what in series.broken]
    return Picture(curves.title, canvas(_told(curves), WIDTH, HEIGHT, parts), _told(curves), _noted(curves))


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


def _noted(curves: Curves) -> str:
    nan = [series for series in curves.series if series.broken]
    notes = [curves.note] if curves.note else []
    if nan:
        count = sum(len(series.broken) for series in nan)
        steps = "1 step is" if count == 1 else f"{count} steps are"
        notes.append(f"× at the foot: {steps} nan or inf, in {listed([s.run for s in nan])}")
    text = "; ".join(notes)
    return f"{text[:1].upper()}{text[1:]}." if notes else ""
