"""Check how wrong predicted step times are on runs that the fit did not have, and how often their intervals hold them.

    python benchmarks/estimate.py                      all splits, eight minutes on one core
    python benchmarks/estimate.py configuration speed  some of them

Splits of the runs in conf/tables/measured.csv (estimate/held_out.py), of which each fold is predicted by a fit to the
others that starts from the priors: unseen configuration, release of a stack, source, and architecture of GPU. Anchors:
after calibration on one, three or six runs of a stack (a release on a GPU) of which the fit had none, or of a source
of which it had none, drawn eight times by chance: a table is of all draws; the anchors' own configurations are not
judged. Errors are |predicted / measured - 1|; coverage is nested: an interval's width, and by how much distance widens
it, are of the errors of the other folds alone; how well it is known itself is by drawing anew the groups whose runs err
together (bootstrap by clusters)."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from itertools import product
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # products are small: more threads only wait for each other

import msgspec
import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from estimate.calibrate import FEW_RUNS, calibrate
from estimate.fit import fit
from estimate.fitted import Parameters, shipped
from estimate.held_out import (
    FOLDS,
    LEVELS,
    HeldOut,
    Runs,
    configurations,
    folds,
    held_out,
    joined,
    kept_together,
    quantile,
    splits,
    widths,
    with_errors,
)
from estimate.jobs import Jobs, Numbers
from estimate.measured import read_runs
from estimate.predict import predict
from estimate.step_time import cases_of, step_time, vendor_of

FEWEST = 4  # runs of one stack and GPU, of which one is an anchor
ANCHORS = (1, 3, FEW_RUNS)
FEWEST_GROUPS = 10
DRAWS = 8  # of anchors: by one alone the median of three anchors was anything from 4 to 5 %
MANY = 200_000
TITLES = {"configuration": "configuration", "release": "release of a stack", "source": "source"}
TITLES |= {"precision": "precision of a framework on a GPU", "machine": "GPU of a framework's kind of work"}
TITLES |= {"work": "kind of work of a framework"}
TITLES |= {"gpu": "architecture of GPU", "reach": "sequences, GPUs and ranks of experts: the largest twentieth"}
DIRECTIONS = {"TP": "tensor_model", "PP": "pipeline_model", "VP": "virtual_pipeline_model", "CP": "context"}
DIRECTIONS |= {"EP": "expert_model", "DP": "data"}


def kinds(runs: Runs) -> Mapping[str, NDArray[np.bool_]]:
    """Return the classes of the tables, each as a mask."""
    cases = cases_of(runs.jobs)
    index = np.asarray(cases.index)
    kind = np.array([case.kind for case in cases.distinct])[index]
    gpu = np.array([case.hardware for case in cases.distinct])[index]
    maker = np.array([vendor_of(case.hardware) for case in cases.distinct])[index]
    common = maker == Counter(maker.tolist()).most_common(1)[0][0]
    masks = {"all": np.ones(gpu.size, dtype=bool)} | {
        name: (kind == name) & common for name in ("dense", "moe", "lora")
    }
    masks |= {name: maker == name for name in sorted({*maker[~common].tolist()})}
    masks |= {"512 GPUs or more": runs.jobs.world_size >= 512, "32k tokens or more": runs.jobs.seq_length >= 32768}
    for name in ("a100", "h100", "b200", "gb200", "gb300"):
        masks[f"dense {name}"] = (kind == "dense") & (gpu == name)
    return masks


def table(title: str, runs: Runs, error: Numbers, inside: NDArray[np.bool_], by: Sequence[str] = ()) -> None:
    """Print the errors of each class and of each name of `by`. error: nan of runs that are not judged, shape (n,) or
    (draws, n); inside: the intervals of 80 and 95 % that hold each, shape (2, n) or (2, draws, n)."""
    print(f"\n{title}\n{'class':26} {'n':>5} {'median %':>9} {'90th %':>7} {'bias %':>7}   80 %   95 %")
    masks = {**kinds(runs), **{name: np.array(by) == name for name in sorted({*by})}}
    for name, mask in masks.items():
        judged = mask & np.isfinite(error)
        if not judged.any():
            continue
        size = np.abs(np.expm1(error[judged])) * 100
        line = f"{name:26} {judged.sum():5} {np.median(size):9.1f} {np.quantile(size, 0.9):7.1f} "
        line += f"{np.median(np.expm1(error[judged])) * 100:+7.1f}"
        print(line + "".join(f" {100 * each[judged].mean():5.1f} " for each in inside))


def held_inside(runs: Runs, some: HeldOut, everything: HeldOut, split: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Return which runs of `some` lie in intervals that are made of the errors of all splits without those of their
    own fold, shape (2, n)."""
    inside = np.zeros((2, some.error.size), dtype=bool)
    for fold in np.unique(split[some.row]):
        judged = split[some.row] == fold
        others = everything.take(~np.isin(everything.row, some.row[judged]))
        known = with_errors(shipped(), others)
        inside[:, judged] = np.abs(some.error[judged]) <= widths(some.take(judged), known)
    return inside


