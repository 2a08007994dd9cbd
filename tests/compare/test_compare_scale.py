"""Many runs: chosen by filters, their steps read when they are needed, on all cores, with a bar on a terminal."""

from __future__ import annotations

import gc
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from made import TP2, made, repeats, save
from msgspec.structs import replace

import compare
from compare import find_runs
from compare.cli import main
from compare.curve import curve_of
from conf.errors import InputError
from metrics import summarise
from parsers import Step, progress, read, write
from parsers.storage import read_lazily, read_steps
from tests.drills import PATIENCE_S


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    h100 = made("h100", platform="nvidia", hardware="h100", framework="nemo", image="nemo:26.02")
    mi300x = made("mi300x", over=TP2, platform="amd", hardware="mi300x", framework="primus", given={"model": "llama"})
    mi355x = made("mi355x", over={"lr": 0.1}, platform="amd", hardware="mi355x", framework="primus")
    save(Path("runs"), h100, mi300x, mi355x)
    Path("runs/h100/experiment.yaml").write_text("name: x\nmodel:\n  name: llama\n  num_layers: 4\nprice: null\n")
    return Path("runs")


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        (["platform=amd"], ["mi300x", "mi355x"]),
        (["platform=amd", "platform=nvidia"], ["h100", "mi300x", "mi355x"]),
        (["platform=amd", "model=llama"], ["mi300x"]),
        (["platform=amd,nvidia"], ["h100", "mi300x", "mi355x"]),
        (["model=llama"], ["h100", "mi300x"]),
        (["model=llama31_8b"], ["h100", "mi300x"]),
        (["hardware=mi3*"], ["mi300x", "mi355x"]),
        (["tensor_model_parallel_size=2"], ["mi300x"]),
        (["lr=1e-1"], ["mi355x"]),
        (["fp8=null", "image=nemo:26.02"], ["h100"]),
        (["host=box", "runs/h100"], ["h100"]),
    ],
)
def test_runs_are_found_by_what_they_are(runs: Path, filters: list[str], names: list[str]) -> None:
    assert [run.record.name for run in find_runs(filters)] == names


