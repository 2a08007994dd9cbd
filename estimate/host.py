"""This machine's processors as Jobs have a GPU: no data sheet says what they do, so that they are measured, in a tenth
of a second of their own time: what others use of the machine at that moment is no property of it. How fast gloo is
between processes is a prior, which a calibration corrects."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from time import process_time

import msgspec
import numpy as np

from conf.devices import host_memory_bytes
from conf.threads import cores_here, threads_of
from estimate.fitted import Parameters, Value, shipped

_WIDTH, _COPIED = 768, 64_000_000  # of the matrices; bytes, more than caches hold
_TRIES = 6  # of which the fastest counts: others use the machine, too
_GUESSED = "; guesses of a CPU"  # in the source of parameters
_LOOPBACK = 1 / 32  # of the memory's bandwidth: gloo copies each byte several times on its way
EXPOSED = ("tensor", "context", "experts", "pipeline", "data")
"""Kinds of communication, which a CPU that computes hides none of."""
PARAMETERS = {
    "launch_dense": 3.9e-4,
    "launch_moe": 4.7e-4,
    "launch_expert": 1.7e-4,
    "graphs_unknown": 0.0,
    "flex_unknown": 0.0,
    "collective_latency": 8e-4,
    "send_latency": 2e-4,
    "link_efficiency": 1.0,
    "straggler": 0.05,
    **{f"exposed_{name}": 1.0 for name in EXPOSED},
    "memory_efficiency": 1.0,
    "traffic": 2.0,
    "traffic_backward": 1.66,
    "optimizer": 1.0,
    "gemm_tokens": 55.0,
    "gemm_width": 74.0,
    "gemm_backward": 1.03,
    "attention_backward": 2.76,
    "attention_half_rate_tokens": 820.0,
    "attention_channels": 17.0,
    "grouped": 1.29,
    "permute": 0.95,
}
"""Parameters of a CPU that nobody measured, in place of those of GPUs: of the two cores in docs/guide/machine.yaml (a
call of torch takes 2.4 us there, a collective of gloo in a step 0.8 ms, a send 0.2 ms), where nothing overlaps;
straggler: the share of a step that ranks wait for the slower one, for each doubling of their number. Products,
attention and backward passes have a GPU's sizes at the time of those figures, and do not follow later fits. A guess
that `measure` replaces."""


def shipped_for(hardware: Iterable[str]) -> Parameters:
    """Return the shipped parameters; where all of `hardware` are CPUs, with what is guessed of one."""
    known = shipped()
    if {*hardware} != {"cpu"}:
        return known
    own = {name: Value(value, known.kinds[name].sd, value) for name, value in PARAMETERS.items()}
    return msgspec.structs.replace(known, values={**known.values, **own}, source=f"{known.source}{_GUESSED}")


def of_host(known: Parameters) -> bool:
    """Return whether parameters are those of a CPU, as guessed or with what its runs said."""
    return _GUESSED in known.source


def columns_of_host(processes: int, useful: int) -> dict[str, float | str]:
    """Return the machine's columns of Jobs for one of `processes` on this host. useful: the most threads that pay for
    each (conf.threads)."""
    of_core, bandwidth = _measured()
    cores = cores_here()
    flops = of_core * min(threads_of(cores, processes, useful), cores / processes)
    return {
        "hardware": "cpu",
        "peak_flops": flops,
        "peak_bf16_flops": flops,
        "memory_bytes": host_memory_bytes() / processes,
        "memory_bandwidth": bandwidth / processes,
        "link_bandwidth": bandwidth * _LOOPBACK / processes,
        "nic_bandwidth": bandwidth * _LOOPBACK / processes,
        "gpus_per_domain": float(processes),
        "mesh_links": 0.0,
        "tdp_w": float("nan"),
    }


@cache
def _measured() -> tuple[float, float]:
    """Return FLOP/s of fp32 matrix products on one core, and bytes/s of a copy, read and written."""
    matrix, source = np.ones((_WIDTH, _WIDTH), np.float32), np.zeros(_COPIED // 4, np.float32)
    target = np.empty_like(source)
    product = min(_timed(lambda: matrix @ matrix) for _ in range(_TRIES))
    copy = min(_timed(lambda: np.copyto(target, source)) for _ in range(_TRIES))
    return 2.0 * _WIDTH**3 / product, 2.0 * _COPIED / copy


def _timed(work: Callable[[], object]) -> float:
    start = process_time()
    work()
    return process_time() - start
