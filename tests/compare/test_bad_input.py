"""Records that nobody should believe, over the command line: a clear error or an unknown, never a wrong number."""

from __future__ import annotations

import contextlib
import io
import json
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from compare.cli import main
from tests.compare.made import SCHEMA, TP2, editable, made, repeats, save

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'`$(id) \x1b[2J [bold]x[/nope] \u202e | # * _"
Entry = dict[str, Any]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save(Path("runs"), made("a"), made("b", 4.0, TP2))
    editable(Path("runs"))
    return Path("runs")


def edit(run: Path, change: Callable[[Entry], Any], steps: bool = False) -> None:
    """run.json, or each line of steps.jsonl, as a hand would edit it."""
    path = run / ("steps.jsonl" if steps else "run.json")
    text = path.read_text(encoding="utf-8")
    entries = [json.loads(part) for part in (text.splitlines() if steps else [text])]
    for entry in entries:
        change(entry)
    path.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries), encoding="utf-8")


def refused(capsys: Capture, *expected: str) -> None:
    assert main(["runs", "-o", "out"]) == 2
    shown = capsys.readouterr()
    assert ("Traceback" in shown.err, shown.out) == (False, "")
    assert [text for text in expected if text not in shown.err] == []
    assert not Path("out").exists()


def shown(capsys: Capture, *arguments: str) -> tuple[int, Entry]:
    code = main(["runs", "--json", *arguments])
    result = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    jsonschema.validate(result, SCHEMA)
    return code, result


def value(capsys: Capture, metric: str) -> Any:
    return shown(capsys)[1]["groups"][1]["figures"][metric]["value"]


WRONG: dict[str, Any] = {
    **dict(status="splendid", provenance="trust me", requested="all", restarts={}, id=None, environment=3),
    **dict(wall_time_s="long", power=[{"kind": 3}]),
}
FAST = {"tokens_per_s": {"value": 1e9, "unit": "tokens/s", "source": "measured", "interval": None}}


def test_records_that_a_hand_changed(runs: Path, capsys: Capture) -> None:
    as_written = (runs / "b" / "run.json").read_text(encoding="utf-8")

    def refuse(change: Callable[[Entry], Any], *expected: str) -> None:
        edit(runs / "b", change)
        refused(capsys, "runs/b/run.json", *expected)
        (runs / "b" / "run.json").write_text(as_written, encoding="utf-8")

    for version in (0, 99, "1", None, 1.5, True):
        refuse(lambda entry, version=version: entry.update(schema_version=version))  # type: ignore[misc]
    refuse(lambda entry: entry.update(schema_version=3), "found: 3", "update TensorPrimat")
    for key, wrong in (*WRONG.items(), ("effective", []), ("effective", {"lr": 0.1})):
        refuse(lambda entry, wrong={key: wrong}: entry.update(wrong), key)  # type: ignore[misc]
    for key in ("id", "name", "status", "provenance"):
        refuse(lambda entry, key=key: entry.pop(key), key)  # type: ignore[misc]
    for text in ("{", '{"schema_version": 9}', '{"x": 1}', '{"schema_version": 1}', "\x00"):
        (runs / "b" / "run.json").write_text(text)
        refused(capsys, "runs/b/run.json")
    edit(runs / "a", lambda entry: entry.update(status=3))
    refused(capsys, "runs/a/run.json", "runs/b/run.json")


def test_a_hand_that_embellished(runs: Path, capsys: Capture) -> None:
    """The summary and the list of differences are made anew from what the steps and the settings say."""
    before = value(capsys, "tokens_per_s")
    edit(runs / "b", lambda entry: entry.update(summary=FAST, differences=[]))
    assert value(capsys, "tokens_per_s") == before
    edit(runs / "b", lambda entry: entry["effective"]["clip_grad"].update(value=0))
    code, result = shown(capsys)
    assert (code, result["verdict"]["word"]) == (3, "not comparable")
    assert any("clip_grad" in reason for reason in result["verdict"]["reasons"])


def test_no_steps_at_all(runs: Path, capsys: Capture) -> None:
    steps = runs / "b" / "steps.jsonl"
    steps.unlink()
    edit(runs / "b", lambda entry: entry.update(summary=FAST))
    for reason in ("is missing", "has no step"):
        code, result = shown(capsys)
        assert (code, value(capsys, "tokens_per_s"), result["ratios"]) == (3, None, [])
        assert f"b/steps.jsonl {reason}" in result["verdict"]["reasons"][0]
        steps.write_text("", encoding="utf-8")


