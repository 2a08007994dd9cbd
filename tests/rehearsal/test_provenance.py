"""Rehearsals of which something is not what it was named, and the fields and switches that real stacks differ in."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from conf import load_experiment
from launchers import make_plan
from launchers.plan import Host
from launchers.rehearse import prepared
from tensorprimat.run import run_once
from tests.rehearsal.probed import rank_file
from tests.rehearsal.stacks import SAME, compared, rehearsed


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the run of the embedded engine that the others are held against."""
    record, path = rehearsed(tmp_path_factory.mktemp("clean"), "megatron")
    assert record.status == "completed" and record.read_back and record.read_back.process
    process = record.read_back.process
    assert {"torch", "megatron-core"} <= process.commits.keys()
    assert (process.changed, process.ahead, "edited_files" in record.environment) == ((), (), False)
    return path


@pytest.mark.nvidia
def test_a_patched_megatron_in_front_of_the_path(
    clean: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "import megatron.core; print(megatron.core.__path__[0])"
    found = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=True).stdout.strip()
    patched = tmp_path / "patched"
    shutil.copytree(found, patched / "megatron" / "core")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(patched))
        record, path = rehearsed(tmp_path, "megatron")
    assert record.status == "completed"
    answer = compared(capsys, clean, path)
    assert answer["verdict"]["word"] == "not comparable"
    assert [str(patched) in reason for reason in answer["verdict"]["reasons"] if "code_ahead" in reason] == [True]
    (row,) = (row for row in answer["audit"] if row["setting"].startswith("code_"))
    assert row["setting"] == "code_ahead" and row["decides"]


@pytest.mark.nvidia
def test_a_rendered_file_that_was_edited_before_the_ranks_began(
    clean: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    e, scope = prepared(load_experiment("framework=megatron", f"runs_dir={tmp_path}", "name=t", *SAME))
    plan = make_plan(e, Host(python=sys.executable, cpu_count=2))
    edit = ("sed", "-i", 's/.adam_eps.: [^,]*/"adam_eps": 1e-7/', "settings.json")
    record, path = run_once(e, replace(plan, setup=(*plan.setup, edit)), scope)
    assert (record.status, record.environment["edited_files"]) == ("completed", ["settings.json"])
    reasons = compared(capsys, clean, path)["verdict"]["ranked"]
    assert {"code_edited", "adam_eps"} <= {name for reason in reasons for name in reason["settings"]}


def fields(answer: dict[str, object]) -> dict[str, dict[str, object]]:
    rows = answer["objects"]
    assert isinstance(rows, list)
    return {f"{row['object']}.{row['field']}": row for row in rows}


@pytest.mark.nvidia
def test_a_field_that_no_setting_of_ours_covers_is_named(
    clean: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record, path = rehearsed(tmp_path, "nemo", wrong={"model.config.rotary_percent": 0.5, "data.num_workers": 2})
    assert record.status == "completed"
    found = fields(compared(capsys, clean, path))
    row = found["GPTModel.rotary_percent"]
    assert (row["cause"], row["weight"]) == ("forward", "differs")
    assert sorted(map(repr, row["values"].values())) == ["[0.5]", "[1.0]"]  # type: ignore[attr-defined]
    workers = found["Switches.num_workers"]
    assert (workers["cause"], [2] in workers["values"].values()) == ("speed", True)  # type: ignore[attr-defined]


@pytest.mark.nvidia
def test_real_objects_are_read_without_a_fault_and_in_no_time(clean: Path) -> None:
    read = rank_file(clean)
    assert read["faults"] == []
    assert {"TransformerConfig", "OptimizerConfig", "GPTDatasetConfig", "GPTModel", "Switches"} <= read[
        "objects"
    ].keys()
    assert read["objects"]["GPTModel"]["fields"]["rotary_percent"] == 1.0
    assert read["probe_time_total_s"] < 10, "0.2 s on an idle machine"
