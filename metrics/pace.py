"""What the steps of a record say about time: intervals between step ends, and which of them are warm-up.

A step line covers one iteration, or k where the framework logs every k-th; k is the commonest distance between lines.
Lines at another distance (a lost line, a restart) tell no interval: what they cover is not known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from metrics.quantity import Source
from metrics.warmup import Warmup, find_warmup
from parsers.record import Record, Step


class Interval(NamedTuple):
    """Time between two step ends. iteration: counted from 1. samples: trained in it, None where the log does not
    say."""

    iteration: int
    iterations: int
    seconds: float
    samples: int | None


@dataclass(frozen=True)  # without slots: what many metrics ask for is worked out once
class Pace:
    """All intervals of a run in its order, the warm-up among them, and the clock they come from."""

    intervals: tuple[Interval, ...]
    warmup: Warmup
    clock: Source
    iterations_a_line: int | None

    @cached_property
    def counted(self) -> tuple[Interval, ...]:
        """Without the warm-up."""
        return self.intervals[self.warmup.count :]

    @cached_property
    def iterations(self) -> int:
        """Of what is counted."""
        return sum(interval.iterations for interval in self.counted)

    @cached_property
    def seconds(self) -> float:
        """Of what is counted."""
        return sum(self.times)

    @cached_property
    def times(self) -> list[float]:
        """Seconds of what is counted."""
        return [interval.seconds for interval in self.counted]

    @cached_property
    def ordered(self) -> list[float]:
        """`times`, the shortest first."""
        return sorted(self.times)

    @cached_property
    def samples(self) -> int | None:
        """Of what is counted; None where one interval does not tell."""
        found = [interval.samples for interval in self.counted]
        return None if None in found or not found else sum(filter(None, found))


def pace(record: Record) -> Pace:
    """The pace of a run. A rehearsal has none: it runs the right software on the wrong machine."""
    steps = () if record.provenance == "rehearsed" else record.steps
    covered = _commonest_distance(steps)
    stamped = covered is not None and all(step.end_monotonic_s is not None for step in steps)
    batch = record.setting("global_batch_size")
    known = batch if type(batch) is int and batch > 0 else None
    intervals = tuple(_intervals(steps, covered, stamped, known)) if covered is not None else ()
    return Pace(intervals, find_warmup([i.seconds for i in intervals]), "measured" if stamped else "log", covered)


def _commonest_distance(steps: Sequence[Step]) -> int | None:
    distances = Counter(b.step - a.step for a, b in pairwise(steps) if b.step > a.step)
    return max(distances, key=lambda distance: (distances[distance], -distance), default=None)


def _intervals(steps: Sequence[Step], covered: int, stamped: bool, batch: int | None) -> Iterator[Interval]:
    first = steps[0]
    if first.step + 1 == covered and (seconds := _printed_s(first, covered)) is not None and seconds > 0:
        yield Interval(covered, covered, seconds, _batch(first, covered, batch))
    for before, step in pairwise(steps):
        if step.step - before.step == covered:
            seconds = _stamped_s(before, step) if stamped else _printed_s(step, covered)
            if seconds is not None and seconds > 0:
                samples = _consumed(before, step) or _batch(step, covered, batch)
                yield Interval(step.step + 1, covered, seconds, samples)


def _stamped_s(before: Step, step: Step) -> float | None:
    if before.end_monotonic_s is None or step.end_monotonic_s is None:
        return None
    return step.end_monotonic_s - before.end_monotonic_s


def _printed_s(step: Step, covered: int) -> float | None:
    """A time of dispatch, not of execution, tells no interval."""
    if step.step_time_s is None or "step_time_s:asynchronous" in step.flags:
        return None
    return step.step_time_s * covered


def _consumed(before: Step, step: Step) -> int | None:
    """Exact also while the batch size is ramped up. None where the count is not told, or was set back."""
    if before.consumed_samples is None or step.consumed_samples is None:
        return None
    consumed = step.consumed_samples - before.consumed_samples
    return consumed if consumed > 0 else None


def _batch(step: Step, covered: int, batch: int | None) -> int | None:
    size = step.global_batch_size if step.global_batch_size is not None else batch
    return None if size is None or size <= 0 else size * covered
