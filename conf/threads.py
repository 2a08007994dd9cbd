"""How many threads a process of a run on a CPU computes with."""

from __future__ import annotations

import os

from conf.resolve import Experiment

ELEMENTS = 65_536
"""Elements of a layer's activations from which one thread more pays: two of the blocks that torch cuts kernels into
(at::internal::GRAIN_SIZE in torch v2.13.0 aten/src/ATen/Parallel.h). Steps of models with fewer took up to 1.4 times as
long by two threads as by one: each kernel waits until the second is awake."""


def cores_here() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def useful_threads(tokens: float, hidden_size: float) -> int:
    """Return the most threads that pay for a micro-batch of so many tokens on one process."""
    return max(1, int(tokens * hidden_size) // ELEMENTS)


def useful_threads_of(e: Experiment) -> int:
    """Return the most threads that pay for a process of a run on a CPU."""
    tokens = (e.training.micro_batch_size or 1) * e.training.seq_length / e.layout.context_parallel_size
    return useful_threads(tokens, e.model.hidden_size)


def threads_of(cores: int, processes: int, useful: int) -> int:
    """Return the threads of each process of a machine of so many cores, as many for all."""
    return max(1, min(cores // processes, useful))
