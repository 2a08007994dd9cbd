"""The work of a run: FLOPs by one formula for every vendor, and their share of what the device can do."""

from __future__ import annotations

from collections.abc import Callable

from conf.errors import listed
from conf.schema import Hardware
from metrics.basis import Basis, Metrics, count
from metrics.flops import CONVENTIONS, DEFAULT, Convention, Recompute, explaining, flops_per_token, recompute_of
from metrics.peak import achievable_tflops, causes_in_a_run, peak_tflops, utilisation
from metrics.quantity import Quantity, Source, shown
from metrics.speed import steady_mean, token_rate
from metrics.step_times import executed

_TERA = 1e12
_NAMED = 4


def _counted(basis: Basis, convention: Convention, recompute: Recompute | None = None) -> Quantity:
    """Return one token's operations; assumed where a part of the shape was only requested and never read back."""
    known, length = basis.shape, count(basis.record, "seq_length")
    missing = [*known.missing, *([] if length else ["seq_length"])]
    if known.shape is None or length is None:
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        return Quantity(None, "FLOP/token", "computed", note=f"unknown: {listed(missing[:_NAMED])}{more}")
    value = flops_per_token(known.shape, length, convention, recompute)
    if known.requested and basis.record.provenance in ("measured", "imported"):
        note = f"{convention.name}; not read back: {listed(known.requested)}"
        return Quantity.of(value, "FLOP/token", "assumed", note)
    return Quantity.of(value, "FLOP/token", "computed", convention.name)


def _tflops_per_gpu(basis: Basis) -> Quantity:
    return _rate(basis, _counted(basis, DEFAULT))


def _rate(basis: Basis, per_token: Quantity) -> Quantity:
    """Return our tokens/s times our FLOPs; the note is the convention's, or names what is missing."""
    rate, gpus = token_rate(basis), count(basis.record, "world_size")
    source: Source = "assumed" if per_token.source == "assumed" else basis.times.clock
    if per_token.value is None or rate is None or gpus is None:
        missing = per_token.note if per_token.value is None else "no speed"
        return Quantity(None, "TFLOP/s/GPU", source, note=missing)
    return Quantity.of(per_token.value * rate / gpus / _TERA, "TFLOP/s/GPU", source, per_token.note)


def _tflops_per_gpu_framework(basis: Basis) -> Quantity:
    """Return the framework's own figure, and which way of counting would explain its distance from ours."""
    printed = None
    if basis.record.provenance != "rehearsed":
        printed = steady_mean(executed(basis.record.steps, "tflops_per_gpu"))
    return Quantity.of(printed, "TFLOP/s/GPU", "log", _against_ours(basis, printed))


def _against_ours(basis: Basis, printed: float | None) -> str:
    ours, length = _tflops_per_gpu(basis).value, count(basis.record, "seq_length")
    if printed is None or not ours or basis.shape.shape is None or length is None:
        return ""
    names = explaining(printed / ours, basis.shape.shape, length)
    by = f"as {' or '.join(names)} counts" if names else "by a way of counting that is none of ours"
    return f"{shown(printed / ours)} × ours, {by}"


def _share(basis: Basis, tflops: Quantity, peak: Callable[[Hardware | None, str | None], Quantity]) -> Quantity:
    device, precision = basis.device, basis.precision
    return utilisation(tflops, peak(device, precision), causes_in_a_run(device, precision))


def _hfu(basis: Basis) -> Quantity:
    """Return the utilisation with recomputed work. Unknown where the settings do not say what is recomputed."""
    again = recompute_of(basis.facts)
    if again is None:
        return Quantity(None, "%", basis.times.clock, note="unknown: what is recomputed")
    return _share(basis, _rate(basis, _counted(basis, CONVENTIONS["hardware"], again)), peak_tflops)


WORK: Metrics = {
    "flops_per_token": lambda basis: _counted(basis, DEFAULT),
    "tflops_per_gpu": _tflops_per_gpu,
    "tflops_per_gpu_framework": _tflops_per_gpu_framework,
    "mfu_percent": lambda basis: _share(basis, _tflops_per_gpu(basis), peak_tflops),
    "hfu_percent": _hfu,
    "mfu_achievable_percent": lambda basis: _share(basis, _tflops_per_gpu(basis), achievable_tflops),
}
