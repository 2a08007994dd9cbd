"""Runs with the probe, through launch.py: of the embedded engine and of NVIDIA's stacks."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from conf import load_experiment
from conf.resolve import Experiment
from conf.shapes import count
from parsers import Record, read
from tests.rehearsal.stacks import ROOT, canonical_rate

STEPS, WARMUP = 3, 1
SHORT = ("platform=cpu", "probe=true", f"training.train_iters={STEPS}", f"optimizer.lr_warmup_iters={WARMUP}")


def launched(runs: Path, *overrides: str, **variables: str) -> tuple[Record, Path]:
    """Return the record and the directory of a run that must complete."""
    argv = (sys.executable, str(ROOT / "launch.py"), f"runs_dir={runs}", "name=t", *SHORT, *overrides)
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", **variables}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=900, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = runs.glob("t/*/run.json")
    return read(path.parent), path.parent


def requested(*overrides: str) -> Experiment:
    """Return the experiment that `launched` runs."""
    return load_experiment(*SHORT, *overrides)


def rank_file(directory: Path, rank: int = 0) -> dict[str, Any]:
    """Return what the probe wrote in one rank."""
    text = (directory / "probe" / f"rank{rank}.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def assert_read_back(record: Record, e: Experiment, world: int = 1) -> None:
    """All that the probe must report of any stack: no undeclared difference, rates, parameters, tokens, no fault."""
    declared = {entry.key for entry in record.declared}
    assert [str(d) for d in record.differences if d.setting not in declared] == []
    assert [note for note in record.notes if "probe" in note] == []
    probed = {name for name, reading in record.effective.items() if reading.file is not None}
    assert len(probed) > 60
    assert record.environment["probe_never_read"] == []
    model = replace(e.model, vocab_size=e.model.padded_vocab_size)
    total, norms = count(model).total, count(model).norms
    named = {"parameters": total, "parameters_undecayed": norms, "parameters_decayed": total - norms}
    assert {name: record.environment[name] for name in named} == named
    assert set(record.environment["parameters_by_rank"]) == {str(rank) for rank in range(world)}
    assert len(record.steps) == STEPS
    for step in record.steps:
        assert step.lr_used is not None
        assert math.isclose(step.lr_used, canonical_rate(record.requested, step.step), rel_tol=1e-12)
    if not (record.setting("context_parallel_size") or 1) > 1:
        assert len({step.metrics["tokens_checksum"] for step in record.steps}) == STEPS
