"""Check how wrong predicted step times are on runs that the fit did not have, and how often their intervals hold them.

    python benchmarks/estimate.py                      all splits, ten minutes on one core
    python benchmarks/estimate.py configuration speed  some of them
    python benchmarks/estimate.py later                the shipped parameters on MLPerf Training v5.1, unseen by any fit

Splits of the runs in conf/tables/measured.csv, of which each fold is predicted by a fit to the others that starts from
the priors: unseen configuration (10 folds of complete configurations), unseen source, unseen GPU. Anchors: of a source
that the fit did not have, after calibration on one or three of its runs of the same framework and GPU, whose own
configurations are not judged. Errors are |predicted / measured - 1|; coverage is nested: the width of an interval is
from the folds that do not have the judged run."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # products are small: more threads only wait for each other

import msgspec
import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from estimate.calibrate import calibrate
from estimate.fit import fit
from estimate.fitted import shipped
from estimate.held_out import LEVELS, HeldOut, Runs, configurations, errors, folds, groups, held_out
from estimate.jobs import Jobs, Numbers
from estimate.measured import read_runs
from estimate.predict import predict
from estimate.step_time import cases_of, step_time, vendor_of

# Of mlcommons/training_results_v5.1: the median logged step time, or batch / median rate of blocks, without the first
# one and the evaluation; the layout is of the submitter's only configuration whose nodes, batch and accumulation agree.
LATER = Path(__file__).with_name("mlperf_v5.1.csv")
FEWEST = 4  # runs of one framework and GPU in a source, for anchors
MANY = 200_000
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


def table(
    title: str, error: Numbers, runs: Runs, held: HeldOut | None = None, split: NDArray[np.intp] | None = None
) -> None:
    """Print the errors of each class, and how often the intervals hold where `held` is given."""
    print(f"\n{title}\n{'class':20} {'n':>5} {'median %':>9} {'90th %':>7} {'bias %':>7}", end="")
    print("   80 %   95 %" if held else "")
    inside = None if held is None or split is None else [_inside(held, split, level) for level in range(len(LEVELS))]
    for name, mask in kinds(runs).items():
        judged = mask & np.isfinite(error)
        if not judged.any():
            continue
        size = np.abs(np.expm1(error[judged])) * 100
        line = f"{name:20} {judged.sum():5} {np.median(size):9.1f} {np.quantile(size, 0.9):7.1f} "
        line += f"{np.median(np.expm1(error[judged])) * 100:+7.1f}"
        print(line + ("" if inside is None else "".join(f" {100 * held[judged].mean():5.1f} " for held in inside)))


def _inside(held: HeldOut, split: NDArray[np.intp], level: int) -> NDArray[np.bool_]:
    """Return which runs lie in the interval whose width the other folds give."""
    inside = np.zeros(held.error.size, dtype=bool)
    for fold in np.unique(split):
        judged = split == fold
        known = errors(held.take(~judged))
        half = [next(known[name] for name in held.classes[i] if name in known) for i in np.flatnonzero(judged)]
        inside[judged] = held.scores[judged] <= np.array([(one.half_80, one.half_95)[level] for one in half])
    return inside


def anchored(runs: Runs, count: int) -> Numbers:
    """Return the errors after calibration on `count` runs of the same unseen source, framework and GPU."""
    error = np.full(runs.jobs.count, np.nan)
    cases = cases_of(runs.jobs)
    names = np.array([f"{case.framework} {case.hardware} {case.kind}" for case in cases.distinct])
    stack = names[np.asarray(cases.index)]
    sources, same = np.array(runs.sources), np.array(configurations(runs.jobs))
    random = np.random.default_rng(1)
    for source in sorted({*runs.sources}):
        others = runs.take(sources != source)
        fitted = fit(others.jobs, others.step_time_s, others.alike, shipped(), "")
        with_errors = msgspec.structs.replace(fitted, errors=shipped().errors)
        for name in sorted({*stack[sources == source].tolist()}):
            members = np.flatnonzero((sources == source) & (stack == name))
            if members.size < FEWEST:
                continue
            anchors = random.choice(members, count, replace=False)
            rest = members[~np.isin(same[members], same[anchors])]
            learned = calibrate(with_errors, runs.jobs.take(anchors), runs.step_time_s[anchors]).parameters
            if rest.size:
                error[rest] = np.log(step_time(runs.jobs.take(rest), learned).total / runs.step_time_s[rest])
    return error


def later(runs: Runs) -> None:
    """Print the errors of the shipped parameters on runs that no fit had, and how many lie in the 95 % interval."""
    predicted = predict(runs.jobs)
    table("published after the fit: MLPerf Training v5.1", np.log(predicted.step_time_s / runs.step_time_s), runs)
    inside = (predicted.low_95_s <= runs.step_time_s) & (runs.step_time_s <= predicted.high_95_s)
    print(f"in the 95 % interval: {100 * inside.mean():.1f} %")


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
    parts = ("later", "configuration", "source", "gpu", "anchors", "worst", "speed")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*parts, []], help="all where none is named")
    chosen = parser.parse_args().parts or parts
    runs = read_runs()
    splits = {
        "configuration": ("unseen configuration", lambda: folds(configurations(runs.jobs), 10)),
        "source": ("unseen source", lambda: groups(runs.sources)),
        "gpu": ("unseen GPU", lambda: groups([str(name) for name in runs.jobs.hardware])),
    }
    for name, (title, split_of) in splits.items():
        if name in chosen:
            split = split_of()
            held = held_out(runs, split, shipped())
            table(title, held.error, runs, held, split)
            if name == "configuration" and "worst" in chosen:
                worst(runs, held.error)
    if "anchors" in chosen:
        for count in (1, 3):
            table(f"unseen source, after {count} of its runs", anchored(runs, count), runs)
    if "later" in chosen:
        later(read_runs(LATER))
    if "speed" in chosen:
        speed(runs)


def worst(runs: Runs, error: Numbers) -> None:
    """Print the runs that are most wrong."""
    print("\nmost wrong, predicted / measured")
    for i in np.argsort(-np.abs(error))[:25]:
        job = runs.jobs.take(int(i))
        sizes = " ".join(f"{short} {getattr(job, f'{name}_parallel_size'):g}" for short, name in DIRECTIONS.items())
        what = f"{job.stack} {job.hardware} {job.precision} {runs.alike[i][2]}"  # type: ignore[index]
        print(f"{np.exp(error[i]):5.2f} {what} {sizes} MBS {job.micro_batch_size:g}")


if __name__ == "__main__":
    main()
