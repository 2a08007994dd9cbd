"""Real runs through launch.py on this CPU: the record of each ending, and that no process outlives its run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import psutil
import pytest

import parsers
from conf.vocabulary import vocabulary
from tests.drills import PATIENCE_S, wait_until

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.engine
SMALL = ("platform=cpu", "name=t", "training.train_iters=8", "optimizer.lr_warmup_iters=2")
LONG = ("platform=cpu", "name=t", "training.train_iters=5000", "gpus_per_node=2", "layout=tp2")


def start(runs: Path, *arguments: str) -> subprocess.Popen[str]:
    argv = [sys.executable, str(ROOT / "launch.py"), f"runs_dir={runs}", *arguments]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str], timeout_s: float = 2 * PATIENCE_S) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=timeout_s)
    return process.returncode, out, err


def records(runs: Path) -> list[dict[str, Any]]:
    return [json.loads(p.read_text(encoding="utf-8")) for p in sorted(runs.glob("t/*/run.json"))]


def wait_for_step(runs: Path, iteration: int = 3) -> Path:
    """Return the run's directory, once its log reports `iteration`."""
    reported = f'"iteration": {iteration},'

    def logs() -> list[Path]:
        return [log for log in runs.glob("t/*/train.log") if reported in log.read_text(encoding="utf-8")]

    wait_until(logs, f"a log with iteration {iteration}")
    return logs()[0].parent


def engine_ranks(process: subprocess.Popen[str]) -> list[psutil.Process]:
    family = psutil.Process(process.pid).children(recursive=True)
    commands = {p: p.cmdline() for p in family}
    ranks = (p for p, words in commands.items() if any(word.endswith("engine.py") for word in words))
    return [p for p in ranks if not any(word.endswith("start_ranks.py") for word in commands[p])]


def the_record(runs: Path) -> dict[str, Any]:
    (record,) = records(runs)
    return record


