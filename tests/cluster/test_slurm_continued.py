"""A job that is preempted or runs out of time saves and goes on: its run is the same as an undisturbed one."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest

from parsers import read
from tensorprimat.launch import main as launch
from tests.cluster.jobs import PATIENCE_S, SAVING, STEPS, TINY, Matrix, causes, ended, slurm
from tests.drills import wait_until

SAVING = (*SAVING, "training.save_interval=1000")  # so that all that is saved is for a stop


@pytest.mark.slurm
@pytest.mark.drill("the job failed as TIMEOUT, and began anew where it was preempted")
def test_a_job_that_runs_out_of_time_and_is_preempted(site: Mapping[str, str], tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    (tmp_path / "bin").mkdir()
    wrapper = f'#!/bin/bash\ndate +%s.%N >>{asked}\nexec {shutil.which("sacct")} "$@"\n'
    (tmp_path / "bin" / "sacct").write_text(wrapper, encoding="utf-8")
    (tmp_path / "bin" / "sacct").chmod(0o755)
    site = {**site, "PATH": f"{tmp_path / 'bin'}:{site['PATH']}"}
    matrix = Matrix(site, tmp_path, *SAVING, "cluster.job.notice_s=60", "cluster.job.partition=low")
    process = matrix.start()
    matrix.hold()  # so that its time runs out, on any machine
    job = slurm(site, "squeue", "-h", "-o", "%A").strip()
    so_far = int(slurm(site, "squeue", "-h", "-o", "%M").strip().split(":")[-2])  # minutes, of which limits are
    slurm(site, "scontrol", "update", f"JobId={job}", f"TimeLimit={so_far + 2}")
    wait_until(lambda: [*matrix.folder.glob("*/bundle/runs/.stop-*")], "the notice", PATIENCE_S)
    matrix.let_go()
    wait_until(lambda: "Restarts=1" in slurm(site, "scontrol", "show", "job", job), "it is queued again", PATIENCE_S)
    slurm(site, "scontrol", "update", f"JobId={job}", "TimeLimit=30")
    matrix.hold(2, "job*-restart1")
    slurm(site, "sbatch", "--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=true")
    wait_until(lambda: "PreemptTime=None" not in slurm(site, "scontrol", "show", "job", job), "preemption", PATIENCE_S)
    matrix.let_go()
    code, shown = ended(process)
    (run,) = matrix.runs()
    assert (code, run.state, run.attempt, run.causes) == (0, "completed", 1, ()), shown
    record = matrix.record(run)
    times = [float(line) for line in asked.read_text("utf-8").split()]
    assert all(later - one > 9.5 for one, later in pairwise(times[5:])), "asked every 10 s, and once for all"
    at = [restart.steps for restart in record.restarts]
    assert len(at) >= 2 and at == sorted(at) and at[0] >= 2, "each start went on where the one before had saved"
    assert launch([*TINY, *SAVING, "gpus_per_node=2", f"runs_dir={tmp_path}", "name=one"]) == 0
    (one,) = (read(path) for path in (tmp_path / "one").iterdir() if path.is_dir())
    assert [step.loss for step in record.steps] == [step.loss for step in one.steps] and len(one.steps) == STEPS
    assert record.requested == one.requested
    assert {name: reading.value for name, reading in record.effective.items()} == {
        name: reading.value for name, reading in one.effective.items()
    }
    facts = record.environment
    assert facts["hosts"] == ["tn1", "tn2"] and facts["cpu_model"] == one.environment["cpu_model"]
    assert record.started_at and record.wall_time_s is None


@pytest.mark.slurm
@pytest.mark.drill("the run had failed")
def test_a_job_that_slurm_must_not_queue_again_is_submitted_again(site: Mapping[str, str], tmp_path: Path) -> None:
    matrix = Matrix(site, tmp_path, *SAVING, "cluster.job.options={no-requeue: true}", "cluster.retries=0")
    process = matrix.start()
    matrix.hold(4)
    (run,) = matrix.runs()
    slurm(
        site,
        "scancel",
        "--batch",
        "--signal=USR1",
        slurm(site, "squeue", "-h", "--name", run.tag or "", "-o", "%A").strip(),
    )
    matrix.let_go()
    code, shown = ended(process)
    (run,) = matrix.runs()
    assert (code, run.state, run.failures, run.attempt) == (0, "completed", 0, 2), shown
    assert "exit code 85" in causes([run]) and len(matrix.record(run).steps) == STEPS, shown
