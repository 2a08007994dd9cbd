"""How wrong predictions of runs are that the fit did not have: runs are split into folds, each predicted by a fit to
the others that starts from the priors. Runs of one configuration are never in two folds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from math import ceil

import msgspec
import numpy as np
from numpy.typing import NDArray

from conf.facts import hardware
from estimate.fit import REACHED, fit
from estimate.fitted import Distance, Error, Parameters
from estimate.jobs import Jobs, Numbers
from estimate.predict import DISTANCES, NEAREST, REACH, beyond, classes_of, far
from estimate.step_time import cases_of, step_time

FOLDS = 5
LEVELS = (0.80, 0.95)
BETWEEN = ((5, 0.5), (20, 1.1), (1, 1.1))
"""Runs that makers, finest classes and all need to be a class, and the share of all from which on they are none."""
FEWEST = 5  # runs at a distance, of which it is known
_NEARER = {farther: nearer for (nearer, *_), (farther, *_) in pairwise(NEAREST)}
_CONFIGURATION = (
    *("num_layers", "hidden_size", "ffn_hidden_size", "moe_ffn_hidden_size", "num_experts", "hardware", "precision"),
    *("trained", "seq_length", "micro_batch_size", "global_batch_size", "tensor_model_parallel_size"),
    *("pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size", "context_parallel_size"),
    *("expert_model_parallel_size", "data_parallel_size", "fsdp"),
)


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Measured runs. alike: of each, that which makes runs resemble each other. sources: who measured."""

    jobs: Jobs
    step_time_s: Numbers
    alike: tuple[object, ...]
    sources: tuple[str, ...]

    def take(self, mask: NDArray[np.bool_]) -> Runs:
        """Return the runs of a mask."""
        chosen = np.flatnonzero(mask)
        alike, sources = (tuple(each[i] for i in chosen) for each in (self.alike, self.sources))
        return Runs(self.jobs.take(mask), self.step_time_s[mask], alike, sources)


def configurations(jobs: Jobs) -> list[str]:
    """Return the configuration of each job as text, in which an unknown is a value like any other."""
    columns = [np.broadcast_to(getattr(jobs, name), jobs.count).tolist() for name in _CONFIGURATION]
    return ["|".join(map(str, values)) for values in zip(*columns, strict=True)]


def folds(keys: Sequence[str], count: int, seed: int = 0) -> NDArray[np.intp]:
    """Return the fold of each run, the same of the same key."""
    order = np.random.default_rng(seed).permutation(sorted({*keys}))
    of = {key: i % count for i, key in enumerate(order.tolist())}
    return np.array([of[key] for key in keys], dtype=np.intp)


def groups(keys: Sequence[str]) -> NDArray[np.intp]:
    """Return a fold for each key."""
    return np.unique(list(keys), return_inverse=True)[1]


@dataclass(frozen=True, slots=True, eq=False)
class HeldOut:
    """Logarithms of predicted by measured step time of runs, each by a fit that did not have it. row: which run; a run
    may be there once for each split. classes: of each. far: the distances at which that fit saw it."""

    error: Numbers
    row: NDArray[np.intp]
    classes: tuple[tuple[str, ...], ...]
    far: tuple[tuple[str, ...], ...]

    def take(self, mask: NDArray[np.bool_]) -> HeldOut:
        """Return the runs of a mask."""
        classes, far = (tuple(each[i] for i in np.flatnonzero(mask)) for each in (self.classes, self.far))
        return HeldOut(self.error[mask], self.row[mask], classes, far)


def held_out(runs: Runs, split: NDArray[np.intp], parameters: Parameters) -> HeldOut:
    """Return the errors of the runs with a fold of 0 or more, each by a fit to all others from the priors of
    `parameters`."""
    error = np.empty(runs.jobs.count)
    distances: list[tuple[str, ...]] = [()] * runs.jobs.count
    cases = cases_of(runs.jobs)
    index = [0] * runs.jobs.count if cases.index is None else cases.index.tolist()
    for fold in np.unique(split[split >= 0]):
        others, judged = runs.take(split != fold), split == fold
        fitted = fit(others.jobs, others.step_time_s, others.alike, parameters, "")
        jobs = runs.jobs.take(judged)
        error[judged] = np.log(step_time(jobs, fitted).total / runs.step_time_s[judged])
        for row, longer in zip(np.flatnonzero(judged), beyond(jobs, fitted), strict=True):
            distances[row] = (*far(fitted, cases.distinct[index[row]]), *((REACH,) if longer else ()))
    rows = np.flatnonzero(split >= 0)
    classes = tuple(classes_of(cases.distinct[index[row]]) for row in rows)
    return HeldOut(error[rows], rows, classes, tuple(distances[row] for row in rows))


