"""The charts of a report, drawn as SVG for the page and for compare.png: the curves and the throughput of every run,
cost against speed, scaling, ratios. Colours and dashes come from drawing.css by class."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import TypeAlias

from markupsafe import Markup, escape
from msgspec import Struct

from compare.comparison import TOTAL, Compared, Comparison, impossible
from compare.figures import COST, SPEED
from compare.groups import Group, counted
from compare.statistics import of_no_interest
from conf.errors import listed
from conf.facts import read_lines
from conf.plain import plain
from metrics import Quantity
from metrics.step_times import step_times, usual_distance
from parsers import Record
from parsers.record import columns, numbered
from parsers.storage import with_steps

_NAMED = 3
_DRAWN = 24  # lines that an eye, and a page that opens at once, can take in
_FINEST = 1.01  # ratio that a column of bars has room for at least
_NUMBERS = "the table has the numbers"
COLOURS, DASHES, MARKERS = 7, 4, 7
WIDTH, HEIGHT = 520.0, 280.0  # of a chart, and the ends of its axes
_LEFT, _RIGHT, _TOP, _BOTTOM = 58.0, 498.0, 26.0, 236.0
_ROW = 46.0  # of a strip
_BAR, _BAR_HEIGHT, _BAR_EDGE = 170.0, 20.0, 16  # of a ratio; the edge is half of a tick's text
_FACTORS = (10.0, 5.0, 2.0, 1.25, 1.1, 1.05, 1.02)
_TICKS = 5
_SMALL = 3.2
_MARKED = 6  # points of a line that wear their group's shape
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"))
# Beside the circle: a square, two triangles and a diamond, two stars; each by its corners in a marker of size 1.
_SHAPES = read_lines(Path(__file__).with_name("markers.jsonl"), list[tuple[float, float]])
_Points: TypeAlias = Sequence[tuple[float, float] | None]
_One: TypeAlias = tuple[int, str, Record]  # a run, with place and label of its group
_Spot: TypeAlias = tuple[int, str, Quantity, Quantity]  # a group as a point: its place, its label, both its figures
_Guide: TypeAlias = tuple[tuple[float, float], tuple[float, float], str]  # a dashed line: start, end (inf: edge), class


class Chart(Struct, frozen=True):
    """A drawing that is WIDTH wide. alternative: what it shows, for a reader who does not see it."""

    title: str
    caption: str
    alternative: str
    parts: list[Markup]
    height: float = HEIGHT

    def svg(self, **place: float) -> Markup:
        """Return it as an <svg> element. place: further attributes, such as where it stands in a larger one."""
        return canvas(WIDTH, self.height, self.parts, role="img", aria_label=self.alternative, **place)


class Series(Struct, frozen=True):
    """One run's curve. place: of its group among the groups. points: None where a stretch is missing, so that no line
    is drawn over it. broken: where the log had nan or inf, and what of it."""

    place: int
    label: str
    run: str
    points: _Points
    broken: Sequence[tuple[float, str]] = ()


def titled(group: Group) -> str:
    """Return a group's label, and whether its figures were measured at all."""
    provenance = group.runs[0].record.provenance
    clear = provenance in ("measured", "imported") or provenance in group.label
    return group.label if clear else f"{group.label} ({provenance})"


def legend(comparison: Comparison) -> tuple[tuple[Markup, str], ...]:
    """Return line and shape, and title, of the groups whose figures or curves are drawn."""
    audited = {side.label for side in counted(comparison.groups)}
    drawn = [group for group in comparison.groups if group.shown or group.label in audited]
    return tuple((sample(comparison.places[group.label]), titled(group)) for group in drawn)


def with_curves(comparison: Comparison) -> list[tuple[int, Group]]:
    """Return the groups whose curves are drawn, those that are audited, each with its place."""
    return [(comparison.places[side.label], side) for side in counted(comparison.groups)]


