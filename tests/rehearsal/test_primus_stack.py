"""Primus itself, at PRIMUS_PATH, rehearsed by each of its own entry points that need no container and no cluster."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from parsers import Record, read
from parsers.cli import main as parse_logs
from tensorprimat.launch import main as launch
from tests.drills import free_port
from tests.launch.fake_rocm import the_run
from tests.rehearsal.stacks import SAME, interpreter, rehearsed

pytestmark = pytest.mark.nvidia


def assert_as_requested(record: Record) -> None:
    """Completed, every setting as requested, every key that was written read, every step with its rate."""
    assert (record.status, record.provenance) == ("completed", "rehearsed"), record.cause
    assert [str(d) for d in record.differences] == []
    assert set(record.environment["probe_never_read"]) == set()
    assert [step.iteration for step in record.steps] == list(range(1, 9))
    assert all(step.lr_used is not None for step in record.steps)
    assert all(step.step_time_s is None and step.memory_bytes is None for step in record.steps)


def state_of_checkout() -> str:
    git = ("git", "-C", os.environ["PRIMUS_PATH"], "status", "--short", "--untracked-files=normal")
    return subprocess.run(git, capture_output=True, text=True, check=False).stdout


@pytest.mark.parametrize("entry", ["run_pretrain", "direct"])
def test_an_entry_point_of_primus(entry: str, tmp_path: Path) -> None:
    interpreter("primus")
    before = state_of_checkout()
    record, path = rehearsed(tmp_path, "primus", f"framework.entry={entry}", "gpus_per_node=2")
    assert_as_requested(record)
    assert {step.metrics["tokens_checksum"] for step in record.steps} and len(record.steps) == 8
    assert state_of_checkout() == before
    assert (path / "primus" / "rocm" / "lib").is_dir()  # what Primus wants lies in the run's own folder


def test_a_bundle(tmp_path: Path) -> None:
    python, folder = Path(interpreter("primus")), tmp_path / "bundle"
    given = (*SAME, f"bundle={folder}", f"cluster.master_port={free_port()}")
    assert launch(["framework=primus", *given]) == 0
    env = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}", "HOME": str(tmp_path / "home")}
    done = subprocess.run(
        ["bash", str(folder / "run.sh")], env=env, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert parse_logs([str(the_run(folder) / "train.log"), "-o", str(tmp_path / "record")]) == 0
    record = read(tmp_path / "record")
    assert (record.status, record.provenance) == ("completed", "rehearsed")
    assert [str(d) for d in record.differences] == []
    assert record.environment["parameters"] == 820_352
    assert record.shrunk["num_layers"] == {"asked": 32, "ran": 4} and "speed" in record.not_rehearsed
    assert record.framework_version and record.effective["data"].value == "synthetic"
    assert all(step.step_time_s is None and step.memory_bytes is None for step in record.steps)


def test_ranks_of_a_layout(tmp_path: Path) -> None:
    """Two of 16 ranks, each by one process, hold the parameters of our own count."""
    sizes = ("layout=tp2_pp2", "nodes=2", "gpus_per_node=8")
    record, _ = rehearsed(tmp_path, "primus", "rehearse=layout", "model=llama_tiny", *sizes)
    assert record.status == "completed", record.cause
    assert set(record.environment["parameters_by_rank"]) == {"0", "14"}
    assert [record.effective[f"{kind}_parallel_size"].value for kind in ("data", "pipeline_model")] == [4, 2]
