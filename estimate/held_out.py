"""How wrong predictions of runs are that the fit did not have: runs are split into folds, each predicted by a fit to
the others that starts from the priors. Runs of one configuration are never in two folds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import ceil

import msgspec
import numpy as np
from numpy.typing import NDArray

from estimate.fit import REACHED, fit
from estimate.fitted import Error, Parameters, Wider
from estimate.jobs import Jobs, Numbers, Words
from estimate.predict import DISTANCES, WIDER, classes_of, distance_of, error_of, wider_by
from estimate.step_time import Case, architecture_of, cases_of, step_time

FOLDS, LARGE_FOLDS = 10, 4
"""Folds of configurations, of which there are hundreds, and of what whole stacks have in common."""
LEVELS = (0.80, 0.95)
FEWEST = 30
"""Errors of which a quantile is known: of a class at a distance, or of what widens an interval."""
_CONFIGURATION = (
    *("num_layers", "hidden_size", "ffn_hidden_size", "moe_ffn_hidden_size", "num_experts", "hardware", "precision"),
    *("trained", "seq_length", "micro_batch_size", "tensor_model_parallel_size", "pipeline_model_parallel_size"),
    *("virtual_pipeline_model_parallel_size", "context_parallel_size", "expert_model_parallel_size", "fsdp"),
)
"""Columns that make a configuration; replicas, and with them the batch, do not: weak scaling hardly changes a step,
and a run of the same layout on half as many GPUs would give the time of the held-out run away."""


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
    may be there once for each split. classes: of each. distance: from the runs of that fit; wider: what widens its
    interval, shape (n, 3) in the order of WIDER. together: the same of those that one fit did not have, by which they
    err together."""

    error: Numbers
    row: NDArray[np.intp]
    classes: tuple[tuple[str, ...], ...]
    distance: Words
    wider: NDArray[np.bool_]
    together: NDArray[np.intp]

    def take(self, mask: NDArray[np.bool_]) -> HeldOut:
        """Return the runs of a mask."""
        classes = tuple(self.classes[i] for i in np.flatnonzero(mask))
        return HeldOut(
            self.error[mask], self.row[mask], classes, self.distance[mask], self.wider[mask], self.together[mask]
        )


def held_out(runs: Runs, split: NDArray[np.intp], parameters: Parameters) -> HeldOut:
    """Return the errors of the runs with a fold of 0 or more, each by a fit to all others from the priors of
    `parameters`."""
    error, distance = np.empty(runs.jobs.count), np.empty(runs.jobs.count, dtype=object)
    wider = np.zeros((runs.jobs.count, len(WIDER)), dtype=bool)
    cases = cases_of(runs.jobs)
    index = cases.of_jobs(runs.jobs.count)
    for fold in np.unique(split[split >= 0]):
        others, judged = runs.take(split != fold), split == fold
        fitted = fit(others.jobs, others.step_time_s, others.alike, parameters, "")
        jobs = runs.jobs.take(judged)
        error[judged] = np.log(step_time(jobs, fitted).total / runs.step_time_s[judged])
        wider[judged] = wider_by(jobs, fitted, cases_of(jobs))
        distance[judged] = np.array([distance_of(fitted, case) for case in cases.distinct], dtype=object)[index[judged]]
    rows = np.flatnonzero(split >= 0)
    classes = tuple(classes_of(cases.distinct[index[row]]) for row in rows)
    return HeldOut(error[rows], rows, classes, distance[rows], wider[rows], split[rows])


def joined(parts: Sequence[HeldOut]) -> HeldOut:
    """Return the errors of several splits together."""
    first = np.cumsum([0, *(int(part.together.max(initial=-1)) + 1 for part in parts)])
    return HeldOut(
        np.concatenate([part.error for part in parts]),
        np.concatenate([part.row for part in parts]),
        tuple(chain.from_iterable(part.classes for part in parts)),
        np.concatenate([part.distance for part in parts]),
        np.concatenate([part.wider for part in parts]),
        np.concatenate([part.together + start for part, start in zip(parts, first, strict=False)]),
    )


def kept_together(runs: Runs) -> Mapping[str, Sequence[str]]:
    """Return by the name of a split the key of each run: runs of one key are in one fold, and err together.
    configuration: complete configurations; release: complete releases of stacks on a GPU; precision, machine, work: all
    that a framework ran in a precision on a GPU, of one kind on a GPU, and of one kind; source; gpu: architecture."""
    cases = cases_of(runs.jobs)
    index = cases.of_jobs(runs.jobs.count).tolist()

    def keys(of: Callable[[Case], str]) -> list[str]:
        each = [of(case) for case in cases.distinct]
        return [each[i] for i in index]

    return {
        "configuration": configurations(runs.jobs),
        "release": keys(lambda case: f"{case.stack} {case.hardware}"),
        "precision": keys(lambda case: f"{case.framework} {case.hardware} {case.precision}"),
        "machine": keys(lambda case: f"{case.framework} {case.hardware} {case.kind}"),
        "work": keys(lambda case: f"{case.framework} {case.kind}"),
        "source": runs.sources,
        "gpu": keys(lambda case: architecture_of(case.hardware)),
    }


