"""The curves of every run that carries numbers, as a picture shows them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeAlias

from msgspec import structs

from compare.comparison import Comparison
from compare.groups import Side, sides
from conf.errors import listed
from metrics.step_times import step_times
from parsers import Record, Run, Step

Points: TypeAlias = "tuple[tuple[float, float] | None, ...]"


@dataclass(frozen=True, slots=True)
class Series:
    """One run's curve. place: of its group among the groups. points: None where a stretch is missing, so that no line
    is drawn over it. broken: where the log had nan or inf, and what of it."""

    place: int
    label: str
    run: str
    points: Points
    broken: tuple[tuple[float, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Curves:
    """One picture's. from_zero: the axis begins there. note: what is not drawn."""

    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    from_zero: bool = True
    note: str = ""


_One: TypeAlias = tuple[int, str, Run]  # place and label of its group
_NAMED = 3
_DRAWN = 24  # lines that an eye, and a page that opens at once, can hold


def curves(comparison: Comparison) -> tuple[Curves, ...]:
    """Loss, learning rate and step time, in this order; those of which nothing is known are left out."""
    runs, hidden = _drawn(comparison)
    tokens = all(_sample_tokens(run.record) for _, _, run in runs)
    at = _at_tokens if tokens else _at_iteration
    x = "tokens seen" if tokens else "iteration"
    used = all(any(s.lr_used is not None for s in r.record.steps) for _, _, r in runs if _tells(r, "lr"))
    printed = "" if used else "as printed: in some logs that of the next step"
    loss = "Loss at equal tokens" if tokens else "Loss by iteration"
    losses = tuple(_series(one, "loss", at) for one in runs)
    rates = tuple(_series(one, "lr_used" if used else "lr", at) for one in runs)
    found = (
        Curves(loss, x, "nats per token", losses, from_zero=False),
        Curves("Learning rate used" if used else "Learning rate", x, "learning rate", rates, note=printed),
        _step_times(runs),
    )
    return tuple(
        replace(c, note="; ".join(part for part in (_silent(c), c.note, hidden) if part))
        for c in found
        if any(series.points or series.broken for series in c.series)
    )


def _tells(run: Run, name: str) -> bool:
    return any(getattr(step, name) is not None for step in run.record.steps)


def _silent(drawn: Curves) -> str:
    """What looks like a missing line is one."""
    runs = [series.run for series in drawn.series if not series.points and not series.broken]
    return f"not told by {listed(runs) if len(runs) <= _NAMED else f'{len(runs)} runs'}" if runs else ""


def _drawn(comparison: Comparison) -> tuple[list[_One], str]:
    """The first repeats of every group, as many a group as fit. Their steps are read once."""
    found = with_curves(comparison)
    each = max(1, _DRAWN // max(1, len(found)))
    runs = [(place, side.label, run) for place, side in found for run in side.usable[:each]]
    read = [
        (p, label, Run(run.path, structs.replace(run.record, steps=tuple(run.record.steps)))) for p, label, run in runs
    ]
    total = sum(len(side.usable) for _, side in found)
    return read, "" if len(runs) == total else f"{len(runs)} of {total} runs drawn, the first {each} of every group"


def with_curves(comparison: Comparison) -> list[tuple[int, Side]]:
    """The groups that are drawn, each with its place, which gives it colour, dash and shape: those that carry numbers;
    where none does, the rehearsed ones."""
    places = {group.label: place for place, group in enumerate(comparison.groups)}
    return [(places[side.label], side) for side in sides(comparison.groups)[0]]


_Where = Callable[[Record, Step], "float | None"]


def _series(one: _One, name: str, at: _Where) -> Series:
    place, label, run = one
    steps = run.record.steps
    usual = _usual_distance([step.step for step in steps])
    points: list[tuple[float, float] | None] = []
    broken: list[tuple[float, str]] = []
    for before, step in pairwise((None, *steps)):
        if step is None:
            continue
        x, y = at(run.record, step), getattr(step, name)
        if before is not None and step.step - before.step > usual:
            points.append(None)
        points.append(None if x is None or y is None else (x, y))
        if name in step.nonfinite and x is not None:
            broken.append((x, f"{label}, {run.record.id}: {name} of iteration {step.step + 1} is nan or inf"))
    known = any(point is not None for point in points)
    return Series(place, label, run.record.id, tuple(points) if known else (), tuple(broken))


def _step_times(runs: Sequence[_One]) -> Curves:
    found, left_out = [], set()
    for place, label, run in runs:
        known = step_times(run.record)
        each, ends = known.iterations_a_line or 1, known.ends[known.warmup.count :]
        left_out.add(known.warmup.count * each)
        points: list[tuple[float, float] | None] = []
        for before, end, seconds in zip((*ends[:1], *ends), ends, known.times, strict=False):
            if end - before > each:
                points.append(None)
            points.append((end, seconds / each))
        found.append(Series(place, label, run.record.id, tuple(points)))
    low, high = min(left_out, default=0), max(left_out, default=0)
    note = f"without the warm-up, {low if low == high else f'{low} to {high}'} steps" if high else ""
    return Curves("Step time", "iteration", "seconds", tuple(found), note=note)


def _usual_distance(steps: Sequence[int]) -> int:
    distances = Counter(b - a for a, b in pairwise(steps) if b > a)
    return max(distances, key=lambda distance: (distances[distance], -distance), default=1)


def _sample_tokens(record: Record) -> int | None:
    length = record.setting("seq_length")
    known = all(step.consumed_samples is not None for step in record.steps)
    return length if type(length) is int and known else None


def _at_tokens(record: Record, step: Step) -> float | None:
    length = record.setting("seq_length")
    return None if step.consumed_samples is None else float(length * step.consumed_samples)


def _at_iteration(record: Record, step: Step) -> float | None:
    return float(step.step + 1)
