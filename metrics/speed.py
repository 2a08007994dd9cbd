"""How fast a run was: throughput, step times, their tail and jitter."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from itertools import pairwise

from metrics.basis import Basis, Metric, Metrics, count
from metrics.quantity import Quantity
from metrics.step_times import executed, find_warmup

_ENOUGH = {20: 20, 100: 100}  # steps from which a twentieth, a hundredth of them is a step at all


def _tokens_per_s(basis: Basis) -> Quantity:
    rate = token_rate(basis)
    if rate is not None:
        return Quantity.of(rate, "tokens/s", basis.times.clock)
    printed, gpus = _printed_rate(basis), count(basis.record, "world_size")
    return Quantity.of(None if printed is None or gpus is None else printed * gpus, "tokens/s", "log")


def _tokens_per_s_per_gpu(basis: Basis) -> Quantity:
    rate, gpus = token_rate(basis), count(basis.record, "world_size")
    if rate is not None and gpus is not None:
        return Quantity.of(rate / gpus, "tokens/s/GPU", basis.times.clock, _left_out(basis))
    printed = None if basis.times.ends else _printed_rate(basis)
    return Quantity.of(printed, "tokens/s/GPU", "log" if printed else basis.times.clock)


def token_rate(basis: Basis) -> float | None:
    """Return tokens over the wall time between two step ends, which is the harmonic mean of the steps' rates."""
    samples, length = basis.times.samples, count(basis.record, "seq_length")
    return None if samples is None or length is None else samples * length / basis.times.seconds


def _printed_rate(basis: Basis) -> float | None:
    """Return the rate that the framework prints; None of a rehearsal, which has no speed."""
    if basis.record.provenance == "rehearsed":
        return None
    return steady_mean(executed(basis.record.steps, "tokens_per_s_per_gpu"))


def steady_mean(printed: Iterable[float | None]) -> float | None:
    """Return the harmonic mean of printed rates above 0 without the warm-up: a mean over equal work, not equal time."""
    times = [1 / rate for rate in printed if rate is not None and rate > 0]
    counted = times[find_warmup(times).count :]
    total = sum(counted)
    return len(counted) / total if total else None


def _figure(unit: str, value: Callable[[Basis], float | None], note: str = "") -> Metric:
    """Return the metric that `value` makes of the steps' times."""
    return lambda basis: Quantity.of(value(basis), unit, basis.times.clock, note)


def _mean(basis: Basis) -> float | None:
    return basis.times.seconds / basis.times.iterations if basis.times.iterations else None


def _steps_per_s(basis: Basis) -> float | None:
    mean = _mean(basis)
    return 1 / mean if mean else None


def _median(basis: Basis) -> float | None:
    return statistics.median(basis.times.ordered) if basis.times.ordered else None


def _stdev(basis: Basis) -> float | None:
    times = basis.times.single
    if len(times) < 2:
        return None
    mean = sum(times) / len(times)  # statistics.stdev works in fractions, for a tenth of all figures' time
    return math.sqrt(sum((time - mean) * (time - mean) for time in times) / (len(times) - 1))


def _tail(basis: Basis) -> float | None:
    """Return how many times the median the slowest twentieth takes at least."""
    median, upper = _median(basis), _upper(basis, 20)
    return upper / median if upper and median else None


def _jitter(basis: Basis) -> float | None:
    """Return the median change from one step to the next, in % of the median: a drift does not count, an outlier
    hardly."""
    changes = [abs(b - a) for a, b in pairwise(basis.times.single)]
    median = _median(basis)
    return 100 * statistics.median(changes) / median if changes and median else None


def _upper(basis: Basis, parts: int) -> float | None:
    """Return the highest of the quantiles that cut the counted steps into `parts`."""
    times = basis.times.ordered
    return statistics.quantiles(times, n=parts, method="inclusive")[-1] if len(times) >= _ENOUGH[parts] else None


def _warmup_steps(basis: Basis) -> Quantity:
    warmup, each = basis.times.warmup, basis.times.iterations_a_line
    if not basis.times.ends or each is None:
        return Quantity(None, "steps", "computed")
    return Quantity.of(warmup.count * each, "steps", "computed", warmup.reason)


def _counted_steps(basis: Basis) -> Quantity:
    if not basis.times.ends:
        return Quantity(None, "steps", "computed", note="no step times reported")
    return Quantity.of(basis.times.iterations, "steps", "computed", _left_out(basis))


def _left_out(basis: Basis) -> str:
    count = basis.times.not_above_zero
    return f"left out: {count} interval{'s' if count > 1 else ''} of a clock that went back or stood" if count else ""


SPEED: Metrics = {
    "tokens_per_s": _tokens_per_s,
    "tokens_per_s_per_gpu": _tokens_per_s_per_gpu,
    "tokens_per_s_per_gpu_framework": lambda basis: Quantity.of(_printed_rate(basis), "tokens/s/GPU", "log"),
    "steps_per_s": _figure("steps/s", _steps_per_s),
    "step_time_mean_s": _figure("s", _mean),
    "step_time_median_s": _figure("s", _median),
    "step_time_p95_s": _figure("s", lambda basis: _upper(basis, 20)),
    "step_time_p99_s": _figure("s", lambda basis: _upper(basis, 100)),
    "step_time_stdev_s": _figure("s", _stdev),
    "step_time_tail": _figure("× median", _tail, "95th of 100"),
    "step_time_jitter_percent": _figure("%", _jitter, "step to step"),
    "warmup_steps": _warmup_steps,
    "counted_steps": _counted_steps,
}
