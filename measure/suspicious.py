"""Warn of what looks wrong with a machine or its figures, each with its likely cause. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from conf.machine import Figure, Machine
from measure.cases import COLLECTIVES
from measure.rates import Samples
from metrics.quantity import shown

SLOWER = 0.05
"""A rank that takes so much longer than the median of its like is named."""
BAD_LINK = 0.7
"""A pair whose rate is below so much of the median of pairs is named."""
DRIFT = 0.1
"""Between the first and the last third of the rounds: throttling, or others on the machine."""
BUSY = 0.5
"""Load average of the host's last minute for each core, before ranks began, from which others are named."""
BELOW_PEAK = 0.4
"""Share of a GPU's data sheet below which its best product is implausible."""


class Plausible(NamedTuple):
    """Between what a figure is plausible, and what is likely where it is not. accelerator: of such machines alone."""

    name: str
    least: float
    most: float
    cause: str
    accelerator: bool | None = None


_LATENCY = "below: sizes took two protocols, and the fit is rough; above: sockets for links, or others on the machine"
PLAUSIBLE = (
    Plausible("base_utilisation", 0.02, 1.0, "below: batches too small to fill it; above: clocks changed meanwhile"),
    Plausible("jitter", 1.0, 1.5, "other programs on this machine, a power limit, or clocks that change"),
    Plausible("attention_backward", 0.8, 4.0, "another attention kernel backward than forward"),
    Plausible("communication_tp", -0.05, 5.0, "below: the training of one device was disturbed; above: a sick link"),
    Plausible("communication_pp", -0.05, 5.0, "below: the training of one device was disturbed; above: a sick link"),
    Plausible("power_share", 0.0, 1.05, "the limit was changed, or the sensor sees more than the device"),
    *(
        Plausible(
            f"{kind}_deviation", 0.0, 0.5, "two protocols by size, or others on the link: latency and rate are rough"
        )
        for kind in COLLECTIVES
    ),
    *(Plausible(f"{kind}_latency", 1e-6, 1e-2, _LATENCY, accelerator=True) for kind in COLLECTIVES),
    *(Plausible(f"{kind}_latency", 0.0, 0.1, _LATENCY, accelerator=False) for kind in COLLECTIVES),
    Plausible("save_rate", 1e7, 2e10, "below: a slow disk, or others use it; above: the disk says so before it has it"),
    Plausible("load_rate", 1e7, 5e10, "below: a slow disk, or others use it; above: a cache held the file"),
)

BF16_ON_A_CPU = 20.0
"""Backward by forward that is plausible there: torch adds gradients up in bf16, by oneDNN, and what the forward pass
multiplies in fp32, by MKL (ONEDNN_VERBOSE=1 and MKL_VERBOSE=1 show it): 7 to 15 without AVX512-BF16 and AMX."""


def suspicious(
    machine: Machine, samples: Samples, peaks: Mapping[str, float], bandwidth: float | None = None
) -> Iterator[str]:
    """Yield a line for each thing that looks wrong. peaks, bandwidth: FLOP/s of the data sheet by precision and bytes/s
    of its memory, empty or None if unknown."""
    if (load := machine.facts.get("host_load") or 0.0) > BUSY:
        yield f"others had {100 * load:.0f} % of the host's cores before it began: figures are of what they leave"
    yield from _slow_ranks(machine, samples)
    yield from _bad_links(machine)
    yield from _drift(samples)
    yield from _implausible(machine)
    yield from _contradictions(machine, peaks)
    yield from _of_memory(machine, bandwidth)


def _implausible(machine: Machine) -> Iterator[str]:
    for name, least, usual, cause, accelerator in PLAUSIBLE:
        for one in machine.figures if accelerator in (None, machine.accelerator) else ():
            slow = name == "attention_backward" and one.of.get("precision") == "bf16" and not machine.accelerator
            most = BF16_ON_A_CPU if slow else usual
            low, high = one.interval or (one.value, one.value)
            if one.name == name and (high < least or low > most):
                yield f"{named(one)} is {shown(one.value)}, plausible is {least:g} to {most:g}: {cause}"


def named(one: Figure) -> str:
    """Return a figure's name and what it belongs to."""
    return " ".join([one.name, *(f"{name}={value}" for name, value in one.of.items())])


