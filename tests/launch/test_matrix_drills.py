"""A clock that jumps, a record half-written, an attempt submitted twice: drills of a matrix with real processes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from parsers import read
from tests.drills import CLOCK, PATIENCE_S, ROOT, WITHOUT_CC, Stub, command, library, wait_until

NO_LOCKS = """
#include <errno.h>
int flock(int fd, int operation) { errno = ENOLCK; return -1; }
"""


@pytest.fixture
def stub(tmp_path: Path) -> Stub:
    return Stub(tmp_path)


@pytest.mark.drill("as now")
@WITHOUT_CC
def test_a_clock_that_jumps_changes_nothing(stub: Stub, tmp_path: Path) -> None:
    offset, hold = tmp_path / "offset", tmp_path / "hold"
    hold.touch()
    noted = f'print(settings["seed"], time.time(), file=open({str(tmp_path / "starts")!r}, "a"))'
    stub.program(f"if step == 0: {noted}\nwhile os.path.exists({str(hold)!r}): time.sleep(0.05)")
    process = stub.start("-m", "training.seed=1,2,3", LD_PRELOAD=library(tmp_path, CLOCK), CLOCK_OFFSET=str(offset))
    wait_until((tmp_path / "starts").exists, "the first run")
    offset.write_text(str(-400 * 86400), encoding="utf-8")
    hold.unlink()
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err + out
    starts = [line.split() for line in (tmp_path / "starts").read_text("utf-8").splitlines()]
    assert [seed for seed, _ in starts] == ["1", "2", "3"] and float(starts[1][1]) < float(starts[0][1]) - 86400
    records = [read(path) for path in sorted(stub.runs.glob("t/*seed*")) if path.is_dir()]
    assert [record.status for record in records] == ["completed"] * 3
    assert all(0 < (record.wall_time_s or -1) < PATIENCE_S for record in records)
    assert records[0].started_at is not None and records[0].started_at > (records[0].ended_at or "")
    code, shown = command("tensorprimat", "matrix", "resume", str(stub.runs / "t"))
    assert code == 0 and len((tmp_path / "starts").read_text("utf-8").splitlines()) == 3, shown


@pytest.mark.drill("as now")
@WITHOUT_CC
def test_a_file_system_without_locks_is_refused(stub: Stub, tmp_path: Path) -> None:
    code, shown = stub.launch("-m", "training.seed=1,2", LD_PRELOAD=library(tmp_path, NO_LOCKS))
    assert code == 2 and "its file system has no locks" in shown and "Traceback" not in shown, shown
    assert not [*stub.runs.glob("t/*/train.log")], "nothing was started"


@pytest.mark.drill("exit 2 until somebody removed the record")
def test_a_run_whose_record_is_half_written_is_run_again_and_no_other(stub: Stub) -> None:
    noted = stub.runs.parent / "starts"
    stub.program(f'if step == 0: print(settings["seed"], file=open({str(noted)!r}, "a"))')
    assert stub.launch("-m", "training.seed=1,2")[0] == 0
    (broken,) = stub.runs.glob("t/*seed2-*/run.json")
    text = broken.read_text(encoding="utf-8")
    broken.write_text(text[: len(text) // 2], encoding="utf-8")
    code, shown = command("tensorprimat", "matrix", "resume", str(stub.runs / "t"))
    assert code == 0 and noted.read_text("utf-8").split() == ["1", "2", "2"], shown
    assert read(broken.parent).status == "completed"


def task(folder: Path, job: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run shell/array_task.sh as the first task of a job, on the list in `folder`."""
    env = {**os.environ, "SLURM_ARRAY_TASK_ID": "0", "SLURM_JOB_ID": job, **more}
    argv = ["bash", str(ROOT / "shell" / "array_task.sh"), str(folder / "list")]
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)


@pytest.mark.drill("not drilled")
def test_an_attempt_is_one_jobs_alone(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "job.sh").write_text('echo "$SLURM_JOB_ID $PYTHON $TPRIMAT_CHECKPOINTS" >>ran\n', encoding="utf-8")
    (tmp_path / "list").write_text(f"1\t{bundle}\t/a/python\n", encoding="utf-8")
    assert task(tmp_path, "7").returncode == 0
    other = task(tmp_path, "8")
    assert other.returncode == 3 and "job 7 has attempt 1 of this run already" in other.stderr
    assert task(tmp_path, "7", SLURM_RESTART_COUNT="1").returncode == 0, "queued again, it is the same job"
    (tmp_path / "list").write_text(f"2\t{bundle}\t\n", encoding="utf-8")
    assert task(tmp_path, "8", PYTHON="mine").returncode == 0
    ran = (bundle / "ran").read_text("utf-8").splitlines()
    assert ran == [*[f"7 /a/python {bundle}/checkpoints"] * 2, f"8 mine {bundle}/checkpoints"]
    assert {path.name: path.read_text().strip() for path in (bundle / "attempts").iterdir()} == {"1": "7", "2": "8"}


@pytest.mark.drill("not drilled")
def test_of_many_jobs_that_begin_one_attempt_at_once_one_runs(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "job.sh").write_text("echo ran >>ran\n", encoding="utf-8")
    (tmp_path / "list").write_text(f"1\t{bundle}\t\n", encoding="utf-8")
    argv = ["bash", str(ROOT / "shell" / "array_task.sh"), str(tmp_path / "list")]
    env = {**os.environ, "SLURM_ARRAY_TASK_ID": "0"}
    jobs = [
        subprocess.Popen(argv, env={**env, "SLURM_JOB_ID": str(number)}, stderr=subprocess.DEVNULL)
        for number in range(1, 31)
    ]
    codes = sorted(job.wait(PATIENCE_S) for job in jobs)
    assert codes == [0, *[3] * 29] and (bundle / "ran").read_text("utf-8") == "ran\n"
