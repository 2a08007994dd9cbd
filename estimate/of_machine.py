"""Take what was measured on a machine (`tprimat measure`) in place of data sheets and priors, term by term."""

from __future__ import annotations

from collections.abc import Mapping
from math import log

import msgspec
import numpy as np

from conf.errors import ConfigError, Problem
from conf.load import hardware_named
from conf.resolve import Experiment
from estimate.fitted import Parameters, Value
from estimate.rows import Column
from estimate.step_time import A100, vendor_of
from measure.machine import Machine

MEASURED = 0.05
"""Standard deviation of the logarithm of what was measured on the very machine."""
BF16 = 2  # bytes, in which estimate.step_time counts traffic
_MOVED = ("rms_norm_rate", "swiglu_rate", "rope_rate")
Terms = Mapping[str, float | None]


def with_machine(
    e: Experiment, machine: Machine, columns: Mapping[str, Column], parameters: Parameters
) -> tuple[dict[str, Column], Parameters]:
    """Return the columns of Jobs of `e` and the parameters with the machine's figures in their place, those of as many
    ranks at once as a node of `e` has, or the nearest number. ConfigError: it is another machine than that of `e`."""
    _check(e, machine)
    precision = str(columns["precision"])
    figures = _Figures(machine, e.gpus_per_node, precision, str(columns["hardware"]))
    known = {name: value for name, value in figures.columns().items() if value is not None}
    values = {name: Value(value, MEASURED) for name, value in figures.values().items() if value is not None}
    source = f"{parameters.source}; {machine.device} on {machine.host}, measured {machine.date}"
    return {**columns, **known}, msgspec.structs.replace(
        parameters, values={**parameters.values, **values}, source=source
    )


def _check(e: Experiment, machine: Machine) -> None:
    vendor = e.hardware.vendor
    name = hardware_named(machine.device, vendor) if vendor and machine.accelerator else "cpu"
    if name != e.hardware.name:
        raise ConfigError(Problem("machine", "is another machine", machine.device, e.hardware.name, f"hardware={name}"))


class _Figures:
    """The figures of a machine for so many processes at once. fp8 and narrower products were not measured: what follows
    from them stays as published."""

    def __init__(self, machine: Machine, processes: int, precision: str, hardware: str) -> None:
        counts = {int(one.of["ranks"]) for one in machine.figures if one.name == "gemm_rate"}
        self.machine, self.precision, self.hardware = machine, precision, hardware
        self.ranks = min(counts, key=lambda count: (abs(log(count / processes)), count), default=1)
        self.wide = "fp32" if precision == "fp32" else "bf16"  # of what is not quantised

    def of(self, name: str, precision: str = "") -> float | None:
        return self.machine.value(name, ranks=self.ranks, precision=precision or self.wide)

    def link(self, name: str) -> float | None:
        return self.machine.value(name, ranks=max(self.ranks, 2))

    def columns(self) -> Terms:
        """Return columns of Jobs: rates of one rank."""
        link = self.link("all_reduce_rate")
        return {
            "peak_flops": self.of("gemm_rate", self.precision),
            "peak_bf16_flops": self.of("gemm_rate"),
            "memory_bandwidth": self.of("triad_rate"),
            "link_bandwidth": link,
            **({} if self.machine.accelerator else {"nic_bandwidth": link}),
        }

    def values(self) -> Terms:
        """Return parameters, by their names in parameters.yaml: the efficiency of what was measured itself is 1."""
        rate, triad, moved = self.of("gemm_rate"), self.of("triad_rate"), [*filter(None, map(self.of, _MOVED))]
        halving = (rate / A100) ** 0.5 if rate else None
        wide_bytes = 2 * BF16 if self.wide == "fp32" else BF16
        return {
            **(self._efficiencies(rate) if rate else {}),
            "gemm_tokens": _over(self.of("gemm_rows"), halving),
            "gemm_width": _over(self.of("gemm_width"), halving),
            "attention_backward": self.of("attention_backward"),
            "attention_tokens": self.of("attention_tokens"),
            "attention_channels": self.of("attention_channels"),
            "memory_efficiency": 1.0 if triad else None,
            "traffic": wide_bytes / BF16 * triad / float(np.median(moved)) if triad and moved else None,
            "optimizer": _over(triad, self.of("adam_rate", "fp32")),
            "link_efficiency": 1.0 if self.link("all_reduce_rate") else None,
            "collective_latency": self.link("all_reduce_latency"),
        }

    def _efficiencies(self, rate: float) -> Terms:
        vendor, gpu = vendor_of(self.hardware), self.hardware
        known = {self.wide, self.precision} if self.of("gemm_rate", self.precision) else {self.wide}
        # the output layer's products are looked up as bf16's
        products = {f"gemm_efficiency.{gpu}.{precision}": 1.0 for precision in {*known, "bf16"}}
        products |= {f"gemm_precision.{precision}": 1.0 for precision in {*known, "bf16"}}
        return {
            **products,
            f"gemm_vendor.{vendor}": 1.0,
            f"attention_efficiency.{gpu}": _over(self.of("attention_rate"), rate),
            f"attention_efficiency_vendor.{vendor}": 1.0,
        }


def _over(value: float | None, divisor: float | None) -> float | None:
    return None if value is None or not divisor else value / divisor