def throughput_chart(comparison: Comparison) -> Chart | None:
    """Draw a row for each group: a point for every run, and the mean with its interval, from zero. None where no speed
    is known."""
    groups = [(comparison.places[group.label], group) for group in comparison.groups if group.shown]
    each = [[comparison.run_figures[run.path][SPEED].value for run in group.shown] for _, group in groups]
    runs = [[float(value) for value in values if value is not None] for values in each]
    if not any(runs):
        return None
    means = [comparison.group_figures[group.label][SPEED] for _, group in groups]
    foot = _TOP + _ROW * len(groups) + 4
    values = [value for known, mean in zip(runs, means, strict=True) for value in (*known, *(mean.interval or ()))]
    x = axis(values, 14, _RIGHT - 16, from_zero=True)
    parts = [_line(x.at(value), 12, x.at(value), foot, "rule") for value in x.ticks()]
    parts.append(_foot(x, foot, "tokens/s/GPU"))
    for row, ((place, group), known, mean) in enumerate(zip(groups, runs, means, strict=True)):
        y = _TOP + _ROW * row
        parts.append(element("text", titled(group), x=14, y=y, class_="label strong"))
        parts += [marker(place, x.at(value), y + 10) for value in known]
        parts += [] if known else [element("text", mean.missing, x=14, y=y + 16, class_="tick")]
        if mean.value is not None and mean.interval is not None:
            low, high = (x.at(end) for end in mean.interval)
            ends = [_line(at, y + 16, at, y + 24, "whisker") for at in (low, high, x.at(mean.value))]
            parts.append(element("g", _line(low, y + 20, high, y + 20, "whisker"), *ends, class_=look(place)))
    what = f"Throughput of every run, in tokens/s/GPU, each group's geometric mean and its 95 % interval: {_NUMBERS}"
    caption = "A shape is a run, a bar the 95 % interval of their geometric mean, or of a prediction."
    return Chart("Throughput", caption, what, parts, foot + 40)


def price_chart(comparison: Comparison) -> Chart | None:
    """Draw what tokens cost against how fast they are trained, and the line on which a group costs what the baseline
    does. None where fewer than three groups have both, in one unit, or may not be compared."""
    spots = [
        (comparison.places[label], label, known[SPEED], known[COST])
        for label, known in comparison.group_figures.items()
        if None not in (known[SPEED].value, known[COST].value)
    ]
    even = next((cost.value for _, label, _, cost in spots if label == comparison.baseline), None)
    alike = len(spots) > 2 and len({cost.unit for *_, cost in spots}) == 1
    if not alike or even is None or comparison.audit.verdict.word != "comparable":
        return None
    unit = spots[0][3].unit
    caption = (
        "Right is faster, low is cheaper. The lines across a shape are its 95 % intervals. "
        f"Below the dashed line a token costs less than with {comparison.baseline}."
    )
    caption += " The prices are an example, not yours." if comparison.terms.prices.example else ""
    labels = listed([label for _, label, *_ in spots])
    alternative = f"{unit} against tokens/s/GPU of {labels}: the tables have the numbers"
    x, y, parts = _spots(("tokens/s/GPU", unit), spots, [((0.0, even), (math.inf, even), "even")])
    text = f"break-even with {comparison.baseline}"
    guide = element("text", text, x=x.start + 4, y=_px(y.at(even) + 14), class_="tick")
    return Chart("Cost against speed", caption, alternative, [*parts[:2], guide, *parts[2:]])


def scaling_chart(comparison: Comparison) -> Chart:
    """Draw tokens/s against GPUs, and from each family's smallest group the line on which speed grows with GPUs."""
    scaled, places = comparison.scaling, comparison.places
    rates = {label: figures[TOTAL] for label, figures in comparison.group_figures.items()}
    most = max(s.gpus for s in scaled)
    guides = [
        ((0.0, 0.0), (most, (rates[label].value or 0.0) * most / fewest), f"linear {look(places[label])}")
        for label, fewest in {s.smallest: s.smallest_gpus for s in scaled}.items()
    ]
    spots = [(places[s.group], s.group, Quantity(s.gpus, "GPUs", "computed"), rates[s.group]) for s in scaled]
    *_, parts = _spots(("GPUs", "tokens/s"), spots, guides, (0.0, *sorted({float(s.gpus) for s in scaled})))
    alternative = f"Tokens/s against GPUs of every group, and dashed the line of linear growth: {_NUMBERS}"
    return Chart("Scaling", "Dashed: linear growth from the group with the fewest GPUs.", alternative, parts)


