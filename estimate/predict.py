"""Step times with what they may be wrong by: intervals from the errors of predictions of published runs that the fit
did not have, by class of jobs (split conformal: Lei 2018, arXiv:1604.04173), wider the less of a job was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conf.errors import ConfigError, Problem
from conf.facts import hardware
from estimate.fitted import OWN_RUNS, Error, Parameters
from estimate.host import shipped_for
from estimate.jobs import Jobs, Numbers
from estimate.step_time import OFFSETS, OWN, Case, Cases, Parts, architecture_of, cases_of, step_time

_NEAR = ("framework", "hardware", "precision", "kind")
_STACK = ("stack", "hardware", "kind")
DISTANCES = (
    ("like", (_NEAR, _STACK, ("framework", "hardware", "model", "precision")), ""),
    ("model", (_NEAR, _STACK), "this model with it"),
    ("release", (_NEAR,), "a {kind} job of that release"),
    ("precision", (_STACK,), "it in that precision"),
    ("machine", (("framework", "kind"),), "a {kind} job of {framework} on that GPU in that precision"),
    ("work", (("software", "vendor", "kind"),), "a {kind} job of {framework}"),
    ("software", (), "a {kind} job of {software} on any GPU of {vendor}"),
)
"""Distances of a job from the measured ones, the nearest first: a name, what it has in common with some of them
(OFFSETS), and what nobody measured. Two with one GPU, or of one framework, are not like each other for that."""
GPU, ARCHITECTURE, REACH = "gpu", "architecture", "reach"
WIDER = (GPU, ARCHITECTURE, REACH)
"""Reasons to widen an interval at any distance. gpu: no run on it in that precision; architecture: nor on any GPU of
its architecture; reach: a longer sequence, more GPUs or more ranks of experts than of any run. Widths and factors are
measured (estimate/held_out.py)."""

HOST = 2.0
"""Half width of both intervals on a CPU without a machine.yaml, by hand (a factor of 7.4 either way): the table has no
runs on CPUs, and what others use of a machine decides its steps: at a load of 15 on two cores llama_tiny took 1.5 times
as long as predicted on one rank, and 5 times on two that wait for each other."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Step times of n jobs in seconds, with the ends of the intervals that hold 80 and 95 of 100. classes: what the
    errors are of, and what was new of it; rows: how many of them there are. notes: why an interval is wider."""

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
    """Return the classes that a job belongs to, those whose errors are most like its own first: dense ones by the
    generation of the GPU, the kind of work, all."""
    device = hardware(case.hardware)
    generation = (device.architecture or "")[:-1] if device else ""
    return (*((f"dense, {generation}x",) if case.kind == "dense" else ()), case.kind, "all")


def predict(jobs: Jobs, parameters: Parameters | None = None) -> Prediction:
    """Return the step times of jobs and their intervals; nan where a rate of the GPU is unknown."""
    cases = cases_of(jobs)
    known = shipped_for(case.hardware for case in cases.distinct) if parameters is None else parameters
    parts = step_time(jobs, known, cases)
    total = parts.total
    expected = [_expected(known, case) for case in cases.distinct]
    notes = [_why(known, case) for case in cases.distinct]
    near, far = np.exp(half_widths(jobs, known, cases))
    spread = cases.of_jobs(total.size).tolist()
    return Prediction(
        total,
        total / near,
        total * near,
        total / far,
        total * far,
        tuple(expected[i][0] for i in spread),
        np.broadcast_to(cases.spread([float(error.n) for _, error in expected]), total.shape),
        _beside(tuple(notes[i] for i in spread), beyond(jobs, known)),
        parts,
    )


def _expected(known: Parameters, case: Case) -> tuple[str, Error]:
    """Return the class of a case, with what was new of it, and its errors."""
    distance = distance_of(known, case)
    name, error = error_of(known, distance, classes_of(case))
    if case.hardware == "cpu" and distance != DISTANCES[0][0]:
        guess = "a guess by own runs" if known.source.endswith(OWN_RUNS) else "a guess"
        said = f"{guess}: no training on a CPU was published; four trainings by `measure` say what this one does"
        return said, Error(0, HOST, HOST)
    return name if distance == DISTANCES[0][0] else f"{name} whose {distance} was new", error


def half_widths(jobs: Jobs, known: Parameters, cases: Cases) -> Numbers:
    """Return half the widths of the intervals of 80 and 95 % of the logarithm of the step time, shape (2, n)."""
    errors = [_expected(known, case)[1] for case in cases.distinct]
    halves = [cases.spread([getattr(error, half) for error in errors]) for half in ("half_80", "half_95")]
    for name, wider in zip(WIDER, wider_by(jobs, known, cases).T, strict=True):
        by = known.wider[name].by if name in known.wider else (1.0, 1.0)
        halves = [half * np.where(wider, factor, 1.0) for half, factor in zip(halves, by, strict=True)]
    return np.stack([np.broadcast_to(half, (jobs.count,)) for half in halves])


def wider_by(jobs: Jobs, known: Parameters, cases: Cases) -> NDArray[np.bool_]:
    """Return what widens the interval of each job, shape (n, 3) in the order of WIDER."""
    kin = {architecture_of(name.split(".")[1]) for name in known.measured}
    new = [not has_efficiency(known, case) for case in cases.distinct]
    strange = [
        is_new and architecture_of(case.hardware) not in kin for is_new, case in zip(new, cases.distinct, strict=True)
    ]
    gpu, architecture = (cases.spread([float(each) for each in column]) > 0 for column in (new, strange))
    columns = (gpu & ~architecture, architecture, beyond(jobs, known))
    return np.stack([np.broadcast_to(each, (jobs.count,)) for each in columns], axis=1)


def error_of(known: Parameters, distance: str, classes: Sequence[str]) -> tuple[str, Error]:
    """Return the class whose errors at a distance a job's are expected to be like, the first that errors are known of,
    and these errors; no narrower than of what is nearer. Where nothing of its kind is known there, what is known of it
    farther off says more than all kinds do: mixtures of experts err twice as much as others."""
    name, error, reached = "", Error(0, 0.0, 0.0), False
    for each, *_ in DISTANCES:
        at, wanted = known.errors.get(each, {}), classes[:-1] if reached else classes
        if found := next((one for one in wanted if one in at), ""):
            own = at[found]
            name = found
            error = Error(own.n, max(own.half_80, error.half_80), max(own.half_95, error.half_95))
        reached = reached or each == distance
        if reached and found and found != classes[-1]:
            return name, error
    if name:
        return name, error
    raise ConfigError(Problem("parameters", f"they do not say how wrong they are at the distance {distance}"))


def distance_of(known: Parameters, case: Case) -> str:
    """Return how far a case is from the jobs that the parameters are fitted to."""
    there = _measured(known, case)
    return next(name for name, common, _ in DISTANCES if there.issuperset(common))


def _measured(known: Parameters, case: Case) -> set[tuple[str, ...]]:
    """Return what a case has in common with measured jobs."""
    return {level for level, name in zip(OFFSETS, case.offsets, strict=False) if name in known.offsets}


def has_efficiency(known: Parameters, case: Case) -> bool:
    """Return whether measured jobs say which rate a case's matrix products reach."""
    return f"gemm_efficiency.{case.hardware}.{case.precision}" in known.measured


