"""How many of the first steps are warm-up: found in the data by the marginal standard error rule, MSER.

MSER: K. P. White, "An effective truncation heuristic for bias reduction in simulation output", Simulation 69(6), 1997;
cut where the standard error of what remains is smallest. With the two bounds of ours named below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

AT_LEAST = 2
"""Compilation, allocation and first communication always fall into the first two iterations."""


@dataclass(frozen=True, slots=True)
class Warmup:
    """The first `count` entries are warm-up, because of `reason`."""

    count: int
    reason: str


def find_warmup(series: Sequence[float]) -> Warmup:
    """Warm-up of a series of step times. At least two entries, else at most half (White's own bound)."""
    length = len(series)
    if length <= AT_LEAST:
        return Warmup(length, f"all {length}: the first {AT_LEAST} always count as warm-up")
    at_most = max(AT_LEAST, length // 2)
    errors = _marginal_errors(series, range(AT_LEAST, at_most + 1))
    best = AT_LEAST + errors.index(min(errors))
    if best == AT_LEAST:
        return Warmup(best, f"{best} of {length}: the minimum; MSER (White 1997) finds no more")
    if best == at_most:
        return Warmup(best, f"{best} of {length}: half of them, MSER's bound; the pace may not be steady yet")
    return Warmup(best, f"{best} of {length} by MSER (White 1997)")


def _marginal_errors(series: Sequence[float], cuts: range) -> list[float]:
    """For each cut the squared standard error of the mean of series[cut:], up to a constant; from sums from the end.

    The last value is taken off first: what is left of the steady pace is then no difference of large numbers.
    """
    apart = [value - series[-1] for value in reversed(series)]
    sums, squares = list(accumulate(apart)), list(accumulate(map(mul, apart, apart)))
    counts = (len(series) - cut for cut in cuts)
    return [(squares[n - 1] - sums[n - 1] * sums[n - 1] / n) / (n * n) for n in counts]
