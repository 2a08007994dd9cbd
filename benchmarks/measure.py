"""Predict the embedded engine by this machine's own file: every run is one that the file has not seen.

    .venv/bin/python benchmarks/measure.py [--machine machine.yaml…] [--keep DIR] [--rounds 2]

In each round 26 configurations of llama_tiny, moe_tiny and a model of 32 M parameters run, each round in another random
order (six minutes on two cores). Without --machine it measures, too (`tprimat measure full`, ten minutes), behind half
of the rounds, as the speed of a machine drifts. Of each configuration the fastest round counts, as of the trainings of
`measure`. A table says what `estimate` predicts of the step time and the memory of each by that file alone, and how far
the rounds of one configuration are apart, which no prediction can be better than. Of several files, measured on other
days or beside other work, each has a table, and one more sets the factors that their trainings gave side by side. Fails
on nothing: a noisy machine is not a wrong model. --keep goes on in DIR."""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from conf.machine import Machine

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

WARM_UP, STEPS, SEED = 4, 12, 1234
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
    """Measure, run, and print the tables."""
    parser = argparse.ArgumentParser(description="the embedded engine, predicted by this machine's own file")
    parser.add_argument("--machine", type=Path, nargs="+", help="what measure wrote (default: measure first)")
    parser.add_argument("--keep", type=Path, help="where runs stay, and are not made again")
    parser.add_argument("--rounds", type=int, default=2, help="how often each run is made")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        machines = given.machine or [folder / "machine" / "machine.yaml"]
        names = sorted(RUNS)
        for turn in range(given.rounds):
            if turn == given.rounds // 2 and given.machine is None:
                run("-m", "measure", "full", "ranks=4", "-o", str(machines[0].parent))
            for name in random.Random(turn).sample(names, len(names)):
                print(f"\r{name:<24}", end="", file=sys.stderr)
                words = (f"runs_dir={folder.resolve() / 'runs'}", f"name={names.index(name):02}")
                run("launch.py", *typed(name), *words, f"training.seed={SEED + turn}")
        print("\r", end="", file=sys.stderr)
        show({name: taken(folder / "runs" / f"{names.index(name):02}") for name in RUNS}, machines)


def run(*words: str) -> None:
    """Run a program of ours to its end; a run that fails has no row."""
    subprocess.run([sys.executable, *words], cwd=ROOT, check=False, stdout=subprocess.DEVNULL)


def typed(name: str) -> tuple[str, ...]:
    """Return what is typed for a run."""
    return ("platform=cpu", *RUNS[name], f"training.train_iters={WARM_UP + STEPS}")


class Taken(NamedTuple):
    """Median step time of the fastest round of a run, s, the most resident memory of a process, bytes, and by what
    share the slowest round took longer."""

    step_time_s: float
    memory_bytes: float
    slower: float = 0.0


def taken(folder: Path) -> Taken | None:
    """Return what the runs in a folder took; None where none completed."""
    from tensorprimat import read_runs

    records = [one.record for one in read_runs(str(folder)) if one.record.status == "completed"]
    if not records:
        return None
    rounds = [median(step.step_time_s for step in one.steps[WARM_UP:] if step.step_time_s) for one in records]
    memory_bytes = max(step.memory_bytes or 0 for one in records for step in one.steps)
    return Taken(min(rounds), memory_bytes, max(rounds) / min(rounds) - 1)


def show(measured: dict[str, Taken | None], paths: Sequence[Path]) -> None:
    """Print for each file what was measured and predicted, and the errors; of several files their factors, too."""
    from conf.machine import read

    machines = [read(path) for path in paths]
    for machine in machines:
        print(f"{machine.device}, measured {machine.date}, {len(machine.trainings)} trainings in the file\n")
        print("| run | measured, s | predicted, s | ratio | measured, MB | predicted, MB | ratio |")
        print("|---|---:|---:|---:|---:|---:|---:|")
        rows = [(name, one, predicted(name, machine)) for name, one in measured.items() if one]
        for name, (seconds, size, _), (step, memory, _) in rows:
            times = f"{seconds:.3f} | {step:.3f} | {step / seconds:.2f}"
            print(f"| {name} | {times} | {size / 1e6:,.0f} | {memory / 1e6:,.0f} | {memory / size:.2f} |")
        print("".join(f"| {name} | failed | | | | | |\n" for name, one in measured.items() if one is None))
        summarise(rows)
    if len(machines) > 1:
        print(f"| factor | {' | '.join(one.date for one in machines)} |\n|---|{'---:|' * len(machines)}")
        for name in machines[0].factors:
            cells = [f"{one.factors[name].value:.2f} (sd {one.factors[name].sd:.2f})" for one in machines]
            print(f"| {name} | {' | '.join(cells)} |")


def predicted(name: str, machine: Machine) -> Taken:
    """Return what the machine's file says of a run."""
    from conf import load_experiment
    from estimate.figures import estimate

    figures = estimate(load_experiment(*typed(name)), machine=machine).figures
    names = ("step_time_mean_s", "peak_memory_device_bytes")
    return Taken(*(float(figures[one].value or "nan") for one in names))


def summarise(rows: Sequence[tuple[str, Taken, Taken]]) -> None:
    """Print the errors of step time and memory, and whether the fastest layout was found."""
    from scipy.stats import spearmanr

    apart = [own.slower for _, own, _ in rows]
    print(
        f"slowest round over the fastest: +{median(apart):.1%} median, +{np.quantile(apart, 0.9):.1%} 90th percentile"
    )
    for place, what in enumerate(("step time", "memory")):
        values = [(own[place], model[place]) for _, own, model in rows]
        errors = [abs(model / own - 1) for own, model in values]
        ranks = spearmanr(*zip(*values, strict=True)).statistic
        text = f"median error {median(errors):.1%}, 90th percentile {np.quantile(errors, 0.9):.1%}"
        print(f"{what} of {len(rows)} runs: {text}, rank correlation {ranks:.2f}")
    layouts = [row for row in rows if row[0] in BEST_OF]
    fastest = min(layouts, key=lambda row: row[1].step_time_s)[0]
    first = [row[0] for row in sorted(layouts, key=lambda row: row[2].step_time_s)[:2]]
    print(f"fastest of {len(layouts)} layouts of two processes: {fastest}; predicted to be: {', '.join(first)}\n")


if __name__ == "__main__":
    main()
