"""Rates, losses and tokens of one run by step, in little room, and what comparing two runs came to. Pure."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from compare.groups import seed_of
from parsers import Record, Run
from parsers.dialects import DIALECTS, load
from parsers.record import columns

TOKENS_CHECKSUM = "tokens_checksum"
"""Metric of a step, from a probe (parsers/probe.py): the same for every layout and order within a global batch."""
_UNKNOWN, _ABSURD = -1, 1e100
_LOOKED_AT = (
    *("step", "lr", "lr_used", "loss", "nonfinite", "metrics"),
    *("end_monotonic_s", "step_time_s", "consumed_samples"),
)
_MOST_DIGITS, _FEWEST_DIGITS = 8, 3


@dataclass(frozen=True, slots=True)
class Curve:
    """One entry a step, ascending. rates: those of the very step where it reports them, else as printed; nan where not
    reported, as is loss. offsets: the rate of which step an entry may be, from its own on: 0 of this one, 1 of the
    next. digits: significant ones of the rates; None: exact, from a mark or a probe. broken: the steps whose loss was
    nan or inf. tokens: seen up to and with the step, -1 where not known; of a run that does not print them, worked out
    from its batch. checksums: by step. clock: the kind behind the step times, None without any."""

    steps: tuple[int, ...]
    rates: array[float]
    offsets: tuple[int, ...]
    digits: int | None
    loss: array[float]
    broken: tuple[int, ...]
    tokens: tuple[int, ...]
    checksums: Mapping[int, float]
    clock: str | None


def curve_of(record: Record) -> Curve:
    """Return the curve of a record."""
    at, printed, used, loss, nonfinite, metrics, ends, times, samples = columns(record.steps, *_LOOKED_AT)
    checksums = {step: one[TOKENS_CHECKSUM] for step, one in zip(at, metrics, strict=True) if TOKENS_CHECKSUM in one}
    rates = _numbers(used)
    is_used = any(map(math.isfinite, rates))
    if not is_used:
        rates = _numbers(printed)
    # A mark or a probe reports a step's rate with all its digits (parsers/marks.py), and with it a clock or a checksum,
    # which no framework prints.
    reported = zip(at, used, ends, strict=True)
    exact = is_used and all(end is not None or step in checksums for step, rate, end in reported if rate is not None)
    dialect = record.dialects[0] if record.dialects else ""
    return Curve(
        tuple(at),
        rates,
        (0,) if is_used else load(dialect).rate_of if dialect in DIALECTS else (0, 1),
        None if exact else _digits(rates),
        _numbers(loss),
        tuple(step for step, names in zip(at, nonfinite, strict=True) if "loss" in names),
        _tokens(record, at, samples),
        checksums,
        _clock(record, ends, times),
    )


def _numbers(values: Iterable[float | None]) -> array[float]:
    """Return numbers, nan for None and for what no training has: its square would be no number any more."""
    return array("d", [math.nan if value is None or abs(value) > _ABSURD else value for value in values])


def _digits(rates: Sequence[float]) -> int:
    """Return the significant digits that rates were printed with: the most that one of them has. A rate of all digits
    has more than any framework prints, and a constant one may show fewer than were printed."""
    known = [rate for rate in rates if math.isfinite(rate)]
    shown = (repr(rate).partition("e")[0].replace(".", "").strip("0-") for rate in known[:: max(1, len(known) // 100)])
    return min(max([_FEWEST_DIGITS, *map(len, shown)]), _MOST_DIGITS)


def _tokens(record: Record, at: Sequence[int], samples: Sequence[int | None]) -> tuple[int, ...]:
    length, batch = record.setting("seq_length"), record.setting("global_batch_size")
    if type(length) is not int:
        return (_UNKNOWN,) * len(at)
    each = batch * length if type(batch) is int else None
    assumed = (_UNKNOWN if each is None else (step + 1) * each for step in at)
    return tuple(known if seen is None else seen * length for known, seen in zip(assumed, samples, strict=True))


def _clock(record: Record, ends: Sequence[float | None], times: Sequence[float | None]) -> str | None:
    if record.provenance == "rehearsed" or not ends:
        return None
    if None not in ends:
        return "measured"
    if all(time is None for time in times):
        return None
    name = next((name for name in (*record.dialects, record.framework) if name), None)
    clock = load(name).clock if name in DIALECTS else ""
    return f"log of {clock or name}" if name else "log"


@dataclass(frozen=True, slots=True)
class Finding:
    """step: the first, from 0, at which runs part."""

    state: Literal["equal", "apart", "unknown"]
    reason: str
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Traced:
    """A run that counts, with the label of its group and its curve."""

    label: str
    run: Run
    curve: Curve

    @property
    def name(self) -> str:
        return self.run.record.id

    @property
    def seed(self) -> Any:
        return seed_of(self.run.record)
