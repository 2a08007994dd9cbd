"""NeMo 2.7.3 itself, through launch.py, on this CPU: its log becomes a completed record that equals the request."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from nemo_runs import launch

pytestmark = pytest.mark.nvidia

STEPS, WARMUP, LR, MIN_LR = 8, 2, 1e-3, 1e-4
LAYOUTS = {
    "one rank": ("training.save_interval=4",),
    "TP2 SP": ("layout=tp2", "gpus_per_node=2"),
    "PP2": ("layout=pp2", "gpus_per_node=2"),
    "DP2 overlapped": ("gpus_per_node=2", "training.overlap_grad_reduce=true", "training.overlap_param_gather=true"),
}
LAYOUT_SETTINGS = {
    "TP2 SP": {"tensor_model_parallel_size": 2, "sequence_parallel": True, "data_parallel_size": 1},
    "PP2": {"pipeline_model_parallel_size": 2, "data_parallel_size": 1},
    "DP2 overlapped": {"data_parallel_size": 2, "overlap_grad_reduce": True, "num_micro_batches": 4},
    "one rank": {"data_parallel_size": 1, "num_micro_batches": 8, "save_interval": 4},
}


@pytest.fixture(scope="module")
def trained(nemo_python: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[dict[str, Any], list[Any]]]:
    """Record and steps by layout."""
    result = {}
    for name, overrides in LAYOUTS.items():
        runs = tmp_path_factory.mktemp("runs")
        sizes = (f"training.train_iters={STEPS}", f"optimizer.lr_warmup_iters={WARMUP}")
        code, out, err = launch(nemo_python, runs, "model=llama_tiny", *sizes, *overrides)
        assert code == 0, out + err
        (path,) = runs.glob("t/*/run.json")
        lines = (path.parent / "steps.jsonl").read_text(encoding="utf-8").splitlines()
        kept = {"kept": sorted(made.name for made in path.parent.glob("checkpoints/*"))}
        result[name] = json.loads(path.read_text(encoding="utf-8")) | kept, [json.loads(line) for line in lines]
    return result


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_record_is_complete_and_equals_the_request(trained: dict[str, Any], name: str) -> None:
    record, steps = trained[name]
    assert (record["status"], record["provenance"], record["framework"]) == ("completed", "rehearsed", "nemo")
    assert record["framework_version"] == "2.7.3"
    declared = {entry["key"]: entry["value"] for entry in record["declared"]}
    unlike = {d["setting"]: d["effective"] for d in record["differences"]}
    assert unlike == declared, "nothing but what the plan declared runs otherwise"
    effective = {setting: reading["value"] for setting, reading in record["effective"].items()}
    assert {key: effective[key] for key in LAYOUT_SETTINGS[name]} == LAYOUT_SETTINGS[name]
    assert [(step["step"], step["iteration"]) for step in steps] == [(k, k) for k in range(STEPS)]
    assert record["environment"]["data_first_batch"] == record["environment"]["data_first_batch_predicted"]
    assert record["summary"]["tokens_per_s"]["value"] is None, "a rehearsal has no speed"


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_step_used_the_rate_that_was_asked_for(trained: dict[str, Any], name: str) -> None:
    _, steps = trained[name]
    for step in steps:
        assert math.isclose(step["lr_used"], asked_rate(step["step"]), rel_tol=1e-15)
        assert math.isclose(step["lr"], step["lr_used"], rel_tol=5e-4), "printed with four digits"


def test_checkpoints_are_written_where_they_were_asked_for(trained: dict[str, Any]) -> None:
    kept = {name: record["kept"] for name, (record, _) in trained.items()}
    assert kept.pop("one rank") == ["step=3", "step=7"], "NeMo counts from 0"
    assert not any(kept.values())


def asked_rate(s: int) -> float:
    """The one schedule: README, "One schedule"."""
    if s < WARMUP:
        return LR * (s + 1) / (WARMUP + 1)
    return MIN_LR + (LR - MIN_LR) / 2 * (1 + math.cos(math.pi * (s - WARMUP) / (STEPS - WARMUP)))


def test_it_learns_and_data_parallel_ranks_change_nothing(trained: dict[str, Any]) -> None:
    losses = {name: [step["loss"] for step in steps] for name, (_, steps) in trained.items()}
    assert all(first - last > 1 for first, *_, last in losses.values())
    apart = max(abs(a - b) for a, b in zip(losses["one rank"], losses["DP2 overlapped"], strict=True))
    assert apart < 1e-5
    batches = {record["environment"]["data_first_batch"] for record, _ in trained.values()}
    assert len(batches) == 1
