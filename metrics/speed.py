"""How fast a run was: throughput, step times, their tail and jitter."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from itertools import pairwise

from metrics.basis import Basis, Metrics, count
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


def _tokens_per_s_per_gpu_framework(basis: Basis) -> Quantity:
    return Quantity.of(_printed_rate(basis), "tokens/s/GPU", "log")


def token_rate(basis: Basis) -> float | None:
    """Tokens over the wall time between two step ends, which is the harmonic mean of the steps' rates."""
    samples, length = basis.times.samples, count(basis.record, "seq_length")
    return None if samples is None or length is None else samples * length / basis.times.seconds


def _printed_rate(basis: Basis) -> float | None:
    """What the framework prints; of a rehearsal nonsense."""
    if basis.record.provenance == "rehearsed":
        return None
    return steady_mean(executed(basis.record.steps, "tokens_per_s_per_gpu"))


def steady_mean(printed: Iterable[float | None]) -> float | None:
    """Harmonic mean of the positive ones of printed rates, warm-up left out: over equal work, not over equal time."""
    times = [1 / rate for rate in printed if rate is not None and rate > 0]
    counted = times[find_warmup(times).count :]
    total = sum(counted)
    return len(counted) / total if total else None


def _steps_per_s(basis: Basis) -> Quantity:
    mean = _mean(basis)
    return Quantity.of(1 / mean if mean else None, "steps/s", basis.times.clock)


def _step_time_mean(basis: Basis) -> Quantity:
    return Quantity.of(_mean(basis), "s", basis.times.clock)


def _mean(basis: Basis) -> float | None:
    iterations = basis.times.iterations
    return basis.times.seconds / iterations if iterations else None


def _step_time_median(basis: Basis) -> Quantity:
    times = _ordered(basis)
    return Quantity.of(statistics.median(times) if times else None, "s", basis.times.clock)


def _step_time_p95(basis: Basis) -> Quantity:
    return Quantity.of(_upper(basis, 20), "s", basis.times.clock)


def _step_time_p99(basis: Basis) -> Quantity:
    return Quantity.of(_upper(basis, 100), "s", basis.times.clock)


def _step_time_stdev(basis: Basis) -> Quantity:
    times = single_steps(basis)
    if len(times) < 2:
        return Quantity(None, "s", basis.times.clock)
    mean = sum(times) / len(times)  # statistics.stdev works in fractions, for a tenth of all figures' time
    squares = sum((time - mean) * (time - mean) for time in times)
    return Quantity.of(math.sqrt(squares / (len(times) - 1)), "s", basis.times.clock)


def _step_time_tail(basis: Basis) -> Quantity:
    """How many times the median the slowest twentieth takes at least."""
    times, upper = _ordered(basis), _upper(basis, 20)
    return Quantity.of(
        upper / statistics.median(times) if upper else None, "× median", basis.times.clock, "95th of 100"
    )


def _step_time_jitter(basis: Basis) -> Quantity:
    """Median distance from one step to the next, against the median: a drift does not count, an outlier hardly."""
    times = single_steps(basis)
    changes = [abs(b - a) for a, b in pairwise(times)]
    value = 100 * statistics.median(changes) / statistics.median(_ordered(basis)) if changes else None
    return Quantity.of(value, "%", basis.times.clock, "step to step")


def _upper(basis: Basis, parts: int) -> float | None:
    """The highest of the quantiles that cut the counted steps into `parts`."""
    times = _ordered(basis)
    return statistics.quantiles(times, n=parts, method="inclusive")[-1] if len(times) >= _ENOUGH[parts] else None


def single_steps(basis: Basis) -> Sequence[float]:
    """Times of single steps in s, warm-up left out: none where a line prints the mean over several."""
    return basis.times.times if basis.times.iterations_a_line == 1 else []


def _ordered(basis: Basis) -> list[float]:
    """The same, the shortest first: medians and quantiles sort what is sorted in no time."""
    return basis.times.ordered if basis.times.iterations_a_line == 1 else []


def _warmup_steps(basis: Basis) -> Quantity:
    warmup, each = basis.times.warmup, basis.times.iterations_a_line
    if not basis.times.ends or each is None:
        return Quantity(None, "steps", "computed")
    return Quantity.of(warmup.count * each, "steps", "computed", warmup.reason)


def _counted_steps(basis: Basis) -> Quantity:
    if not basis.times.ends:
        return Quantity(None, "steps", "computed", note="no step times told")
    return Quantity.of(basis.times.iterations, "steps", "computed", _left_out(basis))


def _left_out(basis: Basis) -> str:
    count = basis.times.not_above_zero
    return f"left out: {count} interval{'s' if count > 1 else ''} of a clock that went back or stood" if count else ""


SPEED: Metrics = {
    "tokens_per_s": _tokens_per_s,
    "tokens_per_s_per_gpu": _tokens_per_s_per_gpu,
    "tokens_per_s_per_gpu_framework": _tokens_per_s_per_gpu_framework,
    "steps_per_s": _steps_per_s,
    "step_time_mean_s": _step_time_mean,
    "step_time_median_s": _step_time_median,
    "step_time_p95_s": _step_time_p95,
    "step_time_p99_s": _step_time_p99,
    "step_time_stdev_s": _step_time_stdev,
    "step_time_tail": _step_time_tail,
    "step_time_jitter_percent": _step_time_jitter,
    "warmup_steps": _warmup_steps,
    "counted_steps": _counted_steps,
}
