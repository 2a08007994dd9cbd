"""Measure what the probe costs a run of the embedded engine on this CPU: by its own timer, and against the same run
without it.

    .venv/bin/python benchmarks/probe.py [--pairs 5] [--steps 60]

Prints the share of the first 32 steps (in which it describes the model, looks at tokens and losses and writes), of a
later step, and of the whole run, then the median step with the probe over that without, in pairs of runs that follow
each other, each first in turn, with the 95 % interval. Fails on nothing: a busy machine is not a wrong one."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # before this folder, some of whose files have names of packages of ours

from metrics.repeats import mean_of  # noqa: E402
from parsers.record import Record  # noqa: E402
from tests.rehearsal.probed import launched, rank_file  # noqa: E402

DESCRIBED = 32


def main() -> None:
    """Train pairs and print both tables."""
    parser = argparse.ArgumentParser(description="what the probe costs a run")
    parser.add_argument("--pairs", type=int, default=5, help="pairs of runs (default 5, at least 3)")
    parser.add_argument("--steps", type=int, default=60, help=f"steps of a run (default 60, more than {DESCRIBED + 1})")
    arguments = parser.parse_args()
    if arguments.pairs < 3 or arguments.steps < DESCRIBED + 2:
        parser.error(f"at least 3 pairs, for an interval, and {DESCRIBED + 2} steps")
    print(f"load {os.getloadavg()[0]:.1f}")
    ratios = []
    for pair in range(arguments.pairs):
        medians = {}
        for probe in (True, False) if pair % 2 else (False, True):
            with tempfile.TemporaryDirectory() as folder:
                steps = f"training.train_iters={arguments.steps}"
                record, run = launched(Path(folder), f"probe={str(probe).lower()}", steps)
                medians[probe] = median(_step_times_s(record))
                if probe:
                    _print_shares(record, run)
        ratios.append(medians[True] / medians[False])
    ratio, interval = mean_of(ratios)
    ends = f"{interval[0]:.3f} to {interval[1]:.3f}" if interval else "unknown"
    print(f"median step with the probe / without: {ratio:.3f} (95 % interval {ends}, {len(ratios)} pairs)")
    print(f"load {os.getloadavg()[0]:.1f}")


def _print_shares(record: Record, run: Path) -> None:
    took = [row["probe_time_s"] for row in rank_file(run)["steps"][:-1]]
    steps = _step_times_s(record)
    shares = {
        f"steps 1 to {DESCRIBED}": sum(took[:DESCRIBED]) / sum(steps[:DESCRIBED]),
        "a later step": median(took[DESCRIBED + 1 :]) / median(steps[DESCRIBED + 1 :]),
        "the run": record.environment["probe_time_s"] / sum(steps),
    }
    print("the probe's share of " + ", ".join(f"{name} {share:.3%}" for name, share in shares.items()))


def _step_times_s(record: Record) -> list[float]:
    return [step.step_time_s or 0.0 for step in record.steps]


if __name__ == "__main__":
    main()
