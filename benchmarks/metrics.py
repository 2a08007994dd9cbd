"""How good and how fast the metrics are, on simulated runs.

    python benchmarks/metrics.py                       both parts, below a minute
    python benchmarks/metrics.py warmup --runs 2000    error of the steady step time, for each way of truncation
    python benchmarks/metrics.py speed --steps 1000    a run's figures, against reading its steps as JSON

The simulated step times: AR(1) noise of 1 %, a warm-up of none to 40 steps that is flat (compilation) or dies away
(allocator, clocks), now and then a slow step, 50 to 500 steps. The truth is the mean that they were made of.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
import timeit
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from metrics import find_warmup, summarise
from parsers import Reading, Record, Step

NOISE, AR, SLOW_SHARE, SLOW = 0.01, 0.6, 0.01, 1.3
WAYS: dict[str, Callable[[Sequence[float]], int]] = {
    "by MSER (ours)": lambda times: find_warmup(times).count,
    "the first step": lambda times: 1,
    "the first 2": lambda times: 2,
    "the first 10": lambda times: 10,
    "a tenth": lambda times: len(times) // 10,
    "the first half": lambda times: len(times) // 2,
}


def simulated(seed: int) -> tuple[list[float], float]:
    """Return the step times of one run, and the steady mean that they are made of (slow steps among them)."""
    noise = random.Random(seed)
    count, warm = noise.choice((50, 100, 200, 500)), noise.choice((0, 0, 1, 5, 10, 20, 40))
    height, flat, state = noise.uniform(0.1, 5), noise.random() < 0.5, 0.0
    warm, times = min(warm, count // 3), []
    for i in range(count):
        state = AR * state + noise.gauss(0, NOISE * (1 - AR**2) ** 0.5)
        extra = height * (1.0 if flat else 2.7 ** (-4 * i / max(warm, 1))) if i < warm else 0.0
        times.append((1 + state + extra) * (SLOW if noise.random() < SLOW_SHARE else 1.0))
    return times, 1 + SLOW_SHARE * (SLOW - 1)


def warmup(runs: int) -> None:
    """Print the median, 95th of 100 and worst error of the steady step time, for each way to leave the warm-up out."""
    print(f"error of the steady step time over {runs} simulated runs, in %")
    print(f"{'':<22}{'median':>8}{'p95':>8}{'worst':>8}")
    for name, way in WAYS.items():
        errors = []
        for seed in range(runs):
            times, truth = simulated(seed)
            errors.append(100 * abs(statistics.fmean(times[way(times) :]) / truth - 1))
        p95 = statistics.quantiles(errors, n=20, method="inclusive")[-1]
        print(f"{name:<22}{statistics.median(errors):>8.2f}{p95:>8.2f}{max(errors):>8.1f}")


def speed(steps: int, repeats: int) -> None:
    """Print the CPU time of all figures of one run against that of reading its steps with json alone."""
    settings = {"seq_length": 4096, "global_batch_size": 128, "world_size": 8}
    times = [1 + 0.01 * random.Random(i).random() for i in range(steps)]
    record = Record(
        id="a",
        name="a",
        provenance="measured",
        status="completed",
        effective={name: Reading(value, 1) for name, value in settings.items()},
        steps=tuple(Step(step=i, line=i + 1, iteration=i + 1, step_time_s=t) for i, t in enumerate(times)),
    )
    lines = [json.dumps({"step": s.step, "iteration": s.iteration, "step_time_s": s.step_time_s}) for s in record.steps]
    ours = _cpu_s(lambda: summarise(record), repeats)
    limit = _cpu_s(lambda: [json.loads(line) for line in lines], repeats)
    print(f"all figures of a run of {steps} steps: {1000 * ours:.2f} ms")
    print(f"{ours / limit:.1f} × reading three fields a step")


def _cpu_s(work: Callable[[], object], repeats: int) -> float:
    """Return the least of `repeats`: everything above it is due to other processes."""
    return min(timeit.repeat(work, timer=time.process_time, number=1, repeat=repeats))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=("warmup", "speed"))
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    if options.part in (None, "warmup"):
        warmup(options.runs)
    if options.part in (None, "speed"):
        speed(options.steps, options.repeats)


if __name__ == "__main__":
    main()
