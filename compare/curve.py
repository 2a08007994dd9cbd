"""Rates, losses and tokens of a run, in little room, and compared between runs: aligned by step, never by position."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise, product
from operator import sub
from typing import Any, Literal

from msgspec import Struct

from compare.groups import seed_of
from metrics.repeats import gathered
from parsers import Record, Run
from parsers.dialects import DIALECTS, load
from parsers.record import columns, numbered, rows

TOKENS_CHECKSUM = "tokens_checksum"
"""Metric of a step, from a probe (parsers/probe.py): the same for every layout and order within a global batch."""
MEASURED = "measured"
CLOCKS_AGREE = 0.01
"""The share by which two timers of the same steps may differ and still agree."""
_STEPS_TO_AGREE = 3
_UNKNOWN, _ABSURD = -1, 1e100
_MOST_DIGITS, _FEWEST_DIGITS = 8, 3
_EXACT = 1e-12


class Curve(Struct, frozen=True):
    """One entry a step, ascending. rates: those of the very step where it reports them, else as printed; nan where not
    reported, as is loss. offsets: the rate of which step an entry may be, from its own on: 0 of this one, 1 of the
    next. digits: significant ones of the rates; None: exact, from a mark or a probe. broken: the steps whose loss was
    nan or inf. tokens: seen up to and with the step, -1 where not known; of a run that does not print them, worked out
    from its batch. checksums: by step. clock: the kind behind the step times, None without any.
    agrees: the kind of the log's own timer, where it agrees with our clock within CLOCKS_AGREE."""

    steps: Sequence[int]
    rates: array[float]
    offsets: tuple[int, ...]
    digits: int | None
    loss: array[float]
    broken: tuple[int, ...]
    tokens: Sequence[int]
    checksums: Mapping[int, float]
    clock: str | None
    agrees: str | None


def curve_of(record: Record) -> Curve:
    """Return the curve of a record."""
    fields = ("lr", "lr_used", "loss", "nonfinite", "end_monotonic_s", "step_time_s", "consumed_samples")
    steps = numbered(record.steps)
    at, printed, used, loss, nonfinite, ends, times, samples = columns(steps, "step", *fields)
    checksums = {step: one[TOKENS_CHECKSUM] for step, one in rows(steps, "step", "metrics") if TOKENS_CHECKSUM in one}
    rates = _numbers(used)
    is_used = any(map(math.isfinite, rates))
    rates = rates if is_used else _numbers(printed)
    # A mark or a probe reports a step's rate with all its digits (parsers/marks.py), and with it a clock or a checksum,
    # which no framework prints.
    reported = zip(at, used, ends, strict=True) if None in ends else ()
    exact = is_used and all(end is not None or step in checksums for step, rate, end in reported if rate is not None)
    dialect = record.dialects[0] if record.dialects else ""
    return Curve(
        _integers(at),
        rates,
        (0,) if is_used else load(dialect).rate_of if dialect in DIALECTS else (0, 1),
        None if exact else _digits(rates),
        _numbers(loss),
        tuple(step for step, names in zip(at, nonfinite, strict=True) if "loss" in names) if any(nonfinite) else (),
        _tokens(record, at, samples),
        checksums,
        _clock(record, ends, times),
        _log_clock(record) if _agree(at, ends, times) else None,
    )


def _numbers(values: Sequence[float | None]) -> array[float]:
    """Return numbers, nan for None and for what no training has: its square would be no number any more."""
    known = [value for value in values if value is not None]
    if len(known) == len(values) and max(map(abs, known), default=0.0) <= _ABSURD:
        return array("d", known)
    return array("d", [math.nan if value is None or abs(value) > _ABSURD else value for value in values])


