"""The worked example of parsers/README.md, tried."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conf.errors import ConfigError
from parsers import DIALECTS, dialects, parse_all, reader
from parsers.cli import rows
from parsers.driver import Dialect
from parsers.record import STEP_FIELDS, Record, Validation

README = (Path(__file__).parents[2] / "parsers" / "README.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_example_of_a_new_dialect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny.py").write_text(block("python"))
    monkeypatch.setattr(dialects, "__path__", [*dialects.__path__, str(tmp_path)])
    for module in (dialects, reader):
        monkeypatch.setattr(module, "DIALECTS", (*DIALECTS, "tiny"))
    again = "0: [tiny] upd 4/40: loss=5.00 lr=3.0e-04 ms=405 mem=61.20GiB"
    (run,) = parse_all(["noise", *block("text").splitlines(), again])
    assert (run.dialect, run.framework, run.train_iters, run.completed) == ("tiny", "tiny", 40, True)
    first, second = run.steps
    assert (first.iteration, first.loss, first.step_time_s, first.lr_used) == (3, 5.25, 0.812, None)
    assert (second.iteration, second.lr, second.lr_used, second.interval_steps) == (4, 3e-4, 1.5e-4, 1)
    assert (second.memory_bytes, second.memory_kind) == (round(61.2 * 2**30), "reserved")
    settings = {name: reading.value for name, reading in run.effective.items()}
    assert settings == {"world_size": 2, "global_batch_size": 64, "lr": 0.0003}
    facts = {"framework_version": "0.3.1", "device_name": "NVIDIA H100 80GB HBM3", "vendor": "nvidia"}
    assert run.facts == {**facts, "parameters": 1024}
    assert [restart.steps for restart in run.restarts] == [2]
    assert [(stall.kind, stall.seconds, stall.iteration) for stall in run.stalls] == [("checkpoint", 12.5, 4)]
    assert [(point.step, point.loss) for point in run.validations] == [(3, 5.5)]


def test_every_dialect_has_its_row() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", README.split("## Dialects")[1], re.MULTILINE)
    assert sorted(rows) == sorted(DIALECTS)
    fields = README.split("The fields of a step, which `columns` names, are ")[1].split(" (`parsers/record.py`")[0]
    assert set(re.findall(r"`(\w+)`", fields)) <= set(STEP_FIELDS)


def test_what_is_wrong_with_a_dialect_names_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bare_one.py").write_text("X = 1\n")
    for name, group in {"misspelt": "world_sise", "other": "model_dim"}.items():
        (tmp_path / f"{name}.py").write_text(block("python").replace("<world_size>", f"<{group}>"))
    monkeypatch.setattr(dialects, "__path__", [*dialects.__path__, str(tmp_path)])
    for name, words in {
        "absent": ("cannot be imported", "No module named"),
        "bare_one": ("has no DIALECT",),
        "other": ("model_dim", "try: `facts` takes any name"),
        "misspelt": ("world_sise", "did you mean world_size?"),
    }.items():
        with pytest.raises(ConfigError) as error:
            dialects.load(name)
        (problem,) = error.value.problems
        assert problem.where == f"parsers/dialects/{name}.py"
        assert all(word in str(problem) for word in words), str(problem)


def test_a_validation_line_may_print_no_loss() -> None:
    pattern = r"eval after upd (?P<iteration>\d{1,12}): accuracy=(?P<accuracy>\S{1,20})"
    table = Dialect(framework="x", looks_for="", signs=(), marks=(), validations=(pattern,))
    (point,) = table.statements(7, "eval after upd 4: accuracy=0.5")
    assert point == Validation(line=7, step=3, iteration=4, loss=None, metrics={"accuracy": 0.5})
    record = Record(id="a", name="a", provenance="imported", status="unknown", validations=(point,))
    assert ("valid", "accuracy 0.5 after iteration 4 (line 7)") in rows(record)


def test_a_broken_pattern_is_refused_by_its_entry() -> None:
    for name, entry in {"head": "step (", "facts": ("a", "step ("), "stalls": {"checkpoint": "step ("}}.items():
        with pytest.raises(ValueError, match=f"`{name}` is no regular expression: missing .*: step "):
            Dialect(framework="x", looks_for="", signs=(), marks=(), **{name: entry})  # type: ignore[arg-type]
