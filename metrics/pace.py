"""What the steps of a record say about time: intervals between step ends, and which of them are warm-up.

A step line covers one iteration, or k where the framework logs every k-th; k is the commonest distance between lines.
Lines at another distance (a lost line, a restart) tell no interval: what they cover is not known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from metrics.quantity import Source
from metrics.warmup import Warmup, find_warmup
from parsers.record import Record, Step


@dataclass(frozen=True, slots=True)
class Interval:
    """Time between two step ends. iteration: counted from 1. samples: trained in it, None where the log does not
    say."""

    iteration: int
    iterations: int
    seconds: float
    samples: int | None


@dataclass(frozen=True, slots=True)
class Pace:
    """All intervals of a run in its order, the warm-up among them, and the clock they come from."""

    intervals: tuple[Interval, ...]
    warmup: Warmup
    clock: Source
    iterations_a_line: int | None

    @property
    def counted(self) -> tuple[Interval, ...]:
        """Without the warm-up."""
        return self.intervals[self.warmup.count :]


def pace(record: Record) -> Pace:
    """The pace of a run. A rehearsal has none: it runs the right software on the wrong machine."""
    steps = () if record.provenance == "rehearsed" else record.steps
    covered = _commonest_distance(steps)
    stamped = covered is not None and all(step.end_monotonic_s is not None for step in steps)
    batch = record.setting("global_batch_size")
    known = batch if type(batch) is int else None
    intervals = tuple(_intervals(steps, covered, stamped, known)) if covered is not None else ()
    return Pace(intervals, find_warmup([i.seconds for i in intervals]), "measured" if stamped else "log", covered)


def _commonest_distance(steps: Sequence[Step]) -> int | None:
    distances = Counter(b.step - a.step for a, b in pairwise(steps) if b.step > a.step)
    return max(distances, key=lambda distance: (distances[distance], -distance), default=None)


def _intervals(steps: Sequence[Step], covered: int, stamped: bool, batch: int | None) -> Iterator[Interval]:
    first = steps[0]
    if first.step + 1 == covered:
        yield from _interval(first, covered, _printed_s(first, covered), _batch(first, covered, batch))
    for before, step in pairwise(steps):
        if step.step - before.step == covered:
            seconds = _stamped_s(before, step) if stamped else _printed_s(step, covered)
            consumed = _consumed(before, step)
            yield from _interval(step, covered, seconds, consumed or _batch(step, covered, batch))


def _interval(step: Step, covered: int, seconds: float | None, samples: int | None) -> Iterator[Interval]:
    if seconds is not None and seconds > 0:
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
    return None if size is None else size * covered
