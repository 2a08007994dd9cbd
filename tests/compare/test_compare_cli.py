"""`python -m compare`: what is found, shown and written, and the exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from made import TP2, made, repeats, save, silent

import compare
from compare.cli import main
from compare.find import find_runs

SCHEMA = json.loads(Path(compare.__file__).with_name("compare.schema.json").read_text())
Golden = Callable[[str, str], None]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("runs")


def three_groups(runs: Path) -> None:
    save(runs, *repeats("dp2", (2.0, 2.02, 1.98)), *repeats("tp2", (2.5, 2.52, 2.49), TP2))
    dead = made("pp2", asked={"pipeline_model_parallel_size": 2, "data_parallel_size": 1})
    save(runs, replace(dead, status="out_of_memory", cause="torch.OutOfMemoryError: CUDA out of memory.", steps=()))


def test_the_table(runs: Path, capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    three_groups(runs)
    assert main(["runs", "--baseline", "DP2"]) == 0
    golden("compare/table.txt", capsys.readouterr().out)


def test_json(runs: Path, capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    three_groups(runs)
    assert main(["runs", "--json"]) == 0
    out = capsys.readouterr().out
    jsonschema.validate(json.loads(out), SCHEMA)
    # the last digits of an interval differ between releases of scipy
    shown = json.loads(out, parse_float=lambda text: float(f"{float(text):.9g}"))
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
    save(runs, made("a"), made("b", asked={**TP2, "lr": 0.1}))
    assert main(["runs", "-o", "out"]) == 3
    out = capsys.readouterr().out
    assert out.startswith("not comparable")
    assert out.index("lr: ") < out.index("tokens/s")
    assert json.loads(Path("out/compare.json").read_text())["ratios"] == []


def test_cannot_tell(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(runs, made("a"), silent(made("b", asked=TP2), "seq_length"))
    assert main(["runs"]) == 3
    out = capsys.readouterr().out
    assert out.startswith("cannot tell")
    assert "seq_length: unknown, not told by TP2" in out


def test_hostile_text_of_a_record_is_only_text(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cause = "[bold]x[/nope] \x1b[2J $a$ <b> \ud800"
    save(runs, made("a"), made("b", asked=TP2), made("c", asked={"lr": 1}, status="failed", cause=cause))
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


def test_bad_input(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(runs, made("a"), made("b", asked=TP2))
    for argv in (
        ["missing"],
        ["runs", "--baseline", "TP3"],
        ["runs", "--vary", "nothing"],
        ["runs", "-o", "runs/a/run.json"],
    ):
        assert main(argv) == 2
    said = capsys.readouterr().err
    assert "no run there" in said
    assert "did you mean TP2?" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("text", ["{", '{"schema_version": 9}', '{"x": 1}', '{"schema_version": 1}', "\x00"])
def test_foreign_records(text: str, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(runs, made("a"))
    (runs / "b").mkdir()
    (runs / "b" / "run.json").write_text(text)
    assert main(["runs"]) == 2
    assert "runs/b/run.json" in capsys.readouterr().err


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
    assert {(r["ratio"], r["word"], r["reason"]) for r in shown["ratios"]} == {
        (None, "undecided", "unknown on one side")
    }
