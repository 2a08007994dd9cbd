"""`python -m parsers`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from conf.errors import InputError
from parsers import read, write
from parsers.cli import discover, imported, main, rows

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


@pytest.mark.parametrize(
    ("content", "looks_like"),
    [
        (b"", "an empty file"),
        (b"\x89PNG\r\n\x1a\n\x00\xff", "binary data"),
        (b"gcc -c a.c\nerror: x\n", "text of 2 lines that say nothing of training"),
        (b"0" * 200_000, "text of 1 lines that say nothing of training"),
        (b'{"a": 1}\n{"a": 2}\n', "JSON of 2 lines with the keys a"),
        (b'{\n "a": 1\n}\n', "a JSON document"),
        (b"time,loss,lr\n1,2,3\n", "CSV with the columns time, loss, lr"),
        (b"import os\n\nLINE = ' iteration 1/ 2 | lm loss: 3.0 |'\n", "Python source"),
        (
            b"starting\nhello, step 1\nupdate 12 of 40; cost (loss) 3.25; 812 ms\nbye\n",
            "a log of a trainer that is not known; its likeliest step line: update 12 of 40; cost (loss) 3.25; 812 ms",
        ),
    ],
)
def test_what_is_no_training_log(
    content: bytes, looks_like: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(content)
    assert main([str(log)]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith(f"is not a training log that is known here; it looks like {looks_like}")
    assert "parsers/README.md" in second
    assert main([str(log), "dialect=hf"]) == 0
    assert "the log has no step lines" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "trainer"),
    [
        ("(TaskRunner pid=7) step:3 - actor/entropy:0.4 - actor/pg_loss:0.02 - critic/score/mean:0.5", "verl"),
        ("(main_task pid=7) {'actor_rollout_ref': {'actor': {'clip_ratio': 0.2,", "verl"),
        ("step:3 - train/loss:0.5 - train/lr(1e-3):0.01", "verl's SFT trainer"),
        ("rollout.py:1193 - perf 0: {'rollout/response_len/mean': 27.5, 'perf/rollout_time': 3.1}", "slime"),
        ("02:40:53 SUCCESS Step 1 | Time: 0.60s | Loss: 1.3 | Throughput: 3324 tokens/s | MFU: 1.0%", "prime-rl"),
    ],
)
def test_a_trainer_that_is_not_supported_is_named(
    line: str, trainer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "rl.log"
    log.write_text(f"loading\n{line}\n{{'loss': 0.5, 'learning_rate': 1e-05, 'epoch': 0.1}}\n")
    assert main([str(log)]) == 2
    assert f"is a log of {trainer}, which is not supported" in capsys.readouterr().err
    assert [(other.path, trainer in other.why) for other in discover([tmp_path])[1]] == [(log, True)]


def test_the_sources_of_a_checkout_are_no_logs() -> None:
    folders = ("benchmarks", "conf", "docs", "launchers", "parsers", "tests")
    logs = [log.path.relative_to(ROOT).parts[:3] for log in discover([ROOT / folder for folder in folders])[0]]
    assert {*logs} == {("tests", "parsers", "fixtures")}


def test_paths_that_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "missing.log")]) == 2
    assert main([str(tmp_path)]) == 2
    assert "Megatron" in capsys.readouterr().err, "what was looked for"
    (tmp_path / "file").write_text("")
    assert main([str(ENGINE), "-o", str(tmp_path / "file" / "below")]) == 2
    assert main([str(ENGINE), str(ENGINE), "-o", str(tmp_path / "out")]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_parsed_log_replaces_a_parsed_log_and_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here, others = tmp_path / "out", ["name=a", "name=b"]
    for name in others:
        assert main([str(ENGINE), name, "-o", str(here)]) == 0
    run = replace(read(here), provenance="measured", id="mine")
    write(run, here)
    capsys.readouterr()
    assert main([str(ENGINE), "-o", str(here)]) == 2
    assert "found: measured, completed: mine" in capsys.readouterr().err
    copy = tmp_path / "other.log"
    copy.write_bytes(ENGINE.read_bytes())
    write(run, here / "other")
    assert main([str(ENGINE), str(copy), "-o", str(here)]) == 2
    assert (read(here), read(here / "other")) == (run, run) and not (here / "engine").exists(), "all or nothing"


def test_a_rehearsed_log_that_has_grown_is_parsed_again_and_replaces_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = ENGINE.read_text(encoding="utf-8").replace('{"torch"', '{"stand_in": "a vendor", "torch"', 1)
    log, other, here = tmp_path / "a.log", tmp_path / "b.log", tmp_path / "out"
    for text in (whole[: len(whole) // 2], whole):
        log.write_text(text, encoding="utf-8")
        assert main([str(log), "-o", str(here)]) == 0
    grown = read(here)
    assert (grown.provenance, len(grown.steps)) == ("rehearsed", len(imported(ENGINE).steps))
    other.write_text(whole, encoding="utf-8")
    capsys.readouterr()
    assert main([str(other), "-o", str(here)]) == 2
    error = capsys.readouterr().err
    assert "has a record of another run" in error and f"found: rehearsed, completed: {grown.id}" in error
    assert read(here) == grown


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("", "is not JSON"),
        ('{"id": "a', "is not JSON"),
        ('{"foo": 1}', "is not a record of ours"),
        ('{"schema_version": 99}', "schema version not known here"),
    ],
)
def test_a_run_json_that_is_no_record_says_what_to_do(
    content: str, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (there := tmp_path / "run.json").write_text(content, encoding="utf-8")
    assert main([str(ENGINE), "-o", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert what in error and f"try: another directory: -o {tmp_path}-imported; or remove {there}" in error
    there.unlink()
    assert main([str(ENGINE), "-o", str(tmp_path)]) == 0


def test_what_is_said_of_cut_steps_can_be_done(tmp_path: Path) -> None:
    here = tmp_path / "run"
    write(replace(imported(ENGINE), provenance="measured"), here)
    (here / "steps.jsonl").write_text("", encoding="utf-8")
    with pytest.raises(InputError) as refused:
        read(here)
    words = refused.value.problems[0].hint.replace("DIR", str(here)).partition(" LOG ")[2].split()
    assert main([str(ENGINE), *words]) == 0
    assert read(Path(words[-1])).steps == imported(ENGINE).steps


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
