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

    def phase(name: str, day: Any) -> None:
        ran.append(name)
        if not good[name]:
            raise gpu_day.FailedError(name)

    phases = {name: partial(phase, name) for name in good}
    monkeypatch.setattr(gpu_day, "PHASES", phases)
    assert gpu_day.run(gpu_day.Day(tmp_path, True, 0.0), [*phases]) == 3
    assert not ran
    assert gpu_day.run(gpu_day.Day(tmp_path, True, 5.0), [*phases]) == 1
    good["turns"] = True
    assert gpu_day.run(gpu_day.Day(tmp_path, True, 5.0), [*phases]) == 0
    assert ran == ["measure", "turns", "turns"]
    assert json.loads((tmp_path / "state.json").read_text()) == {"measure": "done", "turns": "done"}


def test_a_phase_that_fails_is_noted_with_its_reason_and_the_next_goes_on(
    gpu_day: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = list[str]()
    monkeypatch.setattr(gpu_day, "program", lambda *words: _Refused())
    phases = {name: gpu_day.PHASES[name] for name in ("measure", "predict", "report")}
    phases["turns"] = partial(_noted, ran)
    monkeypatch.setattr(gpu_day, "PHASES", phases)
    assert gpu_day.run(gpu_day.Day(tmp_path, True, 5.0), ["measure", "predict", "turns", "report"]) == 1
    assert ran == ["turns"]
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "| measure | failed: measure ended with exit code 2: it was refused, and printed why |" in text
    assert "| predict | failed: ConfigError: " in text and "machine.yaml: no such file" in text
    assert "| turns | done |" in text
    (row,) = [line for line in text.splitlines() if line.startswith("| step_time_mean_s")]
    _, published, by_machine, measured = row.strip("| ").split(" | ")
    assert (by_machine, measured) == ("unknown", "unknown")
    assert float(published) > 0
    assert "| power_w_per_gpu | unknown | unknown | unknown |" in text  # of a CPU without a counter


def _noted(ran: list[str], day: Any) -> None:
    ran.append("turns")


class _Refused:
    """A program that was refused."""

    def wait(self, timeout: float) -> int:
        return 2


def test_a_python_that_lacks_a_package_is_named(
    gpu_day: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_day, "NEEDED", ("json", "no_such_package"))
    monkeypatch.setattr(sys, "argv", ["gpu_day.py", str(tmp_path / "day")])
    assert gpu_day.main() == 2
    assert f"{sys.executable} lacks no_such_package\n    try: make install" in capsys.readouterr().err
    assert not (tmp_path / "day").exists()


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
