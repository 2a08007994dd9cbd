"""Bundles of the vendors' stacks in a job of Slurm, where nothing of ours is installed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tensorprimat.launch import main as launch
from tests.cluster.conftest import site
from tests.cluster.jobs import slurm
from tests.cluster.test_slurm import recorded
from tests.drills import wait_until
from tests.rehearsal.stacks import interpreter

__all__ = ["site"]  # a fixture
TOY: tuple[str, ...] = (
    "model=llama",
    "layout=data_parallel",
    "rehearse=train",
    "gpus_per_node=1",
    "training.train_iters=3",
)
TOY = (*TOY, "optimizer.lr_warmup_iters=1")
STACKS = {
    "nemo": ("platform=nvidia", "hardware=h100"),
    "megatron_bridge": ("platform=nvidia", "hardware=h100"),
    "primus": ("platform=amd", "hardware=mi300x"),
}


@pytest.mark.nvidia
@pytest.mark.parametrize("stack", STACKS)
def test_a_bundle_of_a_vendors_stack_runs_in_a_job(stack: str, site: Mapping[str, str], tmp_path: Path) -> None:
    python, bundle = Path(interpreter(stack)).absolute(), tmp_path / "bundle"
    assert launch([*STACKS[stack], f"framework={stack}", *TOY, f"bundle={bundle}"]) == 0
    for ours in ("tensorprimat", "conf"):
        found = subprocess.run([python, "-c", f"import {ours}"], cwd="/", stderr=subprocess.DEVNULL, check=False)
        assert found.returncode == 1, "it is not installed there"
    env = {"PYTHON": str(python), "PATH": f"{python.parent}:/usr/bin:/bin", "HOME": str(tmp_path)}
    env |= {name: os.environ[name] for name in ("PRIMUS_PATH",) if name in os.environ}
    env |= {"SLURM_CONF": site["SLURM_CONF"]}
    script = ("--output=slurm-%j.out", "--wrap=srun --output=slurm-%j-node%n.out bash run.sh")
    job = subprocess.run(
        ["sbatch", "--parsable", *script], cwd=bundle, env=env, capture_output=True, text=True, check=True
    ).stdout.strip()
    wait_until(lambda: not slurm(site, "squeue", "--noheader"), "the job ends", 900)
    (said,) = bundle.glob(f"slurm-{job}-node0.out")
    assert "JobState=COMPLETED" in slurm(site, "scontrol", "show", "job", job), said.read_text("utf-8")[-3000:]
    (log,) = bundle.glob("runs/*/train.log")
    record = recorded(log, tmp_path / "record")
    assert (record.status, len(record.steps)) == ("completed", 3)
    assert all(step.loss is not None for step in record.steps)
