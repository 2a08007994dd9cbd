"""The line that a recipe of NVIDIA's cites, in a checkout that BRIDGE_PATH or NEMO_PATH names."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from conf import load_experiment
from conf.recipes import recipes
from launchers import preflight

CASE = ("platform=nvidia", "hardware=b200", "model=llama31_8b", "method=max_performance")
BRIDGE = ("framework=megatron_bridge", "framework.release=0.6.0")


def checkout(folder: Path, name: str, number: int, line: str, tag: str) -> Path:
    """Return a repository with one file, whose line `number` is `line`."""
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_text("\n" * (number - 1) + f"{line}\n", encoding="utf-8")
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for words in (("init", "-q"), ("add", "."), (*identity, "commit", "-qm", "a"), ("tag", tag)):
        subprocess.run(["git", "-C", folder, *words], check=True)
    return folder


def moved(*overrides: str) -> list[str]:
    return [
        str(problem) for problem in preflight.problems(load_experiment(*CASE, *overrides)) if problem.where == "recipe"
    ]


def test_a_function_that_moved_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, where = "llama3_8b_pretrain_8gpu_b200_bf16_config", "src/megatron/bridge/perf_recipes/llama/b200/llama3.py"
    there = checkout(tmp_path / "same", where, 32, f"def {name}() -> ConfigContainer:", "v0.6.0")
    other = checkout(tmp_path / "other", where, 31, f"def {name}() -> ConfigContainer:", "v0.6.0")
    of_another_release = checkout(tmp_path / "older", where, 1, "", "v0.5.0")
    monkeypatch.delenv("BRIDGE_PATH", raising=False)
    assert moved(*BRIDGE) == []
    monkeypatch.setenv("BRIDGE_PATH", f"{of_another_release}:{there}")
    assert moved(*BRIDGE) == []
    monkeypatch.setenv("BRIDGE_PATH", str(other))
    (problem,) = moved(*BRIDGE)
    assert f"{name} was read from line 32 of {where}" in problem and "no such line" in problem


def test_a_row_of_nemos_tables_that_changed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (recipe,) = (r for r in recipes("nemo-2.7.3") if r.name == "pretrain_llama3_8b_b200_8gpus_bf16")
    name, _, number = recipe.source.split()[1].partition(":")
    row = ",".join(recipe.more["table"].values())
    for folder, line, expected in (("same", row, 0), ("changed", row.replace(",2,128,", ",4,128,"), 1)):
        monkeypatch.setenv("NEMO_PATH", str(checkout(tmp_path / folder, name, int(number), line, "v2.7.3")))
        assert len(moved("framework=nemo")) == expected, line
