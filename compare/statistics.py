"""Ratios between groups of runs. The run is the unit: the steps of one run depend on each other. Pure.

Welch's t on the logarithms of run means: B. L. Welch, Biometrika 34, 1947; degrees of freedom by Satterthwaite.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from metrics.repeats import ENOUGH as ENOUGH
from metrics.repeats import mean_of as mean_of
from metrics.repeats import t_quantile as t_quantile

Better = Literal["higher", "lower"]
Word = Literal["faster", "slower", "same", "undecided"]

OF_INTEREST = 0.02
"""The smallest difference that matters."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """One group over another. interval: 95 %; None where `reason` says why. The word speaks of the first group."""

    ratio: float
    interval: tuple[float, float] | None
    word: Word
    reason: str


def ratio_of(values: Sequence[float], baseline: Sequence[float], better: Better) -> Ratio:
    """The ratio of geometric means of two groups of positive run means, and its word."""
    logs, base = [math.log(value) for value in values], [math.log(value) for value in baseline]
    distance = statistics.fmean(logs) - statistics.fmean(base)
    ratio = math.exp(distance)
    if min(len(logs), len(base)) < ENOUGH:
        return Ratio(ratio, None, "undecided", _too_few(len(logs), len(base)))
    half = _welch_half_width(logs, base)
    if half is None:
        return Ratio(ratio, None, "undecided", "no spread between repeats: copies, or too coarse a clock")
    interval = (math.exp(distance - half), math.exp(distance + half))
    return Ratio(ratio, interval, word_of(interval, better), f"Welch, {len(logs)} against {len(base)} runs")


def word_of(interval: tuple[float, float], better: Better) -> Word:
    """same: inside the band of no interest; faster or slower: all on one side of 1; else undecided."""
    low, high = interval
    if low >= 1 - OF_INTEREST and high <= 1 + OF_INTEREST:
        return "same"
    if low > 1:
        return "faster" if better == "higher" else "slower"
    if high < 1:
        return "slower" if better == "higher" else "faster"
    return "undecided"


def _welch_half_width(first: Sequence[float], second: Sequence[float]) -> float | None:
    a, b = statistics.variance(first) / len(first), statistics.variance(second) / len(second)
    if a + b == 0:
        return None
    # Divided through by a + b: the squares of very small variances are zero in floating point.
    share = a / (a + b)
    degrees = 1 / (share**2 / (len(first) - 1) + (1 - share) ** 2 / (len(second) - 1))
    return t_quantile(degrees) * math.sqrt(a + b)


def _too_few(count: int, base: int) -> str:
    if count == base == 1:
        return "one run each: no interval"
    return f"too few runs for an interval ({count} and {base}, {ENOUGH} each are needed)"
