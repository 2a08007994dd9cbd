"""Megatron-Bridge 0.3.1 itself, through launch.py, on this CPU: its log becomes a record that equals the request. More
layouts: tests/rehearsal."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import Any

import pytest
from nemo_runs import launch

pytestmark = pytest.mark.nvidia

STEPS, WARMUP, LR, MIN_LR = 6, 2, 1e-3, 1e-4
LAYOUTS = {
    "one rank": (),
    "DP2 overlapped": (
        *("gpus_per_node=2", "training.overlap_grad_reduce=true", "training.overlap_param_gather=true"),
        "training.save_interval=4",
    ),
}


@pytest.fixture(scope="module")
def trained(
    bridge_python: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[dict[str, Any], list[Any]]]:
    """Record and steps by layout."""
    result = {}
    for name, overrides in LAYOUTS.items():
        runs = tmp_path_factory.mktemp("runs")
        sizes = (f"training.train_iters={STEPS}", f"optimizer.lr_warmup_iters={WARMUP}")
        requested = ("model=llama_tiny", *sizes, *overrides)
        code, out, err = launch(bridge_python, runs, *requested, framework="megatron_bridge")
        assert code == 0, out + err
        (path,) = runs.glob("t/*/run.json")
        lines = (path.parent / "steps.jsonl").read_text(encoding="utf-8").splitlines()
        kept = {"kept": sorted(made.name for made in path.parent.glob("checkpoints/iter_*"))}
        result[name] = json.loads(path.read_text(encoding="utf-8")) | kept, [json.loads(line) for line in lines]
    return result


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_record_is_complete_and_equals_the_request(trained: dict[str, Any], name: str) -> None:
    record, steps = trained[name]
    assert (record["status"], record["provenance"]) == ("completed", "rehearsed")
    assert (record["framework"], record["framework_version"]) == ("megatron_bridge", "0.3.1")
    declared = {entry["key"]: entry["value"] for entry in record["declared"]}
    unlike = {d["setting"]: d["effective"] for d in record["differences"]}
    assert unlike == declared, "nothing but what the plan declared runs otherwise"
    assert [step["step"] for step in steps] == list(range(STEPS))
    assert [step["iteration"] for step in steps] == list(range(1, STEPS + 1))
    assert record["environment"]["data_first_batch"] == record["environment"]["data_first_batch_predicted"]


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_step_used_the_rate_that_was_asked_for_and_printed_the_next_ones(
    trained: dict[str, Any], name: str
) -> None:
    _, steps = trained[name]
    for step in steps:
        assert math.isclose(step["lr_used"], asked_rate(step["step"]), rel_tol=1e-12)
    for step, after in pairwise(steps):
        assert math.isclose(step["lr"], after["lr_used"], rel_tol=1e-6), "Megatron's line has the next step's"


def test_checkpoints_are_written_where_they_were_asked_for(trained: dict[str, Any]) -> None:
    kept = {name: record["kept"] for name, (record, _) in trained.items()}
    assert kept.pop("DP2 overlapped") == ["iter_0000004", "iter_0000006"], "and one of the end"
    assert not any(kept.values())
    assert trained["DP2 overlapped"][0]["effective"]["save_interval"]["value"] == 4


def asked_rate(s: int) -> float:
    """The one schedule: README, "One schedule"."""
    if s < WARMUP:
        return LR * (s + 1) / (WARMUP + 1)
    return MIN_LR + (LR - MIN_LR) / 2 * (1 + math.cos(math.pi * (s - WARMUP) / (STEPS - WARMUP)))


def test_it_learns_and_data_parallel_ranks_change_nothing(trained: dict[str, Any]) -> None:
    losses = {name: [step["loss"] for step in steps] for name, (_, steps) in trained.items()}
    assert all(first - last > 0.5 for first, *_, last in losses.values())
    apart = max(abs(a - b) for a, b in zip(losses["one rank"], losses["DP2 overlapped"], strict=True))
    assert apart < 1e-5
    assert len({record["environment"]["data_first_batch"] for record, _ in trained.values()}) == 1
