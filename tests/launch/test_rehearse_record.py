"""The record of a rehearsal: when it has passed, what it does not say, a vendor that is missing, dies or hangs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from conf.load import load
from conf.resolve import Experiment
from launchers import runner
from launchers.plan import Plan
from launchers.rehearse import prepared
from parsers import Ending, Outcome, Record, Step
from parsers.assemble import without_speeds
from tensorprimat import launch, run

pytestmark = pytest.mark.long

PIPELINED = ("nodes=8", "layout.tensor_model_parallel_size=8", "layout.pipeline_model_parallel_size=8")


def toy_of(framework: str) -> Experiment:
    return prepared(load(["rehearse=train", f"framework={framework}"]))[0]


def test_a_rehearsal_that_ends_badly_after_its_last_step_has_not_passed(tmp_path: Path) -> None:
    e = toy_of("nemo")
    judged = Outcome("completed", None, ("all 10 iterations were done; exit code 139 came after them: SIGSEGV",))
    found = run.rehearsal_outcome(e, judged, Ending(exit_code=139), tmp_path / "train.log")
    assert found.status == "failed" and found.cause is not None and "139" in found.cause
    assert run.rehearsal_outcome(e, Outcome("completed"), Ending(exit_code=0), tmp_path) == Outcome("completed")


def test_no_number_of_a_rehearsal_is_a_speed() -> None:
    names = ("params_norm", "tokens_checksum", "mfu_percent", "tokens_per_s", "elapsed_ms", "peak_memory_gb", "z_loss")
    step = Step(step=0, line=1, iteration=1, loss=1.0, step_time_s=1.0, memory_bytes=5, memory_kind="allocated")
    step = replace(step, metrics=dict.fromkeys(names, 1.0), tokens_per_s_per_gpu=1.0, end_monotonic_s=2.0)
    known = Record(id="a", name="a", provenance="rehearsed", status="completed", steps=(step,))
    (kept,) = without_speeds(known).steps
    assert kept == Step(step=0, line=1, iteration=1, loss=1.0, metrics=dict.fromkeys(sorted(kept.metrics), 1.0))
    assert set(kept.metrics) == {"params_norm", "tokens_checksum", "z_loss"}


# What becomes of a vendor's process: an interpreter that answers where its packages are, and then does as a test says.

FAKE = """#!/bin/bash
[[ $1 == -c ]] && mkdir -p $0-site && echo Version: 1 | tee $0-site/{torch,megatron_core,nemo_toolkit}-1.egg-info >&2
[[ $1 == -c ]] && { echo '["'$0-site'"]'; exit; }
[[ $1 == *corpus.py ]] && exec REAL "$@"
WHAT
"""


def launched(
    tmp_path: Path, what: str, *overrides: str, capsys: pytest.CaptureFixture[str]
) -> tuple[int, dict[str, Any]]:
    """Return exit code and record of a rehearsal of NeMo whose interpreter does `what`."""
    fake = tmp_path / "python"
    fake.write_text(FAKE.replace("REAL", sys.executable).replace("WHAT", what), encoding="utf-8")
    fake.chmod(0o755)
    code = launch.main(
        ["framework=nemo", f"framework.python={fake}", "rehearse=train", f"runs_dir={tmp_path}", *overrides, "--json"]
    )
    (row,) = json.loads(capsys.readouterr().out)
    record: dict[str, Any] = json.loads((Path(row["run"]) / "run.json").read_text(encoding="utf-8"))
    assert record["provenance"] == "rehearsed"
    return code, record


def test_a_vendor_that_dies_without_a_word_has_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, record = launched(tmp_path, "exit 0", capsys=capsys)
    assert (code, record["status"]) == (1, "failed"), "exit code 0 and no step is no pass"
    assert record["cause"].startswith("exit code 0 after no iteration")
    code, record = launched(tmp_path, "echo starting; exit 7", capsys=capsys)
    assert (code, record["status"], record["exit_code"]) == (1, "failed", 7)
    assert record["last_lines"][-1] == "starting" and "exit code 7" in record["cause"]


def test_a_vendor_that_is_killed_or_takes_too_long_has_not_passed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, record = launched(tmp_path, "echo importing; kill -9 $$", capsys=capsys)
    assert (code, record["status"], record["exit_code"]) == (1, "killed", -9)
    assert record["cause"] == "ended by SIGKILL from outside" and record["last_lines"][-1] == "importing"
    given = ("-m", "training.seed=1,2", "framework=nemo", f"framework.python={tmp_path / 'python'}", "rehearse=train")
    assert launch.main([*given, f"runs_dir={tmp_path}", "--json"]) == 1
    assert len(json.loads(capsys.readouterr().out)) == 2, "the rest run"
    monkeypatch.setitem(run.REHEARSAL_LIMIT_S, "train", 6.0)  # a corpus is made before
    code, record = launched(tmp_path, "while :; do echo importing; sleep 0.1; done", capsys=capsys)
    assert (code, record["status"]) == (1, "hung") and record["cause"].startswith("ended at its time limit")
    assert record["last_lines"][-1] == "importing" and record["exit_code"] != 0


def test_a_vendor_that_hangs_is_ended_and_its_last_line_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, record = launched(tmp_path, "echo waiting for rank 1; sleep 60", "hang_after_s=5", capsys=capsys)
    assert (code, record["status"]) == (1, "hung") and "waiting for rank 1" in record["cause"]


def test_a_played_rank_without_its_mark_has_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    what = """[[ $TPRIMAT_PLAY_RANK == 0 ]] && echo '[tprimat] rehearsed {"rank": 0, "world": 64}'; exit 0"""
    code, record = launched(tmp_path, what, "rehearse=layout", *PIPELINED, capsys=capsys)
    assert (code, record["status"]) == (1, "failed")
    assert record["cause"].startswith("rank 56 of 64 did not come to a first step")


def test_a_layout_whose_ranks_left_no_count_has_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    what = """echo "[tprimat] rehearsed {\\"rank\\": $TPRIMAT_PLAY_RANK, \\"world\\": 64}"; exit 0"""
    code, record = launched(tmp_path, what, "rehearse=layout", *PIPELINED, capsys=capsys)
    assert (code, record["status"]) == (1, "failed") and "reported no parameters" in record["cause"]


NO_BEGINNING = {
    "v99.9": ("framework=primus", "framework.release=v99.9", "rehearse=train"),
    "is not a checkout of Primus": ("framework=primus", "rehearse=train", "framework.checkout=/nowhere"),
    "num_layers 126 / 8": (
        *("framework=primus", "rehearse=layout", "method=max_performance", "batch=vendor"),
        *("model=llama31_405b", "hardware=mi300x", "nodes=8"),
    ),
}


@pytest.mark.parametrize("said", NO_BEGINNING)
def test_a_rehearsal_that_cannot_begin_is_a_failed_record(
    said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = launch.main([*NO_BEGINNING[said], f"runs_dir={tmp_path}", "--json"])
    (row,) = json.loads(capsys.readouterr().out)
    assert (code, row["status"]) == (1, "failed") and said in row["cause"] and " try: " in row["cause"]


@pytest.mark.engine
def test_one_that_is_not_installed_is_a_record_and_the_rest_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ("model=llama_tiny", "layout=data_parallel", "gpus_per_node=1", "precision=fp32")
    here = ("-m", "framework=nemo,megatron", f"framework.python={sys.executable}", "rehearse=train", "equal_init=true")
    code = launch.main([*here, f"runs_dir={tmp_path}", *small, "--json"])
    rows = json.loads(capsys.readouterr().out)
    records = [json.loads((Path(row["run"]) / "run.json").read_text(encoding="utf-8")) for row in rows]
    assert code == 1 and [record["status"] for record in records] == ["failed", "completed"]
    assert "nemo_toolkit missing in" in records[0]["cause"]
    trained = records[1]
    assert (trained["provenance"], trained["platform"]) == ("rehearsed", "nvidia")
    assert (
        trained["differences"] == [] and trained["shrunk"]["train_iters"]["ran"] == trained["requested"]["train_iters"]
    )
    steps = [
        json.loads(line) for line in (Path(rows[1]["run"]) / "steps.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    speeds = ("step_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "memory_bytes", "end_monotonic_s")
    assert {step[name] for step in steps for name in speeds} == {None}
    assert all(step["loss"] and step["lr_used"] for step in steps)
    read = trained["read_back"]
    assert len(read["first_weights"]) == len(read["first_gradients"]) == len(read["last_weights"]) > 10
    assert steps[0]["grad_norm"] == pytest.approx(
        sum(t["norm"] ** 2 for t in read["first_gradients"].values()) ** 0.5, rel=1e-5
    )
    assert [batch["tokens"] for batch in read["batches"]] == [step["metrics"]["tokens_checksum"] for step in steps]
    assert read["optimizer"]["weight_decays"] == [trained["requested"]["weight_decay"]] * len(steps)
    measured = {name for name, q in trained["summary"].items() if q["value"] is not None}
    assert not measured & {"tokens_per_s", "step_time_s", "mfu", "memory_bytes"}


def test_a_command_that_takes_too_long_in_all_is_ended(tmp_path: Path) -> None:
    program = "import time\nwhile True: print(1), time.sleep(.1)"
    talks = Plan(argv=(sys.executable, "-u", "-c", program), files={}, env={})
    ending = runner.execute(talks, tmp_path, 60.0, lambda line: None, limit_s=1.0)
    assert ending.over_limit and not ending.hung and ending.wall_time_s < 30