def _why(known: Parameters, case: Case) -> tuple[str, ...]:
    """Return why the interval of a case is wider."""
    what = next(text for name, _, text in DISTANCES if name == distance_of(known, case))
    stack = f"{case.stack or 'an unnamed stack'} on {case.hardware} in {case.precision}"
    words = {"kind": case.kind, "framework": case.framework or "it", "software": case.software or "it"}
    new = f"nobody measured {what.format(vendor=case.vendor, **words)}"
    if _by_own_runs(known, case):
        new = f"only your own runs are of this case; the interval is the one where {new}"
    notes = [f"{stack}: {new}"] if what else []
    if not has_efficiency(known, case):
        notes.append(f"no measured run on {case.hardware} in {case.precision}: its efficiency is a prior")
    return tuple(notes)


def _by_own_runs(known: Parameters, case: Case) -> bool:
    """Return whether a calibration had this model on this stack and GPU, in its precision."""
    return known.source.endswith(OWN_RUNS) and _measured(known, case).issuperset(OWN)


def _beside(notes: tuple[tuple[str, ...], ...], far: NDArray[np.bool_]) -> tuple[tuple[str, ...], ...]:
    """Return the notes of jobs, with one of those that are beyond all that was measured."""
    if not far.any():
        return notes
    note = "a longer sequence, more GPUs or more ranks of experts than of any measured run"
    return tuple((*own, note) if is_far else own for own, is_far in zip(notes, far, strict=True))


def beyond(jobs: Jobs, known: Parameters) -> NDArray[np.bool_]:
    """Return which jobs have a longer sequence, more GPUs or more ranks of experts than any that was measured."""
    longer = np.zeros(jobs.count, dtype=bool)
    for name, most in known.reach.items():
        longer |= getattr(jobs, name) > most
    return longer
