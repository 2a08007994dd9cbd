"""Step times with what they may be wrong by: intervals from the errors of predictions of published runs that the fit
did not have, by class of jobs (split conformal: Lei 2018, arXiv:1604.04173), wider the less of a job was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from conf.facts import hardware
from estimate.fitted import Parameters, shipped
from estimate.jobs import Jobs, Numbers
from estimate.step_time import OFFSETS, Case, Cases, Parts, cases_of, step_time, vendor_of

UNKNOWN_GPU = 1.5
UNKNOWN = (1.0, 2.0, 2.2, 2.8)
"""Factors on the width by what was measured before: the model on that GPU by the framework; the stack on that GPU; the
framework; nothing of it. They were read off the errors of unseen configurations and sources."""
LONG = 1.5
LONGEST, LARGEST, MOST_EXPERT_RANKS = 131072, 16384, 64
"""The longest sequence, most GPUs and most ranks that experts were measured on: beyond any, LONG is a factor."""


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
    errors = [known.errors[name] for name in names]
    notes = [_unmeasured(known, case) for case in cases.distinct]
    wide = width(jobs, known)
    near, far = (
        np.exp(wide * cases.spread(half))
        for half in ([error.half_80 for error in errors], [error.half_95 for error in errors])
    )
    spread = _index(cases, total.size)
    return Prediction(
        total,
        total / near,
        total * near,
        total / far,
        total * far,
        tuple(names[i] for i in spread),
        np.broadcast_to(cases.spread([float(error.n) for error in errors]), total.shape),
        tuple(notes[i][1] for i in spread),
        parts,
    )


def _index(cases: Cases, size: int) -> Sequence[int]:
    return [0] * size if cases.index is None else cases.index.tolist()


def width(jobs: Jobs, known: Parameters) -> Numbers:
    """Return by how much the intervals of jobs are wider than those of what was measured nearly so."""
    cases = cases_of(jobs)
    return cases.spread([_unmeasured(known, case)[0] for case in cases.distinct]) * _beyond(jobs)


def _unmeasured(known: Parameters, case: Case) -> tuple[float, tuple[str, ...]]:
    """Return by how much an interval is wider for what was not measured, and why."""
    there = [name in known.offsets for name in case.offsets] or [False] * len(OFFSETS)
    nearest = [there[-1], there[OFFSETS.index(("stack", "hardware", "kind"))], there[0], True].index(True)
    what = ("", "this model", f"any {case.kind} job of that release", "any job of that framework")[nearest]
    stack = f"{case.stack or 'an unnamed stack'} on {case.hardware} in {case.precision}"
    factor, notes = UNKNOWN[nearest], [f"{stack}: nobody measured {what}"] if nearest else []
    if f"gemm_efficiency.{case.hardware}.{case.precision}" not in known.measured:
        factor *= UNKNOWN_GPU
        notes.append(f"no measured run on {case.hardware} in {case.precision}: its efficiency is a prior")
    return factor, tuple(notes)


def _beyond(jobs: Jobs) -> Numbers:
    """Return by how much intervals are wider for sequences, clusters and groups of experts beyond measured ones."""
    far = np.where(jobs.seq_length > LONGEST, LONG, 1.0) * np.where(jobs.world_size > LARGEST, LONG, 1.0)
    return np.asarray(far * np.where(jobs.expert_model_parallel_size > MOST_EXPERT_RANKS, LONG, 1.0))
