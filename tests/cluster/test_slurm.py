"""cluster=slurm: the batch script, what is refused of it, and real jobs on a real Slurm of two emulated nodes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from conf import load_experiment
from conf.errors import ConfigError
from launchers import slurm
from parsers import Record, read
from parsers.cli import main as parse_logs
from tensorprimat.journal import Journal
from tensorprimat.launch import main as launch
from tests.cluster.jobs import ON_TWO_NODES, TINY, Matrix, ended
from tests.drills import CLOCK, ROOT, WITHOUT_CC, library, wait_until

HERE = Path(__file__).parent
JOBS = {
    "engine_cpu": ON_TWO_NODES,
    "engine_saving": (*ON_TWO_NODES, "training.save_interval=2", "cluster.job.notice_s=600"),
    "nemo_pyxis": (
        *("platform=nvidia", "framework=nemo", "model=llama31_70b", "nodes=4", "cluster=slurm"),
        *("cluster.container=pyxis", "image=nvcr.io/nvidia/nemo:25.09", "cluster.job.partition=batch"),
        *("cluster.job.account=llm", "cluster.job.qos=high", "cluster.job.modules=[cuda/12.9, gdrcopy]"),
        *("cluster.job.mounts=['/scratch:/scratch']", "cluster.job.options={exclusive: true, constraint: h100}"),
    ),
    "primus": ("platform=amd", "framework=primus", "model=llama31_70b", "nodes=8", "cluster=slurm"),
}


@pytest.mark.parametrize("name", JOBS)
def test_golden_job(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"slurm/{name}.sh", slurm.job_sh(load_experiment(*JOBS[name])))


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("cluster.job.time_limit=soon", "is no time of Slurm"),
        ("cluster.job.partition='a b'", "partition=a b"),
        ("cluster.job.options={nodes: 3}", "follows from the experiment"),
        ("cluster.job.modules=['cuda; reboot']", "cuda; reboot"),
        ("cluster.container=docker", "cluster.container=docker needs one"),
        ("cluster.job.notice_s=0", "is no notice of Slurm"),
    ],
)
def test_what_no_job_can_be_rendered_of(override: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert launch([*ON_TWO_NODES, override, "bundle=/nowhere/b"]) == 2
    shown = capsys.readouterr().err
    assert says in shown
    assert "Traceback" not in shown


def test_a_site_has_a_file_of_its_own(tmp_path: Path) -> None:
    site = tmp_path / "site.yaml"
    site.write_text("job:\n  partition: mi300\n  modules: [rocm/7.0]\n  options: {exclusive: true}\n", encoding="utf-8")
    job = load_experiment(
        *TINY, "nodes=2", "gpus_per_node=2", f"cluster={site}", "cluster.job.account=mine"
    ).cluster.job
    assert job is not None
    assert (job.partition, job.modules, dict(job.options), job.account) == (
        "mi300",
        ("rocm/7.0",),
        {"exclusive": True},
        "mine",
    )
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("job:\n  partiton: mi300\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="did you mean partition"):
        load_experiment(*TINY, "gpus_per_node=2", f"cluster={wrong}")


def test_a_dry_run_shows_the_job(capsys: pytest.CaptureFixture[str]) -> None:
    assert launch([*ON_TWO_NODES, "dry_run=true"]) == 0
    assert "#SBATCH --nodes=2" in capsys.readouterr().out


def submitted(site: Mapping[str, str], bundle: Path, *more: str) -> str:
    """Submit the job in `bundle`; return its state at the end."""
    done = subprocess.run(
        ["sbatch", "--parsable", *more, "job.sh"], cwd=bundle, env=site, capture_output=True, text=True, check=True
    )
    job = done.stdout.strip()

    def state() -> str:
        shown = subprocess.run(["scontrol", "show", "job", job], env=site, capture_output=True, text=True, check=True)
        return str(re.findall(r"JobState=(\w+)", shown.stdout)[0])

    wait_until(lambda: state() not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"), f"job {job} ends", 600)
    return state()


def recorded(log: Path, target: Path) -> Record:
    assert parse_logs([str(log), "-o", str(target)]) == 0
    return read(target)


def bare_python(folder: Path) -> str:
    """Return the interpreter of an environment with the packages of this one, and nothing of ours."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    python = str(folder / "bin" / "python")
    for name, code in (("tensorprimat", 1), ("conf", 1), ("numpy", 0)):
        assert (
            subprocess.run([python, "-c", f"import {name}"], cwd="/", stderr=subprocess.DEVNULL, check=False).returncode
            == code
        )
    return python


