"""Print by how much stacks part from the engine, from equal weights: one table of all cases.

    python benchmarks/stacks.py                        # what is installed here, in an hour or so
    python benchmarks/stacks.py --only fsdp2 --cases "fp32 1"

Each case is a rehearsal of the engine and of every other stack. A row: the largest difference of any step's loss in
nats/token, and as shares of the gradient norm, the norms of the first step's gradients and those of the last weights.
The figures of conf/tables/model_codes.yaml come from here, each at least twice the largest of these. What a stack
refuses is said with the reason; one that is not installed is left out, by name."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1]))

from compare.rehearsed import gap, read_of, series
from conf import load_experiment
from launchers.plan import Host
from parsers import Record
from tensorprimat.run import rehearse_once

ROOT = Path(__file__).parents[1]
PYTHONS = {
    "fsdp2": sys.executable,
    **dict.fromkeys(("hf", "deepspeed"), os.environ.get("STACKS_PYTHON", str(ROOT / ".venv-stacks/bin/python"))),
    "torchtitan": os.environ.get("TORCHTITAN_PYTHON", str(ROOT / ".venv-torchtitan/bin/python")),
    "torchtitan-0.3.0": os.environ.get("TORCHTITAN_030_PYTHON", str(ROOT / ".venv-torchtitan-0.3.0/bin/python")),
}
"""A stack, and the release of it that is not the one of conf/framework."""
SAME = ("rehearse=train", "training.train_iters=8", "optimizer.lr_warmup_iters=3", "layout=data_parallel")
UNSHARDED, TP2 = "training.use_distributed_optimizer=false", "layout.tensor_model_parallel_size=2"
WHOLE = "layout.sequence_parallel=false"
TIED = "model.untie_embeddings_and_output_weights=false"
CASES: dict[str, tuple[str, ...]] = {
    "fp32 1": ("model=llama", "precision=fp32", "gpus_per_node=1"),
    "fp32 2": ("model=llama", "precision=fp32", "gpus_per_node=2"),
    "fp32 2 unsharded": ("model=llama", "precision=fp32", "gpus_per_node=2", UNSHARDED),
    "fp32 TP2": ("model=llama", "precision=fp32", "gpus_per_node=2", TP2),
    "fp32 TP2, whole": ("model=llama", "precision=fp32", "gpus_per_node=2", TP2, WHOLE),
    "fp32 1 Qwen 3": ("model=qwen3_8b", "precision=fp32", "gpus_per_node=1"),
    "fp32 2 Qwen 2.5": ("model=qwen25_7b", "precision=fp32", "gpus_per_node=2"),
    "fp32 1 Qwen 2.5": ("model=qwen25_7b", "precision=fp32", "gpus_per_node=1"),
    "fp32 2 × 2": ("model=llama", "precision=fp32", "gpus_per_node=4", "layout.data_parallel_replicas=2"),
    "fp32 1 tied": ("model=llama", "precision=fp32", "gpus_per_node=1", TIED),
    "fp32 2 tied": ("model=llama", "precision=fp32", "gpus_per_node=2", TIED),
    "bf16 1": ("model=llama", "precision=bf16", "gpus_per_node=1"),
    "bf16 2": ("model=llama", "precision=bf16", "gpus_per_node=2"),
    "bf16 2 unsharded": ("model=llama", "precision=bf16", "gpus_per_node=2", UNSHARDED),
    "bf16 TP2 DP2": ("model=llama", "precision=bf16", "gpus_per_node=4", TP2),
    "bf16 TP2 DP2, whole": ("model=llama", "precision=bf16", "gpus_per_node=4", TP2, WHOLE),
    "bf16 1 Qwen 2.5": ("model=qwen25_7b", "precision=bf16", "gpus_per_node=1"),
    "bf16 2 Qwen 2.5": ("model=qwen25_7b", "precision=bf16", "gpus_per_node=2"),
    "bf16 2 Qwen 3": ("model=qwen3_8b", "precision=bf16", "gpus_per_node=2"),
    "bf16 1 tied": ("model=llama", "precision=bf16", "gpus_per_node=1", TIED),
}
"""Precision, ranks and what is otherwise, and the words of it."""
COLUMNS = ("loss", "grad_norm", "gradient", "weight")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PYTHONS, default=[*PYTHONS])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=[*CASES])
    chosen = parser.parse_args(argv)
    here = [stack for stack in chosen.only if Path(PYTHONS[stack]).is_file()]
    for stack in chosen.only:
        if stack not in here:
            print(f"{stack} is not installed: {PYTHONS[stack]}", file=sys.stderr)
    print(f"{'case':20} {'stack':16}", *(f"{name:>10}" for name in COLUMNS))
    with TemporaryDirectory() as folder:
        for case in chosen.cases:
            for row in rows(case, here, folder):
                print(row, flush=True)
    return 0


def rows(case: str, stacks: Sequence[str], folder: str) -> Iterator[str]:
    """Yield the table's rows of a case."""
    engine = rehearsed(case, "megatron", folder)
    for stack in stacks:
        head = f"{case:20} {stack:16}"
        record = rehearsed(case, stack, folder)
        if record.status != "completed":
            yield f"{head} {record.status}: {record.cause}"
            continue
        apart = differences(engine, record)
        yield " ".join([head, *("   unknown" if value is None else f"{value:10.1e}" for value in apart)])


def rehearsed(case: str, stack: str, folder: str) -> Record:
    """Return the record of a rehearsal, which has failed with the reason where the stack refuses the case."""
    python = (f"framework.python={PYTHONS[stack]}",) if stack in PYTHONS else ()
    framework, dash, release = stack.partition("-")
    own = (f"framework={framework}", *([f"framework.release={release}"] if dash else []))
    name = (f"runs_dir={folder}", "name=" + "".join(c if c.isalnum() else "-" for c in case))
    e = load_experiment(*own, *name, *SAME, *CASES[case], *python)
    return rehearse_once(e, Host(python=sys.executable, cpu_count=os.cpu_count() or 1))[0]


def differences(engine: Record, other: Record) -> Iterator[float | None]:
    """Yield by how much two rehearsals part at most, a number for each of COLUMNS; None: one has no reading."""
    ours, theirs = series(engine, "loss"), series(other, "loss")
    yield max(abs(ours[step] - theirs[step]) for step in ours)
    ours, theirs = series(engine, "grad_norm"), series(other, "grad_norm")
    yield max(gap(ours[step], theirs[step]) for step in ours) if theirs else None
    for name in ("first_gradients", "last_weights"):
        one, two = (getattr(read_of(record), name) for record in (engine, other))
        yield max((gap(one[k].norm or 0.0, two[k].norm or 0.0) for k in one if k in two), default=None)


if __name__ == "__main__":
    sys.exit(main())
