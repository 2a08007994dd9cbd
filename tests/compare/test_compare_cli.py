"""`python -m compare`: what is read, shown and written; many runs, by filters, on all cores; how it ends."""

from __future__ import annotations

import errno
import gc
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from msgspec.structs import replace

import compare
from compare import find_runs
from compare.cli import main
from compare.curve import curve_of
from compare.report import terminal
from compare.report.files import title
from compare.report.page import summary
from conf.errors import InputError
from metrics import summarise
from parsers import Step, progress, read, write
from parsers.storage import read_lazily, read_steps
from tests.compare.made import SCHEMA, TP2, compared, editable, made, repeats, save, silent
from tests.drills import PATIENCE_S

ROOT = Path(__file__).parent.parent.parent
Golden = Callable[[str, str], None]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("runs")


def three_groups(runs: Path) -> None:
    save(runs, *repeats("dp2", (2.0, 2.02, 1.98)), *repeats("tp2", (2.5, 2.52, 2.49), TP2))
    dead = made("pp2", over={"pipeline_model_parallel_size": 2, "data_parallel_size": 1})
    save(runs, replace(dead, status="out_of_memory", cause="torch.OutOfMemoryError: CUDA out of memory.", steps=()))


def test_the_table_the_json_and_the_files(runs: Path, capsys: Capture, golden: Golden) -> None:
    three_groups(runs)
    assert main(["runs", "baseline=DP2"]) == 0
    golden("compare/table.txt", capsys.readouterr().out)
    assert main(["runs", "-o", "out", "--json"]) == 0
    out = capsys.readouterr().out
    jsonschema.validate(json.loads(out), SCHEMA)
    # The last digits of an interval differ between releases of scipy, and a spread of nothing between ways to add.
    shown = json.loads(out, parse_float=lambda text: float(f"{float(text):.9g}") if abs(float(text)) > 1e-12 else 0.0)
    golden("compare/compare.json", json.dumps(shown, indent=1) + "\n")
    assert Path("out/compare.json").read_text() == out
    assert Path("out/compare.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("groups", [3, 7])
def test_a_narrow_terminal_breaks_no_number(groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [{"global_batch_size": 8 * (i + 1), "lr": 0.00012345 * (i + 1)} for i in range(groups)]
    result = compared(*(r for i, over in enumerate(sizes) for r in repeats(f"g{i}", (2.0, 2.1, 2.05), over)))

    def shown(columns: int) -> str:
        stream = StringIO()
        monkeypatch.setattr(terminal, "_PLAIN_WIDTH", columns)
        terminal.print_report(summary(result), stream)
        return stream.getvalue()

    wide, narrow = (sorted(re.findall(r"\d[\d.,]* [mlca]\b|±\S+ %", shown(columns))) for columns in (300, 60))
    assert len(wide) > 6 * groups
    assert wide == narrow
    beside = "\n figure" in shown(60).partition("\nIndicative, not a ratio")[2].partition("───")[0]
    assert beside == (groups == 3), "a few have a column each"


def test_what_is_not_answered(runs: Path, capsys: Capture) -> None:
    for other, first, more in (
        (made("b", over={**TP2, "lr": 0.1}), "not comparable", "lr: "),
        (silent(made("b", over=TP2), "seq_length"), "cannot tell", "seq_length: unknown, not reported by TP2"),
        (made("b", over=TP2, status="running", steps=()), "cannot tell", "its launcher ended without recording how"),
    ):
        save(runs, made("a"), other)
        assert main(["runs", "-o", "out"]) == 3
        out = capsys.readouterr().out
        assert out.startswith(first) and more in out
        assert json.loads(Path("out/compare.json").read_text())["ratios"] == []


def test_runs_are_found_below_folders_and_links_but_not_among_earlier_attempts(runs: Path) -> None:
    save(runs / "deep", made("run10"), made("run2"))
    save(runs / "deep" / "run2" / "attempts", made("1"))
    save(runs / "other", made("linked"))
    (runs / "deep" / "link").symlink_to((runs / "other").resolve())
    (runs / "other" / "circle").symlink_to(runs.resolve())
    (runs / "dangling").symlink_to("nowhere")
    assert [Path(run.path).name for run in find_runs(["runs"])] == ["run2", "run10", "linked"]
    assert len(find_runs(["runs/deep/run2", "runs/deep/run*", "runs/deep/run10/run.json"])) == 2
    assert len(find_runs(["runs/deep/run2/attempts/1"])) == 1


def test_a_link_out_of_the_folder_is_not_followed_and_named(runs: Path) -> None:
    save(runs, made("a"), made("b"))
    save(Path("elsewhere"), made("linked"))
    (runs / "root").symlink_to("/")
    (runs / "link").symlink_to(Path("elsewhere").resolve())
    with pytest.raises(InputError) as caught:
        find_runs(["runs"])
    assert [problem.where for problem in caught.value.problems] == ["runs/root", "runs/link"]
    assert "is not followed" in str(caught.value)
    (runs / "root").unlink()
    (runs / "link").unlink()
    Path("named").symlink_to(runs.resolve())
    assert len(find_runs(["named", "elsewhere"])) == 3


def test_what_cannot_be_read_is_named(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(runs, made("a"))

    def closed(path: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", closed)
    with pytest.raises(InputError, match=r"runs: cannot be looked into\n    found: Permission denied"):
        find_runs(["runs"])


def test_what_is_varied_may_be_named_with_commas_and_is_reported_with_its_reason(runs: Path, capsys: Capture) -> None:
    def expect(code: int, text: str, *arguments: str) -> None:
        assert main(["runs", *arguments]) == code
        assert text in capsys.readouterr().out

    save(runs, made("a"), made("b", over={**TP2, "lr": 0.1, "params_dtype": "bfloat16"}))
    expect(0, "compared: layout, precision, lr (vary=)", "vary=layout,precision,lr")
    expect(0, '"vary": [\n  "lr",\n  "layout",\n  "params_dtype"\n ]', "--json", "vary=lr, layout,params_dtype")
    expect(3, "not comparable", "vary=layout")
    save(runs, made("b", over=TP2))
    expect(0, "compared: layout (no difference in platform, hardware, framework is reported)")
    save(runs, made("b", platform="amd", hardware="mi300x"))
    expect(0, "compared: platform (the groups differ in platform, hardware)")


def test_a_page_is_written_alone_of_a_comparison_and_of_a_gate(runs: Path, capsys: Capture) -> None:
    three_groups(runs)
    assert main(["runs", "baseline=DP2", "-o", "new/report.html"]) == 0
    assert main(["runs", "baseline=DP2", "candidate=TP2", "-o", "new/gate.html"]) == 3
    assert sorted(path.name for path in Path("new").iterdir()) == ["gate.html", "report.html"]
    for page in (path.read_text(encoding="utf-8") for path in Path("new").iterdir()):
        assert page.count("<h1>") == 1 and "The figures that decide" in page and 'id="curves"' in page
    assert main(["runs", "baseline=DP2", "candidate=TP2", "-o", "new"]) == 3
    assert {"regression.html", "regression.json", "regression.md"} < {path.name for path in Path("new").iterdir()}
    capsys.readouterr()


def test_the_picture_is_replaced_completely_or_not_at_all(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    three_groups(runs)
    Path("out").mkdir()
    Path("out/compare.png").write_bytes(b"old")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", no_space)
        assert main(["runs", "-o", "out"]) == 2
    assert Path("out/compare.png").read_bytes() == b"old"
    assert [path.name for path in Path("out").iterdir()] == ["compare.png"]


def test_the_title_has_a_sentence_for_each_of_the_first_groups() -> None:
    layouts = (TP2, *({"pipeline_model_parallel_size": n, "data_parallel_size": 1} for n in (2, 4, 8)))
    groups = [repeats(f"g{i}", (2.0 + i, 2.02 + i, 1.98 + i), over) for i, over in enumerate(({}, *layouts))]
    records = [record for group in groups for record in group]
    assert [line.partition(" ")[0] for line in title(compared(*records[:6])).splitlines()] == ["TP2"]
    first, second, third, more = title(compared(*records)).splitlines()
    assert [sentence.partition(" ")[0] for sentence in (first, second, third)] == ["TP2", "PP2", "PP4"]
    assert all("is slower than DP2: " in sentence for sentence in (first, second, third))
    assert more == "1 more group is in the table."


def test_a_reader_that_goes_away_sees_no_traceback(tmp_path: Path) -> None:
    save(tmp_path, *(made(f"run{i}", over={**TP2, "seed": i}) for i in range(40)))
    command = [sys.executable, "-m", "compare", str(tmp_path), "--json"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reading:
        assert reading.stdout is not None and reading.stderr is not None
        reading.stdout.close()
        assert reading.stderr.read() == b""
    assert reading.returncode == 3  # one group, and nothing to compare it with


def test_a_run_that_does_not_know_leaves_its_group_unknown() -> None:
    slow, fast = repeats("a", (2.0, 2.1, 2.2)), repeats("b", (1.0, 1.1, 1.2), TP2)
    result = compared(*slow, *fast[:2], replace(fast[2], steps=fast[2].steps[:2]))
    assert result.group_figures["TP2"]["tokens_per_s"].value is None
    assert {(r.ratio, r.word, r.reason) for r in result.ratios} == {(None, "undecided", "unknown of TP2")}


@pytest.fixture
def vendors(runs: Path) -> Path:
    h100 = made("h100", platform="nvidia", hardware="h100", framework="nemo", image="nemo:26.02")
    mi300x = made("mi300x", over=TP2, platform="amd", hardware="mi300x", framework="primus", given={"model": "llama"})
    mi355x = made("mi355x", over={"lr": 0.1}, platform="amd", hardware="mi355x", framework="primus")
    save(runs, h100, mi300x, mi355x)
    Path("runs/h100/experiment.yaml").write_text("name: x\nmodel:\n  name: llama\n  num_layers: 4\nprice: null\n")
    return runs


def test_runs_are_found_by_what_they_are(vendors: Path) -> None:
    for filters, names in (
        ("platform=amd", "mi300x mi355x"),
        ("platform=amd platform=nvidia", "h100 mi300x mi355x"),
        ("platform=amd model=llama", "mi300x"),
        ("platform=amd,nvidia", "h100 mi300x mi355x"),
        ("model=llama", "h100 mi300x"),
        ("model=llama31_8b", "h100 mi300x"),
        ("hardware=mi3*", "mi300x mi355x"),
        ("tensor_model_parallel_size=2", "mi300x"),
        ("lr=1e-1", "mi355x"),
        ("lr=10%", "mi355x"),
        ("fp8=null image=nemo:26.02", "h100"),
        ("host=box runs/h100", "h100"),
    ):
        assert " ".join(run.record.name for run in find_runs(filters.split())) == names


def test_a_filter_that_fits_nothing_says_what_is_there(vendors: Path, capsys: Capture) -> None:
    for argv, expected in (
        (["platform=intel", "runs"], "allowed: platform is nvidia, amd\n"),
        (["platfrom=amd"], "did you mean platform?"),
        (["model=qwen"], "model"),
    ):
        assert main(argv) == 2
        assert gc.isenabled()
        assert expected in capsys.readouterr().err


def test_columns_report_the_figures_that_their_steps_state(tmp_path: Path) -> None:
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
        editable(tmp_path)
        file.write_bytes(file.read_bytes().replace(before, after, 1))
        with pytest.raises(InputError, match=expected):
            read(tmp_path)
    write(made("a"), tmp_path)
    editable(tmp_path)
    file.write_bytes(file.read_bytes().replace(b'"metrics":{}', number % b"null", 1))
    assert read(tmp_path).steps == made("a").steps


def test_steps_are_read_when_they_are_looked_at(tmp_path: Path) -> None:
    write(made("a"), tmp_path)
    editable(tmp_path)
    record = read_lazily(tmp_path)
    (tmp_path / "steps.jsonl").write_text("{\n")
    with pytest.raises(InputError, match=r"steps\.jsonl:1"):
        len(record.steps)
    write(made("a", seconds=3.0), tmp_path)
    assert tuple(record.steps) == read(tmp_path).steps == made("a", seconds=3.0).steps
    assert (record.steps[-1].step, len(record.steps[2:4])) == (11, 2)
    assert tuple(read_steps(tmp_path / "steps.jsonl")) == read(tmp_path).steps


def test_every_run_whose_steps_are_unfit_is_named(vendors: Path, capsys: Capture) -> None:
    editable(vendors)
    for name in ("h100", "mi300x"):
        (vendors / name / "steps.jsonl").write_text('{"step": 0}\n')
    assert main(["runs"]) == 2
    output = capsys.readouterr().err
    assert "runs/h100/steps.jsonl:1" in output
    assert "runs/mi300x/steps.jsonl:1" in output


def test_all_cores_say_what_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    save(tmp_path, *repeats("a", (2.0, 2.1, 2.2)), *repeats("b", (1.0, 1.1, 1.2), TP2))
    outputs = set()
    for much in (1 << 40, 0):
        monkeypatch.setattr("compare.comparison._MUCH", much)
        assert main([str(tmp_path), "--json"]) == 0
        outputs.add(capsys.readouterr().out)
    assert len(outputs) == 1
    editable(tmp_path)
    (tmp_path / "b_1" / "steps.jsonl").write_text("{\n")
    assert main([str(tmp_path)]) == 2
    assert "b_1/steps.jsonl:1" in capsys.readouterr().err


def test_a_worker_that_the_system_kills_is_an_error_and_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    save(tmp_path, made("a"), made("b", over=TP2))
    ours = os.getpid()

    def read(path: Path, written: object) -> Sequence[Step]:
        assert os.getpid() != ours, "read by the test itself"
        os.kill(os.getpid(), signal.SIGKILL)
        return ()

    monkeypatch.setattr("compare.comparison._MUCH", 0)
    monkeypatch.setattr("parsers.storage.read_steps", read)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert main([str(tmp_path)]) == 2
    assert "the system killed a process that reads runs" in capsys.readouterr().err


_SLOW = """
import sys, time
import compare.comparison, parsers.storage
from compare.cli import main
compare.comparison._MUCH = 0
compare.comparison.os.sched_getaffinity = lambda _: {0, 1}
def read(path, written):
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
    few, many = (min(seconds(count) for _ in range(2)) for count in (50, 200))  # another process takes the caches
    assert many < 9 * max(few, 0.05)
