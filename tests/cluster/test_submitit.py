"""docs/tutorials/sweep.py: sweeps of estimates and of logs as jobs, by hydra-submitit-launcher, which nothing needs."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from parsers import read
from tests.drills import ROOT

PYTHON = ROOT / ".venv-submitit" / "bin" / "python"
LOGS = [ROOT / "tests" / "parsers" / "fixtures" / name for name in ("engine.log", "megatron_modern.log")]


def sweep(site: Mapping[str, str], folder: Path, *overrides: str) -> tuple[int, str]:
    """Run a sweep as an array of jobs; return its exit code, and what it printed."""
    of_site: tuple[str, ...] = ("hydra.launcher.partition=ci", "hydra.launcher.timeout_min=30")
    of_site = (*of_site, "hydra.launcher.cpus_per_task=1")
    of_site = (*of_site, f"hydra.sweep.dir={folder}", "hydra.launcher.submitit_folder=${hydra.sweep.dir}/.submitit")
    script = str(ROOT / "docs" / "tutorials" / "sweep.py")
    argv = [str(PYTHON), script, "-m", "hydra/launcher=submitit_slurm", *of_site, *overrides]
    env = {**site, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, env=env, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slurm
@pytest.mark.skipif(not PYTHON.exists(), reason="hydra-submitit-launcher is not installed: make submitit")
def test_sweeps_of_estimates_and_of_logs_are_jobs(site: Mapping[str, str], tmp_path: Path) -> None:
    estimates, logs = tmp_path / "estimates", tmp_path / "logs"
    estimates.mkdir()
    logs.mkdir()
    code, shown = sweep(site, estimates, "model=llama,qwen", "hardware=h100", "nodes=2")
    assert code == 0, shown
    records = [read(path.parent) for path in sorted(estimates.glob("*/record/run.json"))]
    assert [record.provenance for record in records] == ["estimated"] * 2, shown
    assert {record.name for record in records} == {"llama31_8b-nvidia", "qwen25_7b-nvidia"}
    code, shown = sweep(site, logs, "+log=" + ",".join(map(str, LOGS)))
    assert code == 0, shown
    assert len({path.read_text("utf-8") for path in logs.glob("*/record/steps.jsonl")}) == 2
    code, shown = sweep(site, logs, "+log=/nowhere/a.log,/nowhere/b.log")
    assert code != 0 and "exit code 2" in shown, shown
