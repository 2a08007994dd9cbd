"""Runs of one thing: what makes them repeats, what distinguishes others, and their figures: the geometric mean over
runs and its interval. The run is the unit."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from conf.vocabulary import vocabulary
from metrics.peak import hardware_of
from metrics.quantity import Quantity, weakest
from parsers.record import Record

ENOUGH = 3
"""Repeats from which an interval is given."""
_CONFIDENCE = 0.95
_LARGEST_LOGARITHM = 600.0
DIFFER = "predictions that differ"
"""The note of a figure that several predictions have none of in common."""
SEED = "seed"
FACTS = ("provenance", "platform", "hardware", "framework", "image")
SUBMITTED = ("mlperf_submission_org", "mlperf_submission_platform")
"""Facts of the environment by which results of MLPerf are of one system: their logs state few settings."""
_Key = TypeVar("_Key", bound=Hashable)
_Item = TypeVar("_Item")


def gathered(pairs: Iterable[tuple[_Key, _Item]]) -> dict[_Key, list[_Item]]:
    """Return the second parts of `pairs` by their first."""
    by_key: dict[_Key, list[_Item]] = {}
    for key, item in pairs:
        by_key.setdefault(key, []).append(item)
    return by_key


def requested_of(record: Record) -> Mapping[str, Any]:
    """Return what was requested; of a log from elsewhere its effective settings, and those that the user stated."""
    if record.requested:
        return record.requested
    given = {name: value for name, value in record.given.items() if name in vocabulary()}
    return given | {name: reading.value for name, reading in record.effective.items()}


def options_of(record: Record) -> Mapping[str, Any]:
    """Return what was declared that is no setting of ours: options of a framework, variables of the environment."""
    return {d.key: d.value for d in record.declared if d.key not in vocabulary()}


def experiment_key(record: Record, but: Collection[str] = (SEED,)) -> tuple[str, ...]:
    """Return a key that is equal for repeats: everything requested alike, but for the facts and settings in `but`."""
    facts = {name: getattr(record, name) for name in FACTS}
    # As planned, for a run may die before its driver is read; of a log from elsewhere as the driver reports it.
    facts["hardware"] = facts["hardware"] or hardware_of(record)
    facts |= {name: record.environment[name] for name in SUBMITTED if name in record.environment}
    facts |= {"method": record.method, "recipe": record.recipe and record.recipe.name} if record.method else {}
    settings = [f"{name}={value!r}" for name, value in sorted(requested_of(record).items()) if name not in but]
    settings += [f"{key}={value}" for key, value in sorted(options_of(record).items())]
    settings += [f"environment.{name}={value}" for name, value in sorted((record.variables or {}).items())]
    return (*(repr(value) for name, value in facts.items() if name not in but), *settings)


def distinct_names(count: int, columns: Iterable[Sequence[str]]) -> list[str]:
    """Return a name for each of `count` things: the columns that vary, in their order, until all names differ."""
    names = [""] * count
    for cells in columns:
        if len({*cells}) > 1:
            names = [" ".join(filter(None, pair)) for pair in zip(names, cells, strict=True)]
        if len({*names}) == count:
            break
    return names


def exp(logarithm: float) -> float:
    """Return math.exp, bounded where floats end: intervals over absurd figures are endless, and nothing raises."""
    return math.exp(min(logarithm, _LARGEST_LOGARITHM))


def mean_of(values: Sequence[float]) -> tuple[float, tuple[float, float] | None]:
    """Return the geometric mean of positive run means, and its 95 % interval where there are enough."""
    centre, ends = arithmetic_mean_of([math.log(value) for value in values])
    return exp(centre), (exp(ends[0]), exp(ends[1])) if ends else None


def variance(values: Sequence[float]) -> float:
    """Return the variance of a sample of two or more, 0 where all are alike. As `statistics.variance`, which works in
    fractions, thirty times as long; here two passes over the distances from the first value, without its digits."""
    apart = [value - values[0] for value in values]
    mean = math.fsum(apart) / len(apart)
    return math.fsum((one - mean) * (one - mean) for one in apart) / (len(apart) - 1)


def arithmetic_mean_of(values: Sequence[float]) -> tuple[float, tuple[float, float] | None]:
    """Return the mean of run figures that may be zero (percentages, losses), and its 95 % interval; None where there
    are too few, or all are alike."""
    centre = statistics.fmean(values)
    spread = variance(values) if len(values) >= ENOUGH else 0.0
    half = t_quantile(len(values) - 1) * math.sqrt(spread / len(values)) if spread else 0.0
    return centre, (centre - half, centre + half) if half else None


def predicted(figures: Sequence[Quantity]) -> Quantity | None:
    """Return the one figure of predictions, with their own intervals; unknown where they differ, for they are no sample
    of anything. None where none of `figures`, all of them known, is a prediction: a run's own have no interval."""
    first = figures[0]
    if not any(quantity.interval or quantity.interval_80 for quantity in figures):
        return None
    alike = all(quantity == first for quantity in figures)
    return first if alike else Quantity(None, first.unit, first.source, note=DIFFER)


def pooled(figures: Sequence[Quantity]) -> Quantity:
    """Return one figure of several runs; unknown if one is: the mean of the others would be a selection."""
    first, source = figures[0], weakest(*(quantity.source for quantity in figures))
    values = [float(q.value) for q in figures if q.value is not None and q.value > 0 and q.unit == first.unit]
    if len(values) < len(figures):
        note = next((q.note for q in figures if q.value is None and q.note), "")
        return Quantity(None, first.unit, source, note=note)
    if (prediction := predicted(figures)) is not None:
        return prediction
    mean, interval = mean_of(values)
    return Quantity(mean, first.unit, source, interval, first.note)


def t_quantile(degrees: float) -> float:
    """Return Student's t for a two-sided 95 % interval."""
    from scipy.special import stdtrit  # scipy.stats.t.ppf, without the half second that importing scipy.stats takes

    return float(stdtrit(degrees, 0.5 + _CONFIDENCE / 2))
