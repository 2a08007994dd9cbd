"""make gpu-day: what is done is not done again, what failed is, and no phase begins after its time."""

from __future__ import annotations

import importlib.util
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def gpu_day(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec = importlib.util.spec_from_file_location("gpu_day", ROOT / "benchmarks" / "gpu_day.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_day_goes_on_where_it_was_cut(gpu_day: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran, good = list[str](), {"measure": True, "turns": False}

    def phase(name: str, day: Any) -> bool:
        ran.append(name)
        return good[name]

    phases = {name: partial(phase, name) for name in good}
    monkeypatch.setattr(gpu_day, "PHASES", phases)
    assert gpu_day.run(gpu_day.Day(tmp_path, True, 0.0), [*phases]) == 3
    assert not ran
    assert gpu_day.run(gpu_day.Day(tmp_path, True, 5.0), [*phases]) == 1
    good["turns"] = True
    assert gpu_day.run(gpu_day.Day(tmp_path, True, 5.0), [*phases]) == 0
    assert ran == ["measure", "turns", "turns"]
    assert json.loads((tmp_path / "state.json").read_text()) == {"measure": "done", "turns": "done"}


@pytest.mark.parametrize("words", ["TINY", "FULL"])
def test_both_sizes_are_experiments_that_plan(gpu_day: Any, words: str) -> None:
    from conf import load_experiment

    platform = () if words == "TINY" else ("platform=nvidia", "hardware=h100")
    e = load_experiment(*getattr(gpu_day, words), *platform)
    assert e.framework.name == "megatron"
    assert e.gpus_per_node == 1


@pytest.mark.slow
@pytest.mark.engine
def test_a_day_at_toy_size(gpu_day: Any, tmp_path: Path) -> None:
    day = gpu_day.Day(tmp_path, True, 60.0)
    assert gpu_day.run(day, [*gpu_day.PHASES]) == 0, gpu_day._state(day)
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert text.count("| done |") == len(gpu_day.PHASES) - 1  # the report is not done while it is written
