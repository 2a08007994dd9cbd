"""Predict the embedded engine by this machine's own file: every run is one that the file has not seen.

    .venv/bin/python benchmarks/measure.py [--machine machine.yaml] [--keep DIR]

Without --machine it measures first (`tprimat measure full`, ten minutes). Then 26 configurations of llama_tiny,
moe_tiny and a model of 32 M parameters run in random order (about ten minutes on two cores), and a table says what
`estimate` predicts of each by that file alone. Fails on nothing: a noisy machine is not a wrong model. --keep goes on
in DIR."""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

WARM_UP, STEPS = 4, 12
TINY, MOE = ("model=llama_tiny",), ("model=moe_tiny",)
MEDIUM = (
    *("model=llama_tiny", "model.num_layers=8", "model.hidden_size=512", "model.ffn_hidden_size=1376"),
    *("model.kv_channels=64", "model.vocab_size=8192", "model.max_position_embeddings=512", "training.seq_length=512"),
)
AGAIN = tuple(f"training.recompute_{key}" for key in ("granularity=full", "method=uniform", "num_layers=1"))


def split(processes: int, **sizes: int) -> tuple[str, ...]:
    """Return the keys of a layout."""
    return (f"gpus_per_node={processes}", *(f"layout.{name}_parallel_size={size}" for name, size in sizes.items()))


def batch(sequences: int, micro: int = 1) -> tuple[str, ...]:
    """Return the keys of a batch."""
    return (f"training.global_batch_size={sequences}", f"training.micro_batch_size={micro}")


RUNS = {
    "tiny": (*TINY, *split(1), *batch(4)),
    "tiny, batch 8": (*TINY, *split(1), *batch(8)),
    "tiny, micro 4": (*TINY, *split(1), *batch(8, 4)),
    "tiny, recompute": (*TINY, *split(1), *batch(8), *AGAIN),
    "tiny DP2": (*TINY, *split(2), *batch(8)),
    "tiny DP2, micro 4": (*TINY, *split(2), *batch(8, 4)),
    "tiny TP2": (*TINY, *split(2, tensor_model=2), *batch(8)),
    "tiny TP2, micro 4": (*TINY, *split(2, tensor_model=2), *batch(8, 4)),
    "tiny CP2": (*TINY, *split(2, context=2), *batch(8)),
    "tiny PP2": (*TINY, *split(2, pipeline_model=2), *batch(8)),
    "tiny PP2 VP2": (*TINY, *split(2, pipeline_model=2, virtual_pipeline_model=2), *batch(8)),
    "tiny TP2 PP2": (*TINY, *split(4, tensor_model=2, pipeline_model=2), *batch(8)),
    "tiny TP2 DP2": (*TINY, *split(4, tensor_model=2), *batch(8)),
    "tiny DP4": (*TINY, *split(4), *batch(8)),
    "tiny PP4": (*TINY, *split(4, pipeline_model=4), *batch(8)),
    "moe": (*MOE, *split(1), *batch(8)),
    "moe, micro 4": (*MOE, *split(1), *batch(8, 4)),
    "moe EP2": (*MOE, *split(2, expert_model=2), *batch(8)),
    "moe PP2": (*MOE, *split(2, pipeline_model=2), *batch(8)),
    "moe EP4": (*MOE, *split(4, expert_model=4), *batch(8)),
    "32M": (*MEDIUM, *split(1), *batch(2)),
    "32M, recompute": (*MEDIUM, *split(1), *batch(2), *AGAIN),
    "32M DP2": (*MEDIUM, *split(2), *batch(4)),
    "32M PP2": (*MEDIUM, *split(2, pipeline_model=2), *batch(2)),
    "32M TP2": (*MEDIUM, *split(2, tensor_model=2), *batch(2)),
    "32M CP2": (*MEDIUM, *split(2, context=2), *batch(2)),
}
"""Runs by name; none is a training of `tprimat measure`."""
BEST_OF = ("tiny DP2", "tiny TP2", "tiny CP2", "tiny PP2", "tiny PP2 VP2")
"""The layouts of one model, batch and two processes: is the fastest among the two that are predicted to be?"""


def main() -> None:
    """Measure, run, and print the table."""
    parser = argparse.ArgumentParser(description="the embedded engine, predicted by this machine's own file")
    parser.add_argument("--machine", type=Path, help="what measure wrote (default: measure first)")
    parser.add_argument("--keep", type=Path, help="where runs stay, and are not made again")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        machine = given.machine or folder / "machine" / "machine.yaml"
        if given.machine is None:
            run("-m", "measure", "full", "ranks=4", "-o", str(machine.parent))
        order = list(RUNS)
        random.Random(0).shuffle(order)
        for name in order:
            print(f"\r{name:<24}", end="", file=sys.stderr)
            run("launch.py", *typed(name), f"runs_dir={folder.resolve() / 'runs'}", f"name={order.index(name):02}")
        print("\r", end="", file=sys.stderr)
        show({name: taken(folder / "runs" / f"{order.index(name):02}") for name in RUNS}, machine)


def run(*words: str) -> None:
    """Run a program of ours to its end; a run that fails has no row."""
    subprocess.run([sys.executable, *words], cwd=ROOT, check=False, stdout=subprocess.DEVNULL)


def typed(name: str) -> tuple[str, ...]:
    """Return what is typed for a run."""
    return ("platform=cpu", *RUNS[name], f"training.train_iters={WARM_UP + STEPS}")


def taken(folder: Path) -> float | None:
    """Return the median step time of the run in a folder, s."""
    from tensorprimat import read_runs

    seconds = [step.step_time_s for one in read_runs(str(folder)) for step in one.record.steps[WARM_UP:]]
    return median(filter(None, seconds)) if seconds else None


def show(measured: dict[str, float | None], path: Path) -> None:
    """Print measured and predicted step times and their errors."""
    from scipy.stats import spearmanr

    from conf import load_experiment
    from conf.machine import read
    from estimate.figures import estimate

    machine = read(path)
    rows = []
    print(f"{machine.device}, {len(machine.trainings)} trainings in the file\n")
    print("| run | measured, s | predicted, s | ratio |")
    print("|---|---:|---:|---:|")
    for name, seconds in measured.items():
        if seconds is None:
            print(f"| {name} | failed | | |")
            continue
        predicted = float(estimate(load_experiment(*typed(name)), machine=machine).time.step_time_s[0])
        rows.append((name, seconds, predicted))
        print(f"| {name} | {seconds:.3f} | {predicted:.3f} | {predicted / seconds:.2f} |")
    errors = [abs(predicted / seconds - 1) for _, seconds, predicted in rows]
    ranks = spearmanr([one[1] for one in rows], [one[2] for one in rows]).statistic
    print(
        f"\n{len(rows)} runs: median error {median(errors):.1%}, 90th percentile {np.quantile(errors, 0.9):.1%},",
        end=" ",
    )
    print(f"rank correlation {ranks:.2f}")
    layouts = [row for row in rows if row[0] in BEST_OF]
    fastest = min(layouts, key=lambda row: row[1])[0]
    first = [row[0] for row in sorted(layouts, key=lambda row: row[2])[:2]]
    print(f"fastest of {len(layouts)} layouts of two processes: {fastest}; predicted to be: {', '.join(first)}")


if __name__ == "__main__":
    main()