def known_to(inside: NDArray[np.bool_], together: Sequence[str]) -> str:
    """Return between what the share of runs in their intervals lies, as 95 of 100 draws of the groups whose runs err
    together have it. inside: shape (2, n)."""
    groups_, index = np.unique(list(together), return_inverse=True)
    if groups_.size < FEWEST_GROUPS:
        return f"of {groups_.size} groups: too few to say how well the shares of all are known"
    count, hits = np.bincount(index), np.array([np.bincount(index, each) for each in inside])
    drawn = np.random.default_rng(0).integers(0, groups_.size, (2000, groups_.size))
    shares = 100 * hits[:, drawn].sum(axis=2) / count[drawn].sum(axis=1)
    ends = [np.quantile(each, (0.025, 0.975)) for each in shares]
    return f"of {groups_.size} groups, all: " + ", ".join(f"{low:.0f} to {high:.0f} %" for low, high in ends)


def anchored(runs: Runs, keys: Sequence[str]) -> Mapping[int, tuple[Numbers, Numbers]]:
    """Return by the number of anchors the errors after calibration on so many runs of one stack and GPU, where the fit
    had no run of their key, shape (draws, n), and the half widths of their intervals of 80 and 95 %, shape (2, draws,
    n)."""
    shape = DRAWS, runs.jobs.count
    found = {count: (np.full(shape, np.nan), np.full((2, *shape), np.nan)) for count in ANCHORS}
    cases, of_key = cases_of(runs.jobs), np.array(keys)
    stack = np.array([f"{case.stack} {case.hardware} {case.kind}" for case in cases.distinct])[np.asarray(cases.index)]
    for key in sorted({*keys}):
        groups_ = [np.flatnonzero((of_key == key) & (stack == name)) for name in sorted({*stack[of_key == key]})]
        if large := [members for members in groups_ if members.size >= FEWEST]:
            others = runs.take(of_key != key)
            fitted = fit(others.jobs, others.step_time_s, others.alike, shipped(), "")
            known = msgspec.structs.replace(fitted, errors=shipped().errors, wider=shipped().wider)
            for members, (count, (error, halves)), draw in product(large, found.items(), range(DRAWS)):
                _after_anchors(runs, members, (count, draw), known, (error[draw], halves[:, draw]))
    return found


def _after_anchors(
    runs: Runs, members: NDArray[np.intp], drawn: tuple[int, int], known: Parameters, result: tuple[Numbers, Numbers]
) -> None:
    """Judge the runs at `members` after calibration on some of them that are drawn by chance. drawn: how many, and in
    which draw."""
    count, draw = drawn
    if members.size < FEWEST + count - 1:
        return
    anchors = np.random.default_rng(draw).choice(members, count, replace=False)
    names = np.array(configurations(runs.jobs))
    rest = members[~np.isin(names[members], names[anchors])]
    if not rest.size:
        return
    learned = calibrate(known, runs.jobs.take(anchors), runs.step_time_s[anchors]).parameters
    measured, said = runs.step_time_s[rest], predict(runs.jobs.take(rest), learned)
    error, halves = result
    error[rest] = np.log(said.step_time_s / measured)
    halves[:, rest] = [np.log(high / said.step_time_s) for high in (said.high_80_s, said.high_95_s)]


def widened(founds: Sequence[Mapping[int, tuple[Numbers, Numbers]]]) -> str:
    """Return by which factors the intervals after few own runs would have to be wider to hold what they say: those of
    `few_own_runs` in estimate/parameters.yaml."""
    few = [each for found in founds for each in found.values()]
    scores = np.concatenate([(np.abs(error) / halves).reshape(2, -1) for error, halves in few], axis=1)
    judged = {int(run) for error, _ in few for run in np.flatnonzero(np.isfinite(error).any(axis=0))}
    scores = scores[:, ~np.isnan(scores).any(axis=0)]
    by = [quantile(own, level) for own, level in zip(scores, LEVELS, strict=True)]
    return f"after few own runs: n {len(judged)}, wider by {', '.join(f'{factor:.2f}' for factor in by)}"


def speed(runs: Runs) -> None:
    """Print predictions per second."""
    chosen = np.random.default_rng(0).integers(0, runs.jobs.count, MANY)
    for title, jobs in (("rows of different models", runs.jobs.take(chosen)), ("one row's layouts", _layouts(runs))):
        start = time.process_time()
        step_time(jobs, shipped())
        print(f"{MANY / (time.process_time() - start):12,.0f} step times/s: {title}")
        start = time.process_time()
        predict(jobs)
        print(f"{MANY / (time.process_time() - start):12,.0f} predictions/s with intervals: {title}")


