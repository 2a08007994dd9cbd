"""Charts as SVG, for the page and for compare.png. Colours and dashes come from drawing.css by class."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby

from markupsafe import Markup, escape
from msgspec import Struct

from compare.report.charts import FINEST, Chart, Guide, Plot, RatioBar, Spot, Strip
from metrics import Quantity
from parsers.text import plain

COLOURS, DASHES, MARKERS = 7, 4, 7
WIDTH, HEIGHT = 520.0, 280.0  # of a chart, and the ends of its axes
LEFT, RIGHT, TOP, BOTTOM = 58.0, 498.0, 26.0, 236.0
_ROW = 46.0  # of a strip
_BAR, _BAR_HEIGHT, _BAR_EDGE = 170.0, 20.0, 16  # of a ratio; the edge is half of a tick's text
_FACTORS = (10.0, 5.0, 2.0, 1.25, 1.1, 1.05, 1.02)
_TICKS = 5
_SMALL = 3.2
_MARKED = 6  # points of a line that wear their group's shape
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"))


def svg(drawn: Chart | RatioBar, **place: float) -> Markup:
    """Return the drawing as an <svg> element. place: further attributes, such as where it stands in a larger one."""
    if isinstance(drawn, RatioBar):
        height = _BAR_HEIGHT if drawn.ratio else 16.0
        return _canvas(_BAR, height, _ratio(drawn), width=_BAR, height=height, aria_hidden="true")
    parts = _plot(drawn) if isinstance(drawn, Plot) else _strip(drawn)
    return _canvas(WIDTH, chart_height(drawn), parts, role="img", aria_label=drawn.alternative, **place)


def chart_height(chart: Chart) -> float:
    """Return the height of a chart that is WIDTH wide."""
    return TOP + _ROW * len(chart.rows) + 44 if isinstance(chart, Strip) else HEIGHT


def sample(place: int) -> Markup:
    """Return the line and shape of the group at `place`, for a legend."""
    parts = (element("path", d=polyline([(1, 7), (35, 7)]), class_=f"curve {look(place)}"), marker(place, 18, 7))
    return _canvas(36, 14, parts, width=36, height=14, aria_hidden="true")


def element(name: str, *inside: str, **attributes: str | float) -> Markup:
    """Return an element whose text and attributes are escaped; Markup goes in as it is. class_ is class, aria_label
    aria-label."""
    values = {key: value if isinstance(value, str) else f"{value:g}" for key, value in attributes.items()}
    known = (f' {key.rstrip("_").replace("_", "-")}="{_escaped(value)}"' for key, value in values.items())
    return Markup(f"<{name}{''.join(known)}>{''.join(map(_escaped, inside))}</{name}>")


def _escaped(text: str) -> str:
    return text if isinstance(text, Markup) else str(escape(plain(text, keep="\n")))


def _canvas(across: float, down: float, parts: Sequence[str], **attributes: str | float) -> Markup:
    return element("svg", *parts, viewBox=f"0 0 {across:g} {down:g}", **attributes)


class Axis(Struct, frozen=True):
    """Values low to high, drawn from start to end in the units of the view box."""

    low: float
    high: float
    start: float
    end: float
    marks: tuple[float, ...] = ()

    def at(self, value: float) -> float:
        """Return where a value lies; outside low to high, outside start to end."""
        return self.start + (self.end - self.start) * (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Return the marks; where there are none, round values inside, few enough to be read."""
        if self.marks:
            return list(self.marks)
        step = _round_up((self.high - self.low) / _TICKS)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [index * step for index in range(first, last + 1)]


def axis(
    values: Sequence[float], start: float, end: float, from_zero: bool = False, marks: tuple[float, ...] = ()
) -> Axis:
    """Return an axis that shows all values with a little room, also where there are none or all are alike."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    low = min(low, 0.0) if from_zero else low
    room = 0.05 * (high - low) or abs(high) * 0.1 or 1.0
    return Axis(low if from_zero and low == 0 else low - room, high + room, start, end, marks)


def _round_up(step: float) -> float:
    """Return the next of 1, 2, 2.5, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= step * (1 - 1e-9))


def tick_text(value: float, axis_: Axis) -> str:
    """Return a tick with as many decimals as set ticks apart; from a million in M, G, T; small ones as 3e-4."""
    largest = max(abs(axis_.low), abs(axis_.high))
    if largest < 1e-2:
        exponent = math.floor(math.log10(largest))
        return f"{value / 10.0**exponent:.2f}".rstrip("0").rstrip(".") + f"e{exponent}" if value else "0"
    unit, letter = next(((u, s) for u, s in _PREFIXES if largest >= u), (1.0, ""))
    step = _round_up((axis_.high - axis_.low) / _TICKS) / unit
    text = f"{value / unit:,.{max(0, 1 - math.floor(math.log10(step)))}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) + (f" {letter}" if letter and value else "")


