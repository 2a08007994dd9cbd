"""A recipe of NVIDIA's for Megatron-Bridge 0.3.1 in rehearse=layout: a rank of its layout is built, and Bridge's own
dump of what it runs has what the plan sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tensorprimat.launch import main as launch
from tests.rehearsal.stacks import interpreter
from tests.rehearsal.test_launch_rehearsal import command, record

pytestmark = pytest.mark.nvidia

NAME = "qwen3_30b_a3b_pretrain_config_b200_bf16_v1"


def test_what_a_rank_of_a_recipe_runs_is_what_the_plan_says(tmp_path: Path) -> None:
    # of one layer, as more take gigabytes; all else is at full size
    case = ("model=qwen3_30b_a3b", "hardware=b200", "platform=nvidia", "framework=megatron_bridge")
    method = ("method=max_performance", "batch=vendor", "model.num_layers=1", "rehearse=layout")
    code, rows = command("launch", *case, *method, f"runs_dir={tmp_path}")
    assert code == 0, rows
    reported, _ = record(rows[0]["run"])
    assert reported["status"] == "completed"
    assert (reported["recipe"]["name"], reported["recipe"]["release"]) == (NAME, "0.3.1")
    assert {d["setting"] for d in reported["differences"]} <= {d["key"] for d in reported["declared"]}
    effective = {name: reading["value"] for name, reading in reported["effective"].items()}
    sizes = [effective[name] for name in ("world_size", "expert_model_parallel_size", "global_batch_size")]
    assert sizes == [8, 8, 512]
    assert effective["accumulate_allreduce_grads_in_fp32"] is False and effective["average_in_collective"] is True
    assert "the recipe's kernels" in reported["not_rehearsed"]

    run = Path(rows[0]["run"])
    plan, dump = (yaml.safe_load((run / name).read_text("utf-8")) for name in ("settings.yaml", "bridge_config.yaml"))
    planned = {**plan["set_by_recipe"], **plan["set"], **plan["set_without_transformer_engine"]}
    # spelt otherwise in the dump are values of no plain kind; after a null anything is right
    plain = {path: value for path, value in planned.items() if value is not None and not isinstance(value, dict)}
    plain["dataset.sequence_length"] = plain.pop("dataset.seq_length")  # which Bridge 0.3.1 has it under
    unlike = {path: (value, ran) for path, value in plain.items() if (ran := at(dump, path)) != value}
    assert unlike == {} and len(plain) > 100


def test_a_recipe_of_another_release_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = ("model=llama31_8b", "hardware=b200", "platform=nvidia", "framework=megatron_bridge", "rehearse=layout")
    python = f"framework.python={interpreter('megatron_bridge')}"
    assert launch([*case, python, "method=max_performance", "framework.release=0.6.0", f"runs_dir={tmp_path}"]) == 2
    assert "is of another release than the installed Megatron-Bridge" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


def at(dump: Any, path: str) -> Any:
    for name in path.split("."):
        dump = dump[name]
    return dump