def test_a_filter_that_fits_nothing_says_what_is_there(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for argv, expected in (
        (["platform=intel", "runs"], "allowed: platform is nvidia, amd\n"),
        (["platfrom=amd"], "did you mean platform?"),
        (["model=qwen"], "model"),
    ):
        assert main(argv) == 2
        assert gc.isenabled()
        assert expected in capsys.readouterr().err


def test_columns_report_the_figures_that_their_steps_tell(tmp_path: Path) -> None:
    """Ramped batches, a step that is missing, a time of dispatch, rates and losses that are not reported."""
    plain = made("a").steps
    odd: dict[int, dict[str, Any]] = {
        1: {"loss": None, "nonfinite": ("loss",), "lr": 1e-3},
        3: {"consumed_samples": None, "global_batch_size": 4, "tokens_per_s_per_gpu": 70.0},
        5: {"flags": ("tokens_per_s_per_gpu:asynchronous", "step_time_s:asynchronous"), "tokens_per_s_per_gpu": 1e9},
        7: {"metrics": {"tokens_checksum": 1.0, "max_memory_reserved_bytes": 3e9}, "memory_kind": None},
        9: {"lr_used": 1e-4, "end_monotonic_s": None},
    }
    steps = tuple(replace(one, **odd.get(i, {})) for i, one in enumerate(plain) if i != 4)
    record = made("a", steps=steps)
    write(record, tmp_path)
    lazy = read_lazily(tmp_path)
    assert repr(summarise(record)) == repr(summarise(lazy))
    assert repr(curve_of(record)) == repr(curve_of(lazy))  # repr: nan is not nan


def test_steps_that_are_unfit_are_refused_by_name_and_line(tmp_path: Path) -> None:
    """nan was written as null, and is not reported."""
    file, number = tmp_path / "steps.jsonl", b'"metrics":{"max_memory_reserved_bytes":%s}'
    cases = [(b'"rss"', text, r"steps\.jsonl") for text in (b'"\xff"', b"\xff", b"1e999")]
    cases += [(b'"metrics":{}', number % text, r"jsonl:1: metrics\[\.\.\.\]") for text in (b'"abc"', b"[1]", b"true")]
    for before, after, expected in cases:
        write(made("a"), tmp_path)
        file.write_bytes(file.read_bytes().replace(before, after, 1))
        with pytest.raises(InputError, match=expected):
            read(tmp_path)
    write(made("a"), tmp_path)
    file.write_bytes(file.read_bytes().replace(b'"metrics":{}', number % b"null", 1))
    assert read(tmp_path).steps == made("a").steps


def test_steps_are_read_when_they_are_looked_at(tmp_path: Path) -> None:
    write(made("a"), tmp_path)
    record = read_lazily(tmp_path)
    (tmp_path / "steps.jsonl").write_text("{\n")
    with pytest.raises(InputError, match=r"steps\.jsonl:1"):
        len(record.steps)
    write(made("a", seconds=3.0), tmp_path)
    assert tuple(record.steps) == read(tmp_path).steps == made("a", seconds=3.0).steps
    assert (record.steps[-1].step, len(record.steps[2:4])) == (11, 2)
    assert tuple(read_steps(tmp_path / "steps.jsonl")) == read(tmp_path).steps


def test_every_run_whose_steps_are_unfit_is_named(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("h100", "mi300x"):
        (runs / name / "steps.jsonl").write_text('{"step": 0}\n')
    assert main(["runs"]) == 2
    output = capsys.readouterr().err
    assert "runs/h100/steps.jsonl:1" in output
    assert "runs/mi300x/steps.jsonl:1" in output


def test_all_cores_say_what_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path, *repeats("a", (2.0, 2.1, 2.2)), *repeats("b", (1.0, 1.1, 1.2), TP2))
    outputs = set()
    for much in (1 << 40, 0):
        monkeypatch.setattr("compare.tracing._MUCH", much)
        assert main([str(tmp_path), "--json"]) == 0
        outputs.add(capsys.readouterr().out)
    assert len(outputs) == 1
    (tmp_path / "b_1" / "steps.jsonl").write_text("{\n")
    assert main([str(tmp_path)]) == 2
    assert "b_1/steps.jsonl:1" in capsys.readouterr().err


def test_a_worker_that_the_system_kills_is_an_error_and_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path, made("a"), made("b", over=TP2))
    ours = os.getpid()

    def read(path: Path) -> Sequence[Step]:
        assert os.getpid() != ours, "read by the test itself"
        os.kill(os.getpid(), signal.SIGKILL)
        return ()

    monkeypatch.setattr("compare.tracing._MUCH", 0)
    monkeypatch.setattr("parsers.storage.read_steps", read)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert main([str(tmp_path)]) == 2
    assert "the system killed a process that reads runs" in capsys.readouterr().err


_SLOW = """
import sys, time
import compare.tracing, parsers.storage
from compare.cli import main
compare.tracing._MUCH = 0
compare.tracing.os.sched_getaffinity = lambda _: {0, 1}
def read(path):
    print("reading", flush=True)
    time.sleep(600)
parsers.storage.read_steps = read
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.usefixtures("heeds_ctrl_c")
def test_ctrl_c_ends_all_workers_without_a_word(tmp_path: Path) -> None:
    save(tmp_path, made("a"), made("b", over=TP2))
    command = [sys.executable, "-c", _SLOW, str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as started:
        assert started.stdout
        assert started.stdout.readline() == "reading\n"
        os.killpg(started.pid, signal.SIGINT)
        assert started.communicate(timeout=PATIENCE_S)[1] == ""
        assert started.returncode == 130


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_above_a_second_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_AFTER_S", 0.05)
    monkeypatch.setitem(os.environ, "TERM", "xterm")
    for stream, seconds, shown in ((Terminal(), 0.1, True), (Terminal(), 0.0, False), (io.StringIO(), 0.1, False)):
        with progress.shown("comparing", stream) as report:
            report(1, 4)
            time.sleep(seconds)
            report(2, 4)
        assert ("comparing" in stream.getvalue()) == shown


def test_a_thousand_groups_are_audited_in_linear_time() -> None:
    """Were it quadratic, 4 times the groups would take 16 times as long."""

    def seconds(count: int) -> float:
        records = [made(f"r{i}", over={"lr": float(i)}) for i in range(count)]
        result = [compare.Run(r.name, replace(r, steps=(Step(step=0, line=1, iteration=1),))) for r in records]
        started = time.process_time()
        comparison = compare.compare(result, compare.Question(vary=("lr",)))
        assert len(comparison.groups) == count
        return time.process_time() - started

    seconds(5)  # what is imported, is imported now
    assert seconds(200) < 9 * max(seconds(50), 0.05)