def _spots(
    labels: tuple[str, str], spots: Sequence[_Spot], guides: Sequence[_Guide], marks: tuple[float, ...] = ()
) -> tuple[Axis, Axis, list[Markup]]:
    """Draw each group as a point across the lines of its intervals, both axes from zero: the grid, guides, and groups.
    marks: the ticks across, where they are given."""
    xs, ys = [_ends(across) for _, _, across, _ in spots], [_ends(up) for *_, up in spots]
    x = axis([*chain(*xs)], _LEFT, _RIGHT, True, marks)
    y = axis([*chain(*ys), *(end for _, (_, end), _ in guides)], _BOTTOM, _TOP, True)
    parts = [_grid(x, y, *labels)]
    parts += [_line(x.at(x1), y.at(y1), x.at(min(x2, x.high)), y.at(y2), look_) for (x1, y1), (x2, y2), look_ in guides]
    for place, label, across, up in spots:
        at_x, at_y = x.at(across.value or 0), y.at(up.value or 0)
        spans = []
        if across.interval:
            spans.append(_line(x.at(across.interval[0]), at_y, x.at(across.interval[1]), at_y, "whisker"))
        if up.interval:
            spans.append(_line(at_x, y.at(up.interval[0]), at_x, y.at(up.interval[1]), "whisker"))
        parts.append(element("g", *spans, marker(place, at_x, at_y, label, 5.5), class_=look(place)))
    return x, y, parts


def _ends(quantity: Quantity) -> list[float]:
    return [float(value) for value in (quantity.value, *(quantity.interval or ())) if value is not None]


def all_charts(comparison: Comparison) -> list[Chart]:
    """Draw throughput and curves, without those of which nothing is known."""
    return [*filter(None, [throughput_chart(comparison)]), *curve_charts(comparison)]


