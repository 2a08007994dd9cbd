"""Devices and what they could do at most: the dense peak of the precision that ran, and the best matmul measured.

Not here: how many operations a model needs (metrics/flops.py)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from conf.facts import hardware, named_by_driver
from conf.schema import Hardware
from metrics.quantity import Quantity, shown
from metrics.shape import Facts
from parsers.record import Record

_DTYPES = {"bfloat16": "bf16", "float16": "bf16", "float32": "fp32"}  # fp16 and bf16 have one peak on every GPU here


class Cause(NamedTuple):
    """Why a figure may stand above what is possible. factor: by how much it would be too high, None: by anything."""

    text: str
    factor: float | None = None


def device_of(record: Record) -> Hardware | None:
    """Return the hardware that the driver named, else the one requested or stated; None if no file describes it."""
    name = record.environment.get("device_name")
    return (named_by_driver(name) if isinstance(name, str) else None) or hardware(record.hardware)


def hardware_of(record: Record) -> str | None:
    """Return the name of the hardware: of `device_of`, else as requested or stated, else as the driver spells it."""
    device = device_of(record)
    return device.name if device else record.hardware or record.environment.get("device_name")


def precision_of(facts: Facts) -> str | None:
    """Return fp8, bf16 or fp32; None where the settings do not report both whether fp8 ran and the type of the
    computation: Lightning's (mixed precision has other parameters), else that of the parameters.

    In an fp8 run attention and logits stay in bf16, so that it cannot reach the peak of fp8."""
    if "fp8" not in facts.settings:
        return None
    if facts.settings["fp8"]:
        return "fp8"
    dtype = facts.settings.get("compute_dtype") or facts.settings.get("params_dtype")
    return _DTYPES.get(str(dtype).removeprefix("torch."))


def peak_tflops(device: Hardware | None, precision: str | None) -> Quantity:
    """Return the dense peak of one device in TFLOP/s, by its data sheet: half a package's where that is two devices."""
    if device is None or precision is None:
        return Quantity(None, "TFLOP/s", "spec", note="unknown GPU" if device is None else "unknown precision")
    peak = device.peak_dense_tflops.get(precision)
    if peak is None:
        return Quantity(None, "TFLOP/s", "spec", note=f"no {precision} peak is known for {device.name}")
    return Quantity.of(peak / device.devices_per_package, "TFLOP/s", "spec", f"{device.name} {precision} dense")


def achievable_tflops(device: Hardware | None, precision: str | None) -> Quantity:
    """Return the best matmul that was measured on one device, in TFLOP/s."""
    best = device.achievable_tflops.get(precision) if device and precision else None
    if device is None or best is None:
        return Quantity(None, "TFLOP/s", "measured", note="no measured matmul rate is known")
    best /= device.devices_per_package
    return Quantity.of(best, "TFLOP/s", "measured", f"{device.name} {precision} best matmul")


def utilisation(tflops: Quantity, peak: Quantity, causes: tuple[Cause, ...] = ()) -> Quantity:
    """Return tflops as a share of `peak`, in %. Above 100 % there is no figure, only a note on what to check: above a
    data sheet's peak it is impossible, above the best measured matmul implausible."""
    if tflops.value is None or peak.value is None:
        return Quantity(None, "%", tflops.source, note=tflops.note if tflops.value is None else peak.note)
    share = tflops.value / peak.value
    of = f"of {shown(float(peak.value))} TFLOP/s, {peak.note}"
    if share <= 1:
        return tflops.times(100 / peak.value, "%", note=of)
    word = "impossible" if peak.source == "spec" else "implausible"
    note = f"{word}: {shown(100 * share, 3)} % {of}; {explained(share, causes)}"
    return Quantity(None, "%", tflops.source, note=note)


def explained(share: float, causes: Sequence[Cause]) -> str:
    """Return 'check: …' with the causes that could explain `share` (1 is possible), the nearest factor first."""
    likely = sorted((c for c in causes if c.factor is not None and c.factor >= share), key=lambda c: c.factor or 0.0)
    return "check: " + "; ".join([*(c.text for c in likely), *(c.text for c in causes if c.factor is None)])


def causes_in_a_run(device: Hardware | None, precision: str | None) -> tuple[Cause, ...]:
    """Return what makes our own figure of a run too high."""
    peaks = device.peak_dense_tflops if device else {}
    ran = peaks.get(precision or "", math.inf)
    faster = {name: peak / ran for name, peak in peaks.items() if peak > ran}
    return (
        Cause("step times that end before the GPU does (asynchronous timing)"),
        Cause("tokens counted twice (batch size, sequence length, number of GPUs)", 2.0),
        *(Cause(f"whether {name} ran, not {precision}", factor) for name, factor in faster.items()),
    )