def _grid(x: Axis, y: Axis, x_label: str, y_label: str) -> Markup:
    """Draw both axes with their ticks and labels, and lines across at the ticks of y."""
    parts = []
    for value in y.ticks():
        parts += [_line(x.start, y.at(value), x.end, y.at(value), "rule")]
        parts += [element("text", tick_text(value, y), x=x.start - 6, y=_px(y.at(value) + 4), class_="tick end")]
    parts += [_foot(x, y.start, x_label), element("text", y_label, x=2, y=y.end - 9, class_="label")]
    return element("g", *parts, aria_hidden="true")


def _foot(x: Axis, y: float, label: str) -> Markup:
    parts = [_line(x.start, y, x.end, y, "axis")]
    for value in x.ticks():
        parts += [_line(x.at(value), y, x.at(value), y + 4, "axis")]
        parts += [element("text", tick_text(value, x), x=_px(x.at(value)), y=y + 17, class_="tick middle")]
    return element("g", *parts, element("text", label, x=x.end, y=y + 33, class_="label end"), aria_hidden="true")


def look(place: int) -> str:
    """Return the classes that give the group at `place` its colour and dash."""
    return f"g{place % COLOURS} d{place % DASHES}"


def polyline(points: Sequence[tuple[float, float] | None]) -> str:
    """Return path data; None lifts the pen. A point alone becomes a dot: a line of no length with a round cap."""
    parts, pen = [], "M"
    for point in points:
        if point is not None:
            parts.append(f"{pen}{_px(point[0])} {_px(point[1])}" + ("h0" if pen == "M" else ""))
        pen = "M" if point is None else "L"
    return "".join(parts)


