"""The time that a run lost: time without steps, and the share of its wall time that made progress."""

from __future__ import annotations

from collections import Counter

from metrics.basis import Basis, Metrics
from metrics.quantity import Quantity, shown
from parsers.record import columns


def _wall_time(basis: Basis) -> Quantity:
    return Quantity.of(basis.record.wall_time_s, "s", "measured")


def _goodput(basis: Basis) -> Quantity:
    """Return steps that were kept, at their steady pace, over the wall time: start-up, warm-up, stalls and
    redone steps are lost. A short benchmark is mostly start-up; a long run shows what its stack is worth."""
    iterations, wall_s = basis.times.iterations, basis.record.wall_time_s
    if not iterations or not wall_s or basis.times.iterations_a_line is None:
        return Quantity(None, "%", basis.times.clock)
    mean_s = basis.times.seconds / iterations
    kept = len({*columns(basis.record.steps, "step")[0]})  # a step that was redone after a restart made progress once
    useful_s = kept * basis.times.iterations_a_line * mean_s
    if useful_s > wall_s:
        what = f"{shown(useful_s)} s of steps in {shown(wall_s)} s: one of the two is wrong"
        return Quantity(None, "%", basis.times.clock, note=what)
    return Quantity.of(100 * useful_s / wall_s, "%", basis.times.clock, f"of {shown(wall_s)} s from start to end")


def _stall_time(basis: Basis) -> Quantity:
    """Return the time that the log reports for checkpoints, evaluation and the like; unknown where it reports none."""
    stalls = [stall for stall in basis.record.stalls if stall.seconds is not None]
    if not stalls:
        return Quantity(None, "s", "log")
    by_kind: Counter[str] = Counter()
    for stall in stalls:
        by_kind[stall.kind] += stall.seconds or 0.0  # type: ignore[assignment]  # a Counter of seconds
    parts = ", ".join(f"{kind} {shown(float(seconds))} s" for kind, seconds in by_kind.most_common())
    unreported = len(basis.record.stalls) - len(stalls)
    return Quantity.of(
        sum(by_kind.values()), "s", "log", parts + (f", {unreported} without a time" if unreported else "")
    )


def _restarts(basis: Basis) -> Quantity:
    return Quantity.of(len(basis.record.restarts), "restarts", "log")


STOPS: Metrics = {
    "wall_time_s": _wall_time,
    "goodput_percent": _goodput,
    "stall_time_s": _stall_time,
    "restarts": _restarts,
}
