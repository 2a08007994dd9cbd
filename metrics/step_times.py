"""The time of the steps of a record: intervals between step ends, and which of them are warm-up.

A step line covers one iteration, or k where the framework logs every k-th; k is the commonest distance between lines.
Lines at another distance (a lost line, a restart) give no interval: what they cover is not known.

Warm-up is derived from the data by the marginal standard error rule, MSER: K. P. White, "An effective truncation
heuristic for bias reduction in simulation output", Simulation 69(6), 1997; cut where the standard error of what remains
is smallest. With the two bounds of ours named below."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, compress, islice, pairwise
from operator import mul, sub

from metrics.quantity import Source
from parsers.record import Record, Step, columns

AT_LEAST = 2
"""Compilation, allocation and first communication always fall into the first two iterations."""


@dataclass(frozen=True, slots=True)
class Warmup:
    """The first `count` entries are warm-up, because of `reason`."""

    count: int
    reason: str


def find_warmup(series: Sequence[float]) -> Warmup:
    """Return the warm-up of a series of step times. At least two entries, else at most half (White's own bound)."""
    length = len(series)
    if length <= AT_LEAST:
        return Warmup(length, f"all {length}: the first {AT_LEAST} always count as warm-up")
    at_most = max(AT_LEAST, length // 2)
    # The squared standard error of the mean of the last n, up to a constant, from sums from the end. The last value is
    # subtracted first: else small differences of large numbers are lost.
    last = series[-1]
    apart = [value - last for value in reversed(series)]
    fewest, most = length - at_most, length - AT_LEAST
    sums = islice(accumulate(apart), fewest - 1, most)
    squares = islice(accumulate(map(mul, apart, apart)), fewest - 1, most)
    errors = [(q - s * s / n) / (n * n) for n, s, q in zip(range(fewest, most + 1), sums, squares, strict=True)]
    errors.reverse()
    best = AT_LEAST + errors.index(min(errors))
    if best == AT_LEAST:
        return Warmup(best, f"{best} of {length}: the minimum; MSER (White 1997) finds no more")
    if best == at_most:
        return Warmup(best, f"{best} of {length}: half of them, MSER's bound; the pace may not be steady yet")
    return Warmup(best, f"{best} of {length} by MSER (White 1997)")


@dataclass(frozen=True)  # without slots: cached properties need __dict__
class StepTimes:
    """All intervals of a run in its order, including the warm-up, and the clock they come from. ends: the iteration,
    counted from 1, with which each ends; lengths_s: of each; batches: the samples trained in each, None where the log
    does not say. Each is over iterations_a_line iterations. not_above_zero: number of those that were left out because
    the clock went back or stood still."""

    ends: Sequence[int]
    lengths_s: Sequence[float]
    batches: Sequence[int | None]
    warmup: Warmup
    clock: Source
    iterations_a_line: int | None
    not_above_zero: int = 0

    @cached_property
    def times(self) -> Sequence[float]:
        """Return the seconds of each interval after the warm-up."""
        return self.lengths_s[self.warmup.count :]

    @property
    def iterations(self) -> int:
        """Count the iterations after the warm-up."""
        return len(self.times) * (self.iterations_a_line or 0)

    @cached_property
    def seconds(self) -> float:
        """Return the seconds of all intervals after the warm-up together."""
        return sum(self.times)

    @property
    def mean(self) -> float | None:
        return self.seconds / self.iterations if self.iterations else None

    @property
    def single(self) -> Sequence[float]:
        """Return the seconds of single steps after the warm-up: none where a line prints the mean over several."""
        return self.times if self.iterations_a_line == 1 else []

    @cached_property
    def ordered(self) -> list[float]:
        """Return `single`, the shortest first: medians and quantiles sort a sorted list in no time."""
        return sorted(self.single)

    @cached_property
    def median(self) -> float | None:
        return statistics.median(self.ordered) if self.ordered else None

    def slowest(self, parts: int) -> float | None:
        """Return the highest of the quantiles that cut the steps into `parts`; None of fewer steps than parts. As the
        last of `statistics.quantiles(…, method="inclusive")`."""
        if len(self.ordered) < parts:
            return None
        place, rest = divmod((parts - 1) * (len(self.ordered) - 1), parts)
        return (self.ordered[place] * (parts - rest) + self.ordered[place + 1] * rest) / parts

    @property
    def stdev(self) -> float | None:
        times, count = self.single, len(self.single)
        mean = sum(times) / count if count else 0.0  # statistics.stdev works in fractions, for a tenth of all time
        return math.sqrt(sum((time - mean) * (time - mean) for time in times) / (count - 1)) if count > 1 else None

    @property
    def jitter_percent(self) -> float | None:
        """Return the median change from one step to the next, in % of the median: a drift does not count, an outlier
        hardly."""
        changes = [abs(b - a) for a, b in pairwise(self.single)]
        return 100 * statistics.median(changes) / self.median if changes and self.median else None

    @cached_property
    def samples(self) -> int | None:
        """Count the samples trained after the warm-up; None where they are missing for one interval."""
        batches = self.batches[self.warmup.count :]
        return None if None in batches or not batches else sum(filter(None, batches))


def step_times(record: Record) -> StepTimes:
    """Return the step times of a run. A rehearsal has none: it runs the right software on the wrong machine."""
    steps = () if record.provenance == "rehearsed" else record.steps
    at, stamps, samples, sizes = columns(steps, "step", "end_monotonic_s", "consumed_samples", "global_batch_size")
    distances = list(map(sub, at, (-1, *at)))  # of each step from the one before, of the first from the start
    covered = usual_distance(at)
    if covered is None:
        return StepTimes((), (), (), find_warmup(()), "log", None)
    stamped = None not in stamps
    seconds = [None if time is None else time * covered for time in executed(steps, "step_time_s")]
    if stamped:
        seconds[1:] = map(sub, stamps[1:], stamps)
    known = count(record, "global_batch_size")
    batches = _samples(samples, [known if size is None else size for size in sizes], covered)
    apart = [s if d == covered else None for d, s in zip(distances, seconds, strict=True)]
    usable = [s is not None and s > 0 for s in apart]
    backwards = 0 if all(usable) else sum(s is not None and s <= 0 for s in apart)
    lengths_s = [length for length in compress(seconds, usable) if length]
    ends = [step + 1 for step in compress(at, usable)]
    clock: Source = "measured" if stamped else "log"
    warmup = find_warmup(lengths_s)
    return StepTimes(ends, lengths_s, [*compress(batches, usable)], warmup, clock, covered, backwards)


def usual_distance(at: Sequence[int]) -> int | None:
    """Return the commonest distance between steps, and of equally common ones the least; None of fewer than two."""
    counts = Counter(map(sub, at[1:], at))
    return max((d for d in counts if d > 0), key=lambda distance: (counts[distance], -distance), default=None)


def executed(steps: Sequence[Step], name: str) -> Sequence[float | None]:
    """Return a field of every step; None also where it times dispatch, not execution: that is no interval."""
    values, flags = columns(steps, name, "flags")
    dispatched = f"{name}:asynchronous"
    if not any(flags):
        return values
    return [None if dispatched in said else value for value, said in zip(values, flags, strict=True)]


def _samples(counts: Sequence[int | None], sizes: Sequence[int | None], covered: int) -> list[int | None]:
    """Return the samples trained in each interval. counts: consumed up to its end, exact also while the batch is ramped
    up; where they are missing, or were set back, the size of a batch counts."""
    return [
        after - before
        if after is not None and before is not None and after > before
        else size * covered
        if size is not None and size > 0
        else None
        for before, after, size in zip((None, *counts), counts, sizes, strict=False)
    ]


def count(record: Record, setting: str) -> int | None:
    """Return a setting that was read back as a positive integer, else None."""
    value = record.setting(setting)
    return value if type(value) is int and value > 0 else None