def joined(parts: Sequence[HeldOut]) -> HeldOut:
    """Return the errors of several splits together."""
    return HeldOut(
        np.concatenate([part.error for part in parts]),
        np.concatenate([part.row for part in parts]),
        tuple(chain.from_iterable(part.classes for part in parts)),
        tuple(chain.from_iterable(part.far for part in parts)),
    )


def splits(runs: Runs) -> Mapping[str, NDArray[np.intp]]:
    """Return the splits by which the shipped errors are found. configuration: five folds of complete configurations;
    release: four folds of complete releases of stacks; source and gpu: a fold for each source, and each architecture;
    reach: the longest sequences, most GPUs and most ranks of experts, one in twenty each."""
    cases = cases_of(runs.jobs)
    index = [0] * runs.jobs.count if cases.index is None else cases.index.tolist()
    devices = [hardware(case.hardware) for case in cases.distinct]
    of_case = [str(device.architecture) if device else "" for device in devices]
    large = np.full(runs.jobs.count, -1, dtype=np.intp)
    for name in REACHED:
        column = np.broadcast_to(getattr(runs.jobs, name), runs.jobs.count)
        large[column > np.quantile(column, 0.95)] = 0
    return {
        "configuration": folds(configurations(runs.jobs), FOLDS),
        "release": folds([f"{cases.distinct[i].stack} {cases.distinct[i].hardware}" for i in index], FOLDS - 1),
        "source": groups(runs.sources),
        "gpu": groups([of_case[i] for i in index]),
        "reach": large,
    }


def quantile(scores: Numbers, level: float) -> float:
    """Return the score below which a new one is with probability `level` (Lei 2018): one higher rank than of these."""
    rank = min(ceil((scores.size + 1) * level), scores.size)
    return float(f"{np.sort(scores)[rank - 1]:.3g}")


def errors(held: HeldOut) -> Mapping[str, Error]:
    """Return the half widths of each class that is large enough, or a maker's that has less than half of the runs, by
    the runs that are at no distance."""
    held = held.take(np.array([not distances for distances in held.far]))
    found = {}
    for level, (least, most) in zip(zip(*held.classes, strict=True), BETWEEN, strict=True):
        names, counts = np.unique(level, return_counts=True)
        for name, count in zip(names.tolist(), counts.tolist(), strict=True):
            if least <= count < most * len(level):
                sizes = np.abs(held.error[np.array(level) == name])
                found[name] = Error(count, *(quantile(sizes, share) for share in LEVELS))
    return found


def widths(held: HeldOut, known: Mapping[str, Error], distances: Mapping[str, Distance]) -> Numbers:
    """Return half the widths of the intervals of runs, shape (2, n)."""
    classes = [next(known[name] for name in names if name in known) for names in held.classes]
    by = [[distances[name].by for name in names if name in distances] for names in held.far]
    wider = np.array([np.prod([(1.0, 1.0), *factors], axis=0) for factors in by]).reshape(-1, 2)
    halves = np.array([[one.half_80 for one in classes], [one.half_95 for one in classes]])
    return np.asarray(halves * wider.T, dtype=float)


def distances_of(held: HeldOut, known: Mapping[str, Error]) -> Mapping[str, Distance]:
    """Return by how much each distance widens the intervals of classes: the quantiles of the errors of the runs at it,
    in units of the interval that they would have without it. What is farther is never nearer."""
    found: dict[str, Distance] = {}
    for name in DISTANCES:
        at = np.array([name in far and all(other in found for other in far if other != name) for far in held.far])
        before = found.get(_NEARER.get(name, ""), Distance(0, (1.0, 1.0))).by
        if at.sum() < FEWEST:
            continue
        some = held.take(at)
        scores = np.abs(some.error) / widths(some, known, found)
        by_80, by_95 = (max(quantile(s, share), least) for s, share, least in zip(scores, LEVELS, before, strict=True))
        found[name] = Distance(int(at.sum()), (by_80, by_95))
    return found


def fit_with_errors(runs: Runs, parameters: Parameters, source: str) -> Parameters:
    """Return the parameters fitted to all runs, with the errors of predictions of runs that a fit did not have. Of a
    distance that no run is at, `parameters` say how much it widens."""
    fitted = fit(runs.jobs, runs.step_time_s, runs.alike, parameters, source)
    held = joined([held_out(runs, split, parameters) for split in splits(runs).values() if np.unique(split).size > 1])
    known = errors(held)
    distances = {**parameters.distances, **distances_of(held, known)}
    return msgspec.structs.replace(fitted, errors=known, distances=distances)
