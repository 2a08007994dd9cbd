"""Step times with what they may be wrong by: intervals from the errors of predictions of published runs that the fit
did not have, by class of jobs (split conformal: Lei 2018, arXiv:1604.04173), wider the less of a job was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conf.facts import hardware
from estimate.fitted import Parameters, shipped
from estimate.jobs import Jobs, Numbers
from estimate.step_time import OFFSETS, Case, Parts, cases_of, step_time, vendor_of

NEAREST = (
    ("model", "this model", ("stack", "hardware", "kind")),
    ("release", "any {kind} job of that release", ("framework",)),
    ("framework", "any job of that framework", ("software",)),
    ("software", "any job of that software", ()),
)
"""Distances of a job from measured ones: a name, what nobody measured, and what somebody did (OFFSETS)."""
GPU, REACH = "gpu", "reach"
DISTANCES = (*(name for name, *_ in NEAREST), GPU, REACH)
"""All distances. gpu: no run on it in that precision; reach: a longer sequence, more GPUs or more ranks of experts than
of any run. By how much each widens an interval is measured (estimate/held_out.py)."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Step times of n jobs in seconds, with the ends of the intervals that hold 80 and 95 of 100. classes: what the
    errors are of; rows: how many of them there are. notes: of each job, why its interval is wider."""

    step_time_s: Numbers
    low_80_s: Numbers
    high_80_s: Numbers
    low_95_s: Numbers
    high_95_s: Numbers
    classes: tuple[str, ...]
    rows: Numbers
    notes: tuple[tuple[str, ...], ...]
    parts: Parts


def classes_of(case: Case) -> tuple[str, ...]:
    """Return the classes that a job belongs to, those whose errors are most like its own first: its GPU's maker where
    few runs of it were measured, the kind of work, and the generation of the GPU."""
    device = hardware(case.hardware)
    generation = (device.architecture or "")[:-1] if device else ""
    return vendor_of(case.hardware), case.kind if case.kind != "dense" else f"dense, {generation}x", "all"


def class_of(known: Parameters, case: Case) -> str:
    """Return the class whose errors a job's are expected to be like: the first that errors are known of."""
    return next(name for name in classes_of(case) if name in known.errors)


def predict(jobs: Jobs, parameters: Parameters | None = None) -> Prediction:
    """Return the step times of jobs and their intervals; nan where a rate of the GPU is unknown."""
    known = shipped() if parameters is None else parameters
    parts, cases = step_time(jobs, known), cases_of(jobs)
    total = parts.total
    names = [class_of(known, case) for case in cases.distinct]
    notes = [_why(known, case) for case in cases.distinct]
    near, far = np.exp(half_widths(jobs, known))
    spread = [0] * total.size if cases.index is None else cases.index.tolist()
    return Prediction(
        total,
        total / near,
        total * near,
        total / far,
        total * far,
        tuple(names[i] for i in spread),
        np.broadcast_to(cases.spread([float(known.errors[name].n) for name in names]), total.shape),
        tuple(notes[i] for i in spread),
        parts,
    )


def half_widths(jobs: Jobs, known: Parameters) -> Numbers:
    """Return half the widths of the intervals of 80 and 95 % of the logarithm of the step time, shape (2, n)."""
    cases = cases_of(jobs)
    halves = [_half_width(known, class_of(known, case), far(known, case)) for case in cases.distinct]
    both = np.stack([cases.spread([half[level] for half in halves]) for level in (0, 1)])
    reach = np.array(known.distances[REACH].by if REACH in known.distances else (1.0, 1.0))
    wider = np.where(beyond(jobs, known), reach[:, None], 1.0)
    return np.asarray(np.broadcast_to(both.reshape(2, -1) * wider, (2, jobs.count)))


def _half_width(known: Parameters, name: str, distances: Sequence[str]) -> tuple[float, float]:
    near, wide = known.errors[name].half_80, known.errors[name].half_95
    for distance in distances:
        by_80, by_95 = known.distances[distance].by
        near, wide = near * by_80, wide * by_95
    return near, wide


def far(known: Parameters, case: Case) -> tuple[str, ...]:
    """Return the distances of a case from the jobs that the parameters are fitted to; none of what is like them."""
    there = dict(zip(OFFSETS, (name in known.offsets for name in case.offsets), strict=False))
    nearest = () if there.get(OFFSETS[-1]) else (next(n for n, _, level in NEAREST if not level or there.get(level)),)
    unknown = f"gemm_efficiency.{case.hardware}.{case.precision}" not in known.measured
    return (*nearest, *((GPU,) if unknown else ()))


def _why(known: Parameters, case: Case) -> tuple[str, ...]:
    """Return why the interval of a case is wider."""
    distances = far(known, case)
    stack = f"{case.stack or 'an unnamed stack'} on {case.hardware} in {case.precision}"
    notes = [f"{stack}: nobody measured {what}" for name, what, _ in NEAREST if name in distances]
    if GPU in distances:
        notes.append(f"no measured run on {case.hardware} in {case.precision}: its efficiency is a prior")
    return tuple(note.format(kind=case.kind) for note in notes)


def beyond(jobs: Jobs, known: Parameters) -> NDArray[np.bool_]:
    """Return which jobs have a longer sequence, more GPUs or more ranks of experts than any that was measured."""
    longer = np.zeros(jobs.count, dtype=bool)
    for name, most in known.reach.items():
        longer |= getattr(jobs, name) > most
    return longer
