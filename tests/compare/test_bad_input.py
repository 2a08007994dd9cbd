"""Records that nobody should believe, over the command line: a clear error or an unknown, never a wrong number."""

from __future__ import annotations

import contextlib
import io
import json
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made import TP2, made, repeats, save
from msgspec.structs import replace

import compare
from compare.cli import main

SCHEMA = json.loads(Path(compare.__file__).with_name("compare.schema.json").read_text(encoding="utf-8"))
EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'`$(id) \x1b[2J \u202e | # * _"


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save(Path("runs"), made("a"), made("b", 4.0, TP2))
    return Path("runs")


def edit(run: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """run.json as a hand would edit it."""
    entry = json.loads((run / "run.json").read_text(encoding="utf-8"))
    change(entry)
    (run / "run.json").write_text(json.dumps(entry), encoding="utf-8")


def edit_steps(run: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    lines = (run / "steps.jsonl").read_text(encoding="utf-8").splitlines()
    entries = [json.loads(line) for line in lines]
    for entry in entries:
        change(entry)
    (run / "steps.jsonl").write_text("".join(f"{json.dumps(entry)}\n" for entry in entries), encoding="utf-8")


def refused(capsys: pytest.CaptureFixture[str], *expected: str) -> None:
    assert main(["runs", "-o", "out"]) == 2
    shown = capsys.readouterr()
    assert "Traceback" not in shown.err
    assert shown.out == ""
    assert [text for text in expected if text not in shown.err] == []
    assert not Path("out").exists()


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["runs", "--json", *arguments])
    result = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    jsonschema.validate(result, SCHEMA)
    return code, result


def figure(of: dict[str, Any], metric: str, group: int = 1) -> dict[str, Any]:
    result: dict[str, Any] = of["groups"][group]["figures"][metric]
    return result


WRONG = {
    **dict(status="splendid", provenance="trust me", requested="all", restarts={}, id=None, environment=3),
    **dict(wall_time_s="long", power=[{"kind": 3}]),
}


def test_records_that_a_hand_changed(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    as_written = (runs / "b" / "run.json").read_text(encoding="utf-8")

    def refuse(change: Callable[[dict[str, Any]], Any], *expected: str) -> None:
        edit(runs / "b", change)
        refused(capsys, "runs/b/run.json", *expected)
        (runs / "b" / "run.json").write_text(as_written, encoding="utf-8")

    for version in (0, 99, "1", None, 1.5, True):
        refuse(lambda entry, version=version: entry.update(schema_version=version))  # type: ignore[misc]
    refuse(lambda entry: entry.update(schema_version=2), "found: 2", "update TensorPrimat")
    for key, value in (*WRONG.items(), ("effective", []), ("effective", {"lr": 0.1})):
        refuse(lambda entry, wrong={key: value}: entry.update(wrong), key)  # type: ignore[misc]
    for key in ("id", "name", "status", "provenance"):
        refuse(lambda entry, key=key: entry.pop(key), key)  # type: ignore[misc]


def test_a_hand_that_embellished(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The summary and the list of differences are made anew from what the steps and the settings say."""
    _, before = shown(capsys)
    fast = {"value": 1e9, "unit": "tokens/s", "source": "measured", "interval": None}
    edit(runs / "b", lambda entry: entry.update(summary={"tokens_per_s": fast}, differences=[]))
    assert figure(shown(capsys)[1], "tokens_per_s") == figure(before, "tokens_per_s")
    edit(runs / "b", lambda entry: entry["effective"]["clip_grad"].update(value=0))
    code, result = shown(capsys)
    assert (code, result["verdict"]["word"]) == (3, "not comparable")
    assert any("clip_grad" in reason for reason in result["verdict"]["reasons"])


def test_no_steps_at_all(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "b" / "steps.jsonl").unlink()
    code, result = shown(capsys)
    assert (code, figure(result, "tokens_per_s")["value"], result["ratios"]) == (3, None, [])
    assert "b/steps.jsonl is missing" in result["verdict"]["reasons"][0]
    (runs / "b" / "steps.jsonl").write_text("", encoding="utf-8")
    code, result = shown(capsys)
    assert (code, figure(result, "tokens_per_s")["value"], result["ratios"]) == (3, None, [])
    assert "b/steps.jsonl has no step" in result["verdict"]["reasons"][0]
    fast = {"value": 1e9, "unit": "tokens/s", "source": "measured", "interval": None}
    edit(runs / "b", lambda entry: entry.update(summary={"tokens_per_s": fast}))
    assert figure(shown(capsys)[1], "tokens_per_s")["value"] is None, "a summary without its steps is not believed"


def test_steps_that_go_back(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Appended twice: the last loss would be that of an earlier step."""
    lines = (runs / "b" / "steps.jsonl").read_text(encoding="utf-8").splitlines()
    for more in (lines[:3], ["", *lines[3:4]], lines[-1:]):
        (runs / "b" / "steps.jsonl").write_text("\n".join((*lines, *more)) + "\n", encoding="utf-8")
        refused(capsys, f"runs/b/steps.jsonl:{13 + (not more[0])}", "steps ascend")


@pytest.mark.parametrize("text", ['{"step": 0', "[]", "null", '{"step": "one"}', '{"line": 3}', "\x00", "{}"])
def test_steps_that_are_none(text: str, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (runs / "b" / "steps.jsonl").open("a", encoding="utf-8") as stream:
        stream.write(f"{text}\n")
    refused(capsys, "runs/b/steps.jsonl:13")


def test_missing_steps_report_no_interval(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Seven of twelve lines are gone: what lies between two that are left is not known, and no slow step."""
    lines = (runs / "b" / "steps.jsonl").read_text(encoding="utf-8").splitlines()
    kept = [line for i, line in enumerate(lines) if i in (0, 1, 2, 7, 8)]
    (runs / "b" / "steps.jsonl").write_text("\n".join(kept) + "\n", encoding="utf-8")
    speed = figure(shown(capsys)[1], "step_time_mean_s")
    assert speed["value"] == pytest.approx(4.0)


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_nan_is_not_json(constant: str, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = runs / "b" / "steps.jsonl"
    path.write_text(path.read_text(encoding="utf-8").replace('"loss":6.0', f'"loss":{constant}'), encoding="utf-8")
    refused(capsys, "runs/b/steps.jsonl:1", constant)


def test_a_loss_that_was_never_a_number_is_unknown(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit_steps(runs / "b", lambda entry: entry.update(loss=None, nonfinite=["loss"]))
    assert figure(shown(capsys)[1], "loss_last")["value"] is None


@pytest.mark.parametrize("seconds", [0, -2.0, 1e308, 1e-308])
def test_times_that_cannot_be(seconds: float, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit_steps(runs / "b", lambda entry: entry.update(step_time_s=seconds, end_monotonic_s=None))
    _, result = shown(capsys)
    value = figure(result, "tokens_per_s")["value"]
    assert value is None or (math.isfinite(value) and value >= 0)
    if seconds <= 0:
        assert value is None


def test_a_clock_that_runs_backwards(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit_steps(runs / "b", lambda entry: entry.update(end_monotonic_s=-entry["end_monotonic_s"]))
    assert figure(shown(capsys)[1], "step_time_mean_s")["value"] is None


@pytest.mark.parametrize("name", ["world_size", "global_batch_size", "seq_length"])
@pytest.mark.parametrize("value", [0, -8, 1.5, "8", True])
def test_sizes_that_cannot_be(name: str, value: Any, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(runs / "b", lambda entry: entry["effective"][name].update(value=value))
    edit_steps(runs / "b", lambda entry: entry.update(consumed_samples=None, global_batch_size=None))
    _, result = shown(capsys)
    lost = "tokens_per_s_per_gpu" if name == "world_size" else "tokens_per_s"
    assert figure(result, lost)["value"] is None
    assert result["groups"][1]["runs"][0]["figures"][lost]["value"] is None


@pytest.mark.parametrize("number", ["1" + 400 * "0", "1e999", "-1e999", str(2**63)])
def test_numbers_beyond_any_that_is_ours(number: str, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Python reads 1e999 as infinity, and no float holds a one with 400 noughts."""
    run, steps = runs / "b" / "run.json", runs / "b" / "steps.jsonl"
    complete = run.read_text(encoding="utf-8")
    run.write_text(complete.replace('"value": 2,', f'"value": {number},', 1), encoding="utf-8")
    refused(capsys, "runs/b/run.json", "too large")
    run.write_text(complete, encoding="utf-8")
    steps.write_text(steps.read_text(encoding="utf-8").replace('"loss":5.9', f'"loss":{number}'), encoding="utf-8")
    if number != str(2**63):  # a loss is no integer
        refused(capsys, "runs/b/steps.jsonl:2", "too large")


@pytest.mark.parametrize(
    ("price", "expected"),
    [
        ("price._per_gpu_hour.mi355x=3.10", "without a currency"),
        ("price.usd_per_gpu_hour.mi355x=0 USD/gpu-hour", "not a positive number"),
        ("price.per_gpu_hour.mi355x=3.10", "no such key"),
        ("price.usd_per_gpu_hour.mi355x=3|price.eur_per_gpu_hour.b200=3", "two currencies"),
        ("price.usd_per_gpu_hour.mi35x=3", "did you mean mi355x?"),
        ("tokens=-1", "tokens: cannot be used"),
        ("difference=0", "above 0, below 100 %"),
    ],
)
def test_prices_that_are_none(price: str, expected: str, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(runs), *price.split("|")]) == 2
    assert expected in capsys.readouterr().err


def test_a_price_in_a_run_without_a_currency_or_below_zero(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text, expected in (("usd_per_gpu_hour: {mi355x: -1}", "not a positive number"), ("usd_per_gpu_hour: 3", None)):
        (runs / "b" / "experiment.yaml").write_text(f"price: {{{text}}}\n", encoding="utf-8")
        assert main([str(runs)]) == (0 if expected is None else 2)
        assert (expected or "") in capsys.readouterr().err


def tags_of(text: str) -> set[str]:
    """As a browser finds them: in the value of an attribute there is none."""
    result: set[str] = set()
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: result.add(tag)  # type: ignore[method-assign]
    parser.feed(text)
    return result


def test_html_and_escapes_in_names_and_log_lines(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dead = made("c", over={"lr": 1}, status="failed", cause=EVIL, last_lines=(EVIL,), notes=(EVIL,))
    bad = replace(dead, name="c", image=EVIL, environment={"device_name": EVIL, "host": EVIL})
    save(runs, bad)
    edit(runs / "b", lambda entry: entry.update(name=EVIL, image=EVIL, id=EVIL))
    edit(runs / "a", lambda entry: entry["environment"].update(host=EVIL))
    assert main(["runs", "-o", "out"]) in (0, 3)
    assert "\x1b" not in capsys.readouterr().out
    for path in Path("out").iterdir():
        if path.suffix in (".html", ".md", ".csv"):
            text = path.read_text(encoding="utf-8")
            assert "<script>alert" not in text or path.suffix == ".csv", path
            assert path.suffix == ".csv" or "img" not in tags_of(text), path
            assert "\x1b" not in text, path


def test_two_runs_of_one_id_that_started_at_once(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(runs, replace(made("c", 3.0), id="a"))
    refused(capsys, "is the same run as", "name only one of the two")


def test_one_id_that_was_started_twice_is_two_runs(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    again = replace(made("c", over={"seed": 2}), id="a", started_at="2026-11-21T10:00:00Z")
    save(runs, again)
    assert shown(capsys)[1]["groups"][0]["counted_runs"] == 2


def test_all_that_is_wrong_is_listed_at_once(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(runs / "a", lambda entry: entry.update(status=3))
    edit(runs / "b", lambda entry: entry.update(schema_version=7))
    refused(capsys, "runs/a/run.json", "runs/b/run.json")


@pytest.mark.parametrize("argv", [[], ["--json"], ["nowhere"], ["\x00"], ["runs/*/x"]])
def test_nothing_to_read(argv: list[str], runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert "Traceback" not in capsys.readouterr().err


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=12),
    st.sampled_from([[], {}, "<b>", "1", -0.0, 1e308, -1e308, 10**400, EVIL]),
)


def places(entry: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = entry.items() if isinstance(entry, dict) else enumerate(entry) if isinstance(entry, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    result = tmp_path_factory.mktemp("fuzzed")
    save(result, *repeats("a", (2.0, 2.1, 2.2)), *repeats("b", (3.0, 3.1, 3.2), TP2))
    return result


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.integers(0, 10**6), VALUES), min_size=1, max_size=3), st.booleans(), st.integers(0, 11))
def test_fuzz(fuzzed: Path, changes: list[tuple[int, Any]], in_steps: bool, line: int) -> None:
    """A mutated record is refused, or compared to valid, finite JSON and a table. Nothing is raised."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(fuzzed, folder, dirs_exist_ok=True)
        path = Path(folder) / "b_1" / ("steps.jsonl" if in_steps else "run.json")
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines() if in_steps else [text]
        entry = json.loads(lines[line % len(lines)])
        for place, value in changes:
            known = list(places(entry))
            *parents, last = known[place % len(known)]
            into = entry
            for key in parents:
                into = into[key]
            into[last] = value
        lines[line % len(lines)] = json.dumps(entry)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([folder, "--json"])
        assert code in (0, 2, 3)
        if code != 2:
            jsonschema.validate(json.loads(out.getvalue(), parse_constant=pytest.fail), SCHEMA)
            with contextlib.redirect_stdout(out):
                assert main([folder]) == code
