"""Devices and what they could do at most: the dense peak of the precision that ran, and the best matmul measured.

Not here: how many operations a model needs (metrics/flops.py)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, TypeAlias

from conf.facts import hardware, named_by_driver, peak_of
from conf.machine import Machine
from conf.schema import Hardware
from metrics.quantity import IMPOSSIBLE, Quantity, shown
from parsers.record import Record

NO_POWER = "no power was measured"


class Cause(NamedTuple):
    """Why a figure may stand above what is possible. factor: by how much it would be too high, None: by anything."""

    text: str
    factor: float | None = None


def device_of(record: Record) -> Hardware | None:
    """Return the hardware that the driver named, else the one requested or stated; None if no file describes it."""
    name = record.environment.get("device_name")
    return (named_by_driver(name) if isinstance(name, str) else None) or hardware(record.hardware)


def with_machines(
    device: Hardware | None, record: Record, machines: Sequence[Machine], ranks: float
) -> Hardware | None:
    """Return `device` with the best products of the machine that has the record's device. ranks: devices of a node at
    work; on a CPU its processes."""
    spelled = record.environment.get("device_name")
    own = next((machine for machine in machines if machine.device == spelled), None)
    if device is None or own is None:
        return device
    package = {name: rate / 1e12 * device.devices_per_package for name, rate in own.best_flops(ranks).items()}
    note = f"measured {own.date} on {own.host}"
    return replace(device, achievable_tflops={**device.achievable_tflops, **package}, achievable_note=note)


def other_device(record: Record, machines: Sequence[Machine]) -> str:
    """Return why none of the machines says what the record's device achieves; empty where one does, or none is
    given."""
    spelled = record.environment.get("device_name")
    if not machines or any(machine.device == spelled for machine in machines):
        return ""
    given = ", ".join(dict.fromkeys(machine.device for machine in machines))
    return f"machine= is of {given}, the run's device is {spelled or 'unknown: its record names none'}"


def hardware_of(record: Record) -> str | None:
    """Return the name of the hardware: of `device_of`, else as requested or stated, else as the driver spells it."""
    device = device_of(record)
    return device.name if device else record.hardware or record.environment.get("device_name")


def peak_tflops(device: Hardware | None, precision: str | None) -> Quantity:
    """Return the dense peak of one device in TFLOP/s, by its data sheet: half a package's where that is two devices."""
    if device is None or precision is None:
        return Quantity(None, "TFLOP/s", "spec", note="unknown GPU" if device is None else "unknown precision")
    if (peak := peak_of(device, precision)) is None:
        return Quantity(None, "TFLOP/s", "spec", note=f"no {precision} peak is known for {device.name}")
    return Quantity.of(peak[1], "TFLOP/s", "spec", f"{device.name} {precision} dense")


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
    word = IMPOSSIBLE if peak.source == "spec" else "implausible"
    note = f"{word}: {shown(100 * share, 3)} % {of}; {explained(share, causes)}"
    return Quantity(None, "%", tflops.source, note=note)


def design_power(device: Hardware | None, why: str = NO_POWER) -> Quantity:
    """Return the TDP of one device: what it may draw, not what it drew. why: it is not known what it drew."""
    if device is None or device.tdp_w is None:
        return Quantity(None, "W/GPU", "assumed", note=f"{why}, no TDP known")
    return Quantity.of(device.tdp_w / device.devices_per_package, "W/GPU", "assumed", f"TDP of {device.name}: {why}")


Word: TypeAlias = Literal["possible", "implausible", "impossible", "cannot tell"]


class Judgement(NamedTuple):
    """A verdict on a claim. impossible: above what the device can do at all, or below the weights that it must hold.
    implausible: above the best matmul measured on it, or below what any known layout holds."""

    word: Word
    reason: str
    figures: Mapping[str, Quantity] = {}


def judge_tflops(
    tflops: float, device: Hardware | None, precision: str | None, needs: str, causes: Sequence[Cause]
) -> Judgement:
    """Judge TFLOP/s of one GPU by its dense peak, and by the best matmul that was measured on it. needs: what the claim
    comes to; causes: what else may be wrong."""
    peak, best = peak_tflops(device, precision), achievable_tflops(device, precision)
    rate = Quantity.of(tflops, "TFLOP/s", "computed")
    figures = {"tflops_per_gpu": rate, "peak_dense_tflops": peak, "best_measured_tflops": best}
    if peak.value is None:
        return Judgement("cannot tell", f"{needs}; {peak.note}", figures)
    share = tflops / peak.value
    against = f"{needs}: {shown(100 * share, 3)} % of {shown(float(peak.value))} TFLOP/s ({peak.note})"
    if share > 1:
        return Judgement("impossible", f"{against}; {explained(share, causes)}", figures)
    if best.value is not None and tflops > best.value:
        what = f"above the {shown(float(best.value))} TFLOP/s of the best matmul ever measured on it"
        return Judgement("implausible", f"{against}, {what}; {explained(tflops / best.value, causes)}", figures)
    return Judgement("possible", against, figures)


def impossible(name: str, tflops: Quantity, device: Hardware | None, precision: str | None, stated: str) -> str:
    """Return why a run cannot have had TFLOP/s that stand above its device's peak, in a precision that is not known
    above the highest of all; empty where it can. stated: facts of the run that may be wrong."""
    limit = peak_of(device, precision)
    if tflops.value is None or limit is None:
        return ""
    causes = (Cause(f"whether {stated} are right"), *causes_in_a_run(device, limit[0]))
    judged = judge_tflops(float(tflops.value), device, limit[0], f"{name} of {tflops}", causes)
    return f"{IMPOSSIBLE}: {judged.reason}" if judged.word == IMPOSSIBLE else ""


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
