"""The memory that a process of a machine takes beyond its tensors, as `tprimat measure` found it there: the framework
without a model, and by whole trainings what training adds, what the allocator holds and what collectives keep. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from conf.machine import Figure, Machine
from estimate.jobs import Column, Jobs, Numbers
from estimate.memory import memory
from estimate.rows import jobs_of

LEAST = 4
"""Trainings of which a share and two sizes are learned, of one process and of several."""
_FITTED = {
    "training_memory": ("bytes", "what a process that trains takes beyond the imported framework and its tensors"),
    "allocator_memory": ("bytes/byte", "by what share the allocator's memory exceeds tensors"),
    "link_memory": ("bytes", "what a process that exchanges with others keeps for its collectives"),
}
_COLLECTIVES = ("tensor_model", "context", "expert_model", "data")  # a pipeline sends from rank to rank


def beyond_tensors(machine: Machine, jobs: Jobs, allocated: float) -> float | None:
    """Return the bytes of a process beyond the `allocated` ones of its tensors; None where nothing was measured."""
    if not (framework := _framework_bytes(machine)):
        return None
    training, share, links = (machine.value(name) or 0.0 for name in _FITTED)
    return framework + training + share * allocated + links * float(_exchanges(jobs).max())


def _framework_bytes(machine: Machine) -> float:
    """Return what the framework takes without a tensor of a model: of a GPU by torch, of a process of a CPU by the
    embedded engine, too; 0 where it was not measured."""
    parts = ("torch",) if machine.accelerator else ("torch", "engine")
    return sum(machine.value("framework_memory", framework=name) or 0.0 for name in parts)


def learned(machine: Machine, trainings: Sequence[tuple[Mapping[str, Column], float]]) -> Iterator[Figure]:
    """Yield the figures that whole trainings say: least squares on the share of the resident memory, none below zero;
    of a GPU none, where runs report what torch allocates. trainings: columns of Jobs, and the most resident bytes of a
    process."""
    if machine.accelerator or len(trainings) < LEAST:
        return
    jobs, measured = jobs_of([dict(columns) for columns, _ in trainings]), np.array([size for _, size in trainings])
    exchanges = _exchanges(jobs)
    if min(exchanges.sum(), len(measured) - exchanges.sum()) < 1:
        return
    allocated = memory(jobs).allocated.max(axis=0)
    terms = np.stack([np.ones_like(allocated), allocated, exchanges], axis=1) / measured[:, None]
    rest = 1 - (allocated + _framework_bytes(machine)) / measured
    for place, ((name, (unit, what)), value) in enumerate(zip(_FITTED.items(), _solved(terms, rest), strict=True)):
        others = [_solved(np.delete(terms, i, 0), np.delete(rest, i))[place] for i in range(len(rest))]
        text = f"{what}: resident memory of {len(rest)} trainings less framework_memory and tensors"
        yield Figure(name, value, unit, text, {}, _ends(value, others), len(rest), len(rest))


def _exchanges(jobs: Jobs) -> Numbers:
    """Return whether a process has collectives with others, 1 or 0, shape (n,)."""
    ranks = np.prod([np.atleast_1d(getattr(jobs, f"{name}_parallel_size")) for name in _COLLECTIVES], axis=0)
    return np.asarray(ranks > 1, dtype=float)


def _solved(terms: Numbers, rest: Numbers) -> list[float]:
    from scipy.optimize import nnls

    return [float(f"{value:.4g}") for value in nnls(terms, rest)[0]]


def _ends(value: float, others: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval by the jackknife: the values without each training in turn."""
    from scipy.stats import t

    count = len(others)
    half = float(t.ppf(0.975, count - 1)) * float(np.std(others)) * (count - 1) ** 0.5
    return max(value - half, 0.0), value + half
