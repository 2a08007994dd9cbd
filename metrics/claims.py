"""Judge whether a published figure is physically possible: speeds against peaks, peaks against data sheets, ratios
against their own numbers. Pure; says nothing about whether a possible figure is true.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from conf.errors import listed
from conf.schema import Hardware
from metrics.flops import CONVENTIONS, FORWARD, TRAINING, flops_per_token
from metrics.peak import Cause, achievable_tflops, causes_in_a_run, check, peak_tflops
from metrics.quantity import shown
from metrics.shape import Shape

Word = Literal["possible", "implausible", "impossible", "cannot tell"]
Mode = Literal["training", "forward"]
_TERA = 1e12
_DIGITS = 0.005  # half of the last of three digits, as such figures are quoted


@dataclass(frozen=True, slots=True)
class Judgement:
    """impossible: above what the device can do at all. implausible: above the best matmul measured on it."""

    word: Word
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """A claimed speed. left_out: unknown parts of the model: a lower bound is judged then."""

    shape: Shape
    seq_length: int
    tokens_per_s_per_gpu: float
    mode: Mode = "training"
    left_out: tuple[str, ...] = ()


def judge_speed(claim: Speed, device: Hardware | None, precision: str) -> Judgement:
    """Judge a model's speed on one GPU in a precision, by the operations that it takes."""
    passes = TRAINING if claim.mode == "training" else FORWARD
    per_token = flops_per_token(claim.shape, claim.seq_length, passes=passes)
    tflops = claim.tokens_per_s_per_gpu * per_token / _TERA
    least = f" at least (left out: {listed(claim.left_out)})" if claim.left_out else ""
    length = f"{claim.seq_length:,} tokens a sequence"
    needs = f"{per_token:.4g} FLOP a token in {claim.mode} at {length}{least}, so {shown(tflops)} TFLOP/s on each GPU"
    return judge_tflops(tflops, device, precision, needs, tuple(_causes(claim, device, precision)))


def judge_tflops(
    tflops: float, device: Hardware | None, precision: str, needs: str = "", causes: tuple[Cause, ...] = ()
) -> Judgement:
    """Judge TFLOP/s of one GPU by its dense peak, and by the best matmul that was measured on it."""
    peak, best = peak_tflops(device, precision), achievable_tflops(device, precision)
    needs = needs or f"{shown(tflops)} TFLOP/s on each GPU"
    causes = causes or (
        Cause("whether the figure counts sparsity", 2.0),
        Cause(f"how FLOPs were counted ({listed(tuple(CONVENTIONS))})", 2.0),
        *causes_in_a_run(device, precision),
    )
    if peak.value is None:
        return Judgement("cannot tell", f"{needs}; {peak.note}")
    share = tflops / peak.value
    against = f"{needs}: {shown(100 * share, 3)} % of {shown(float(peak.value))} TFLOP/s ({peak.note})"
    if share > 1:
        return Judgement("impossible", f"{against}; {check(share, causes)}")
    if best.value is not None and tflops > best.value:
        what = f"above the {shown(float(best.value))} TFLOP/s of the best matmul ever measured on it"
        return Judgement("implausible", f"{against}, {what}; {check(tflops / best.value, causes)}")
    return Judgement("possible", against)


def judge_peak(tflops: float, device: Hardware | None, precision: str) -> Judgement:
    """Judge a claimed peak by the data sheet: which of its figures it is, if any."""
    peak = peak_tflops(device, precision)
    if device is None or peak.value is None:
        return Judgement("cannot tell", peak.note)
    if _same(tflops, peak.value):
        return Judgement("possible", f"the dense {precision} peak of {device.name}")
    known = f"the dense {precision} peak of {device.name} is {shown(float(peak.value))} TFLOP/s"
    taken = [name for name, known_peak in device.peak_dense_tflops.items() if _same(tflops, known_peak)]
    doubled = [name for name, known_peak in device.peak_dense_tflops.items() if _same(tflops, 2 * known_peak)]
    is_of = [f"of {name}, dense" for name in taken] + [f"of {name} with sparsity" for name in doubled]
    other = f"; {shown(tflops)} is that {' and that '.join(is_of)}" if is_of else ""
    return Judgement("impossible", known + other)


def judge_ratio(ratio: float, value: float, other: float) -> Judgement:
    """Judge a claimed ratio by its two numbers, in either order, to the digits it is quoted in."""
    true_ratio = value / other
    known = f"{value:,.10g} / {other:,.10g} = {shown(true_ratio, 3)}"
    if _same(ratio, true_ratio) or _same(ratio, 1 / true_ratio):
        return Judgement("possible", known)
    return Judgement("impossible", f"{known}, not {ratio:g}")


def _same(a: float, b: float) -> bool:
    return abs(a - b) <= _DIGITS * abs(b)


def _causes(claim: Speed, device: Hardware | None, precision: str) -> Iterator[Cause]:
    if claim.mode == "training":
        yield Cause("whether only the forward pass was timed (mode=forward)", 3.0)
    if device is not None:
        yield Cause("a node's tokens taken as one GPU's", float(device.gpus_per_node * device.devices_per_package))
    yield from causes_in_a_run(device, precision)
    total = flops_per_token(claim.shape, claim.seq_length)
    linear = flops_per_token(claim.shape, 1)
    if total > 2 * linear:
        yield Cause("whether attention really spans all of the sequence (packed or short samples)", total / linear)
