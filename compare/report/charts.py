"""The charts of a report as data: the curves of every run, a figure of every run, cost against speed, scaling. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

from msgspec import Struct, structs

from compare.comparison import TOTAL, Compared, Comparison
from compare.figures import COST, SPEED
from compare.groups import Group, counted
from compare.statistics import of_no_interest
from conf.errors import listed
from metrics import Quantity
from metrics.step_times import step_times
from parsers import Record

_NAMED = 3
_DRAWN = 24  # lines that an eye, and a page that opens at once, can take in
FINEST = 1.01  # ratio that a column of bars has room for at least
_NUMBERS = "the table has the numbers"


class RatioBar(Struct, frozen=True):
    """A ratio and its interval against 1; the row says the same in numbers. Without a ratio it is the scale above a
    column of bars. most: logarithm of the largest ratio that the column has room for; same: the ratios that make no
    difference."""

    most: float
    same: tuple[float, float]
    ratio: float | None = None
    interval: tuple[float, float] | None = None


def ratio_bars(results: Sequence[Compared], difference: float) -> list[RatioBar]:
    """Return a column of bars, its scale first. difference: the smallest that matters, as a share."""
    ends = [end for result in results for end in (result.ratio, *(result.interval or ())) if end is not None]
    most = 1.1 * max([*(abs(math.log(end)) for end in ends), math.log(FINEST)])
    same = of_no_interest(difference)
    return [RatioBar(most, same), *(RatioBar(most, same, result.ratio, result.interval) for result in results)]


class Series(Struct, frozen=True):
    """One run's curve. place: of its group among the groups. points: None where a stretch is missing, so that no line
    is drawn over it. broken: where the log had nan or inf, and what of it."""

    place: int
    label: str
    run: str
    points: tuple[tuple[float, float] | None, ...]
    broken: tuple[tuple[float, str], ...] = ()


class Spot(Struct, frozen=True):
    """A group as a point, with the intervals of both of its figures."""

    place: int
    label: str
    across: Quantity
    up: Quantity


class Guide(Struct, frozen=True):
    """A dashed line between two points, in the colour of the group at `place` or in none. An x of inf: to the edge."""

    start: tuple[float, float]
    end: tuple[float, float]
    text: str = ""
    place: int | None = None


class Plot(Struct, frozen=True, kw_only=True):
    """Lines of runs, or groups as spots, over two axes. from_zero: y begins there; x does with spots. alternative: what
    the chart shows, for a reader who does not see it. groups: how many there are. marks: the ticks across, where they
    are given."""

    title: str
    x: str
    y: str
    alternative: str
    caption: str
    series: tuple[Series, ...] = ()
    spots: tuple[Spot, ...] = ()
    guides: tuple[Guide, ...] = ()
    groups: int = 0
    from_zero: bool = True
    marks: tuple[float, ...] = ()


class Strip(Struct, frozen=True):
    """One figure: for each group (its place and title) a point for every run, and the mean with its interval."""

    title: str
    unit: str
    rows: tuple[tuple[int, str, tuple[float, ...], Quantity], ...]
    alternative: str
    caption: str = "A shape is a run, a bar a 95 % interval."


Chart: TypeAlias = Plot | Strip


def titled(group: Group) -> str:
    """Return a group's label, and whether its figures were measured at all."""
    provenance = group.runs[0].record.provenance
    clear = provenance in ("measured", "imported") or provenance in group.label
    return group.label if clear else f"{group.label} ({provenance})"


def legend(comparison: Comparison) -> tuple[tuple[int, str], ...]:
    """Return the groups whose figures are drawn, each with the place that gives it colour, dash and shape."""
    return tuple((place, titled(group)) for place, group in enumerate(comparison.groups) if group.shown)


def with_curves(comparison: Comparison) -> list[tuple[int, Group]]:
    """Return the groups whose curves are drawn, each with its place: those that carry numbers; where none does, the
    rehearsed ones."""
    return [(comparison.places[side.label], side) for side in counted(comparison.groups)]