def _layouts(runs: Runs) -> Jobs:
    sizes = 2.0 ** np.random.default_rng(0).integers(0, 4, (3, MANY))
    names = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "micro_batch_size")
    return replace(runs.jobs.take(0), **dict(zip(names, sizes, strict=True)))


def main() -> None:
    """Print the tables that were chosen."""
    parts = (*TITLES, "anchors", "worst", "speed")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*parts, []], help="all where none is named")
    chosen = parser.parse_args().parts or parts
    runs = read_runs()
    if {*TITLES, "worst"} & {*chosen}:
        held_tables(runs, chosen)
    if "anchors" in chosen:
        cases = cases_of(runs.jobs)
        stacks = [f"{cases.distinct[i].stack} {cases.distinct[i].hardware}" for i in np.asarray(cases.index)]
        both = {"stack": anchored(runs, stacks), "source": anchored(runs, list(runs.sources))}
        for title, found in both.items():
            for count, (error, halves) in found.items():
                table(f"unseen {title}, after {count} of its runs", runs, error, np.abs(error) <= halves)
        print(widened([*both.values()]))
    if "speed" in chosen:
        speed(runs)


def held_tables(runs: Runs, chosen: Sequence[str]) -> None:
    """Print the tables of splits."""
    parted, together = splits(runs), kept_together(runs)
    held = {name: held_out(runs, split, shipped()) for name, split in parted.items()}
    everything = joined([*held.values()])
    by = {"source": runs.sources, "gpu": [str(name) for name in runs.jobs.hardware]}
    judged = []
    for name, title in TITLES.items():
        if name in chosen:
            some = held[name]
            error, inside = np.full(runs.jobs.count, np.nan), np.zeros((2, runs.jobs.count), dtype=bool)
            error[some.row], inside[:, some.row] = some.error, held_inside(runs, some, everything, parted[name])
            table(f"unseen {title}", runs, error, inside, by.get(name, ()))
            keys = together.get(name, parted[name].astype(str).tolist())
            print(known_to(inside[:, some.row], [keys[i] for i in some.row]))
            judged.append(inside[:, some.row])
    if judged:
        of_all = np.concatenate(judged, axis=1)
        shares = " ".join(f"{100 * each.mean():5.1f}" for each in of_all)
        print(f"\nin their intervals, of all {of_all.shape[1]} predictions of these tables: {shares}")
    if "configuration" in chosen:
        replicas(runs)
        repeats(runs, held["configuration"].error)
    if "worst" in chosen:
        worst(runs, held["configuration"].error)


def replicas(runs: Runs) -> None:
    """Print the errors where a run of the same configuration on other GPUs may be in the fit."""
    sizes = zip(configurations(runs.jobs), runs.jobs.data_parallel_size, runs.jobs.global_batch_size, strict=True)
    some = held_out(runs, folds([f"{key} {dp} {batch}" for key, dp, batch in sizes], FOLDS), shipped())
    inside = np.abs(some.error) <= widths(some, shipped())
    table("unseen configuration, with its other replicas", runs, some.error, inside)


def repeats(runs: Runs, error: Numbers) -> None:
    """Print how far runs are from the median of others by the same framework that differ at most in the release, and
    beside it the errors of their predictions by fits that had none of them."""
    cases, count = cases_of(runs.jobs), runs.jobs.count
    columns = {one.name: getattr(runs.jobs, one.name) for one in fields(Jobs)}
    columns["stack"] = np.array([case.framework for case in cases.distinct])[np.asarray(cases.index)]
    alike = dict[str, list[int]]()
    for run, values in enumerate(zip(*(np.broadcast_to(one, count).tolist() for one in columns.values()), strict=True)):
        alike.setdefault(str(values), []).append(run)
    repeated = [some for some in alike.values() if len(some) > 1]
    rows, log = [run for some in repeated for run in some], np.log(runs.step_time_s)
    others = [np.median([log[i] for i in some if i != run]) for some in repeated for run in some]
    print(f"\n{len(rows)} runs that somebody repeated, at most with another release: median and 90th percentile in %")
    for title, found in (("the median of the others", np.array(others) - log[rows]), ("predicted", error[rows])):
        sizes = 100 * np.abs(np.expm1(found))
        print(f"{title:26} {np.median(sizes):6.1f} {np.quantile(sizes, 0.9):6.1f}")


def worst(runs: Runs, error: Numbers) -> None:
    """Print the runs that are most wrong."""
    print("\nmost wrong, predicted / measured")
    for i in np.argsort(-np.abs(error))[:25]:
        job = runs.jobs.take(int(i))
        sizes = " ".join(f"{short} {getattr(job, f'{name}_parallel_size'):g}" for short, name in DIRECTIONS.items())
        what = f"{job.stack} {job.hardware} {job.precision} {runs.alike[i][2]}"
        print(f"{np.exp(error[i]):5.2f} {what} {sizes} MBS {job.micro_batch_size:g}")


if __name__ == "__main__":
    main()
