"""A recipe of NVIDIA's for NeMo in rehearse=layout: a rank of its layout is built with what the recipe sets."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rehearsal.test_launch_rehearsal import command, record

pytestmark = pytest.mark.nvidia

NAME = "pretrain_qwen3_30b_a3b_b200_8gpus_bf16"


def test_a_rank_of_a_recipe_is_played(tmp_path: Path) -> None:
    # of one layer, as more take gigabytes; all else is at full size
    case = ("model=qwen3_30b_a3b", "hardware=b200", "platform=nvidia", "framework=nemo", "method=max_performance")
    code, rows = command("launch", *case, "model.num_layers=1", "rehearse=layout", f"runs_dir={tmp_path}")
    assert code == 0, rows
    reported, _ = record(rows[0]["run"])
    effective = {name: reading["value"] for name, reading in reported["effective"].items()}
    assert reported["status"] == "completed" and reported["recipe"]["name"] == NAME
    assert {d["setting"] for d in reported["differences"]} <= {d["key"] for d in reported["declared"]}
    assert (effective["expert_model_parallel_size"], effective["world_size"]) == (8, 8)
    assert effective["overlap_grad_reduce"], "the vendor's callback has set it"
    assert effective["accumulate_allreduce_grads_in_fp32"] is False, "and its precision"
    assert "the recipe's kernels" in reported["not_rehearsed"]