def curve_charts(comparison: Comparison) -> list[Chart]:
    """Draw loss, its validations, learning rate and step time, without those of which nothing is known. As many runs a
    group are drawn as fit, the first ones; steps are read once."""
    groups = with_curves(comparison)
    each = max(1, _DRAWN // max(1, len(groups)))
    total = sum(len(side.usable) for _, side in groups)
    firsts = [(place, side.label, run.record) for place, side in groups for run in side.usable[:each]]
    runs = [(place, label, with_steps(record)) for place, label, record in firsts]
    records = [record for _, _, record in runs]
    tokens = all(type(length := r.setting("seq_length")) is int and length > 0 for r in records) and all(
        None not in columns(r.steps, "consumed_samples")[0] for r in records
    )
    reporting = [record for record in records if _reports(record, "lr")]
    used = all(_reports(record, "lr_used") for record in reporting)
    paths, left_out = [run.path for _, side in groups for run in side.usable[:each]], impossible(comparison.run_figures)
    times, warmup = _step_times([one for one, path in zip(runs, paths, strict=True) if path not in left_out])
    x = "tokens seen" if tokens else "iteration"
    loss = "Loss at equal tokens" if tokens else "Loss by iteration"
    rate = "Learning rate used" if used else "Learning rate"
    printed = "" if used else "as printed: in some logs that of the next step"
    counted, validated = _validations(runs)
    hidden = "" if len(runs) == total else f"{len(runs):,} of {total:,} runs drawn, the first {each} of every group"
    charts = []
    for title, across, y, series, note in (
        (loss, x, "nats per token", [_series(one, "loss", tokens) for one in runs], ""),
        ("Validation loss", counted, "loss", validated, ""),
        (rate, x, "learning rate", [_series(one, "lr_used" if used else "lr", tokens) for one in runs], printed),
        ("Step time", "iteration", "seconds", times, warmup),
    ):
        if any(one.points or one.broken for one in series):
            parts = _curves((across, y), series, len(comparison.places), from_zero=" loss" not in f" {title.lower()}")
            alternative = f"{title}, {y} against {across}: {len(series)} runs of "
            alternative += f"{listed(list(dict.fromkeys(one.label for one in series)))}."
            if nan := sum(len(one.broken) for one in series):
                alternative += f" Crosses mark where the value is nan or inf: {nan}."
            charts.append(Chart(title, _caption(series, nan, note, hidden), alternative, parts))
    return charts


def _curves(labels: tuple[str, str], all_: Sequence[Series], groups: int, from_zero: bool) -> list[Markup]:
    """Draw every run's line in the look of its group; what was no number as a cross at the foot."""
    points = [point for series in all_ for point in series.points if point]
    xs = [x for x, _ in points] + [x for series in all_ for x, _ in series.broken]
    x, y = axis(xs, _LEFT, _RIGHT), axis([y for _, y in points], _BOTTOM, _TOP, from_zero)
    parts = [_grid(x, y, *labels)]
    for series in all_:
        drawn = list(per_column(series.points, x, y))
        name = element("title", f"{series.label}, {series.run}")
        parts.append(element("path", name, d=polyline(drawn), class_=f"curve {look(series.place)}"))
        # Each group marks other points, so that curves that lie on each other are all seen.
        known = [point for point in drawn if point is not None]
        often = max(1, len(known) // _MARKED)
        marked = known[int(often * series.place / max(1, groups)) :: often]
        parts += [marker(series.place, *at) for at in marked]
    for where, why in (one for series in all_ for one in series.broken):
        arms = f"M{_px(x.at(where) - 3.5)} {_px(_BOTTOM - 8.5)}l7 7m0 -7l-7 7"
        parts.append(element("path", element("title", why), d=arms, class_="nan"))
    return parts


def _caption(series: Sequence[Series], nan: int, *notes: str) -> str:
    """Return what is not drawn, and where a value was no number. nan: how many were none."""
    # A line that is missing is named: it looks as if it lay behind another.
    missing = [one.run for one in series if not one.points and not one.broken]
    names = listed(missing) if len(missing) <= _NAMED else f"{len(missing):,} runs"
    runs = listed([one.run for one in series if one.broken])
    crosses = f"× at the foot: {'1 step is' if nan == 1 else f'{nan} steps are'} nan or inf, in {runs}" if nan else ""
    text = "; ".join(filter(None, (f"not reported by {names}" if missing else "", *notes, crosses)))
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _reports(record: Record, name: str) -> bool:
    return any(value is not None for value in columns(record.steps, name)[0])


def _series(one: _One, name: str, tokens: bool) -> Series:
    place, label, record = one
    steps, length = numbered(record.steps), record.setting("seq_length")
    at, values, samples, nonfinite = columns(steps, "step", name, "consumed_samples", "nonfinite")
    xs = [float(length * (seen or 0) if tokens else step + 1) for step, seen in zip(at, samples, strict=True)]
    drawn = [None if y is None else (x, y) for x, y in zip(xs, values, strict=True)]
    points = [*_with_gaps(at, usual_distance(at) or 1, drawn)]
    broken = [
        (x, f"{label}, {record.id}: {name} of iteration {step + 1} is nan or inf")
        for x, step, names in zip(xs, at, nonfinite, strict=True)
        if name in names
    ]
    return Series(place, label, record.id, points if any(points) else (), broken)


def _validations(runs: Sequence[_One]) -> tuple[str, list[Series]]:
    """Return what validations are drawn against, the samples seen where all state these, and those of each run; no
    points where no run has two."""
    known = [[v for v in record.validations if v.loss is not None and v.split == "valid"] for _, _, record in runs]
    samples = all(v.metrics.get("samples_count") is not None for points in known for v in points)
    at = [[(v.metrics["samples_count"] if samples else v.step, v.loss) for v in points] for points in known]
    each = [[(float(x), y) for x, y in points if x is not None and y is not None] for points in at]
    if max(map(len, each), default=0) < 2:
        each = [[] for _ in runs]
    series = [Series(place, label, r.id, points) for (place, label, r), points in zip(runs, each, strict=True)]
    return "samples seen" if samples else "step", series


def _with_gaps(at: Sequence[int], usual: int, drawn: _Points) -> Iterator[tuple[float, float] | None]:
    """Yield points, and None before each that is further from the one before than usual. at: the iteration of each."""
    for before, here, point in zip((*at[:1], *at), at, drawn, strict=False):
        if here - before > usual:
            yield None
        yield point


def _step_times(runs: Sequence[_One]) -> tuple[list[Series], str]:
    """Return the step times of runs, and how much of them is left out."""
    series, left_out = [], set()
    for place, label, record in runs:
        known = step_times(record)
        each, ends = known.iterations_a_line or 1, known.ends[known.warmup.count :]
        left_out.add(known.warmup.count * each)
        points = [*_with_gaps(ends, each, [(end, s / each) for end, s in zip(ends, known.times, strict=True)])]
        series.append(Series(place, label, record.id, points))
    low, high = min(left_out, default=0), max(left_out, default=0)
    return series, f"without the warm-up, {low if low == high else f'{low} to {high}'} steps" if high else ""


def sample(place: int) -> Markup:
    """Return the line and shape of the group at `place`, for a legend."""
    parts = (element("path", d=polyline([(1, 7), (35, 7)]), class_=f"curve {look(place)}"), marker(place, 18, 7))
    return canvas(36, 14, parts, width=36, height=14, aria_hidden="true")


def element(name: str, *inside: str, **attributes: str | float) -> Markup:
    """Return an element whose text and attributes are escaped; Markup goes in as it is. class_ is class, aria_label
    aria-label."""
    values = {key: value if isinstance(value, str) else f"{value:g}" for key, value in attributes.items()}
    known = (f' {key.rstrip("_").replace("_", "-")}="{_escaped(value)}"' for key, value in values.items())
    return Markup(f"<{name}{''.join(known)}>{''.join(map(_escaped, inside))}</{name}>")


def _escaped(text: str) -> str:
    return text if isinstance(text, Markup) else str(escape(plain(text, keep="\n")))


def canvas(across: float, down: float, parts: Sequence[str], **attributes: str | float) -> Markup:
    """Return an <svg> element that is `across` wide in its own units."""
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


def polyline(points: _Points) -> str:
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


def _line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    return element("line", x1=_px(x1), y1=_px(y1), x2=_px(x2), y2=_px(y2), class_=class_)


def _px(value: float) -> str:
    """Return a tenth of a pixel, which is enough for anybody."""
    return f"{value:.1f}".removesuffix(".0")


def per_column(points: _Points, x: Axis, y: Axis) -> Iterator[tuple[float, float] | None]:
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


def ratio_bars(results: Sequence[Compared], difference: float) -> list[Markup]:
    """Draw a column: its scale, then each ratio with its interval against 1, in the middle, and the band of no interest
    around it. Half is as far from 1 as double. difference: the smallest that matters, as a share."""
    far = [end for result in results for end in (result.ratio, *(result.interval or ())) if end is not None]
    most = 1.1 * max([*(abs(math.log(end)) for end in far), math.log(_FINEST)])
    x, middle = Axis(-most, most, _BAR_EDGE, _BAR - _BAR_EDGE), _BAR_HEIGHT / 2
    factor = next((f for f in _FACTORS if math.log(f) < x.high), _FINEST)  # the widest round one that fits
    ticks = [(f"{value:.3g}", x.at(math.log(value))) for value in (1 / factor, 1.0, factor)]
    scale = [element("text", text, x=at, y=11, class_="tick middle") for text, at in ticks]
    low, high = (min(max(x.at(math.log(end)), x.start), x.end) for end in of_no_interest(difference))
    band = element("rect", x=low, y=0, width=high - low, height=_BAR_HEIGHT, class_="band")
    columns = [(scale, 16.0)]
    for result in results:
        parts = [band, _line(x.at(0), 0, x.at(0), _BAR_HEIGHT, "one")]
        if ends := [x.at(math.log(end)) for end in result.interval or ()]:
            parts.append(_line(ends[0], middle, ends[1], middle, "whisker"))
            parts += [_line(end, middle - 4, end, middle + 4, "whisker") for end in ends]
        parts.append(element("circle", cx=x.at(math.log(result.ratio or 1)), cy=middle, r=3.4, class_="ratio"))
        columns.append((parts, _BAR_HEIGHT))
    return [canvas(_BAR, high_, parts, width=_BAR, height=high_, aria_hidden="true") for parts, high_ in columns]