def throughput_chart(comparison: Comparison) -> Strip:
    """Return the throughput of every run, group by group."""
    rows = []
    for place, title in legend(comparison):
        group = comparison.groups[place]
        values = [comparison.run_figures[run.path][SPEED].value for run in group.shown]
        known = tuple(float(value) for value in values if value is not None)
        rows.append((place, title, known, comparison.group_figures[group.label][SPEED]))
    alternative = f"Throughput of every run, in tokens/s/GPU, and each group's mean with its 95 % interval: {_NUMBERS}"
    return Strip("Throughput", "tokens/s/GPU", tuple(rows), alternative)


def price_chart(comparison: Comparison) -> Plot | None:
    """Return what tokens cost against how fast they are trained, and the line on which a group costs what
    the baseline does. None where no two groups have both, in one unit, or may not be compared."""
    spots = tuple(
        Spot(comparison.places[label], label, known[SPEED], known[COST])
        for label, known in comparison.group_figures.items()
        if None not in (known[SPEED].value, known[COST].value)
    )
    even = next((spot.up.value for spot in spots if spot.label == comparison.baseline), None)
    alike = len(spots) > 1 and len({spot.up.unit for spot in spots}) == 1
    if not alike or even is None or comparison.audit.verdict.word != "comparable":
        return None
    unit = spots[0].up.unit
    caption = (
        "Right is faster, low is cheaper. The lines across a shape are its 95 % intervals. "
        f"Below the dashed line a token costs less than with {comparison.baseline}."
    )
    return Plot(
        title="Cost against speed",
        x="tokens/s/GPU",
        y=unit,
        alternative=f"{unit} against tokens/s/GPU of {listed([s.label for s in spots])}: the tables have the numbers",
        caption=caption + (" The prices are an example, not yours." if comparison.terms.prices.example else ""),
        spots=spots,
        guides=(Guide((0.0, even), (math.inf, even), f"break-even with {comparison.baseline}"),),
    )


def scaling_chart(comparison: Comparison) -> Plot:
    """Return tokens/s against GPUs, and from each family's smallest group the line on which speed grows with GPUs."""
    scaled, places = comparison.scaling, comparison.places
    rates = {label: figures[TOTAL] for label, figures in comparison.group_figures.items()}
    most = max(s.gpus for s in scaled)
    guides = [
        Guide((0.0, 0.0), (most, (rates[label].value or 0.0) * most / fewest), place=places[label])
        for label, fewest in {s.smallest: s.smallest_gpus for s in scaled}.items()
    ]
    spots = [Spot(places[s.group], s.group, Quantity(s.gpus, "GPUs", "computed"), rates[s.group]) for s in scaled]
    return Plot(
        title="Scaling",
        x="GPUs",
        y="tokens/s",
        alternative=f"Tokens/s against GPUs of every group, and dashed the line of linear growth: {_NUMBERS}",
        caption="Dashed: linear growth from the group with the fewest GPUs.",
        spots=tuple(spots),
        guides=tuple(guides),
        marks=(0.0, *sorted({float(s.gpus) for s in scaled})),
    )


_One: TypeAlias = tuple[int, str, Record]  # place and label of its group


