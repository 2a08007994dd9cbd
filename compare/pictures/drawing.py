"""The parts of a drawing in SVG: axes with ticks, markers, lines. Colours and dashes come from report.css by class."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from compare.pictures.markup import Child, h

COLOURS, DASHES, MARKERS = 7, 4, 7
WIDTH, HEIGHT = 520.0, 280.0  # of a picture, and the ends of its axes
LEFT, RIGHT, TOP, BOTTOM = 58.0, 506.0, 26.0, 236.0
_TICKS = 5
_SMALL = 3.2
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"))


@dataclass(frozen=True, slots=True)
class Picture:
    """drawing: <svg>. alternative: what it shows, for who does not see it. caption: under its title; may be empty."""

    title: str
    drawing: Element
    alternative: str
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Axis:
    """Values low to high, drawn from start to end in the units of the view box."""

    low: float
    high: float
    start: float
    end: float
    marks: tuple[float, ...] = ()

    def at(self, value: float) -> float:
        """Where a value lies; outside low to high, outside start to end."""
        return self.start + (self.end - self.start) * (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """The marks; where there are none, round values inside, few enough to be read."""
        if self.marks:
            return list(self.marks)
        step = _round_up((self.high - self.low) / _TICKS)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [index * step for index in range(first, last + 1)]


def axis(values: Sequence[float], start: float, end: float, from_zero: bool = False) -> Axis:
    """An axis that holds all values with a little room. None at all, or all alike, are held too."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    low = min(low, 0.0) if from_zero else low
    room = 0.05 * (high - low) or abs(high) * 0.1 or 1.0
    return Axis(low if from_zero and low == 0 else low - room, high + room, start, end)


def _round_up(step: float) -> float:
    """The next of 1, 2, 2.5, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= step * (1 - 1e-9))


def tick_text(value: float, axis_: Axis) -> str:
    """With as many decimals as tell the axis' ticks apart; from a million in M, G, T; small ones as 3e-4."""
    largest = max(abs(axis_.low), abs(axis_.high))
    if largest < 1e-2:
        exponent = math.floor(math.log10(largest))
        return f"{value / 10.0**exponent:.2f}".rstrip("0").rstrip(".") + f"e{exponent}" if value else "0"
    unit, letter = next(((u, s) for u, s in _PREFIXES if largest >= u), (1.0, ""))
    step = _round_up((axis_.high - axis_.low) / _TICKS) / unit
    text = f"{value / unit:,.{max(0, 1 - math.floor(math.log10(step)))}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) + (f" {letter}" if letter and value else "")


def canvas(alternative: str, width: float, height: float, *children: Child) -> Element:
    """The drawing: a picture with a text for who does not see it."""
    return h("svg", children, viewBox=f"0 0 {width:g} {height:g}", role="img", aria_label=alternative)


def grid(x: Axis, y: Axis, x_label: str, y_label: str) -> Element:
    """Both axes with their ticks and labels, and lines across at the ticks of y."""
    parts: list[Child] = []
    for value in y.ticks():
        parts += [line(x.start, y.at(value), x.end, y.at(value), "rule")]
        parts += [h("text", tick_text(value, y), x=x.start - 6, y=_px(y.at(value) + 4), class_="tick end")]
    for value in x.ticks():
        parts += [line(x.at(value), y.start, x.at(value), y.start + 4, "axis")]
        parts += [h("text", tick_text(value, x), x=_px(x.at(value)), y=y.start + 17, class_="tick middle")]
    parts += [line(x.start, y.start, x.end, y.start, "axis")]
    parts += [h("text", x_label, x=x.end, y=y.start + 33, class_="label end")]
    parts += [h("text", y_label, x=2, y=y.end - 9, class_="label")]
    return h("g", parts, class_="grid", aria_hidden="true")


def look(place: int) -> str:
    """The classes that give the group at `place` its colour and dash."""
    return f"g{place % COLOURS} d{place % DASHES}"


def polyline(points: Sequence[tuple[float, float] | None]) -> str:
    """Path data of a line; None lifts the pen. A point alone becomes a dot: a line of no length with a round cap."""
    parts: list[str] = []
    pen_down = False
    for point in points:
        if point is None:
            pen_down = False
            continue
        x, y = point
        parts.append(f"{'L' if pen_down else 'M'}{_px(x)} {_px(y)}" + ("" if pen_down else "h0"))
        pen_down = True
    return "".join(parts)


def marker(place: int, x: float, y: float, title: str | None = None, size: float = _SMALL) -> Element:
    """The shape of the group at `place`, as large in area as the others."""
    inside = h("title", title) if title else None
    classes = f"marker g{place % COLOURS}" + (" hollow" if place // COLOURS % 2 else "")
    shape = place % MARKERS
    if shape == 0:
        return h("circle", inside, cx=_px(x), cy=_px(y), r=size, class_=classes)
    corners = " ".join(f"{_px(x + size * dx)},{_px(y + size * dy)}" for dx, dy in _SHAPES[shape - 1])
    return h("polygon", inside, points=corners, class_=classes)


def _star(points: int, inner: float) -> tuple[tuple[float, float], ...]:
    angles = [math.pi * index / points - math.pi / 2 for index in range(2 * points)]
    radii = [1.35 if index % 2 == 0 else 1.35 * inner for index in range(2 * points)]
    return tuple((r * math.cos(a), r * math.sin(a)) for a, r in zip(angles, radii, strict=True))


_SHAPES: Sequence[Sequence[tuple[float, float]]] = (
    ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    ((0, -1.3), (1.15, 0.8), (-1.15, 0.8)),
    ((0, -1.35), (1.35, 0), (0, 1.35), (-1.35, 0)),
    ((0, 1.3), (1.15, -0.8), (-1.15, -0.8)),
    _star(4, 0.42),
    _star(5, 0.45),
)


def cross(x: float, y: float, title: str) -> Element:
    """Where a number was none."""
    arms = f"M{_px(x - 3.5)} {_px(y - 3.5)}l7 7m0 -7l-7 7"
    return h("path", h("title", title), d=arms, class_="nan")


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Element:
    """A straight one."""
    return h("line", x1=_px(x1), y1=_px(y1), x2=_px(x2), y2=_px(y2), class_=class_)


def _px(value: float) -> str:
    """A tenth of a pixel is enough for anybody."""
    return f"{value:.1f}".removesuffix(".0")


def per_column(points: Sequence[tuple[float, float] | None], x: Axis, y: Axis) -> Iterator[tuple[float, float] | None]:
    """The points in the units of the view box, at most four a pixel column: its first, lowest, highest and last, so
    that no peak is lost. Gaps stay gaps."""
    column: list[tuple[float, float]] = []
    for point in points:
        at = None if point is None else (x.at(point[0]), y.at(point[1]))
        if column and (at is None or math.floor(at[0]) != math.floor(column[0][0])):
            yield from _extremes(column)
            column = []
        if at is None:
            yield None
        else:
            column.append(at)
    yield from _extremes(column)


def _extremes(column: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    if len(column) <= 4:
        return list(column)
    heights = [height for _, height in column]
    kept = {0, heights.index(min(heights)), heights.index(max(heights)), len(column) - 1}
    return [column[index] for index in sorted(kept)]
