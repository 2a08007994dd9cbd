"""What the steps of one run say for the audit, in little room: rates, losses and tokens by step. Pure."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from parsers import Record, Step

TOKENS_CHECKSUM = "tokens_checksum"
"""Metric of a step, from a probe (parsers/probe.py): the same for every layout and order within a global batch."""
_UNKNOWN, _ABSURD = -1, 1e100
_MOST_DIGITS, _FEWEST_DIGITS = 8, 3
# Whose timer a printed step time comes from: a difference of clocks is no difference of machines.
_CLOCKS: Mapping[str, str] = dict.fromkeys(("megatron", "megatron_bridge", "primus"), "megatron")
# Which step's rate a dialect prints, from its own on (parsers/README.md).
_PRINTS: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("megatron", "megatron_bridge", "megatron_deepspeed", "primus", "nanotron"), (1,)),
    **dict.fromkeys(("nemo1", "nemo2"), (0,)),
}


@dataclass(frozen=True, slots=True)
class Curve:
    """One entry a step, ascending. rates: those of the very step where it tells them, else as printed; nan where not
    told, as is loss. offsets: the rate of which step an entry may be, from its own on: 0 of this one, 1 of the next.
    digits: significant ones of the rates; None: exact, from a mark or a probe. broken: the steps whose loss was nan or
    inf. tokens: seen up to and with the step, -1 where not known; of a run that does not print them, worked out from
    its batch. checksums: by step. clock: the kind behind the step times, None without any."""

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
    """Of a record."""
    steps = record.steps if isinstance(record.steps, tuple) else tuple(record.steps)
    rates = _numbers(step.lr_used for step in steps)
    used = any(map(math.isfinite, rates))
    if not used:
        rates = _numbers(step.lr for step in steps)
    exact = used and all(_is_marked(step) for step in steps if step.lr_used is not None)
    dialect = record.dialects[0] if record.dialects else ""
    return Curve(
        tuple(step.step for step in steps),
        rates,
        (0,) if used else _PRINTS.get(dialect, (0, 1)),
        None if exact else _digits(rates),
        _numbers(step.loss for step in steps),
        tuple(step.step for step in steps if "loss" in step.nonfinite),
        _tokens(record, steps),
        {step.step: step.metrics[TOKENS_CHECKSUM] for step in steps if TOKENS_CHECKSUM in step.metrics},
        _clock(record, steps),
    )


def _numbers(values: Iterable[float | None]) -> array[float]:
    """A number that no training has is none: its square would be no number any more."""
    return array("d", [math.nan if value is None or abs(value) > _ABSURD else value for value in values])


def _is_marked(step: Step) -> bool:
    """Whether a mark or a probe told this step's rate, with all its digits (parsers/marks.py): both tell a clock or a
    checksum with it, which no framework prints."""
    return step.end_monotonic_s is not None or TOKENS_CHECKSUM in step.metrics


def _digits(rates: Sequence[float]) -> int:
    """Significant digits that rates were printed with: the most that one of them has. A rate of all digits has more
    than any framework prints, and a constant one may show fewer than were printed."""
    told = [rate for rate in rates if math.isfinite(rate)]
    shown = (repr(rate).partition("e")[0].replace(".", "").strip("0-") for rate in told[:: max(1, len(told) // 100)])
    return min(max([_FEWEST_DIGITS, *map(len, shown)]), _MOST_DIGITS)


def _tokens(record: Record, steps: Sequence[Step]) -> tuple[int, ...]:
    length, batch = record.setting("seq_length"), record.setting("global_batch_size")
    if type(length) is not int:
        return (_UNKNOWN,) * len(steps)
    if all(step.consumed_samples is not None for step in steps):
        return tuple((step.consumed_samples or 0) * length for step in steps)
    each = batch * length if type(batch) is int else None
    seen = ((step.step, step.consumed_samples) for step in steps)
    assumed = [(_UNKNOWN if each is None else (step + 1) * each, samples) for step, samples in seen]
    return tuple(known if samples is None else samples * length for known, samples in assumed)


def _clock(record: Record, steps: Sequence[Step]) -> str | None:
    if record.provenance == "rehearsed" or not steps:
        return None
    if all(step.end_monotonic_s is not None for step in steps):
        return "measured"
    if all(step.step_time_s is None for step in steps):
        return None
    name = next((name for name in (*record.dialects, record.framework) if name), None)
    return f"log of {_CLOCKS.get(name, name)}" if name else "log"
