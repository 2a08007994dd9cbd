"""Ratios between groups of runs. The run is the unit: the steps of one run depend on each other. Pure.

Welch's t on the logarithms of run means: B. L. Welch, Biometrika 34, 1947; degrees of freedom by Satterthwaite."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import Struct

from metrics.repeats import ENOUGH, exp, t_quantile, variance

Better = Literal["higher", "lower"]
Interval = tuple[float, float]
Word = Literal["faster", "slower", "same", "undecided", "cheaper", "more expensive", "better", "worse"]

OF_INTEREST = 0.02
"""The smallest difference that matters, as a share."""
_MOST_RUNS = 1000


class Ratio(Struct, frozen=True):
    """One group over another. interval: 95 %. Either is None where `reason` says why. The word speaks of the first
    group. runs_to_decide: of an undecided one, the runs a side after which the word would be another; None: not known,
    or more than are worth it."""

    reason: str
    ratio: float | None = None
    interval: Interval | None = None
    word: Word = "undecided"
    runs_to_decide: int | None = None


def ratio_of(
    values: Sequence[float], baseline: Sequence[float], better: Better, difference: float = OF_INTEREST
) -> Ratio:
    """Return the ratio of geometric means of two groups of positive run means, and its word. difference: the smallest
    that matters, as a share."""
    sizes = (len(values), len(baseline))
    distance, variances = _compared(values, baseline)

    def needed() -> int | None:
        return runs_to_decide(values, baseline, lambda ends: word_of(ends, better, difference) != "undecided")

    if min(sizes) < ENOUGH:
        few = f"too few runs for an interval ({sizes[0]} and {sizes[1]}, {ENOUGH} each are needed)"
        reason = "one run each: no interval" if sizes == (1, 1) else few
        return Ratio(reason, exp(distance), runs_to_decide=max(ENOUGH, needed() or 0) if min(sizes) > 1 else None)
    if sum(variances) == 0:
        return Ratio("no spread between repeats: copies, or too coarse a clock", exp(distance))
    interval = _interval(distance, variances, sizes)
    word, how = word_of(interval, better, difference), f"Welch, {sizes[0]:,} against {sizes[1]:,} runs"
    if word != "undecided":
        return Ratio(how, exp(distance), interval, word)
    runs = needed()
    return Ratio(f"{how}; {would_decide(runs)}", exp(distance), interval, word, runs)


def _compared(values: Sequence[float], baseline: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """Return the distance of the mean logarithms, and the variance of each side's, 0 of a single run."""
    first, second = ([math.log(value) for value in side] for side in (values, baseline))
    a, b = (variance(side) if len(side) > 1 else 0.0 for side in (first, second))
    return statistics.fmean(first) - statistics.fmean(second), (a, b)


def _interval(distance: float, variances: tuple[float, float], runs: tuple[int, int]) -> Interval:
    """Return Welch's interval of a ratio. variances: of the logarithms of so many runs on each side, not both 0."""
    a, b = (variance / count for variance, count in zip(variances, runs, strict=True))
    # Divided through by a + b: the squares of very small variances are zero in floating point.
    share = a / (a + b)
    degrees = 1 / (share**2 / (runs[0] - 1) + (1 - share) ** 2 / (runs[1] - 1))
    half = t_quantile(degrees) * math.sqrt(a + b)
    return exp(distance - half), exp(distance + half)


def would_decide(runs: int | None) -> str:
    """Return how many runs would decide, in words. None: more than are worth their cost."""
    return f"about {runs:,} runs a side would decide" if runs else f"not even {_MOST_RUNS:,} runs a side would decide"


def of_no_interest(difference: float) -> Interval:
    """Return the ratios from 1 / (1 + difference) to 1 + difference: a figure and its inverse, as speed and step time
    are, are then of one word."""
    return 1 / (1 + difference), 1 + difference


def word_of(interval: Interval, better: Better, difference: float = OF_INTEREST) -> Word:
    """Return same: inside the band of no interest; faster or slower: all on one side of 1; else undecided."""
    low, high = interval
    least, most = of_no_interest(difference)
    if least <= low and high <= most:
        return "same"
    if low > 1:
        return "faster" if better == "higher" else "slower"
    if high < 1:
        return "slower" if better == "higher" else "faster"
    return "undecided"


def runs_to_decide(
    values: Sequence[float], baseline: Sequence[float], decided: Callable[[Interval], bool]
) -> int | None:
    """Return the smallest n for which Welch's interval over n runs a side decides, if ratio and spreads stay as they
    were seen (planning by the expected width: G. J. Hahn, W. Q. Meeker, Statistical Intervals, 1991, chapter 8). They
    will not quite: of simulated pairs 84 % and more were decided by then (benchmarks/intervals.py). decided: where it
    is true of an interval, it is of all inside. None: more than are worth it, or not known (a single run, no
    spread)."""
    if min(len(values), len(baseline)) < 2:
        return None
    distance, variances = _compared(values, baseline)
    if sum(variances) == 0:
        return None

    def decides(count: int) -> bool:
        return decided(_interval(distance, variances, (count, count)))

    # A longer interval decides nothing that a shorter one inside it leaves open: the first count is found by halving.
    candidates = range(max(ENOUGH, min(len(values), len(baseline)) + 1), _MOST_RUNS + 1)
    place = bisect_left(candidates, True, key=decides)
    return candidates[place] if place < len(candidates) else None
