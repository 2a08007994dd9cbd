"""How long and how much memory it takes to compare many runs, against reading their JSON alone.

    python benchmarks/compare.py                              1,000 runs of 1,000 steps, in a temporary directory (1 GB)
    python benchmarks/compare.py --runs 300 --steps 100 --keep /tmp/runs
    python benchmarks/compare.py --groups 1000                every run a group of its own (default: a group of ten)

Prints the seconds of `python -m compare` from start to end, the most memory of it and its workers together, and of a
program that does nothing but json.loads on every line; and the CPU time of all figures of one of them."""

from __future__ import annotations

import argparse
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
import timeit
from contextlib import suppress
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from conf.vocabulary import vocabulary
from metrics import summarise
from parsers import Reading, Record, Step, write

ROOT = Path(__file__).parents[1]
LIMIT_S, LIMIT_MB = 10, 1000
JSON_ALONE = """
import json, pathlib, sys
for path in pathlib.Path(sys.argv[1]).glob("*/steps.jsonl"):
    with path.open() as lines:
        for line in lines:
            json.loads(line)
"""


def made(number: int, groups: int, steps: int) -> Record:
    """Return a run whose every step has all fields: digits as Megatron prints them, and as our mark has them."""
    noise = random.Random(number)
    group, seed = number % groups, number // groups
    sizes = {"seq_length": 4096, "global_batch_size": 128, "world_size": 8, "train_iters": steps}
    settings = {**dict.fromkeys(vocabulary(), 1), **sizes, "seed": seed, "micro_batch_size": 1 + group}
    ran = {name: Reading(value, 3) for name, value in settings.items()}
    return Record(
        id=f"run{number}",
        name=f"run{number}",
        provenance="measured",
        status="completed",
        started_at=f"2026-01-01T00:00:{number}",
        framework="megatron",
        platform="nvidia",
        hardware="h100",
        requested=settings,
        effective=ran,
        dumped=ran,
        steps=tuple(_step(i, noise, 1 + 0.01 * group) for i in range(steps)),
    )


def _step(i: int, noise: random.Random, pace_s: float) -> Step:
    seconds = pace_s + 0.01 * noise.random()
    return Step(
        step=i,
        line=i + 100,
        iteration=i + 1,
        lr=float(f"{3e-4 / (i + 2):.6e}"),
        lr_used=3e-4 / (i + 1),
        step_time_s=round(seconds, 4),
        loss=2 + 8 / (i + 1) + 0.05 * noise.random(),
        grad_norm=round(noise.random(), 3),
        loss_scale=1.0,
        global_batch_size=128,
        consumed_samples=128 * (i + 1),
        tokens_per_s_per_gpu=round(65536 / seconds, 1),
        tflops_per_gpu=round(400 / seconds, 1),
        memory_bytes=60_000_000_000,
        memory_kind="allocated",
        end_monotonic_s=round(1000 + i * pace_s + 0.01 * noise.random(), 9),
        skipped=0,
        nan=0,
        interval_steps=1,
    )


def timed(command: list[str]) -> tuple[float, float, float, int]:
    """Return seconds, CPU seconds, the peak memory of it and its children in MB (shared pages shared out), and its exit
    code."""
    started, peak, before = time.monotonic(), 0, resource.getrusage(resource.RUSAGE_CHILDREN)
    process = psutil.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        with suppress(psutil.Error):  # one that ended meanwhile, or goes on
            family = (process, *process.children(recursive=True))
            peak = max(peak, sum(one.memory_full_info().pss for one in family))
            process.wait(0.1)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - started, cpu_s, peak / 1e6, process.returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--groups", type=int)
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    groups = options.groups or max(1, options.runs // 10)
    with tempfile.TemporaryDirectory() as temporary:
        where = options.keep or Path(temporary)
        for number in range(options.runs):
            if not (where / f"run{number}").exists():
                write(made(number, groups, options.steps), where / f"run{number}")
        alone = timed([sys.executable, "-c", JSON_ALONE, str(where)])
        ours = timed([sys.executable, "-m", "compare", str(where), "vary=micro_batch_size", "--json"])
    print(f"{options.runs} runs x {options.steps} steps in {groups} groups, {len(os.sched_getaffinity(0))} cores")
    print(f"compare: {ours[0]:.1f} s ({ours[1]:.1f} s of CPU), {ours[2]:.0f} MB, exit code {ours[3]}")
    print(f"json.loads of every line, and nothing else: {alone[0]:.1f} s ({alone[1]:.1f} s of CPU)")
    ratios = f"ours is {ours[0] / alone[0]:.2f} of it ({ours[1] / alone[1]:.2f} in CPU)"
    print(f"{ratios}; limits: {LIMIT_S} s, {LIMIT_MB} MB")
    one = made(0, groups, options.steps)  # the least of 20: everything above it is due to other processes
    figures_s = min(timeit.repeat(lambda: summarise(one), timer=time.process_time, number=1, repeat=20))
    print(f"all figures of a run of {options.steps} steps: {1000 * figures_s:.2f} ms of CPU")


if __name__ == "__main__":
    main()
