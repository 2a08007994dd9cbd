"""The charts of a report as data: the curves of every run, a figure of every run, cost against speed, scaling. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar, TypeAlias

from msgspec import structs

from compare.comparison import Comparison
from compare.figures import COST, SPEED
from compare.groups import Group, Side, sides
from compare.statistics import Ratio, of_no_interest
from conf.errors import listed
from metrics import Quantity
from metrics.step_times import step_times
from parsers import Run

_NAMED = 3
_DRAWN = 24  # lines that an eye, and a page that opens at once, can take in
FINEST = 1.01  # ratio that a column of bars has room for at least
_NUMBERS = "the table has the numbers"


@dataclass(frozen=True, slots=True)
class RatioBar:
    """A ratio and its interval against 1; the row says the same in numbers. most: logarithm of the largest ratio that
    the column has room for; same: the ratios that make no difference."""

    ratio: float
    interval: tuple[float, float] | None
    most: float
    same: tuple[float, float]


@dataclass(frozen=True, slots=True)
class RatioScale:
    """The ticks above a column of bars."""

    most: float


def ratio_bars(results: Sequence[Ratio], difference: float) -> tuple[RatioScale, list[RatioBar]]:
    """Return a column of bars and its scale. difference: the smallest that matters, as a share."""
    ends = [abs(math.log(value)) for result in results for value in (result.ratio, *(result.interval or ()))]
    most = 1.1 * max([*ends, math.log(FINEST)])
    same = of_no_interest(difference)
    return RatioScale(most), [RatioBar(result.ratio, result.interval, most, same) for result in results]


@dataclass(frozen=True, slots=True)
class Series:
    """One run's curve. place: of its group among the groups. points: None where a stretch is missing, so that no line
    is drawn over it. broken: where the log had nan or inf, and what of it."""

    place: int
    label: str
    run: str
    points: tuple[tuple[float, float] | None, ...]
    broken: tuple[tuple[float, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Curves:
    """A line for every run. from_zero: the axis begins there. note: what is not drawn. groups: how many there are."""

    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    groups: int
    from_zero: bool = True
    note: str = ""

    @property
    def alternative(self) -> str:
        """Return what the chart shows, for a reader who does not see it."""
        labels = listed(list(dict.fromkeys(series.label for series in self.series)))
        nan = sum(len(series.broken) for series in self.series)
        crosses = f" Crosses mark where the value is nan or inf: {nan}." if nan else ""
        return f"{self.title}, {self.y} against {self.x}: {len(self.series)} runs of {labels}.{crosses}"

    @property
    def caption(self) -> str:
        """Return what is not drawn, and where a value was no number."""
        broken = [series for series in self.series if series.broken]
        count = sum(len(series.broken) for series in broken)
        steps = "1 step is" if count == 1 else f"{count} steps are"
        runs = listed([series.run for series in broken])
        crosses = f"× at the foot: {steps} nan or inf, in {runs}" if broken else ""
        text = "; ".join(filter(None, (self.note, crosses)))
        return f"{text[:1].upper()}{text[1:]}." if text else ""


@dataclass(frozen=True, slots=True)
class Strip:
    """One figure: for each group (its place and title) a point for every run, and the mean with its interval."""

    title: str
    unit: str
    rows: tuple[tuple[int, str, tuple[float, ...], Quantity], ...]
    caption: ClassVar[str] = "A shape is a run, a bar a 95 % interval."

    @property
    def alternative(self) -> str:
        """Return what the chart shows, for a reader who does not see it."""
        return f"{self.title} of every run, in {self.unit}, and each group's mean with its 95 % interval: {_NUMBERS}"


@dataclass(frozen=True, slots=True)
class Spot:
    """A group as a point, with the intervals of both of its figures."""

    place: int
    label: str
    across: Quantity
    up: Quantity


@dataclass(frozen=True, slots=True)
class Guide:
    """A dashed line between two points, in the colour of the group at `place` or in none. An x of inf: to the edge."""

    start: tuple[float, float]
    end: tuple[float, float]
    text: str = ""
    place: int | None = None


@dataclass(frozen=True, slots=True)
class Spots:
    """Groups by two figures. marks: the ticks across, where they are given."""

    title: str
    x: str
    y: str
    spots: tuple[Spot, ...]
    guides: tuple[Guide, ...]
    alternative: str
    caption: str
    marks: tuple[float, ...] = ()


Chart: TypeAlias = Curves | Strip | Spots


def titled(group: Group) -> str:
    """Return a group's label, and whether its figures were measured at all."""
    provenance = group.runs[0].record.provenance
    clear = provenance in ("measured", "imported") or provenance in group.label
    return group.label if clear else f"{group.label} ({provenance})"


