"""Logs that are brought from elsewhere: found below a folder, completed by hand, saved, followed, and old records."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from parsers import parse_all, read
from parsers.cli import discover, main
from parsers.given import given_of
from parsers.importers import read_record
from tests.parsers.helpers import FIXTURES

ROOT = Path(__file__).parents[2]
MODERN = FIXTURES / "megatron_modern.log"
SHARED = Path(__file__).parents[3] / "shared" / "records"


def old_record(path: Path, **changes: Any) -> Path:
    entry = {
        "platform": "amd",
        "gpu_info": {"device_name": "AMD Instinct MI300X", "device_count": 8, "total_memory_gb": 206.14165},
        "parallelism_config": {"tensor_model_parallel_size": 1, "gradient_accumulation_steps": 16},
        "training_config": {"max_steps": 3, "global_batch_size": 64, "sequence_length": 2048, "num_gpus": 8},
        "performance_metrics": {"tokens_per_second_per_gpu": 6742.9},
        "step_times": [22.7, 2.7, 2.5],
        "loss_values": [11.8, 11.4, 10.9],
        "learning_rates": [6e-6, 1.2e-5],
        **changes,
    }
    path.write_text(json.dumps(entry))
    return path


def test_logs_are_found_by_what_they_hold(tmp_path: Path) -> None:
    rank = tmp_path / "output" / "logs" / "rank-7"
    rank.mkdir(parents=True)
    (rank / "debug.txt").write_bytes(MODERN.read_bytes())
    (rank.parent / "node0.out").write_text("\n".join(MODERN.read_text().splitlines()[:20]))
    (tmp_path / "console").write_bytes(b"starting\n" * 100 + MODERN.read_bytes())
    (tmp_path / "picture.log").write_bytes(b"\x89PNG\r\n\x1a\n")
    (tmp_path / "empty.log").touch()
    (tmp_path / "make.log").write_text("gcc -c a.c\n")
    with gzip.open(tmp_path / "old.gz", "wb") as stream:
        stream.write((FIXTURES / "torchtitan_tiny.log").read_bytes())
    os.utime(tmp_path / "old.gz", (1, 1))
    found, passed = discover([tmp_path])
    assert [(one.path.name, one.dialect) for one in found] == [("console", "megatron"), ("old.gz", "torchtitan")]
    assert {one.path.name: one.why.split(" as ")[0] for one in passed} == {
        "debug.txt": "the same steps",
        "node0.out": "no steps in it",
        "picture.log": "an image",
        "empty.log": "empty",
        "make.log": "nothing of training in it",
    }


def test_repeats_of_a_run_are_no_copies(tmp_path: Path) -> None:
    text = MODERN.read_text()
    (tmp_path / "a.log").write_text(text)
    (tmp_path / "b.log").write_text(text.replace("(ms): 4000.0", "(ms): 4100.0"))
    assert len(discover([tmp_path])[0]) == 2


def test_a_folder_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.log").write_bytes(MODERN.read_bytes())
    assert main([str(tmp_path), "--csv"]) == 0
    out, err = capsys.readouterr()
    assert "parsed" in err
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["iteration"] for row in rows] == [str(i) for i in range(1, 9)]
    assert rows[0]["lr_used"] == ""
    assert json.loads(rows[1]["metrics"]) == {"step_time_s_running_mean": 2.251}


def test_saved_and_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    log = FIXTURES / "megatron_deepspeed_seconds.log"
    assert main([str(log), "--save", "model=llama32_1b", "hardware=h100", "world_size=8"]) == 0
    (directory,) = (tmp_path / "runs" / "imported").iterdir()
    record = read(directory)
    stated = (record.hardware, record.vendor, record.setting("hidden_size"), record.setting("world_size"))
    assert stated == ("h100", "nvidia", 2048, 8)
    assert "hidden_size" not in record.effective
    assert record.given["model"] == "llama32_1b"
    assert len(record.steps) == 8


def test_a_record_is_written_to_one_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(MODERN), "--save", "-o", str(tmp_path)]) == 2
    assert "beside --save" in capsys.readouterr().err and not [*tmp_path.iterdir()]


def test_what_a_log_contradicts_is_refused_with_both_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(MODERN), "-o", str(tmp_path), "num_layers=99", "world_size=16", "model=llama31_8b"]) == 2
    err = capsys.readouterr().err
    assert "num_layers: the log of megatron_modern says otherwise\n    found: num_layers 99\n" in err
    assert "    allowed: num_layers 4 (line 15)\n    try: another num_layers=, or none" in err
    assert "world_size 16" in err and "llama31_8b: hidden_size 4096" in err and not [*tmp_path.iterdir()]


def test_numbers_are_given_as_people_type_them() -> None:
    given = given_of(["seq_length=4k", "train_iters=1e3", "weight_decay=10%", "model=llama"])
    assert given == {"seq_length": 4000, "train_iters": 1000, "weight_decay": 0.1, "model": "llama"}
    assert type(given["train_iters"]) is int


def test_what_cannot_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    for words, says in {
        "modle=llama hardware=h1000": ("modle", "h1000"),
        "precision=nvfp5": ("mxfp8, fp4, nvfp4, mxfp4", "did you mean nvfp4?"),
        "vendor=nvida platform=zz": ("did you mean nvidia?", "amd, cpu, nvidia"),
        "--dialect nemo2": ("try: dialect=nemo2",),
        "--follow -o out power=x lr=1 --save": ("--follow: takes one log", "--save, -o, lr, power"),
    }.items():
        assert main([str(MODERN), *words.split()]) == 2
        err = capsys.readouterr().err
        assert [part for part in (*says, "") if part not in err] == []
        assert "Traceback" not in err
    assert main([str(MODERN), "vendor=nvidia"]) == 0
    assert "hardware" not in capsys.readouterr().out, "a maker is no device"


def test_several_runs_in_one_log_are_several_records(tmp_path: Path) -> None:
    log = tmp_path / "two.log"
    log.write_bytes(MODERN.read_bytes() * 2)
    assert main([str(log), "-o", str(tmp_path / "out")]) == 0
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["two-run1", "two-run2"]
    assert read(tmp_path / "out" / "two-run2").notes[0].startswith("run 2 of 2 in this log, from line ")


def test_standard_input() -> None:
    command = [sys.executable, "-m", "parsers", "-", "--json"]
    for data in (MODERN.read_bytes(), gzip.compress(MODERN.read_bytes())):
        done = subprocess.run(command, input=data, capture_output=True, check=True, cwd=ROOT)
        assert len(json.loads(done.stdout)[0]["steps"]) == 8


def test_a_growing_log_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log, data = tmp_path / "train.log", MODERN.read_bytes()
    log.touch()
    parts = [data[at : at + 50] for at in range(0, len(data), 50)]

    def grow(_: float) -> None:
        if not parts:
            raise KeyboardInterrupt
        with log.open("ab") as stream:
            stream.write(parts.pop(0))

    monkeypatch.setattr("parsers.cli.time.sleep", grow)
    assert main([str(log), "--follow"]) == 0
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("iteration")]
    assert [line.split(":")[0] for line in shown] == [f"iteration {i}" for i in range(1, 9)]


def test_the_power_of_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    power = tmp_path / "power.csv"
    samples = "2026/09/11 04:19:41.0, 0, 100 W\n2026/09/11 04:19:43.0, 0, 100 W\n"
    power.write_text(f"timestamp, index, power.draw [W]\n{samples}")
    assert main([str(MODERN), f"power={power}", "-o", str(tmp_path / "out")]) == 0
    assert "200 J integrated" in capsys.readouterr().out
    assert read(tmp_path / "out").power[0].energy_integrated_j == 200.0


def test_a_series_of_another_length_is_nobodys(tmp_path: Path) -> None:
    record = read_record(old_record(tmp_path / "train_amd_prim_llama.json"))
    steps = [(0, 11.8, 22.7, None), (1, 11.4, 2.7, None), (2, 10.9, 2.5, None)]
    assert [(s.step, s.loss, s.step_time_s, s.lr) for s in record.steps] == steps
    assert record.notes == ("lr: 2 values for 3 steps; which is whose is not known",)
    assert (record.framework, record.vendor, record.status) == ("primus", "amd", "completed")
    assert record.setting("seq_length") == 2048
    assert record.setting("hidden_size") is None
    assert record.environment["device_memory_bytes"] == 206141650000


@pytest.mark.parametrize("text", ["{", "[]", '{"gpu_info": 3, "platform": 1}', '{"gpu_info": {}, "platform": 1}'])
def test_broken_old_records(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train_x.json"
    path.write_text(text)
    assert main([str(path)]) in (0, 2)
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.skipif(not SHARED.exists(), reason=f"{SHARED} is not here")
def test_the_predecessors_own_records(tmp_path: Path) -> None:
    for name, framework in (("train_amd_prim_llama", "primus"), ("train_nvd_nemo_llama", "nemo")):
        assert main([str(SHARED / f"{name}.json"), "-o", str(tmp_path / name)]) == 0
        record = read(tmp_path / name)
        assert (record.framework, len(record.steps), record.status) == (framework, 500, "completed")
        assert record.provenance == "imported"
    amd = read(tmp_path / "train_amd_prim_llama")
    assert (amd.steps[0].loss, amd.steps[0].lr) == (11.89548, None)


def test_a_log_and_its_copy_in_gzip_are_one(tmp_path: Path) -> None:
    packed = tmp_path / "a.log.gz"
    packed.write_bytes(gzip.compress(MODERN.read_bytes()))
    assert parse_all(packed) == parse_all(MODERN)
    packed.write_bytes(packed.read_bytes()[:-200])
    assert parse_all(packed)