def test_steps_that_are_none_or_go_back(runs: Path, capsys: Capture) -> None:
    """Appended twice: the last loss would be that of an earlier step."""
    lines = (runs / "b" / "steps.jsonl").read_text(encoding="utf-8").splitlines()
    for more in (lines[:3], ["", *lines[3:4]], lines[-1:]):
        (runs / "b" / "steps.jsonl").write_text("\n".join((*lines, *more)) + "\n", encoding="utf-8")
        refused(capsys, f"runs/b/steps.jsonl:{13 + (not more[0])}", "steps ascend")
    for text in ('{"step": 0', "[]", "null", '{"step": "one"}', '{"line": 3}', "\x00", "{}"):
        (runs / "b" / "steps.jsonl").write_text("\n".join((*lines, text)) + "\n", encoding="utf-8")
        refused(capsys, "runs/b/steps.jsonl:13")
    for constant in ("NaN", "Infinity", "-Infinity"):
        text = "\n".join(lines).replace('"loss":6.0', f'"loss":{constant}')
        (runs / "b" / "steps.jsonl").write_text(text, encoding="utf-8")
        refused(capsys, "runs/b/steps.jsonl:1", constant)


def test_missing_steps_report_no_interval(runs: Path, capsys: Capture) -> None:
    """Seven of twelve lines are gone: what lies between two that are left is not known, and no slow step."""
    lines = (runs / "b" / "steps.jsonl").read_text(encoding="utf-8").splitlines()
    kept = [line for i, line in enumerate(lines) if i in (0, 1, 2, 7, 8)]
    (runs / "b" / "steps.jsonl").write_text("\n".join(kept) + "\n", encoding="utf-8")
    assert value(capsys, "step_time_mean_s") == pytest.approx(4.0)


def test_numbers_that_cannot_be_are_unknown(runs: Path, capsys: Capture) -> None:
    edit(runs / "b", lambda entry: entry.update(loss=None, nonfinite=["loss"]), steps=True)
    assert value(capsys, "loss_last") is None
    edit(runs / "b", lambda entry: entry.update(end_monotonic_s=-entry["end_monotonic_s"]), steps=True)
    assert value(capsys, "step_time_mean_s") is None, "a clock that runs backwards"
    for seconds in (0, -2.0, 1e308, 1e-308):
        edit(runs / "b", lambda e, s=seconds: e.update(step_time_s=s, end_monotonic_s=None), steps=True)  # type: ignore[misc]
        speed = value(capsys, "tokens_per_s")
        assert speed is None or (seconds > 0 and math.isfinite(speed) and speed >= 0)


@pytest.mark.parametrize("name", ["world_size", "global_batch_size", "seq_length"])
def test_sizes_that_cannot_be(name: str, runs: Path, capsys: Capture) -> None:
    edit(runs / "b", lambda entry: entry.update(consumed_samples=None, global_batch_size=None), steps=True)
    for size in (0, -8, 1.5, "8", True):
        edit(runs / "b", lambda entry, size=size: entry["effective"][name].update(value=size))  # type: ignore[misc]
        group = shown(capsys)[1]["groups"][1]
        lost = "tokens_per_s_per_gpu" if name == "world_size" else "tokens_per_s"
        assert [of["figures"][lost]["value"] for of in (group, group["runs"][0])] == [None, None]


@pytest.mark.parametrize("number", ["1" + 400 * "0", "1e999", "-1e999", str(2**63)])
def test_numbers_beyond_any_that_is_ours(number: str, runs: Path, capsys: Capture) -> None:
    """Python reads 1e999 as infinity, and no float holds a one with 400 noughts."""
    run, steps = runs / "b" / "run.json", runs / "b" / "steps.jsonl"
    complete = run.read_text(encoding="utf-8")
    run.write_text(complete.replace('"value": 2,', f'"value": {number},', 1), encoding="utf-8")
    refused(capsys, "runs/b/run.json", "too large")
    run.write_text(complete, encoding="utf-8")
    steps.write_text(steps.read_text(encoding="utf-8").replace('"loss":5.9', f'"loss":{number}'), encoding="utf-8")
    if number != str(2**63):  # a loss is no integer
        refused(capsys, "runs/b/steps.jsonl:2", "too large")