def _digits(rates: Sequence[float]) -> int:
    """Return the significant digits that rates were printed with: the most that one of them has. A rate of all digits
    has more than any framework prints, and a constant one may show fewer than were printed."""
    known = [rate for rate in rates if math.isfinite(rate)]
    shown = (repr(rate).partition("e")[0].replace(".", "").strip("0-") for rate in known[:: max(1, len(known) // 100)])
    return min(max([_FEWEST_DIGITS, *map(len, shown)]), _MOST_DIGITS)


def _tokens(record: Record, at: Sequence[int], samples: Sequence[int | None]) -> Sequence[int]:
    length, batch = record.setting("seq_length"), record.setting("global_batch_size")
    if type(length) is not int:
        return _integers([_UNKNOWN] * len(at))
    if None not in samples:
        return _integers([length * known for known in samples if known is not None])
    each = batch * length if type(batch) is int else None
    assumed = (_UNKNOWN if each is None else (step + 1) * each for step in at)
    seen = zip(assumed, samples, strict=True)
    return _integers([expected if known is None else known * length for expected, known in seen])


def _integers(values: Sequence[int]) -> Sequence[int]:
    """Return integers in 8 bytes each, where all have room in these."""
    try:
        return array("q", values)
    except OverflowError:
        return tuple(values)


def _clock(record: Record, ends: Sequence[float | None], times: Sequence[float | None]) -> str | None:
    if record.provenance == "rehearsed" or not ends:
        return None
    if None not in ends:
        return MEASURED
    return None if all(time is None for time in times) else _log_clock(record)


def _log_clock(record: Record) -> str:
    """Return the kind of timer behind the step times that the log prints."""
    name = next((name for name in (*record.dialects, record.framework) if name), None)
    clock = load(name).clock if name in DIALECTS else ""
    return f"log of {clock or name}" if name else "log"


def _agree(at: Sequence[int], ends: Sequence[float | None], times: Sequence[float | None]) -> bool:
    """Return whether the step times that the log prints add up to those between our marks, over three steps or more."""
    if None not in ends and None not in times and at and at[-1] - at[0] == len(at) - 1:  # no step is missing
        apart: list[float] = [*map(sub, ends[1:], ends)]
        return _close(apart, times[1:])
    both = [
        (end - start, printed)
        for (before, start, _), (step, end, printed) in pairwise(zip(at, ends, times, strict=True))
        if step == before + 1 and start is not None and end is not None and printed is not None
    ]
    return _close([ours for ours, _ in both], [theirs for _, theirs in both])


def _close(ours: Sequence[float], theirs: Sequence[float | None]) -> bool:
    total = sum(ours)
    enough = len(ours) >= _STEPS_TO_AGREE
    return enough and abs(sum(filter(None, theirs)) - total) <= CLOCKS_AGREE * total


class Finding(Struct, frozen=True):
    """A place where curves part. step: the first, from 0, at which runs part."""

    state: Literal["equal", "apart", "unknown"]
    reason: str
    step: int | None = None


class Traced(Struct, frozen=True):
    """A run that counts, with the label of its group and its curve. alone: no other run of the group counts, so that
    the label names it."""

    label: str
    run: Run
    curve: Curve
    alone: bool = False

    @property
    def name(self) -> str:
        return self.label if self.alone else f"{self.label} ({self.run.record.id})"

    @property
    def seed(self) -> Any:
        return seed_of(self.run.record)


def compare_with(first: Traced, runs: Sequence[Traced], compare_two: Callable[[Traced, Traced], Finding]) -> Finding:
    """Compare each run with `first`; return where they part first."""
    findings = [compare_two(first, run) for run in runs if run is not first]
    apart = [one for one in findings if one.state == "apart"]
    if apart:
        worst = min(apart, key=lambda one: math.inf if one.step is None else one.step)
        more = f"; {len(apart)} runs part from the first" if len(apart) > 1 else ""
        return Finding("apart", worst.reason + more, worst.step)
    return next((one for one in findings if one.state == "unknown"), findings[0])


def compare_rates(first: Traced, other: Traced) -> Finding:
    """Compare rates: to 1e-12 where both are exact, else to the digits printed. Where it is not known which step's rate
    is printed, the one and the next are both tried: only what agrees in no way is a difference, and only what agrees in
    every way equal."""
    a, b = first.curve, other.curve
    for run in (first, other):
        if not any(map(math.isfinite, run.curve.rates)):
            return Finding("unknown", f"{run.name} reports no learning rate")
    printers = {(run.run.record.framework, run.run.record.dialects) for run in (first, other)}
    alike = len(printers) == 1 and first.run.record.framework is not None and len(a.offsets) > 1
    ways = [(i, j) for i, j in product(a.offsets, b.offsets) if i == j or not alike]
    compared = [(step, count, way) for way in ways for step, count in [_first_apart(a, b, *way)] if count]
    if not compared:
        return Finding("unknown", f"{first.name} and {other.name} report no rate of the same step")
    parting = [(step, way) for step, _, way in compared if step is not None]
    if len(parting) == len(compared):
        step, way = max(parting)
        texts = []
        for run, offset in zip((first, other), way, strict=True):
            rate = dict(zip(run.curve.steps, run.curve.rates, strict=True))[step - offset]
            texts.append(f"{run.name} {rate:.10g}")
        return Finding("apart", f"{'; '.join(texts)} at step {step}", step)
    if parting:
        what = "they agree only if one prints the rate of the step, the other of the next"
        return Finding("unknown", f"which step's rate is printed is not known ({first.name}, {other.name}); {what}")
    digits = min((d for d in (a.digits, b.digits) if d), default=None)
    to = "to 1e-12" if digits is None else f"to the {digits} digits printed"
    return Finding("equal", f"{to}, over {max(count for _, count, _ in compared)} steps")


def _first_apart(a: Curve, b: Curve, i: int, j: int) -> tuple[int | None, int]:
    """Return the first step whose rates part, and how many steps were compared. i, j: whose step's rate an entry is."""
    if i == j and a.steps == b.steps and a.rates.tobytes() == b.rates.tobytes():
        return None, sum(map(math.isfinite, a.rates))
    theirs = {step + j: rate for step, rate in zip(b.steps, b.rates, strict=True) if math.isfinite(rate)}
    count = 0
    for step, rate in zip(a.steps, a.rates, strict=True):
        other = theirs.get(step + i)
        if other is None or not math.isfinite(rate):
            continue
        count += 1
        if rate != other and abs(rate - other) > _slack(rate, a.digits) + _slack(other, b.digits):
            return step + i, count
    return None, count


def _slack(rate: float, digits: int | None) -> float:
    """Return how far a rate may be off: half a digit of what was printed, or what rounding leaves."""
    if digits is None or rate == 0:
        return _EXACT / 2 * abs(rate)
    return 0.5000001 * 10.0 ** (math.floor(math.log10(abs(rate))) - digits + 1)


def compare_tokens(first: Traced, other: Traced) -> Finding:
    """Compare how many tokens were seen by each step."""
    a, b = first.curve, other.curve
    for run in (first, other):
        if not run.curve.tokens or min(run.curve.tokens) < 0:
            return Finding("unknown", f"{run.name} does not report how many tokens it saw")
    if a.steps == b.steps and a.tokens == b.tokens:
        return Finding("equal", f"{a.tokens[-1]:,} by step {a.steps[-1]}")
    theirs = dict(zip(b.steps, b.tokens, strict=True))
    common = [(step, seen, theirs[step]) for step, seen in zip(a.steps, a.tokens, strict=True) if step in theirs]
    if not common:
        return Finding("unknown", f"{first.name} and {other.name} report no step that is the same")
    for step, seen, others in common:
        if seen != others:
            return Finding("apart", f"{first.name} {seen:,}; {other.name} {others:,} at step {step}", step)
    # Lines every k-th step may end up to k - 1 steps before the other's.
    distance = max(min((after - at for at, after in pairwise(one.steps)), default=1) for one in (a, b))
    if abs(a.steps[-1] - b.steps[-1]) >= distance:
        last = f"{first.name} ends with step {a.steps[-1]}, {other.name} with step {b.steps[-1]}"
        planned = {run.run.record.setting("train_iters") for run in (first, other)}
        if len(planned) == 1 and None not in planned:  # and completed: lines are lost, no steps
            return Finding("unknown", f"{last}, of {planned.pop()} on both sides")
        return Finding("apart", last, min(a.steps[-1], b.steps[-1]) + 1)
    return Finding("equal", f"{common[-1][1]:,} by step {common[-1][0]}")


def compare_checksums(runs: Sequence[Traced], sides: int) -> Finding:
    """Compare the tokens themselves, between runs of one seed: another seed is another order. sides: as many groups."""
    by_seed = gathered((run.seed, run) for run in runs).values()
    seeds = [same for same in by_seed if len({run.label for run in same}) == sides]
    findings = [_same_tokens(same[0], run) for same in seeds for run in same[1:]]
    if not findings:
        return Finding("unknown", "no two sides report a checksum of their tokens for one seed")
    return next((one for state in ("apart", "unknown") for one in findings if one.state == state), findings[0])


def _same_tokens(first: Traced, run: Traced) -> Finding:
    ours, theirs = first.curve.checksums, run.curve.checksums
    common = sorted(ours.keys() & theirs.keys())
    if not common:
        return Finding("unknown", f"{first.name} and {run.name} report no checksums of the same step")
    for step in common:
        if ours[step] != theirs[step]:
            return Finding("apart", f"{first.name} and {run.name} read other tokens at step {step}", step)
    return Finding("equal", f"the same tokens, step by step, over {len(common)} steps")