def legend(comparison: Comparison) -> tuple[tuple[int, str], ...]:
    """Return the groups whose figures are drawn, each with the place that gives it colour, dash and shape."""
    return tuple((place, titled(group)) for place, group in enumerate(comparison.groups) if group.shown)


def with_curves(comparison: Comparison) -> list[tuple[int, Side]]:
    """Return the groups whose curves are drawn, each with its place: those that carry numbers; where none does, the
    rehearsed ones."""
    places = {group.label: place for place, group in enumerate(comparison.groups)}
    return [(places[side.label], side) for side in sides(comparison.groups)[0]]


def throughput_chart(comparison: Comparison) -> Strip:
    """Return the throughput of every run, group by group."""
    rows = []
    for place, group in enumerate(comparison.groups):
        if group.shown:
            values = [comparison.run_figures[run.path][SPEED].value for run in group.shown]
            known = tuple(float(value) for value in values if value is not None)
            rows.append((place, titled(group), known, comparison.group_figures[group.label][SPEED]))
    return Strip("Throughput", "tokens/s/GPU", tuple(rows))


def price_chart(comparison: Comparison, unit: str) -> Spots | None:
    """Return what tokens cost, in `unit`, against how fast they are trained, and the line on which a group costs what
    the baseline does. None where no two groups have both, in one unit, or may not be compared."""
    spots = tuple(
        Spot(place, group.label, figures[SPEED], figures[COST])
        for place, group in enumerate(comparison.groups)
        if (figures := comparison.group_figures.get(group.label))
        and figures[SPEED].value is not None
        and figures[COST].value is not None
    )
    even = next((spot.up.value for spot in spots if spot.label == comparison.baseline), None)
    alike = len(spots) > 1 and len({spot.up.unit for spot in spots}) == 1
    if not alike or even is None or comparison.audit.verdict.word != "comparable":
        return None
    guide = Guide((0.0, even), (math.inf, even), f"break-even with {comparison.baseline}")
    labels = listed([spot.label for spot in spots])
    alternative = f"{unit} against tokens/s/GPU of {labels}: the tables have the numbers"
    caption = (
        "Right is faster, low is cheaper. The lines across a shape are its 95 % intervals. "
        f"Below the dashed line a token costs less than with {comparison.baseline}."
    )
    caption += " The prices are an example, not yours." if comparison.terms.prices.example else ""
    return Spots("Cost against speed", "tokens/s/GPU", unit, spots, (guide,), alternative, caption)


def scaling_chart(comparison: Comparison) -> Spots:
    """Return tokens/s against GPUs, and from each family's smallest group the line on which speed grows with GPUs."""
    places = {group.label: place for place, group in enumerate(comparison.groups)}
    rates = {label: figures["tokens_per_s"] for label, figures in comparison.group_figures.items()}
    scaled = comparison.scaling
    most = max(s.gpus for s in scaled)
    guides = tuple(
        Guide((0.0, 0.0), (most, (rates[label].value or 0.0) * most / fewest), place=places[label])
        for label, fewest in {s.smallest: s.smallest_gpus for s in scaled}.items()
    )
    spots = tuple(Spot(places[s.group], s.group, Quantity(s.gpus, "GPUs", "computed"), rates[s.group]) for s in scaled)
    alternative = f"Tokens/s against GPUs of every group, and dashed the line of linear growth: {_NUMBERS}"
    caption = "Dashed: linear growth from the group with the fewest GPUs."
    marks = (0.0, *sorted({float(s.gpus) for s in scaled}))
    return Spots("Scaling", "GPUs", "tokens/s", spots, guides, alternative, caption, marks)


