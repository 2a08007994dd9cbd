"""launch.py and tprimat check rehearse the vendors' real stacks on this CPU, from the command line to the record."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.rehearsal.stacks import ROOT, interpreter

pytestmark = pytest.mark.nvidia

START = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tensorprimat.cli import main; sys.exit(main())"
Reported = tuple[dict[str, Any], list[dict[str, Any]]]


def command(*arguments: str) -> tuple[int, Any]:
    """Return exit code and JSON of a command of ours, which finds the interpreters where they are."""
    variables = {"NEMO_PYTHON": interpreter("nemo"), "BRIDGE_PYTHON": interpreter("megatron_bridge")}
    argv = [sys.executable, "-c", START, *arguments, "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=900, check=False, env=os.environ | variables)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def record(path: str) -> Reported:
    """run.json and the steps."""
    lines = (Path(path) / "steps.jsonl").read_text(encoding="utf-8").splitlines()
    return json.loads((Path(path) / "run.json").read_text(encoding="utf-8")), [json.loads(line) for line in lines]


def test_ranks_of_a_large_job_are_played(tmp_path: Path) -> None:
    """All of Llama 3.1 8B, 64 GPUs: the run fails where a rank's parameters are not those of our own count."""
    sizes = ("nodes=8", "layout.tensor_model_parallel_size=8", "layout.pipeline_model_parallel_size=8")
    code, rows = command("launch", "framework=nemo", "rehearse=layout", f"runs_dir={tmp_path}", *sizes)
    assert code == 0, rows
    reported, steps = record(rows[0]["run"])
    assert reported["environment"]["parameters_by_rank"] == {"0": 174_751_744, "56": 174_755_840}
    assert (reported["effective"]["world_size"]["value"], reported["requested"]["num_layers"], steps) == (64, 32, [])
    assert {d["setting"] for d in reported["differences"]} <= {d["key"] for d in reported["declared"]}
    assert reported["status"] == "completed" and "loss" in reported["not_rehearsed"]


def test_check_rehearses_what_is_installed(tmp_path: Path) -> None:
    small = ("platform=nvidia", "framework=megatron_bridge", "model=llama_tiny", "gpus_per_node=1")
    code, (row,) = command("check", *small)
    parts = {part["part"]: part for part in row["parts"]}
    assert (code, parts["machine"]["problems"]) == (0, []), "that there is no GPU here is what is left to show"
    assert parts["machine"]["says"].startswith("not done: no nvidia GPU is here")
    assert parts["rehearsal"]["problems"] == [] and "10 steps" in parts["rehearsal"]["says"]
    assert {"attention_backend", "memory", "speed"} <= row["only_a_gpu_can_show"].keys()


def test_nemos_recipe_is_built_and_nothing_started() -> None:
    """A plan for GPUs, too: here there is none."""
    for requested, code, refused in (
        (("platform=cpu",), 0, []),
        (("platform=nvidia", "model=llama31_70b", "nodes=4", "precision=fp8", "layout=tp2_pp2"), 2, ["platform"]),
    ):
        python = f"framework.python={interpreter('nemo')}"
        answer, (row,) = command("check", "rehearsal=false", "framework=nemo", python, *requested)
        parts = {part["part"]: part for part in row["parts"]}
        assert answer == code and {*refused} <= {problem["where"] for problem in parts["machine"]["problems"]}
        assert parts["target"]["problems"] == parts["settings"]["problems"] == []
        assert "nemo_toolkit 2.7.3" in parts["target"]["says"]