def splits(runs: Runs) -> Mapping[str, NDArray[np.intp]]:
    """Return the splits by which the shipped errors are found, each in folds: those of `kept_together`, and reach: one
    of the longest sequences, one of most GPUs and one of most ranks of experts, one run in twenty each."""
    large = np.full(runs.jobs.count, -1, dtype=np.intp)
    for fold, name in enumerate(REACHED):
        column = np.broadcast_to(getattr(runs.jobs, name), runs.jobs.count)
        large[(column > np.quantile(column, 0.95)) & (large < 0)] = fold
    together = dict(kept_together(runs))
    whole = {name: groups(together.pop(name)) for name in ("source", "gpu")}
    some = {name: folds(keys, FOLDS if name == "configuration" else LARGE_FOLDS) for name, keys in together.items()}
    return {**some, **whole, "reach": large}


def quantile(scores: Numbers, level: float, count: float | None = None) -> float:
    """Return the score below which a new one is with probability `level` (Lei 2018): one higher rank than of these, of
    which so many are independent (all where none is stated)."""
    independent = scores.size if count is None else count
    rank = min(ceil(round((independent + 1) * level / independent * scores.size, 9)), scores.size)
    return float(f"{np.sort(scores)[rank - 1]:.3g}")


def independent(errors: Numbers, together: NDArray[np.intp]) -> float:
    """Return as how many independent errors these count: their number by the design effect (Kish 1965) of those that
    are together, whose correlation is that of the analysis of variance."""
    _, index, count = np.unique(together, return_inverse=True, return_counts=True)
    if count.size < 2:
        return 1.0
    mean = np.bincount(index, errors) / count
    between = float(np.sum(count * (mean - errors.mean()) ** 2)) / (count.size - 1)
    within = float(np.sum((errors - mean[index]) ** 2)) / max(errors.size - count.size, 1)
    each = (errors.size - float(np.sum(count * count)) / errors.size) / (count.size - 1)
    common = max(between - within, 0.0) / max(between + (each - 1) * within, 1e-12)
    return float(errors.size / (1 + (float(np.sum(count * count)) / errors.size - 1) * common))


def errors(held: HeldOut) -> Mapping[str, Mapping[str, Error]]:
    """Return the half widths of each distance and class with enough runs, by those that nothing widens."""
    held = held.take(~held.wider.any(axis=1))
    found: dict[str, dict[str, Error]] = {}
    for distance, *_ in DISTANCES:
        at = held.take(held.distance == distance)
        for name in sorted({*chain.from_iterable(at.classes)}):
            sizes = np.abs(at.error[[name in classes for classes in at.classes]])
            if sizes.size >= FEWEST:
                halves = (quantile(sizes, share) for share in LEVELS)
                found.setdefault(distance, {})[name] = Error(sizes.size, *halves)
    return found


def widths(held: HeldOut, known: Parameters) -> Numbers:
    """Return half the widths of the intervals of runs by the errors of `known`, shape (2, n)."""
    cases = {key: error_of(known, *key)[1] for key in {*zip(held.distance.tolist(), held.classes, strict=True)}}
    own = [cases[key] for key in zip(held.distance.tolist(), held.classes, strict=True)]
    halves = np.array([[error.half_80 for error in own], [error.half_95 for error in own]])
    for column, name in enumerate(WIDER):
        if name in known.wider:
            halves = halves * np.where(held.wider[:, column], np.array(known.wider[name].by)[:, None], 1.0)
    return halves


def with_errors(known: Parameters, held: HeldOut) -> Parameters:
    """Return parameters with the errors of `held`, and by how much what widens an interval does so: the quantiles of
    the errors of the runs that it is true of, and nothing else, in units of the interval that they would have; those
    that one fit did not have err together, so that there are fewer independent ones than runs. Of a
    distance, or of something, that is true of too few runs, `known` says what it does."""
    of_all = {**known.errors, **errors(held)}
    plain = msgspec.structs.replace(known, errors=of_all, wider={})
    wider = dict(known.wider)
    for column, name in enumerate(WIDER):
        some = held.take(held.wider[:, column] & (held.wider.sum(axis=1) == 1))
        if some.error.size >= FEWEST:
            scores = some.error / widths(some, plain)
            count = independent(scores[0], some.together)
            by_80, by_95 = (
                max(quantile(np.abs(each), share, count), 1.0) for each, share in zip(scores, LEVELS, strict=True)
            )
            wider[name] = Wider(int(some.error.size), (by_80, by_95))
    return msgspec.structs.replace(known, errors=of_all, wider=wider)


def fit_with_errors(runs: Runs, parameters: Parameters, source: str) -> Parameters:
    """Return the parameters fitted to all runs, with the errors of predictions of runs that a fit did not have. Of a
    distance that too few runs are at, `parameters` say how wrong they are."""
    fitted = fit(runs.jobs, runs.step_time_s, runs.alike, parameters, source)
    held = joined([held_out(runs, split, parameters) for split in splits(runs).values() if np.unique(split).size > 1])
    return with_errors(msgspec.structs.replace(fitted, errors=parameters.errors, wider=parameters.wider), held)
