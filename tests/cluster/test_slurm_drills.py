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

from tests.cluster.jobs import PATIENCE_S, SAVING, STEPS, Matrix, causes, ended, kill, lasting, processes, slurm
from tests.drills import started_processes, wait_until

pytestmark = pytest.mark.slurm


@pytest.fixture(autouse=True)
def no_orphan(site: Mapping[str, str]) -> Iterator[None]:
    """See that no process of a job is left, and no job."""
    yield
    wait_until(lambda: not [line for line in started_processes().values() if "launch.py" in line], "no runner is left")
    wait_until(lambda: not slurm(site, "squeue", "--noheader"), "no job is left", PATIENCE_S)
    wait_until(lambda: not processes(site, ""), "no process of a job is left", PATIENCE_S)


def finished(matrix: Matrix, shown: str) -> list[str]:
    """See that every run was completed, with each step once; return why earlier attempts of each ended."""
    for run in matrix.runs():
        record = matrix.record(run)
        assert (run.state, record.status) == ("completed", "completed"), shown
        assert [step.step for step in record.steps] == [*range(STEPS)], shown
    return [causes([run]) for run in matrix.runs()]


@pytest.mark.drill("no job was drilled")
def test_a_rank_torchrun_and_a_script_are_killed_one_after_the_other(site: Mapping[str, str], tmp_path: Path) -> None:
    matrix = Matrix(site, tmp_path, *SAVING, "cluster.retries=3")
    process = matrix.start()
    a_rank, program_itself = {"LOCAL_RANK": "0"}, dict[str, str]()
    faults = (
        ("engine.py", "tn2", a_rank),
        ("start_ranks.py", "tn1", program_itself),
        ("run.sh", "tn2", program_itself),
    )
    for attempt, (program, node, env) in enumerate(faults, start=1):
        wait_until(lambda: matrix.job(attempt), f"attempt {attempt}", PATIENCE_S)  # noqa: B023
        matrix.wait_for_steps(4, start=f"job{matrix.job(attempt)}.*")  # it has saved
        kill(site, program, signal.SIGKILL, node, **env)
    code, shown = ended(process)
    (run,) = matrix.runs()
    assert (code, run.attempt, run.failures) == (0, 4, 3), shown
    rank, torchrun, script = run.causes
    assert "rank 1 died by SIGKILL" in rank, rank
    assert "ended by SIGKILL from outside" in torchrun, torchrun
    assert "tn2: task 1: Killed" in script, script
    finished(matrix, shown)
    assert len(matrix.record(run).restarts) == 3, "each attempt went on where the one before had saved"


@pytest.mark.drill("no job was drilled")
def test_a_rank_stands_still_and_a_node_never_comes(site: Mapping[str, str], tmp_path: Path) -> None:
    """Two runs at the same time: others wait in a collective for the one, and for the other to meet."""
    python = tmp_path / "python"
    never = f"mkdir {tmp_path}/never 2>/dev/null && exec sleep 3600"
    late = f'[[ "$SLURMD_NODENAME $SLURM_ARRAY_TASK_ID $*" != "tn2 1 "*start_ranks.py* ]] || {{ {never}; }}'
    python.write_text(f'#!/bin/bash\n{late}\nexec {sys.executable} "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    matrix = Matrix(site, tmp_path, *SAVING, "training.seed=1,2", "hang_after_s=20", f"framework.python={python}")
    process = matrix.start()
    matrix.hold(SLURM_ARRAY_TASK_ID="0")
    code, shown = ended(process)
    assert code == 0, shown
    still, absent = finished(matrix, shown)
    assert "no progress after iteration" in still, still
    assert "no progress after no iteration" in absent, absent
    assert [(run.attempt, run.failures) for run in matrix.runs()] == [(2, 1)] * 2, shown


@pytest.mark.drill("no job was drilled")
def test_the_controller_dies_under_a_job_and_then_a_node(site: Mapping[str, str], tmp_path: Path) -> None:
    matrix = Matrix(site, tmp_path, *SAVING)
    process = matrix.start()
    matrix.hold(4)
    folder = Path(site["SLURM_CONF"]).parents[1]
    subprocess.run(["kill", "-KILL", (folder / "slurmctld.pid").read_text().strip()], check=True)
    time.sleep(12)  # so that the runner has asked in vain
    assert process.poll() is None
    subprocess.run(["setsid", "slurmctld"], env=lasting(site), check=True)  # from the state that it had saved
    wait_until(lambda: "m." in slurm(site, "squeue", "--noheader"), "the controller knows the job", PATIENCE_S)
    assert [(run.attempt, run.failures) for run in matrix.runs()] == [(1, 0)] and process.poll() is None
    subprocess.run(["kill", "-KILL", (folder / "slurmd.tn2.pid").read_text().strip()], check=True)
    # not sinfo: in Slurm 22.05 it prints "mixed*" until somebody asks scontrol
    wait_until(lambda: "DOWN" in slurm(site, "scontrol", "show", "node", "tn2"), "it is down", PATIENCE_S)
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
        matrix.hold(4)
        subprocess.run(["dd", "if=/dev/zero", f"of={runs}/ballast", "bs=4k"], check=False, capture_output=True)
        matrix.let_go()
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
    matrix.hold(4)
    code, shown = ended(matrix.start())
    assert code == 2 and f"process {process.pid} on" in shown, shown
    code, shown = matrix.command("cancel")
    assert code == 0 and "1 jobs of Slurm are cancelled" in shown, shown
    matrix.let_go()  # it would be killed after half a minute
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
