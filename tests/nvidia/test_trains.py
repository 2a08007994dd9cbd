"""NeMo 2.7.3 and Megatron-Bridge 0.3.1 themselves, through launch.py, on this CPU: the log becomes a completed record
that equals the request. More layouts: tests/rehearsal."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from tests.nvidia.nemo_runs import launch
from tests.rehearsal.stacks import canonical_rate

pytestmark = pytest.mark.nvidia

STEPS, WARMUP = 6, 2
RELEASES = {"nemo": "2.7.3", "megatron_bridge": "0.3.1"}
OVERLAPPED = ("gpus_per_node=2", "training.overlap_grad_reduce=true", "training.overlap_param_gather=true")
RUNS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "nemo, one rank": (
        ("training.save_interval=1", "training.keep_checkpoints=3"),
        {"data_parallel_size": 1, "num_micro_batches": 8, "save_interval": 1},
    ),
    "nemo, TP2 SP": (
        ("layout=tp2", "gpus_per_node=2"),
        {"tensor_model_parallel_size": 2, "sequence_parallel": True, "data_parallel_size": 1},
    ),
    "nemo, PP2": (("layout=pp2", "gpus_per_node=2"), {"pipeline_model_parallel_size": 2, "data_parallel_size": 1}),
    "nemo, DP2": (OVERLAPPED, {"data_parallel_size": 2, "overlap_grad_reduce": True, "num_micro_batches": 4}),
    "megatron_bridge, one rank": ((), {"data_parallel_size": 1, "save_interval": None}),
    "megatron_bridge, DP2": (
        (*OVERLAPPED, "training.save_interval=1"),
        {"data_parallel_size": 2, "overlap_grad_reduce": True, "save_interval": 1},
    ),
}
"""Overrides, and what must be effective."""
KEPT = {
    "nemo, one rank": ["step=3", "step=4", "step=5"],
    "megatron_bridge, DP2": ["iter_0000005", "iter_0000006"],
}
"""The last of six. NeMo counts from 0."""
Trained = dict[str, tuple[dict[str, Any], list[Any]]]


@pytest.fixture(scope="module")
def trained(nemo_python: str, bridge_python: str, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Return record and steps by run."""
    pythons = {"nemo": nemo_python, "megatron_bridge": bridge_python}
    result = {}
    for name, (overrides, _) in RUNS.items():
        runs, framework = tmp_path_factory.mktemp("runs"), name.partition(",")[0]
        sizes = (f"training.train_iters={STEPS}", f"optimizer.lr_warmup_iters={WARMUP}")
        requested = ("model=llama_tiny", *sizes, *overrides)
        code, out, err = launch(pythons[framework], runs, *requested, framework=framework)
        assert code == 0, out + err
        (path,) = runs.glob("t/*/run.json")
        lines = (path.parent / "steps.jsonl").read_text(encoding="utf-8").splitlines()
        kept = {"kept": sorted(made.name for made in path.parent.glob("checkpoints/*=*"))}
        kept["kept"] += sorted(made.name for made in path.parent.glob("checkpoints/iter_*"))
        result[name] = json.loads(path.read_text(encoding="utf-8")) | kept, [json.loads(line) for line in lines]
    return result


@pytest.mark.parametrize("name", RUNS)
def test_the_record_is_complete_and_equals_the_request(trained: Trained, name: str) -> None:
    record, steps = trained[name]
    framework, first = name.partition(",")[0], 0 if name.startswith("nemo") else 1
    assert (record["status"], record["provenance"], record["framework"]) == ("completed", "rehearsed", framework)
    assert record["framework_version"] == RELEASES[framework]
    declared = {entry["key"]: entry["value"] for entry in record["declared"]}
    unlike = {d["setting"]: d["effective"] for d in record["differences"]}
    assert unlike == declared, "nothing but what the plan declared runs otherwise"
    effective = {setting: reading["value"] for setting, reading in record["effective"].items()}
    assert {key: effective[key] for key in RUNS[name][1]} == RUNS[name][1]
    assert [(step["step"], step["iteration"]) for step in steps] == [(k, k + first) for k in range(STEPS)]
    assert record["environment"]["data_first_batch"] == record["environment"]["data_first_batch_predicted"]
    assert record["summary"]["tokens_per_s"]["value"] is None, "a rehearsal has no speed"
    assert record["kept"] == KEPT.get(name, []), "checkpoints are where they were requested"


@pytest.mark.parametrize("name", RUNS)
def test_every_step_used_the_requested_rate(trained: Trained, name: str) -> None:
    record, steps = trained[name]
    used = [step["lr_used"] for step in steps]
    assert used == pytest.approx([canonical_rate(record["requested"], s) for s in range(STEPS)], rel=1e-12)
    if name.startswith("nemo"):
        assert [step["lr"] for step in steps] == pytest.approx(used, rel=5e-4), "printed with four digits"
    else:
        following = [(step["lr"], after["lr_used"]) for step, after in pairwise(steps)]
        assert all(printed == pytest.approx(rate, rel=1e-6) for printed, rate in following), "printed: the next one's"


@pytest.mark.parametrize("framework", RELEASES)
def test_it_learns_and_data_parallel_ranks_change_nothing(trained: Trained, framework: str) -> None:
    mine = {name: run for name, run in trained.items() if name.startswith(framework)}
    losses = {name: [step["loss"] for step in steps] for name, (_, steps) in mine.items()}
    assert all(first - last > 0.5 for first, *_, last in losses.values())
    assert losses[f"{framework}, one rank"] == pytest.approx(losses[f"{framework}, DP2"], abs=1e-5)
    assert len({record["environment"]["data_first_batch"] for record, _ in mine.values()}) == 1
