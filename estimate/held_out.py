"""How wrong predictions of runs are that the fit did not have: runs are split into folds, each predicted by a fit to
the others that starts from the priors. Runs of one configuration are never in two folds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import msgspec
import numpy as np
from numpy.typing import NDArray

from estimate.fit import fit
from estimate.fitted import Error, Parameters
from estimate.jobs import Jobs, Numbers
from estimate.predict import classes_of, width
from estimate.step_time import cases_of, step_time

FOLDS = 5
LEVELS = (0.80, 0.95)
BETWEEN = ((5, 0.5), (20, 1.1), (1, 1.1))
"""Runs that makers, finest classes and all need to be a class, and the share of all from which on they are none."""
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
    """Logarithms of predicted by measured step time of runs, of each the classes and by how much its interval is wider,
    as the fit without its fold saw it."""

    error: Numbers
    classes: tuple[tuple[str, ...], ...]
    width: Numbers

    def take(self, mask: NDArray[np.bool_]) -> HeldOut:
        """Return the runs of a mask."""
        return HeldOut(self.error[mask], tuple(self.classes[i] for i in np.flatnonzero(mask)), self.width[mask])

    @property
    def scores(self) -> Numbers:
        """Return the errors in units of the width."""
        return np.abs(self.error) / self.width


def held_out(runs: Runs, split: NDArray[np.intp], parameters: Parameters) -> HeldOut:
    """Return the errors of all runs, each by a fit to the other folds from the priors of `parameters`."""
    count = runs.jobs.count
    error, widths = np.empty(count), np.empty(count)
    for fold in np.unique(split):
        others, judged = runs.take(split != fold), split == fold
        fitted = fit(others.jobs, others.step_time_s, others.alike, parameters, "")
        jobs = runs.jobs.take(judged)
        error[judged] = np.log(step_time(jobs, fitted).total / runs.step_time_s[judged])
        widths[judged] = width(jobs, fitted)
    cases = cases_of(runs.jobs)
    index = [0] * count if cases.index is None else cases.index.tolist()
    return HeldOut(error, tuple(classes_of(cases.distinct[i]) for i in index), widths)


def quantile(scores: Numbers, level: float) -> float:
    """Return the score below which a new one is with probability `level` (Lei 2018): one higher rank than of these."""
    rank = min(ceil((scores.size + 1) * level), scores.size)
    return float(np.sort(scores)[rank - 1])


def errors(held: HeldOut) -> Mapping[str, Error]:
    """Return the half widths of each class that is large enough, or a maker's that has less than half of the runs."""
    found = {}
    for level, (least, most) in zip(zip(*held.classes, strict=True), BETWEEN, strict=True):
        names, counts = np.unique(level, return_counts=True)
        for name, count in zip(names.tolist(), counts.tolist(), strict=True):
            if least <= count < most * len(level):
                scores = held.scores[np.array(level) == name]
                found[name] = Error(count, *(float(f"{quantile(scores, share):.3g}") for share in LEVELS))
    return found


def fit_with_errors(runs: Runs, parameters: Parameters, source: str) -> Parameters:
    """Return the parameters fitted to all runs, with the errors of predictions of configurations that a fit did not
    have."""
    fitted = fit(runs.jobs, runs.step_time_s, runs.alike, parameters, source)
    held = held_out(runs, folds(configurations(runs.jobs), FOLDS), parameters)
    return msgspec.structs.replace(fitted, errors=errors(held))