BAD = (
    ("runs|price._per_gpu_hour.mi355x=3.10", "without a currency"),
    ("runs|price.usd_per_gpu_hour.mi355x=0 USD/gpu-hour", "not a positive number"),
    ("runs|price.per_gpu_hour.mi355x=3.10", "no such key"),
    ("runs|price.usd_per_gpu_hour.mi355x=3|price.eur_per_gpu_hour.b200=3", "two currencies"),
    ("runs|price.usd_per_gpu_hour.mi35x=3", "did you mean mi355x?"),
    ("runs|tokens=-1", "tokens: cannot be used"),
    ("runs|difference=0", "above 0, below 100 %"),
    ("runs|baseline=TP3", "did you mean TP2?"),
    ("runs|vary=nothing", "no such setting"),
    ("runs|-o|runs/a/run.json", "cannot be written"),
    ("missing", "no run there"),
    *((argv, "") for argv in ("--json", "\x00", "runs/*/x")),
)


def test_arguments_that_cannot_be_used(runs: Path, capsys: Capture) -> None:
    for arguments, expected in (*BAD, (None, "none given")):
        assert main([] if arguments is None else arguments.split("|")) == 2
        error = capsys.readouterr().err
        assert (arguments, expected in error, "Traceback" in error) == (arguments, True, False)


def test_a_price_in_a_run_without_a_currency_or_below_zero(runs: Path, capsys: Capture) -> None:
    for text, expected in (("usd_per_gpu_hour: {mi355x: -1}", "not a positive number"), ("usd_per_gpu_hour: 3", None)):
        (runs / "b" / "experiment.yaml").write_text(f"price: {{{text}}}\n", encoding="utf-8")
        assert main([str(runs)]) == (0 if expected is None else 2)
        assert (expected or "") in capsys.readouterr().err


def test_escapes_and_marks_in_names_and_log_lines_are_only_text(runs: Path, capsys: Capture) -> None:
    """See test_report.py for what a page makes of them."""
    dead = made("c", over={"lr": 1}, status="failed", cause=EVIL, last_lines=(EVIL,), notes=(EVIL,))
    save(runs, replace(dead, image=EVIL, environment={"device_name": EVIL, "host": EVIL}))
    edit(runs / "b", lambda entry: entry.update(name=EVIL, image=EVIL, id=EVIL))
    assert main(["runs", "-o", "out"]) in (0, 3)
    printed = capsys.readouterr().out
    assert ("\x1b" in printed, "[bold]x[/nope]" in printed) == (False, True)
    texts = [path.read_text(encoding="utf-8") for path in Path("out").iterdir() if path.suffix in (".html", ".md")]
    assert [text for text in texts if "<script>alert" in text or "\x1b" in text] == []


def test_one_id_is_one_run_unless_it_was_started_twice(runs: Path, capsys: Capture) -> None:
    save(runs, replace(made("c", over={"seed": 2}), id="a", started_at="2026-11-21T10:00:00Z"))
    assert shown(capsys)[1]["groups"][0]["counted_runs"] == 2
    save(runs, replace(made("c", 3.0), id="a"))
    refused(capsys, "is the same run as", "name only one of the two")


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
    for key, inside in items:
        yield (*path, key)
        yield from places(inside, (*path, key))


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    result = tmp_path_factory.mktemp("fuzzed")
    save(result, *repeats("a", (2.0, 2.1, 2.2)), *repeats("b", (3.0, 3.1, 3.2), TP2))
    editable(result)
    return result


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 10**6), VALUES), min_size=1, max_size=3), st.booleans(), st.integers(0, 11))
def test_fuzz(fuzzed: Path, changes: list[tuple[int, Any]], in_steps: bool, line: int) -> None:
    """A mutated record is refused, or compared to valid, finite JSON and a table. Nothing is raised."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(fuzzed, folder, dirs_exist_ok=True)
        path = Path(folder) / "b_1" / ("steps.jsonl" if in_steps else "run.json")
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines() if in_steps else [text]
        entry = json.loads(lines[line % len(lines)])
        for place, new in changes:
            known = list(places(entry))
            *parents, last = known[place % len(known)]
            into = entry
            for key in parents:
                into = into[key]
            into[last] = new
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