def curve_charts(comparison: Comparison) -> tuple[Plot, ...]:
    """Return loss, learning rate and step time, in this order, without those of which nothing is known. As many runs a
    group are drawn as fit, the first ones; steps are read once."""
    groups = with_curves(comparison)
    each = max(1, _DRAWN // max(1, len(groups)))
    total = sum(len(side.usable) for _, side in groups)
    firsts = [(place, side.label, run.record) for place, side in groups for run in side.usable[:each]]
    runs = [(place, label, structs.replace(record, steps=tuple(record.steps))) for place, label, record in firsts]
    records = [record for _, _, record in runs]
    tokens = all(type(length := r.setting("seq_length")) is int and length > 0 for r in records) and all(
        step.consumed_samples is not None for r in records for step in r.steps
    )
    reporting = [record for record in records if any(step.lr is not None for step in record.steps)]
    used = all(any(step.lr_used is not None for step in record.steps) for record in reporting)
    losses = [_series(one, "loss", tokens) for one in runs]
    rates = [_series(one, "lr_used" if used else "lr", tokens) for one in runs]
    times, warmup = _step_times(runs)
    x = "tokens seen" if tokens else "iteration"
    printed = "" if used else "as printed: in some logs that of the next step"
    hidden = "" if len(runs) == total else f"{len(runs)} of {total} runs drawn, the first {each} of every group"
    return tuple(
        Plot(
            title=title,
            x=across,
            y=y,
            alternative=f"{title}, {y} against {across}: {_alternative(series)}",
            caption=_caption(series, note, hidden),
            series=tuple(series),
            groups=len(comparison.groups),
            from_zero=series is not losses,
        )
        for title, across, y, series, note in (
            ("Loss at equal tokens" if tokens else "Loss by iteration", x, "nats per token", losses, ""),
            ("Learning rate used" if used else "Learning rate", x, "learning rate", rates, printed),
            ("Step time", "iteration", "seconds", times, warmup),
        )
        if any(one.points or one.broken for one in series)
    )


def _alternative(series: Sequence[Series]) -> str:
    labels = listed(list(dict.fromkeys(one.label for one in series)))
    nan = sum(len(one.broken) for one in series)
    crosses = f" Crosses mark where the value is nan or inf: {nan}." if nan else ""
    return f"{len(series)} runs of {labels}.{crosses}"


def _caption(series: Sequence[Series], note: str, hidden: str) -> str:
    """Return what is not drawn, and where a value was no number."""
    # A line that is missing is named: it looks as if it lay behind another.
    missing = [one.run for one in series if not one.points and not one.broken]
    names = listed(missing) if len(missing) <= _NAMED else f"{len(missing)} runs"
    broken = [one.run for one in series if one.broken]
    count = sum(len(one.broken) for one in series)
    steps = "1 step is" if count == 1 else f"{count} steps are"
    crosses = f"× at the foot: {steps} nan or inf, in {listed(broken)}" if broken else ""
    text = "; ".join(filter(None, (f"not reported by {names}" if missing else "", note, hidden, crosses)))
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _series(one: _One, name: str, tokens: bool) -> Series:
    place, label, record = one
    steps, length = record.steps, record.setting("seq_length")
    distances = Counter(b.step - a.step for a, b in pairwise(steps) if b.step > a.step)
    usual = max(distances, key=lambda distance: (distances[distance], -distance), default=1)
    points: list[tuple[float, float] | None] = []
    broken: list[tuple[float, str]] = []
    for before, step in zip((*steps[:1], *steps), steps, strict=False):
        x, y = float(length * (step.consumed_samples or 0) if tokens else step.step + 1), getattr(step, name)
        if step.step - before.step > usual:
            points.append(None)
        points.append(None if y is None else (x, y))
        if name in step.nonfinite:
            broken.append((x, f"{label}, {record.id}: {name} of iteration {step.step + 1} is nan or inf"))
    known = any(point is not None for point in points)
    return Series(place, label, record.id, tuple(points) if known else (), tuple(broken))


def _step_times(runs: Sequence[_One]) -> tuple[list[Series], str]:
    """Return the step times of runs, and how much of them is left out."""
    series, left_out = [], set()
    for place, label, record in runs:
        known = step_times(record)
        each, ends = known.iterations_a_line or 1, known.ends[known.warmup.count :]
        left_out.add(known.warmup.count * each)
        points: list[tuple[float, float] | None] = []
        for before, end, seconds in zip((*ends[:1], *ends), ends, known.times, strict=False):
            if end - before > each:
                points.append(None)
            points.append((end, seconds / each))
        series.append(Series(place, label, record.id, tuple(points)))
    low, high = min(left_out, default=0), max(left_out, default=0)
    return series, f"without the warm-up, {low if low == high else f'{low} to {high}'} steps" if high else ""
