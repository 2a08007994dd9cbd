"""NeMo and the embedded engine, from equal weights on equal data: every loss equal to the last bit.

The loss is a detector of settings: another epsilon, weight decay, warm-up, dtype of softmax or router, padding or
order of the data, and it is no longer equal. A tolerance would hide the smaller of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from nemo_runs import offline

from conf import load_experiment
from launchers import make_plan
from launchers.plan import Host

pytestmark = [pytest.mark.nvidia, pytest.mark.engine]

SAME = (
    "platform=cpu",
    "training.train_iters=6",
    "optimizer.lr_warmup_iters=2",
    "training.attention=unfused",
    "equal_init=true",
)


def losses(directory: Path, python: str, *overrides: str) -> list[tuple[float, float]]:
    """Loss and rate of each step."""
    e = load_experiment(*SAME, *overrides)
    plan = make_plan(e, Host(python=python, cpu_count=2))
    directory.mkdir()
    for name, text in plan.files.items():
        (directory / name).write_text(text, encoding="utf-8")
    out = ""
    for command in (*plan.setup, plan.argv):
        env = {**os.environ, **offline(), **plan.env}
        done = subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, check=False, timeout=400)
        assert done.returncode == 0, done.stderr[-3000:]
        out += done.stdout
    steps = [line.partition(" step ")[2] for line in out.splitlines() if line.startswith("[tprimat] step ")]
    return [(step["loss"], step["lr_used"]) for step in map(json.loads, steps)]


def test_every_loss_of_experts_is_equal_to_the_last_bit(nemo_python: str, tmp_path: Path) -> None:
    """Without experts: tests/rehearsal/test_four_stacks.py."""
    overrides = ("precision=bf16", "model=moe_tiny")
    nemo = losses(
        tmp_path / "nemo",
        nemo_python,
        *("framework=nemo", f"framework.python={nemo_python}", *overrides),
    )
    engine = losses(tmp_path / "engine", sys.executable, "framework=megatron", *overrides)
    assert len(nemo) == 6
    assert [loss for loss, _ in nemo] == [loss for loss, _ in engine]
    assert all(abs(a - b) <= 1e-15 * b for (_, a), (_, b) in zip(nemo, engine, strict=True))
