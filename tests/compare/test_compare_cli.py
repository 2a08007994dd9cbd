"""`python -m compare`: what is read, shown and written, and the exit codes."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from made import TP2, made, repeats, save, silent
from msgspec.structs import replace

import compare
from compare import find_runs
from compare.cli import main
from compare.report import terminal
from compare.report.files import title
from compare.report.page import summary
from conf.errors import InputError

ROOT = Path(__file__).parent.parent.parent
SCHEMA = json.loads(Path(compare.__file__).with_name("compare.schema.json").read_text())
Golden = Callable[[str, str], None]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("runs")


def three_groups(runs: Path) -> None:
    save(runs, *repeats("dp2", (2.0, 2.02, 1.98)), *repeats("tp2", (2.5, 2.52, 2.49), TP2))
    dead = made("pp2", over={"pipeline_model_parallel_size": 2, "data_parallel_size": 1})
    save(runs, replace(dead, status="out_of_memory", cause="torch.OutOfMemoryError: CUDA out of memory.", steps=()))


def test_the_table(runs: Path, capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    three_groups(runs)
    assert main(["runs", "baseline=DP2"]) == 0
    golden("compare/table.txt", capsys.readouterr().out)


@pytest.mark.parametrize("groups", [3, 7])
def test_a_narrow_terminal_breaks_no_number(groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [{"global_batch_size": 8 * (i + 1), "lr": 0.00012345 * (i + 1)} for i in range(groups)]
    records = [r for i, over in enumerate(sizes) for r in repeats(f"g{i}", (2.0, 2.1, 2.05), over)]
    result = compare.compare([compare.Run(record.name, record) for record in records])

    def shown(columns: int) -> str:
        stream = StringIO()
        monkeypatch.setattr(terminal, "_PLAIN_WIDTH", columns)
        terminal.print_report(summary(result), stream)
        return stream.getvalue()

    numbers = [sorted(re.findall(r"\d[\d.,]* [mlca]\b|±\S+ %", shown(columns))) for columns in (300, 60)]
    assert len(numbers[0]) > 6 * groups
    assert numbers[0] == numbers[1]
    assert ("\n figure" in shown(60).partition("\nGroups")[2].partition("───")[0]) == (groups == 3), (
        "a few have a column each"
    )


def test_json(runs: Path, capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    three_groups(runs)
    assert main(["runs", "--json"]) == 0
    out = capsys.readouterr().out
    jsonschema.validate(json.loads(out), SCHEMA)
    # The last digits of an interval differ between releases of scipy, and a spread of nothing between ways to add.
    shown = json.loads(out, parse_float=lambda text: float(f"{float(text):.9g}") if abs(float(text)) > 1e-12 else 0.0)
    golden("compare/compare.json", json.dumps(shown, indent=1) + "\n")


def test_the_files(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    three_groups(runs)
    assert main(["runs", "-o", "out", "--json"]) == 0
    assert Path("out/compare.json").read_text() == capsys.readouterr().out
    assert Path("out/compare.png").read_bytes().startswith(b"\x89PNG")


def test_one_run_each_has_a_ratio_and_no_interval(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(runs, made("a"), made("b", 4.0, TP2))
    assert main(["runs", "--json"]) == 0
    ratio = json.loads(capsys.readouterr().out)["ratios"][0]
    assert (ratio["ratio"], ratio["interval"], ratio["word"]) == (pytest.approx(0.5), None, "undecided")


def test_not_comparable_shows_the_list_before_any_number(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(runs, made("a"), made("b", over={**TP2, "lr": 0.1}))
    assert main(["runs", "-o", "out"]) == 3
    out = capsys.readouterr().out
    assert out.startswith("not comparable")
    assert out.index("lr: ") < out.index("tokens/s")
    assert json.loads(Path("out/compare.json").read_text())["ratios"] == []


def test_cannot_tell(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(runs, made("a"), silent(made("b", over=TP2), "seq_length"))
    assert main(["runs"]) == 3
    out = capsys.readouterr().out
    assert out.startswith("cannot tell")
    assert "seq_length: unknown, not reported by TP2" in out


def test_hostile_text_of_a_record_is_only_text(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cause = "[bold]x[/nope] \x1b[2J $a$ <b> \ud800"
    save(runs, made("a"), made("b", over=TP2), made("c", over={"lr": 1}, status="failed", cause=cause))
    assert main(["runs", "-o", "out"]) == 0
    out = capsys.readouterr().out
    assert "[bold]x[/nope]" in out
    assert "\x1b" not in out


def test_runs_are_found_below_folders_but_not_among_earlier_attempts(runs: Path) -> None:
    save(runs / "deep", made("run10"), made("run2"))
    save(runs / "deep" / "run2" / "attempts", made("1"))
    assert [Path(run.path).name for run in find_runs(["runs"])] == ["run2", "run10"]
    assert len(find_runs(["runs", "runs/deep/run2", "runs/*/run*", "runs/deep/run10/run.json"])) == 2
    assert len(find_runs(["runs/deep/run2/attempts/1"])) == 1


def test_links_are_followed_but_not_in_circles(runs: Path) -> None:
    save(Path("elsewhere"), made("linked"))
    runs.mkdir(exist_ok=True)
    (runs / "link").symlink_to(Path("elsewhere").resolve())
    (runs / "link" / "circle").symlink_to(runs.resolve())
    (runs / "dangling").symlink_to("nowhere")
    assert [Path(run.path).name for run in find_runs(["runs"])] == ["linked"]


def test_what_cannot_be_read_is_named(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(runs, made("a"))

    def closed(path: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", closed)
    with pytest.raises(InputError, match=r"runs: cannot be looked into\n    found: Permission denied"):
        find_runs(["runs"])


def test_bad_input(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(runs, made("a"), made("b", over=TP2))
    for argv in (
        ["missing"],
        ["runs", "baseline=TP3"],
        ["runs", "vary=nothing"],
        ["runs", "-o", "runs/a/run.json"],
    ):
        assert main(argv) == 2
    output = capsys.readouterr().err
    assert "no run there" in output
    assert "did you mean TP2?" in output
    assert "Traceback" not in output


@pytest.mark.parametrize("text", ["{", '{"schema_version": 9}', '{"x": 1}', '{"schema_version": 1}', "\x00"])
def test_foreign_records(text: str, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(runs, made("a"))
    (runs / "b").mkdir()
    (runs / "b" / "run.json").write_text(text)
    assert main(["runs"]) == 2
    assert "runs/b/run.json" in capsys.readouterr().err


def test_what_is_varied_may_be_named_with_commas(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(runs, made("a"), made("b", over={**TP2, "lr": 0.1, "params_dtype": "bfloat16"}))
    assert main(["vary=layout,precision,lr", "runs"]) == 0
    assert "compared: layout, precision, lr (vary=)" in capsys.readouterr().out
    assert main(["runs", "--json", "vary=lr, layout,params_dtype"]) == 0
    assert json.loads(capsys.readouterr().out)["vary"] == ["lr", "layout", "params_dtype"]
    assert main(["vary=layout", "runs"]) == 3


def test_what_is_varied_is_reported_with_its_reason(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(runs, made("a"), made("b", over=TP2))
    assert main(["runs"]) == 0
    assert "compared: layout (no difference in platform, hardware, framework is reported)" in capsys.readouterr().out
    save(runs, made("b", platform="amd", hardware="mi300x"))
    assert main(["runs"]) == 0
    assert "compared: platform (the groups differ in platform, hardware)" in capsys.readouterr().out


def test_a_run_without_an_end_may_have_lost_its_launcher(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(runs, made("a"), made("b", over=TP2, status="running", steps=()))
    assert main(["runs"]) == 3
    assert "running (or its launcher died)" in capsys.readouterr().out


def test_the_picture_is_replaced_completely_or_not_at_all(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    three_groups(runs)
    Path("out").mkdir()
    Path("out/compare.png").write_bytes(b"old")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", no_space)
        assert main(["runs", "-o", "out"]) == 2
    assert Path("out/compare.png").read_bytes() == b"old"
    assert [path.name for path in Path("out").iterdir()] == ["compare.png"]


def no_space(_: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_the_title_has_a_sentence_for_each_of_the_first_groups() -> None:
    layouts = (TP2, *({"pipeline_model_parallel_size": n, "data_parallel_size": 1} for n in (2, 4, 8)))
    groups = [repeats(f"g{i}", (2.0 + i, 2.02 + i, 1.98 + i), over) for i, over in enumerate(({}, *layouts))]
    runs = [compare.Run(record.name, record) for group in groups for record in group]
    assert [line.partition(" ")[0] for line in title(compare.compare(runs[:6])).splitlines()] == ["TP2"]
    first, second, third, more = title(compare.compare(runs)).splitlines()
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
    assert reading.returncode == 0


def test_a_copy_of_a_run_is_no_repeat(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(runs, made("a"))
    save(runs / "copy", made("a"))
    assert main(["runs"]) == 2
    assert "is the same run as" in capsys.readouterr().err


def test_a_run_that_does_not_know_leaves_its_group_unknown(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow, fast = repeats("a", (2.0, 2.1, 2.2)), repeats("b", (1.0, 1.1, 1.2), TP2)
    save(runs, *slow, *fast[:2], replace(fast[2], steps=fast[2].steps[:2]))
    assert main(["runs", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["groups"][1]["figures"]["tokens_per_s"]["value"] is None
    assert {(r["ratio"], r["word"], r["reason"]) for r in shown["ratios"]} == {(None, "undecided", "unknown of TP2")}
