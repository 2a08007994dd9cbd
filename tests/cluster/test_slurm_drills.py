"""Faults made with real processes of jobs on a real Slurm. After each: no run is lost or done twice, no process stays,
the journal and the record have a state and a cause, and the matrix is finished."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.cluster.jobs import PATIENCE_S, Matrix, causes, ended, kill, lasting, processes, slurm
from tests.drills import wait_until

pytestmark = pytest.mark.slurm
SAVING = ("training.seed=1", "training.train_iters=60", "training.save_interval=3")


@pytest.fixture(autouse=True)
def no_orphan(site: Mapping[str, str]) -> Iterator[None]:
    """See that no process of a job is left, and no job."""
    yield
    wait_until(lambda: not slurm(site, "squeue", "--noheader"), "no job is left", PATIENCE_S)
    wait_until(lambda: not processes(site, ""), "no process of a job is left", PATIENCE_S)


def finished(matrix: Matrix, shown: str) -> list[str]:
    """See that every run was completed, with each step once; return why earlier attempts of each ended."""
    for run in matrix.runs():
        record = matrix.record(run)
        assert (run.state, record.status) == ("completed", "completed"), shown
        assert [step.step for step in record.steps] == [*range(60)], shown
    return [causes([run]) for run in matrix.runs()]


@pytest.mark.drill("no job was drilled")
def test_processes_that_die_hang_or_never_come(site: Mapping[str, str], tmp_path: Path) -> None:
    """One fault a run, all at the same time: a rank, torchrun and the script of a node are killed, a rank stands still
    while the others wait in a collective, and a node never gets to its ranks."""
    python = tmp_path / "python"
    never = f"mkdir {tmp_path}/never 2>/dev/null && exec sleep 3600"
    late = f'[ "$SLURMD_NODENAME $2 $3 $SLURM_ARRAY_TASK_ID" != "tn2 -m torch.distributed.run 4" ] || {{ {never}; }}'
    python.write_text(f'#!/bin/bash\n{late}\nexec {sys.executable} "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    matrix = Matrix(site, tmp_path, *SAVING, "training.seed=1,2,3,4,5", "hang_after_s=20", f"framework.python={python}")
    process = matrix.start()
    faults = (("engine.py", "tn2", "KILL"), ("torch.distributed.run", "tn1", "KILL"), ("run.sh", "tn2", "KILL"))
    for task, (program, node, name) in enumerate((*faults, ("engine.py", "tn2", "STOP"))):
        matrix.wait_for_step(2, seed=task + 1)
        env = {"LOCAL_RANK": "0"} if program == "engine.py" else {}
        kill(site, program, signal.Signals[f"SIG{name}"], node, SLURM_ARRAY_TASK_ID=str(task), **env)
    code, shown = ended(process)
    assert code == 0, shown
    rank, torchrun, script, still, absent = finished(matrix, shown)
    assert "local rank 0 died by SIGKILL" in rank or "SIGKILL" in rank, rank
    assert "SIGKILL" in torchrun, torchrun
    assert "FAILED" in script, script
    assert "no progress after iteration" in still, still
    assert "no progress after no iteration" in absent, absent
    assert [run.attempt for run in matrix.runs()] == [2] * 5, shown


@pytest.mark.drill("no job was drilled")
def test_the_controller_dies_under_a_job_and_then_a_node(site: Mapping[str, str], tmp_path: Path) -> None:
    matrix = Matrix(site, tmp_path, *SAVING)
    process = matrix.start()
    matrix.wait_for_step(2)
    kill(site, "engine.py", signal.SIGSTOP, LOCAL_RANK="0")  # the job is to last
    folder = Path(site["SLURM_CONF"]).parents[1]
    subprocess.run(["kill", "-KILL", (folder / "slurmctld.pid").read_text().strip()], check=True)
    time.sleep(12)  # so that the runner has asked in vain
    assert process.poll() is None
    subprocess.run(["setsid", "slurmctld"], env=lasting(site), check=True)  # from the state that it had saved
    wait_until(lambda: "m." in slurm(site, "squeue", "--noheader"), "the controller knows the job", PATIENCE_S)
    assert [(run.attempt, run.failures) for run in matrix.runs()] == [(1, 0)] and process.poll() is None
    subprocess.run(["kill", "-KILL", (folder / "slurmd.tn2.pid").read_text().strip()], check=True)
    wait_until(
        lambda: "down" in slurm(site, "sinfo", "-h", "-p", "ci", "-n", "tn2", "-o", "%T"), "it is down", PATIENCE_S
    )
    for pid in processes(site, "", "tn2"):  # gone with their node
        subprocess.run(["kill", "-KILL", str(pid)], check=False)
    subprocess.run(["setsid", "slurmd", "-N", "tn2"], env=lasting(site), check=True)
    code, shown = ended(process)
    assert code == 0, shown
    finished(matrix, shown)
    (run,) = matrix.runs()
    assert run.failures == 0 and matrix.record(run).restarts, "Slurm queued it again, and it went on"


@pytest.mark.drill("no job was drilled")
def test_a_full_disk(site: Mapping[str, str], tmp_path: Path) -> None:
    runs = tmp_path / "small"
    runs.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "none", str(runs)], check=True)
    try:
        matrix = Matrix(site, runs, *SAVING, "cluster.retries=0")
        process = matrix.start()
        matrix.wait_for_step(4)
        subprocess.run(["dd", "if=/dev/zero", f"of={runs}/ballast", "bs=4k"], check=False, capture_output=True)
        wait_until(lambda: not slurm(site, "squeue", "--noheader"), "the job ends", PATIENCE_S)
        code, shown = ended(process)
        assert code in (1, 2) and "No space left" in shown and "Traceback" not in shown, shown
        (runs / "ballast").unlink()  # somebody makes room
        code, shown = matrix.command("resume", "--failed")
        assert code == 0, shown
        finished(matrix, shown)
    finally:
        subprocess.run(["umount", "-l", str(runs)], check=True)


@pytest.mark.drill("no job was drilled")
def test_a_cancelled_matrix_a_second_runner_and_a_half_written_record(site: Mapping[str, str], tmp_path: Path) -> None:
    matrix = Matrix(site, tmp_path, *SAVING, "cluster.job.options={no-requeue: true}")
    process = matrix.start()
    matrix.wait_for_step(4)
    code, shown = ended(matrix.start())
    assert code == 2 and f"process {process.pid} on" in shown, shown
    code, shown = matrix.command("cancel")
    assert code == 0 and "1 jobs of Slurm are cancelled" in shown, shown
    code, shown = ended(process)
    (run,) = matrix.runs()
    assert (code, run.state, run.attempt) == (1, "cancelled", 1) and "CANCELLED" in causes([run]), shown
    assert matrix.record(run).status == "failed" and "CANCELLED" in (matrix.record(run).cause or "")
    code, shown = matrix.command("resume")
    assert code == 0, shown
    finished(matrix, shown)
    (matrix.folder / run.id / "run.json").write_text('{"schema', encoding="utf-8")  # half-written
    code, shown = matrix.command("resume")
    assert code == 0 and "its record is written again" in shown, shown
    finished(matrix, shown)
    assert [one.attempt for one in matrix.runs()] == [2]
    _forget(matrix)


def _forget(matrix: Matrix) -> None:
    """Let the last attempt's job be one that Slurm never had: the log of the run counts; without one it failed."""
    lines = matrix.journal.path.read_text("utf-8").splitlines(keepends=True)
    last = max(at for at, line in enumerate(lines) if '"submitted"' in line)
    job = (matrix.runs()[0].job or "").partition("_")[0]
    forgotten = "".join([*lines[:last], lines[last].replace(f'"job": "{job}"', '"job": "987654"')])
    matrix.journal.path.write_text(forgotten, encoding="utf-8")
    code, shown = matrix.command("resume")
    assert code == 0, shown
    finished(matrix, shown)
    for path in matrix.folder.glob("*/bundle/*/*"):
        if path.parent.name in ("attempts", "runs"):  # as of a job that never began
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    retries = forgotten.replace('"retries": 1', '"retries": 0')
    matrix.journal.path.write_text(retries, encoding="utf-8")
    code, shown = matrix.command("resume")
    (run,) = matrix.runs()
    assert (code, run.state) == (1, "failed") and "Slurm knows job 987654_0 no more" in causes([run]), shown
