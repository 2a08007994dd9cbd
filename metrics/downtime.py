"""The time that a run lost: time without steps, and the share of its wall time that made progress."""

from __future__ import annotations

from metrics.basis import Basis, Metrics
from metrics.quantity import Quantity, shown
from parsers.record import columns


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
    by_kind: dict[str, float] = {}
    for stall in stalls:
        by_kind[stall.kind] = by_kind.get(stall.kind, 0.0) + (stall.seconds or 0.0)
    longest_first = sorted(by_kind.items(), key=lambda item: -item[1])
    parts = [f"{kind} {shown(seconds)} s" for kind, seconds in longest_first]
    if unreported := len(basis.record.stalls) - len(stalls):
        parts.append(f"{unreported} without a time")
    return Quantity.of(sum(by_kind.values()), "s", "log", ", ".join(parts))


STOPS: Metrics = {
    "wall_time_s": lambda basis: Quantity.of(basis.record.wall_time_s, "s", "measured"),
    "goodput_percent": _goodput,
    "stall_time_s": _stall_time,
    "restarts": lambda basis: Quantity.of(len(basis.record.restarts), "restarts", "log"),
}
