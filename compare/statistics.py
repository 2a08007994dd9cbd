"""Ratios between groups of runs. The run is the unit: the steps of one run depend on each other. Pure.

Welch's t on the logarithms of run means: B. L. Welch, Biometrika 34, 1947; degrees of freedom by Satterthwaite."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import Struct

from metrics.repeats import ENOUGH, exp, t_quantile

Better = Literal["higher", "lower"]
Interval = tuple[float, float]
Word = Literal["faster", "slower", "same", "undecided", "cheaper", "more expensive", "better", "worse"]

OF_INTEREST = 0.02
"""The smallest difference that matters, as a share."""
_MOST_RUNS = 1000


class Ratio(Struct, frozen=True):
    """One group over another. interval: 95 %; None where `reason` says why. The word speaks of the first group.
    runs_to_decide: of an undecided one, the runs a side after which the word would be another; None: not known, or more
    than are worth it."""

    ratio: float
    interval: tuple[float, float] | None
    word: Word
    reason: str
    runs_to_decide: int | None = None


def ratio_of(
    values: Sequence[float], baseline: Sequence[float], better: Better, difference: float = OF_INTEREST
) -> Ratio:
    """Return the ratio of geometric means of two groups of positive run means, and its word. difference: the smallest
    that matters, as a share."""
    logs, base = [math.log(value) for value in values], [math.log(value) for value in baseline]
    distance = statistics.fmean(logs) - statistics.fmean(base)
    ratio = exp(distance)

    def decided(interval: Interval) -> bool:
        return word_of(interval, better, difference) != "undecided"

    if min(len(logs), len(base)) < ENOUGH:
        known = min(len(logs), len(base)) > 1
        needed = max(ENOUGH, runs_to_decide(values, baseline, decided) or 0) if known else None
        reason = f"too few runs for an interval ({len(logs)} and {len(base)}, {ENOUGH} each are needed)"
        only = len(logs) == len(base) == 1
        return Ratio(ratio, None, "undecided", "one run each: no interval" if only else reason, needed)
    half = _half_width(
        statistics.variance(logs) / len(logs), statistics.variance(base) / len(base), len(logs), len(base)
    )
    if half is None:
        return Ratio(ratio, None, "undecided", "no spread between repeats: copies, or too coarse a clock")
    interval = (exp(distance - half), exp(distance + half))
    word = word_of(interval, better, difference)
    how = f"Welch, {len(logs)} against {len(base)} runs"
    if word != "undecided":
        return Ratio(ratio, interval, word, how)
    needed = runs_to_decide(values, baseline, decided)
    return Ratio(ratio, interval, word, f"{how}; {would_decide(needed)}", needed)


def would_decide(runs: int | None) -> str:
    """Return how many runs would decide, in words. None: more than are worth their cost."""
    return f"about {runs} runs a side would decide" if runs else f"not even {_MOST_RUNS} runs a side would decide"


def of_no_interest(difference: float) -> tuple[float, float]:
    """Return the ratios from 1 / (1 + difference) to 1 + difference: a figure and its inverse, as speed and step time
    are, are then of one word."""
    return 1 / (1 + difference), 1 + difference


def word_of(interval: tuple[float, float], better: Better, difference: float = OF_INTEREST) -> Word:
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


def _half_width(a: float, b: float, first: int, second: int) -> float | None:
    """Return half of Welch's interval. a, b: squared standard errors of means over so many runs. None: no spread."""
    if a + b == 0:
        return None
    # Divided through by a + b: the squares of very small variances are zero in floating point.
    share = a / (a + b)
    degrees = 1 / (share**2 / (first - 1) + (1 - share) ** 2 / (second - 1))
    return t_quantile(degrees) * math.sqrt(a + b)


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
    logs, base = [math.log(value) for value in values], [math.log(value) for value in baseline]
    distance = statistics.fmean(logs) - statistics.fmean(base)
    a, b = statistics.variance(logs), statistics.variance(base)
    if a + b == 0:
        return None

    def decides(count: int) -> bool:
        half = _half_width(a / count, b / count, count, count) or 0.0
        return decided((exp(distance - half), exp(distance + half)))

    # A longer interval decides nothing that a shorter one inside it leaves open: the first count is found by halving.
    candidates = range(max(ENOUGH, min(len(logs), len(base)) + 1), _MOST_RUNS + 1)
    place = bisect_left(candidates, True, key=decides)
    return candidates[place] if place < len(candidates) else None
