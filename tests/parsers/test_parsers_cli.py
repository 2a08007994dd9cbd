"""`python -m parsers`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from parsers import read
from parsers.cli import imported, main, rows

ROOT = Path(__file__).parent.parent.parent
ENGINE = Path(__file__).parent / "fixtures" / "engine.log"


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(ENGINE)]) == 0
    out = capsys.readouterr().out
    assert "completed" in out
    assert "tensor_model_parallel_size" in out


def test_json_and_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "other.log"
    copy.write_bytes(ENGINE.read_bytes())
    assert main([str(ENGINE), str(copy), "--json", "-o", str(tmp_path / "out")]) == 0
    shown = json.loads(capsys.readouterr().out)
    written = read(tmp_path / "out" / "engine")
    assert [entry["log"] for entry in shown] == ["engine.log", "other.log"]
    assert len(shown[0]["steps"]) == len(written.steps)
    assert written.provenance == "imported"
    assert written.id != read(tmp_path / "out" / "other").id


@pytest.mark.parametrize("content", [b"", b"\x89PNG\r\n\x1a\n\x00\xff", b"gcc -c a.c\nerror: x\n"])
def test_what_is_no_training_log(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(content)
    assert main([str(log)]) == 2
    err = capsys.readouterr().err
    assert "is not a training log" in err
    assert sum("iteration N/ TOTAL" in line for line in err.splitlines()) == 1, "a line for each dialect"
    assert "add its dialect (parsers/README.md)" in err
    assert "Traceback" not in err
    assert main([str(log), "dialect=megatron"]) == 0
    assert "the log has no step lines" in capsys.readouterr().out


def test_paths_that_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "missing.log")]) == 2
    assert main([str(tmp_path)]) == 2
    assert "Megatron" in capsys.readouterr().err, "what was looked for"
    (tmp_path / "file").write_text("")
    assert main([str(ENGINE), "-o", str(tmp_path / "file" / "below")]) == 2
    assert main([str(ENGINE), str(ENGINE), "-o", str(tmp_path / "out")]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_reader_that_goes_away_sees_no_traceback() -> None:
    command = [sys.executable, "-m", "parsers", "--json", *[str(ENGINE)] * 9]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reading:
        assert reading.stdout is not None and reading.stderr is not None
        assert reading.stdout.readline() == b"[\n"
        reading.stdout.close()
        assert reading.stderr.read() == b""
    assert reading.returncode == 0


def test_what_did_not_run_as_requested_is_shown() -> None:
    record = replace(imported(ENGINE), requested={"lr": 0.1, "seed": 1})
    assert ("difference", "lr: requested 0.1, ran 0.003") in rows(record)
    assert [label for label, _ in rows(record)].count("difference") == 1
    assert all(label != "difference" for label, _ in rows(imported(ENGINE)))


def test_without_steps_the_log_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "a.log"
    log.write_text("---- arguments ----\n  lr ........ 0.1\n---- end of arguments ----\nValueError: \x1b[31mno\n")
    assert main([str(log)]) == 0
    out = capsys.readouterr().out
    assert "failed: ValueError: no" in out
    assert "the log has no step lines" in out