@pytest.mark.slurm
def test_two_nodes_train_to_the_losses_of_one(site: Mapping[str, str], tmp_path: Path) -> None:
    bundle, all_ways = tmp_path / "bundle", ("layout.pipeline_model_parallel_size=2", "training.train_iters=3")
    assert launch([*ON_TWO_NODES, *all_ways, "gpus_per_node=4", f"bundle={bundle}"]) == 0
    tested = subprocess.run(["sbatch", "--test-only", "job.sh"], cwd=bundle, env=site, capture_output=True, check=False)
    assert tested.returncode == 0, tested.stderr
    assert submitted({**site, "PYTHON": bare_python(tmp_path / "bare")}, bundle) == "COMPLETED"
    runs = sorted((bundle / "runs").iterdir())
    assert [run.name.partition("-")[2] for run in runs] == ["node0", "node1"]
    record = recorded(runs[1] / "train.log", tmp_path / "record")  # the last rank prints the iteration lines
    assert launch([*TINY, *all_ways, "gpus_per_node=8", f"runs_dir={tmp_path / 'runs'}", "name=one"]) == 0
    (one,) = (read(path) for path in (tmp_path / "runs" / "one").iterdir() if path.is_dir())
    assert (record.status, len(record.steps)) == ("completed", 3)
    assert [step.loss for step in record.steps] == [step.loss for step in one.steps]
    assert record.requested == one.requested
    assert {one.requested[name] for name in ("tensor_model_parallel_size", "data_parallel_size")} == {2}
    assert one.requested["pipeline_model_parallel_size"] == 2


@pytest.mark.slurm
@pytest.mark.parametrize("more", ["--partition=none", "--nodes=3", "--gpus-per-node=9"])
def test_slurm_refuses_what_it_does_not_have(site: Mapping[str, str], tmp_path: Path, more: str) -> None:
    assert launch([*ON_TWO_NODES, f"bundle={tmp_path / 'bundle'}"]) == 0
    command = ["sbatch", "--test-only", more, "job.sh"]
    tested = subprocess.run(command, cwd=tmp_path / "bundle", env=site, capture_output=True, check=False)
    assert tested.returncode != 0


