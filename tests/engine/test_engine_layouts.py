"""The same settings give the same losses in every layout, because the engine's weights and data do not know it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.engine
FP32, BF16 = 1e-5, 2e-3
TP2: dict[str, Any] = {"tensor_model_parallel_size": 2}
TP2_SP = {**TP2, "sequence_parallel": True}
PP2: dict[str, Any] = {"pipeline_model_parallel_size": 2}
DP2: dict[str, Any] = {"data_parallel_size": 2}
DP2_SHARDED = {**DP2, "use_distributed_optimizer": True}
DP2_OVERLAPPED = {**DP2_SHARDED, "overlap_grad_reduce": True, "overlap_param_gather": True}
LAYOUTS = {"TP2": TP2, "TP2+SP": TP2_SP, "PP2": PP2, "DP2": DP2, "DP2+sharded": DP2_SHARDED}
LLAMA_LIKE: dict[str, Any] = {
    "untie_embeddings_and_output_weights": False,
    "add_qkv_bias": True,
    "use_rope_scaling": True,
    "rope_scaling_factor": 8.0,
    "train_iters": 6,
}
BFLOAT16: dict[str, Any] = {"params_dtype": "bfloat16", "train_iters": 6}
RECOMPUTE: dict[str, Any] = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
    "train_iters": 6,
}


def difference(one: Any, other: Any) -> float:
    """The largest difference of losses, over the steps that the shorter of the two runs has."""
    assert one.code == other.code == 0, one.err + other.err
    pairs = list(zip(one.losses, other.losses, strict=False))
    assert len(pairs) == min(one.settings["train_iters"], other.settings["train_iters"])
    return max(abs(a - b) for a, b in pairs)


@pytest.mark.parametrize("layout", [*LAYOUTS, "DP2+overlapped", "TP2xPP2"])
def test_fp32_layouts_equal_the_single_process(run: Callable[..., Any], layout: str) -> None:
    changes = {**LAYOUTS, "DP2+overlapped": DP2_OVERLAPPED, "TP2xPP2": {**TP2, **PP2}}[layout]
    assert difference(run(**changes), run()) <= FP32


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bf16_layouts_equal_the_single_process(run: Callable[..., Any], layout: str) -> None:
    assert difference(run(**LAYOUTS[layout], **BFLOAT16), run(**BFLOAT16)) <= BF16


@pytest.mark.parametrize("layout", ["TP2", "PP2"])
def test_tied_embeddings_qkv_bias_and_rope_scaling(run: Callable[..., Any], layout: str) -> None:
    assert difference(run(**LAYOUTS[layout], **LLAMA_LIKE), run(**LLAMA_LIKE)) <= FP32


def test_each_model_setting_changes_the_losses(run: Callable[..., Any]) -> None:
    assert difference(run(**LLAMA_LIKE), run()) > FP32
    assert difference(run(**BFLOAT16), run()) > 1e-7


def test_recomputation_changes_nothing(run: Callable[..., Any]) -> None:
    assert difference(run(**RECOMPUTE), run()) == 0


def test_loss_falls(run: Callable[..., Any]) -> None:
    losses = run().losses
    assert losses[-1] < losses[0] - 1
