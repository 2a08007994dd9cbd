"""launch.py and tprimat check rehearse the vendors' real stacks on this CPU, from the command line to the record."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from stacks import ROOT, interpreter

pytestmark = pytest.mark.nvidia

START = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tensorprimat.cli import main; sys.exit(main())"
STACKS = ("nemo", "megatron_bridge")
SPEEDS = ("step_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "memory_bytes", "end_monotonic_s")
Reported = tuple[dict[str, Any], list[dict[str, Any]]]


def command(*arguments: str) -> tuple[int, Any]:
    """Exit code and JSON of a command of ours, which finds the interpreters where they are."""
    variables = {"NEMO_PYTHON": interpreter("nemo"), "BRIDGE_PYTHON": interpreter("megatron_bridge")}
    argv = [sys.executable, "-c", START, *arguments, "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=900, check=False, env=os.environ | variables)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def record(path: str) -> Reported:
    """run.json and the steps."""
    lines = (Path(path) / "steps.jsonl").read_text(encoding="utf-8").splitlines()
    return json.loads((Path(path) / "run.json").read_text(encoding="utf-8")), [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reported]:
    """The default Llama by both of NVIDIA's stacks, tensor and sequence parallel, from the same weights."""
    layout = ("gpus_per_node=2", "layout.tensor_model_parallel_size=2", "equal_init=true")
    runs = f"runs_dir={tmp_path_factory.mktemp('runs')}"
    code, rows = command("launch", "-m", f"framework={','.join(STACKS)}", "rehearse=train", runs, *layout)
    assert code == 0, rows
    return {reported["framework"]: (reported, steps) for reported, steps in (record(row["run"]) for row in rows)}


@pytest.mark.parametrize("stack", STACKS)
def test_a_toy_of_the_default_is_an_ordinary_record(both: dict[str, Reported], stack: str) -> None:
    reported, steps = both[stack]
    assert (reported["status"], reported["provenance"], reported["hardware"]) == ("completed", "rehearsed", "h100")
    assert {d["setting"] for d in reported["differences"]} <= {d["key"] for d in reported["declared"]}
    assert reported["requested"]["sequence_parallel"] is True and reported["shrunk"]["num_layers"] == {
        "asked": 32,
        "ran": 2,
    }
    assert {step[name] for step in steps for name in SPEEDS} == {None}
    assert reported["effective"]["tensor_model_parallel_size"]["file"].startswith("probe/"), "read inside the rank"


@pytest.mark.parametrize("stack", STACKS)
def test_each_step_used_the_rate_of_the_one_schedule(both: dict[str, Reported], stack: str) -> None:
    reported, steps = both[stack]
    requested = reported["requested"]
    lr, low, warm, end = (requested[n] for n in ("lr", "min_lr", "lr_warmup_iters", "lr_decay_iters"))
    for step in steps:
        s = step["step"]
        share = (1 + math.cos(math.pi * (s - warm) / (end - warm))) / 2
        rate = lr * (s + 1) / (warm + 1) if s < warm else low + (lr - low) * share
        assert math.isclose(step["lr_used"], rate, rel_tol=1e-12)


def test_two_stacks_train_the_same(both: dict[str, Reported]) -> None:
    seen = [
        [(step["loss"], step["lr_used"], step["metrics"]["tokens_checksum"]) for step in steps]
        for _, steps in both.values()
    ]
    assert seen[0] == seen[1] and len(seen[0]) == 10
    facts = [
        [reported["environment"][n] for n in ("parameters", "parameters_decayed")] for reported, _ in both.values()
    ]
    assert facts[0] == facts[1]


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
