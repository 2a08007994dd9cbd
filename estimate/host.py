"""This machine's processors as Jobs have a GPU: no data sheet says what they do, so that they are measured, in a tenth
of a second of their own time: what others use of the machine at that moment is no property of it. How fast gloo is
between processes is a prior, which a calibration corrects."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from time import process_time

import numpy as np

from conf.devices import host_memory_bytes
from conf.threads import cores_here, threads_of

_WIDTH, _COPIED = 768, 64_000_000  # of the matrices; bytes, more than caches hold
_TRIES = 6  # of which the fastest counts: others use the machine, too
_LOOPBACK = 1 / 8  # of the memory's bandwidth: gloo copies each byte several times on its way


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
