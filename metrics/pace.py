"""What the steps of a record say about time: intervals between step ends, and which of them are warm-up.

A step line covers one iteration, or k where the framework logs every k-th; k is the commonest distance between lines.
Lines at another distance (a lost line, a restart) tell no interval: what they cover is not known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from operator import sub

from metrics.quantity import Source
from metrics.warmup import Warmup, find_warmup
from parsers.columns import columns
from parsers.record import Record, Step


@dataclass(frozen=True)  # without slots: what many metrics ask for is worked out once
class Pace:
    """All intervals of a run in its order, the warm-up among them, and the clock they come from. ends: the iteration,
    counted from 1, with which each ends; lengths_s: of each; batches: the samples trained in each, None where the log
    does not say. Each is over iterations_a_line iterations. not_above_zero: those that a clock that went back, or stood
    still, would give, which are left out."""

    ends: Sequence[int]
    lengths_s: Sequence[float]
    batches: Sequence[int | None]
    warmup: Warmup
    clock: Source
    iterations_a_line: int | None
    not_above_zero: int = 0

    @cached_property
    def times(self) -> Sequence[float]:
        """Seconds of what is counted, which is all but the warm-up."""
        return self.lengths_s[self.warmup.count :]

    @property
    def iterations(self) -> int:
        """Of what is counted."""
        return len(self.times) * (self.iterations_a_line or 0)

    @cached_property
    def seconds(self) -> float:
        """Of what is counted."""
        return sum(self.times)

    @cached_property
    def ordered(self) -> list[float]:
        """`times`, the shortest first."""
        return sorted(self.times)

    @cached_property
    def samples(self) -> int | None:
        """Of what is counted; None where one interval does not tell."""
        found = self.batches[self.warmup.count :]
        return None if None in found or not found else sum(filter(None, found))


def pace(record: Record) -> Pace:
    """The pace of a run. A rehearsal has none: it runs the right software on the wrong machine."""
    steps = () if record.provenance == "rehearsed" else record.steps
    at, stamps, samples, sizes = columns(steps, "step", "end_monotonic_s", "consumed_samples", "global_batch_size")
    distances = list(map(sub, at, (-1, *at)))  # of each step from the one before, of the first from the start
    covered = _commonest(distances[1:])
    if covered is None:
        return Pace((), (), (), find_warmup(()), "log", None)
    stamped = None not in stamps
    seconds = [None if time is None else time * covered for time in executed(steps, "step_time_s")]
    if stamped:
        seconds[1:] = map(sub, stamps[1:], stamps)
    batch = record.setting("global_batch_size")
    known = batch if type(batch) is int and batch > 0 else None
    batches = _samples(samples, [known if size is None else size for size in sizes], covered)
    told = [d == covered and s is not None and s > 0 for d, s in zip(distances, seconds, strict=True)]
    lengths_s = [length for length in compress(seconds, told) if length]
    ends = [step + 1 for step in compress(at, told)]
    clock: Source = "measured" if stamped else "log"
    backwards = sum(d == covered and s is not None and s <= 0 for d, s in zip(distances, seconds, strict=True))
    return Pace(ends, lengths_s, [*compress(batches, told)], find_warmup(lengths_s), clock, covered, backwards)


def executed(steps: Sequence[Step], name: str) -> Sequence[float | None]:
    """A field of every step; None also where it tells of dispatch, not of execution, which tells no interval."""
    values, flags = columns(steps, name, "flags")
    dispatched = f"{name}:asynchronous"
    if not any(flags):
        return values
    return [None if dispatched in said else value for value, said in zip(values, flags, strict=True)]


def _commonest(distances: Sequence[int]) -> int | None:
    found = Counter(distances)
    return max((d for d in found if d > 0), key=lambda distance: (found[distance], -distance), default=None)


def _samples(counts: Sequence[int | None], sizes: Sequence[int | None], covered: int) -> list[int | None]:
    """Trained in each interval. counts: consumed up to its end, exact also while the batch is ramped up; where they do
    not tell, or were set back, the size of a batch counts."""
    return [
        after - before
        if after is not None and before is not None and after > before
        else size * covered
        if size is not None and size > 0
        else None
        for before, after, size in zip((None, *counts), counts, sizes, strict=False)
    ]