@pytest.mark.slurm
def test_a_job_whose_module_does_not_load_fails_and_says_so(site: Mapping[str, str], tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    assert launch([*ON_TWO_NODES, "cluster.job.modules=[no-such-module]", f"bundle={bundle}"]) == 0
    assert submitted(site, bundle) == "FAILED"
    (said,) = bundle.glob("slurm-*.out")
    assert "the module no-such-module does not load" in said.read_text(encoding="utf-8")
    assert not (bundle / "runs").exists()


def started(site: Mapping[str, str], runs: Path, *more: str) -> subprocess.Popen[str]:
    what = (*ON_TWO_NODES, "gpus_per_node=1", "training.seed=1,2", "name=m", f"runs_dir={runs}")
    argv = [sys.executable, str(ROOT / "launch.py"), "-m", *what, *more]
    return subprocess.Popen(argv, env=site, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slurm
@pytest.mark.drill("nothing was submitted")
@WITHOUT_CC
def test_a_matrix_of_jobs_survives_the_kill_of_its_runner_and_a_clock_that_jumps(
    site: Mapping[str, str], tmp_path: Path
) -> None:
    """The second runner is 400 days behind the first."""
    clock = {"LD_PRELOAD": library(tmp_path, CLOCK), "CLOCK_OFFSET": str(tmp_path / "offset")}
    (tmp_path / "offset").write_text(str(-400 * 86400), encoding="utf-8")
    first, journal = started(site, tmp_path), Journal(tmp_path / "m")
    wait_until(lambda: any(run.job for run in journal.read().runs.values()), "a job", 600)
    first.kill()
    first.communicate()
    again = started({**site, **clock}, tmp_path)
    out, err = again.communicate(timeout=1200)
    assert (again.returncode, out.count("completed ")) == (0, 2), err + out
    times = [json.loads(line)["at"] for line in journal.path.read_text("utf-8").splitlines()]
    assert times[-1] < times[0], "the journal's order counts, and no time in it"
    runs = journal.read().runs.values()
    assert [(run.state, run.attempt) for run in runs] == [("completed", 1)] * 2
    assert len({run.job for run in runs}) == 2 and len({run.tag for run in runs}) == 1, "one array"
    for run in runs:
        record = read(tmp_path / "m" / run.id)
        assert (record.status, len(record.steps), record.requested["world_size"]) == ("completed", 4, 2)
    assert started(site, tmp_path).wait(600) == 0 and [r.attempt for r in journal.read().runs.values()] == [1, 1]


@pytest.mark.slurm
def test_an_intention_without_an_answer_is_found_by_its_name(site: Mapping[str, str], tmp_path: Path) -> None:
    """As of a runner that was killed between its intention and the answer of sbatch."""
    first, journal = started(site, tmp_path), Journal(tmp_path / "m")
    wait_until(lambda: any(run.job for run in journal.read().runs.values()), "a job", 600)
    first.kill()
    first.communicate()
    lines = journal.path.read_text(encoding="utf-8").splitlines(keepends=True)
    upto = next(at for at, line in enumerate(lines) if '"submitted"' in line)
    (job,) = {run.job.partition("_")[0] for run in journal.read().runs.values() if run.job}
    journal.path.write_text("".join(lines[:upto]), encoding="utf-8")
    subprocess.run(["scancel", job], env=site, check=True)
    again = started(site, tmp_path, "cluster.retries=0")
    out, err = again.communicate(timeout=1200)
    assert (again.returncode, out.count("cancelled ")) == (1, 2) and "CANCELLED" in out, err + out
    assert {run.job.partition("_")[0] for run in journal.read().runs.values() if run.job} == {job}


@pytest.mark.slurm
@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("cluster.job.partition=none", "invalid partition"),
        ("cluster.job.options={gpus-per-node: 9}", "node configuration is not available"),
        ("cluster.job.partiton=ci", "did you mean"),
    ],
)
def test_what_slurm_refuses_is_not_submitted(site: Mapping[str, str], tmp_path: Path, more: str, says: str) -> None:
    process = started(site, tmp_path, more)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 2 and says in err and "Traceback" not in err, err
    assert not Journal(tmp_path / "m").read().active()


@pytest.mark.slurm
def test_a_job_that_may_never_start_says_why(site: Mapping[str, str], tmp_path: Path) -> None:
    """Slurm takes a job that asks for more time than its partition gives, and lets it wait."""
    matrix = Matrix(site, tmp_path, "training.seed=1", "cluster.job.time_limit=02:00:00")
    runner = matrix.start()
    # in the first second Slurm says PartitionConfig
    wait_until(lambda: any(run.waits_for == "PartitionTimeLimit" for run in matrix.runs()), "why it waits", 600)
    assert [run.state for run in matrix.runs()] == ["pending"]
    code, shown = matrix.command("status")
    assert code == 1 and f"job {matrix.runs()[0].job} waits: PartitionTimeLimit" in shown, shown
    assert matrix.command("cancel")[0] == 0
    code, shown = ended(runner)
    assert code == 1 and "waits: PartitionTimeLimit" in shown and matrix.runs()[0].state == "cancelled", shown


@pytest.mark.slurm
def test_a_job_that_fails_leaves_a_record_with_its_cause(site: Mapping[str, str], tmp_path: Path) -> None:
    process = started(site, tmp_path, "cluster.job.modules=[no-such-module]")
    out, err = process.communicate(timeout=1200)
    assert process.returncode == 1 and "no-such-module does not load" in out, err + out
    runs = Journal(tmp_path / "m").read().runs.values()
    assert [(run.state, run.attempt, len(run.causes)) for run in runs] == [("failed", 2, 2)] * 2
    assert all(read(tmp_path / "m" / run.id).status == "failed" for run in runs)