_One: TypeAlias = tuple[int, str, Run]  # place and label of its group


def curve_charts(comparison: Comparison) -> tuple[Curves, ...]:
    """Return loss, learning rate and step time, in this order, without those of which nothing is known."""
    runs, hidden = _drawn(comparison)
    groups = len(comparison.groups)
    records = [run.record for _, _, run in runs]
    tokens = all(type(length := r.setting("seq_length")) is int and length > 0 for r in records) and all(
        step.consumed_samples is not None for r in records for step in r.steps
    )
    x = "tokens seen" if tokens else "iteration"
    reporting = [record for record in records if any(step.lr is not None for step in record.steps)]
    used = all(any(step.lr_used is not None for step in record.steps) for record in reporting)
    printed = "" if used else "as printed: in some logs that of the next step"
    loss = "Loss at equal tokens" if tokens else "Loss by iteration"
    losses = tuple(_series(one, "loss", tokens) for one in runs)
    rates = tuple(_series(one, "lr_used" if used else "lr", tokens) for one in runs)
    charts = []
    for chart in (
        Curves(loss, x, "nats per token", losses, groups, from_zero=False),
        Curves("Learning rate used" if used else "Learning rate", x, "learning rate", rates, groups, note=printed),
        _step_times(runs, groups),
    ):
        # A line that is missing is named: it looks as if it lay behind another.
        missing = [series.run for series in chart.series if not series.points and not series.broken]
        names = listed(missing) if len(missing) <= _NAMED else f"{len(missing)} runs"
        notes = (f"not reported by {names}" if missing else "", chart.note, hidden)
        if len(missing) < len(chart.series):
            charts.append(replace(chart, note="; ".join(filter(None, notes))))
    return tuple(charts)


def _drawn(comparison: Comparison) -> tuple[list[_One], str]:
    """Return the first repeats of every group, as many a group as fit, and what is left out. Steps are read once."""
    groups = with_curves(comparison)
    each = max(1, _DRAWN // max(1, len(groups)))
    runs = [(place, side.label, run) for place, side in groups for run in side.usable[:each]]
    read = [
        (p, label, Run(run.path, structs.replace(run.record, steps=tuple(run.record.steps)))) for p, label, run in runs
    ]
    total = sum(len(side.usable) for _, side in groups)
    return read, "" if len(runs) == total else f"{len(runs)} of {total} runs drawn, the first {each} of every group"


def _series(one: _One, name: str, tokens: bool) -> Series:
    place, label, run = one
    steps, length = run.record.steps, run.record.setting("seq_length")
    distances = Counter(b.step - a.step for a, b in pairwise(steps) if b.step > a.step)
    usual = max(distances, key=lambda distance: (distances[distance], -distance), default=1)
    points: list[tuple[float, float] | None] = []
    broken: list[tuple[float, str]] = []
    for before, step in pairwise((None, *steps)):
        if step is None:
            continue
        x, y = float(length * (step.consumed_samples or 0) if tokens else step.step + 1), getattr(step, name)
        if before is not None and step.step - before.step > usual:
            points.append(None)
        points.append(None if y is None else (x, y))
        if name in step.nonfinite:
            broken.append((x, f"{label}, {run.record.id}: {name} of iteration {step.step + 1} is nan or inf"))
    known = any(point is not None for point in points)
    return Series(place, label, run.record.id, tuple(points) if known else (), tuple(broken))


def _step_times(runs: Sequence[_One], groups: int) -> Curves:
    series, left_out = [], set()
    for place, label, run in runs:
        known = step_times(run.record)
        each, ends = known.iterations_a_line or 1, known.ends[known.warmup.count :]
        left_out.add(known.warmup.count * each)
        points: list[tuple[float, float] | None] = []
        for before, end, seconds in zip((*ends[:1], *ends), ends, known.times, strict=False):
            if end - before > each:
                points.append(None)
            points.append((end, seconds / each))
        series.append(Series(place, label, run.record.id, tuple(points)))
    low, high = min(left_out, default=0), max(left_out, default=0)
    note = f"without the warm-up, {low if low == high else f'{low} to {high}'} steps" if high else ""
    return Curves("Step time", "iteration", "seconds", tuple(series), groups, note=note)