def assert_gone(family: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(family, timeout=PATIENCE_S)
    assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []


def running(runs: Path, *arguments: str) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """Return a long run at work, and all its processes."""
    process = start(runs, *LONG, *arguments)
    wait_for_step(runs)
    return process, psutil.Process(process.pid).children(recursive=True)


def test_a_run_becomes_a_record_and_is_not_run_twice(tmp_path: Path) -> None:
    code, _, err = finish(start(tmp_path, *SMALL, "repeat=2"))
    assert code == 0, err
    found = records(tmp_path)
    assert [r["status"] for r in found] == ["completed", "completed"]
    assert [r["requested"]["seed"] for r in found] == [1234, 1235]
    record = found[0]
    assert record["differences"] == []
    stated = [name for name in record["requested"] if vocabulary()[name].dump]
    missing = [name for name in stated if name not in record["effective"]]
    assert missing == [], "every setting of the program is read back from the log's own dump"
    environment = record["environment"]
    for fact in ("torch", "megatron_core", "host", "device_name", "device_memory_bytes", "launcher_commit", "kernel"):
        assert environment[fact], fact
    assert record["summary"]["tokens_per_s"]["value"] > 0
    assert not (set(environment) & set(os.environ)), "no environment variable is copied into a record"

    schema = json.loads((ROOT / "parsers" / "run.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(record, schema)
    names = ["data", "experiment.yaml", "plan.json", "run.json", "settings.json", "steps.jsonl", "train.log"]
    assert [sorted(path.name for path in run.iterdir()) for run in tmp_path.glob("t/*/")] == [names, names]

    before = (tmp_path / "t").stat().st_mtime_ns
    code, _, err = finish(start(tmp_path, *SMALL, "repeat=2"))
    assert code == 0
    assert "completed before" in err
    assert (tmp_path / "t").stat().st_mtime_ns == before

    code, _, err = finish(start(tmp_path, *SMALL, "rerun=true"))
    assert code == 0
    assert len(list(tmp_path.glob("t/*/attempts/1/run.json"))) == 1


def test_a_rank_that_dies_ends_the_run_at_once(tmp_path: Path) -> None:
    process, family = running(tmp_path)
    killed_at = time.monotonic()
    engine_ranks(process)[1].kill()
    code, _, _ = finish(process)
    assert time.monotonic() - killed_at < 100, "seconds on an idle machine, and not half an hour of waiting for it"
    assert code == 1
    assert_gone(family)
    record = the_record(tmp_path)
    assert record["status"] == "failed" and "SIGKILL" in record["cause"] and record["last_lines"]


@pytest.mark.slow
def test_a_rank_that_hangs_ends_as_hung(tmp_path: Path) -> None:
    process, family = running(tmp_path, "hang_after_s=40")  # before the first step nothing is logged
    stopped_at = time.monotonic()
    engine_ranks(process)[1].suspend()
    code, _, _ = finish(process)
    assert 30 < time.monotonic() - stopped_at < PATIENCE_S
    assert code == 1
    assert_gone(family)
    assert the_record(tmp_path)["status"] == "hung"


@pytest.mark.usefixtures("heeds_ctrl_c")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_is_not_run_twice_at_a_time_and_a_signal_ends_it(tmp_path: Path, number: signal.Signals) -> None:
    process, family = running(tmp_path, "repeat=3")
    if number == signal.SIGTERM:
        code, _, err = finish(start(tmp_path, *LONG))
        assert code == 2, "the first of the three runs"
        assert "another process is running this very run" in err
    process.send_signal(number)
    code, _, err = finish(process)
    assert code == 1
    assert "Traceback" not in err
    assert_gone(family)
    record = the_record(tmp_path)  # of one: the other repeats are not started
    assert (record["status"], number.name in record["cause"]) == ("killed", True)


def test_a_loss_that_is_not_a_number_is_diverged(tmp_path: Path) -> None:
    code, _, _ = finish(start(tmp_path, *SMALL, "optimizer.lr=1.0e+30", "optimizer.clip_grad=0"))
    assert code == 1
    assert the_record(tmp_path)["status"] == "diverged"


def test_a_launcher_that_is_killed_leaves_a_row_and_no_ranks(tmp_path: Path) -> None:
    process, family = running(tmp_path)
    process.kill()
    finish(process)
    assert_gone(family)
    assert the_record(tmp_path)["status"] == "running", "nobody was left to write another"


def test_a_secret_in_a_log_is_blotted_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from parsers import Record
    from tensorprimat import run

    monkeypatch.setenv("HF_TOKEN", "hf_very_secret_value")
    record = Record(id="x", name="x", provenance="measured", status="failed", cause="bad hf_very_secret_value")
    assert run._without_secrets(record).cause == "bad [secret]"


def test_a_cpu_does_not_pass_for_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver shows a GPU, and torch has no use of it: the wrong build, or no rights in the container."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA H200, 143771, 570.86'\n", encoding="utf-8")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    code, _, _ = finish(start(tmp_path, "model=llama_tiny", "name=t"))
    assert code == 1
    record = the_record(tmp_path)
    assert record["status"] == "failed" and "meant for cuda" in record["cause"] and "has cpu here" in record["cause"]


def test_a_disk_that_fills_up_leaves_a_record(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("no rights to mount a small file system")
    try:
        sizes = ("training.train_iters=2000", "training.seq_length=16", "training.global_batch_size=1")
        code, _, err = finish(start(small, "platform=cpu", "name=t", "data=synthetic", *sizes))
        assert code == 1, err
        record = the_record(small)
        assert record["status"] == "failed" and "No space left on device" in record["cause"]
    finally:
        subprocess.run(["umount", str(small)], check=True)


SAVING = ("platform=cpu", "training.train_iters=60", "training.save_interval=4", "model.num_layers=2")


def steps(directory: Path) -> list[tuple[int | None, float | None, float | None]]:
    return [(s.iteration, s.loss, s.grad_norm) for s in parsers.read(directory).steps]


@pytest.mark.slow
def test_a_killed_run_goes_on_and_its_record_covers_all_steps(tmp_path: Path) -> None:
    process = start(tmp_path, *SAVING, "name=t")
    wait_until(lambda: [*tmp_path.glob("t/*/checkpoints/latest")], "a checkpoint")
    (latest,) = tmp_path.glob("t/*/checkpoints/latest")
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] == 1
    directory = latest.parent.parent
    first = steps(directory)
    assert parsers.read(directory).status == "killed"
    assert 4 <= len(first) < 60

    code, _, err = finish(start(tmp_path, *SAVING, "name=t", "resume=true"))
    assert code == 0, err
    (record,) = records(tmp_path)
    assert record["status"] == "completed"
    assert any(note.startswith("resumed after iteration ") for note in record["notes"])
    assert not (directory / "attempts").exists()
    assert finish(start(tmp_path, *SAVING, "name=u"))[0] == 0
    (uninterrupted,) = tmp_path.glob("u/*/")
    assert [iteration for iteration, _, _ in steps(directory)] == list(range(1, 61))
    assert steps(directory) == steps(uninterrupted)