def marker(place: int, x: float, y: float, title: str = "", size: float = _SMALL) -> Markup:
    """Return the shape of the group at `place`, as large in area as the others."""
    inside = (element("title", title),) if title else ()
    classes = f"marker g{place % COLOURS}" + (" hollow" if place // COLOURS % 2 else "")
    shape = place % MARKERS
    if shape == 0:
        return element("circle", *inside, cx=_px(x), cy=_px(y), r=size, class_=classes)
    corners = " ".join(f"{_px(x + size * dx)},{_px(y + size * dy)}" for dx, dy in _SHAPES[shape - 1])
    return element("polygon", *inside, points=corners, class_=classes)


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


def _line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    return element("line", x1=_px(x1), y1=_px(y1), x2=_px(x2), y2=_px(y2), class_=class_)


def _px(value: float) -> str:
    """Return a tenth of a pixel, which is enough for anybody."""
    return f"{value:.1f}".removesuffix(".0")


def _plot(chart: Plot) -> list[Markup]:
    """Draw every run's line in the look of its group, what was no number as a cross at the foot; every group as a spot
    across the lines of its intervals."""
    lines = [point for series in chart.series for point in series.points if point]
    xs = [x for x, _ in lines] + [x for series in chart.series for x, _ in series.broken]
    ys = [y for _, y in lines] + [guide.end[1] for guide in chart.guides]
    xs += [end for spot in chart.spots for end in _ends(spot.across)]
    ys += [end for spot in chart.spots for end in _ends(spot.up)]
    x, y = axis(xs, LEFT, RIGHT, bool(chart.spots), chart.marks), axis(ys, BOTTOM, TOP, chart.from_zero)
    parts = [_grid(x, y, chart.x, chart.y)]
    for series in chart.series:
        drawn = list(per_column(series.points, x, y))
        name = element("title", f"{series.label}, {series.run}")
        parts.append(element("path", name, d=polyline(drawn), class_=f"curve {look(series.place)}"))
        # Each group marks other points, so that curves that lie on each other are all seen.
        known = [point for point in drawn if point is not None]
        often = max(1, len(known) // _MARKED)
        marked = known[int(often * series.place / max(1, chart.groups)) :: often]
        parts += [marker(series.place, *at) for at in marked]
    for where, why in (one for series in chart.series for one in series.broken):
        arms = f"M{_px(x.at(where) - 3.5)} {_px(BOTTOM - 8.5)}l7 7m0 -7l-7 7"
        parts.append(element("path", element("title", why), d=arms, class_="nan"))
    return [*parts, *(part for guide in chart.guides for part in _guide(guide, x, y)), *_spots(chart.spots, x, y)]


def _guide(guide: Guide, x: Axis, y: Axis) -> Iterator[Markup]:
    (x1, y1), (x2, y2) = guide.start, guide.end
    classes = "even" if guide.place is None else f"linear {look(guide.place)}"
    yield _line(x.at(x1), y.at(y1), x.at(min(x2, x.high)), y.at(y2), classes)
    if guide.text:
        yield element("text", guide.text, x=x.start + 4, y=_px(y.at(y1) + 14), class_="tick")


def _spots(spots: Sequence[Spot], x: Axis, y: Axis) -> Iterator[Markup]:
    for spot in spots:
        at_x, at_y = x.at(spot.across.value or 0), y.at(spot.up.value or 0)
        across, up = ([axis_.at(end) for end in q.interval or ()] for axis_, q in ((x, spot.across), (y, spot.up)))
        spans = [_line(across[0], at_y, across[1], at_y, "whisker")] if across else []
        spans += [_line(at_x, up[0], at_x, up[1], "whisker")] if up else []
        shape = marker(spot.place, at_x, at_y, spot.label, 5.5)
        yield element("g", *spans, shape, class_=look(spot.place))


def _ends(quantity: Quantity) -> Iterator[float]:
    return (float(value) for value in (quantity.value, *(quantity.interval or ())) if value is not None)


def per_column(points: Sequence[tuple[float, float] | None], x: Axis, y: Axis) -> Iterator[tuple[float, float] | None]:
    """Yield the points in the units of the view box, at most four a pixel column: its first, lowest, highest and last,
    so that no peak is lost. Gaps stay gaps."""
    drawn = (None if point is None else (x.at(point[0]), y.at(point[1])) for point in points)
    for _, same in groupby(drawn, key=lambda point: None if point is None else math.floor(point[0])):
        column = [*same]
        heights = [point[1] for point in column if point]
        if len(heights) > 4:
            kept = {0, heights.index(min(heights)), heights.index(max(heights)), len(column) - 1}
            column = [column[index] for index in sorted(kept)]
        yield from column


def _strip(chart: Strip) -> list[Markup]:
    """Draw a row for each group, from zero."""
    values = [value for _, _, known, mean in chart.rows for value in (*known, *(mean.interval or ()))]
    foot = chart_height(chart) - 40
    x = axis(values, 14, RIGHT - 16, from_zero=True)
    parts = [*(_line(x.at(value), 12, x.at(value), foot, "rule") for value in x.ticks()), _foot(x, foot, chart.unit)]
    for row, (place, title, known, mean) in enumerate(chart.rows):
        y = TOP + _ROW * row
        parts.append(element("text", title, x=14, y=y, class_="label strong"))
        parts += [marker(place, x.at(value), y + 10) for value in known]
        parts += [] if known else [element("text", "unknown", x=14, y=y + 16, class_="tick")]
        if mean.value is not None and mean.interval is not None:
            low, high = (x.at(end) for end in mean.interval)
            ends = [_line(at, y + 16, at, y + 24, "whisker") for at in (low, high, x.at(mean.value))]
            parts.append(element("g", _line(low, y + 20, high, y + 20, "whisker"), *ends, class_=look(place)))
    return parts


def _ratio(bar: RatioBar) -> list[Markup]:
    """Draw a ratio with its interval against 1, in the middle, and the band of no interest around it; or the scale: 1,
    and the widest round factor that fits. Half is as far from 1 as double."""
    x, middle = Axis(-bar.most, bar.most, _BAR_EDGE, _BAR - _BAR_EDGE), _BAR_HEIGHT / 2
    if bar.ratio is None:
        factor = next((f for f in _FACTORS if math.log(f) < x.high), FINEST)
        ticks = [(f"{value:.3g}", x.at(math.log(value))) for value in (1 / factor, 1.0, factor)]
        return [element("text", text, x=at, y=11, class_="tick middle") for text, at in ticks]
    low, high = (min(max(x.at(math.log(end)), x.start), x.end) for end in bar.same)
    parts = [element("rect", x=low, y=0, width=high - low, height=_BAR_HEIGHT, class_="band")]
    parts.append(_line(x.at(0), 0, x.at(0), _BAR_HEIGHT, "one"))
    if bar.interval is not None:
        ends = [x.at(math.log(end)) for end in bar.interval]
        parts.append(_line(ends[0], middle, ends[1], middle, "whisker"))
        parts += [_line(end, middle - 4, end, middle + 4, "whisker") for end in ends]
    return [*parts, element("circle", cx=x.at(math.log(bar.ratio)), cy=middle, r=3.4, class_="ratio")]