def _contradictions(machine: Machine, peaks: Mapping[str, float]) -> Iterator[str]:
    value = machine.value
    for precision, peak in peaks.items():
        best = value("gemm_best", ranks=1, precision=precision)
        if best and best > peak:
            yield f"products of {precision} reach {shown(best)} FLOP/s, the data sheet says {shown(peak)}: a wrong peak"
        elif best and best < BELOW_PEAK * peak:
            cause = "clocks or power are capped, a part of the GPU is given away, or others use it"
            yield f"products of {precision} reach {best / peak:.0%} of the data sheet's {shown(peak)} FLOP/s: {cause}"
    wide, narrow = (value("gemm_best", ranks=1, precision=one) for one in ("fp32", "bf16"))
    if machine.accelerator and wide and narrow and narrow < wide:
        yield "products of bf16 are slower than those of fp32: this torch does not use the matrix units"
    alone, together = (value("gemm_best", ranks=count, precision="bf16") for count in (1, machine.ranks))
    if machine.accelerator and alone and together and together < (1 - DRIFT) * alone:
        share = f"{together / alone:.0%}"
        yield f"with all {machine.ranks} GPUs at work each does {share} of what one does alone: shared power or heat"
    light, heavy = (value("clock", phase=f"products {share}") for share in ("25%", "100%"))
    if light and heavy and heavy < (1 - DRIFT) * light:
        degrees = value("temperature", phase="products 100%")
        speeds = f"clocks fall from {light / 1e6:.0f} to {heavy / 1e6:.0f} MHz at {degrees:.0f} °C"
        yield f"{speeds} as products take all of the time, not a quarter: throttled by the limit of power or by heat"
    idle, memory = (value("power", phase=phase) for phase in ("idle", "memory-bound"))
    if idle and memory and idle > memory:
        yield "idle takes more power than work: others use the device, or the sampler was late"


def _of_memory(machine: Machine, bandwidth: float | None) -> Iterator[str]:
    for one in machine.figures if bandwidth else ():
        if one.name == "triad_rate" and bandwidth and (one.interval or (one.value,))[0] > bandwidth:
            said = f"{shown(one.value)} bytes/s, the data sheet says {shown(bandwidth)}"
            yield f"{named(one)} is {said}: a wrong data sheet, or a cache holds what is copied"


def _slow_ranks(machine: Machine, samples: Samples) -> Iterator[str]:
    """Yield the nodes, else the ranks, that take longer than the others for the same products."""
    every = samples.by_rank.shape[1]
    products = [i for i, case in enumerate(samples.cases) if case["kind"] == "gemm" and case["ranks"] == every > 1]
    own = samples.by_rank[products]
    own = own[~np.isnan(own).any(axis=1)]
    if not len(own):
        return
    if machine.nodes > 1:
        of_nodes = np.median(own.reshape(len(own), machine.nodes, -1), axis=2)
        slow = np.median(of_nodes / of_nodes.min(axis=1, keepdims=True), axis=0)
        hosts = machine.facts.get("hosts") or []
        for node, slower in enumerate(slow):
            if slower > 1 + SLOWER:
                name = f" ({hosts[node]})" if node < len(hosts) else ""
                yield f"node {node}{name} takes {slower:.2f} times as long as the fastest for the same products"
        own /= np.repeat(of_nodes, every // machine.nodes, axis=1)  # a slow rank is slow beside those of its node
    ratio = own / np.median(own, axis=1, keepdims=True)
    for rank, slower in enumerate(np.median(ratio, axis=0)):
        if slower > 1 + SLOWER:
            yield f"rank {rank} takes {slower:.2f} times as long as the median rank for the same products"


def _bad_links(machine: Machine) -> Iterator[str]:
    """Yield the pairs whose rate is surely below that of the others, within nodes and across."""
    for pairs, where in ((machine.pairs(across=False), ""), (machine.pairs(across=True), " across nodes")):
        usual = float(np.median([one.value for one in pairs])) if pairs else 0.0
        for one in pairs:
            if one.interval and one.interval[1] < BAD_LINK * usual:
                first, second, rate = one.of["first"], one.of["second"], one.value
                said = f"{shown(rate)} bytes/s between them, {shown(usual)} in the median{where}"
                yield f"ranks {first} and {second}: {said}"


def _drift(samples: Samples) -> Iterator[str]:
    products = [i for i, case in enumerate(samples.cases) if case["kind"] == "gemm"]
    whole = samples.seconds[products]
    whole = whole[:, ~np.isnan(whole).any(axis=0)]
    third = whole.shape[1] // 3
    if not third:
        return
    ratio = float(np.median(np.median(whole[:, -third:], axis=1) / np.median(whole[:, :third], axis=1)))
    if abs(ratio - 1) > DRIFT:
        cause = "throttling, or others on this machine" if ratio > 1 else "others on this machine at the start"
        yield f"products took {ratio:.2f} times as long in the last rounds as in the first: {cause}"
