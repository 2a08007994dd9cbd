"""Measure how far rounding parts the losses and gradient norms of one toy in two layouts, for the bands of
compare/rounding.jsonl.

    python benchmarks/rounding.py                          all, a quarter of an hour on two cores; prints the file
    python benchmarks/rounding.py --seeds 1 --precision fp32

The embedded engine rehearses each model from equal weights in one process, and again with one size of its layout at
two, or with other micro-batches. A band has, by step, the largest relative difference of any seed and model up to that
step: sums are taken in another order, and the optimizer carries the difference on. In bf16 it has two numbers, of the
first step and of any later one: the step at which a weight first rounds to its other neighbour is a matter of chance,
and from there on two runs differ a thousand times more than before."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import date
from itertools import accumulate, product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from compare.rehearsed import gap
from conf import load_experiment
from launchers import where
from parsers import Record, Step
from tensorprimat.run import rehearse_once

STEPS = 20
TOY = ("rehearse=train", "framework=megatron", "equal_init=true", f"training.train_iters={STEPS}")
BATCH = ("training.global_batch_size=8", "optimizer.lr_warmup_iters=3", "training.micro_batch_size=8")
DENSE, MOE = "model=llama", "model=moe_tiny"
ONE, TWO = ("layout=data_parallel", "gpus_per_node=1"), ("layout=data_parallel", "gpus_per_node=2")
FOUR, HALVES = "training.micro_batch_size=4", "training.micro_batch_size=2"
# what differs → models, the layout before, and the one after; a micro-batch stays as it is where that is not it
PAIRS: dict[str, tuple[Sequence[str], Sequence[str], Sequence[str]]] = {
    "TP": ((DENSE,), (*ONE, FOUR), ("layout=tp2", "gpus_per_node=2", FOUR)),
    "PP": ((DENSE,), (*ONE, FOUR), ("layout=pp2", "gpus_per_node=2", FOUR)),
    "DP": ((DENSE, MOE), (*ONE, HALVES), (*TWO, HALVES)),
    "EP": ((MOE,), (*TWO, FOUR), (*TWO, FOUR, "layout.expert_model_parallel_size=2")),
    "MBS": ((DENSE,), ONE, (*ONE, FOUR)),  # with experts each micro-batch has a balancing loss of its own
}
READ = ("loss", "grad_norm", "gradient", "weight")
_TENSORS = {"gradient": "first_gradients", "weight": "last_weights"}  # of each parameter the norm


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seeds", type=int, default=3)
    arguments.add_argument("--precision", nargs="+", default=["fp32", "bf16"])
    arguments.add_argument("--only", nargs="+", default=[*PAIRS], help="what differs: TP …")
    chosen = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for precision in chosen.precision:
            for row in bands(precision, chosen.seeds, folder, chosen.only):
                print(json.dumps({**row, "source": source(chosen.seeds)}), flush=True)


def source(seeds: int) -> str:
    """Return where and when the figures were measured."""
    facts = where.facts()
    return f"benchmarks/rounding.py, {date.today()}, {facts.get('device_name') or 'a CPU'}, {seeds} seeds"


def bands(precision: str, seeds: int, folder: str, only: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield what differs, what is read, and its largest relative difference by step."""
    kept: dict[tuple[str, ...], Record] = {}

    def ran(*words: str) -> Record:
        if words not in kept:
            e = load_experiment(*TOY, *BATCH, f"runs_dir={folder}", f"precision={precision}", *words)
            kept[words], path = rehearse_once(e, where.host())
            if kept[words].status != "completed":
                raise SystemExit(f"{path}: {kept[words].cause}")
        return kept[words]

    for name, (models, before, after) in ((name, PAIRS[name]) for name in only):
        pairs = [
            (ran(model, f"training.seed={seed}", *before), ran(model, f"training.seed={seed}", *after))
            for model, seed in product(models, range(1, seeds + 1))
        ]
        kind = pairs[0][0].setting("params_dtype")
        for what in READ:
            values = largest([apart(*pair, what) for pair in pairs])
            values = [*values[:1], *values[1:][-1:]] if kind == "bfloat16" else values
            yield {"precision": kind, "differs": name, "what": what, "largest": values}


def apart(first: Record, second: Record, what: str) -> Iterator[float]:
    """Yield the relative difference, by step; of tensors the largest of all, once."""
    if what in _TENSORS:
        ours, theirs = (getattr(record.read_back, _TENSORS[what]) for record in (first, second))
        yield max(gap(tensor.norm, theirs[name].norm) for name, tensor in ours.items())
        return
    for one, other in zip(first.steps, second.steps, strict=True):
        a, b = value(one, what), value(other, what)
        yield gap(a, b)


def value(step: Step, what: str) -> float:
    known: Any = getattr(step, what)
    return float(known)


def largest(series: Sequence[Iterator[float]]) -> list[float]:
    """Return the largest of all up to each step, to three digits; steps before the first that differs, where the seeds
    were lucky, as that one."""
    up_to = [float(f"{one:.3g}") for one in accumulate(map(max, zip(*series, strict=True)), max)]
    return [one or next(filter(None, up_to), 0.0) for one in up_to]


if __name__ == "__main__":
    main()
