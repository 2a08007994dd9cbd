"""Every layout rule: the cases of the field by name, and properties over all layouts."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf import load_experiment
from conf.errors import ConfigError
from conf.resolve import Experiment


def told(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_experiment(*overrides)
    return str(caught.value)


VP2 = "layout.virtual_pipeline_model_parallel_size=2"
LLAMA = ("model=llama", "platform=nvidia", "gpus_per_node=8")
TP, PP = "layout.tensor_model_parallel_size", "layout.pipeline_model_parallel_size"


def test_3_by_3_on_8_gpus() -> None:
    text = told(*LLAMA, f"{TP}=3", f"{PP}=3")
    assert "TP 3 × PP 3 × CP 1 = 9 does not divide 8 GPUs" in text
    assert "TP 2 × PP 4 × CP 1" in text
    assert "9 GPUs for this layout" in text
    assert "32 attention heads" in text, "heads and layers are told in the same breath"
    assert "32 layers" in text


def test_tp_8_on_qwen_with_28_heads_and_4_groups() -> None:
    text = told("model=qwen", "platform=amd", "gpus_per_node=8", f"{TP}=8")
    assert "qwen25_7b has 28 attention heads, which TP 8 does not divide (28 / 8 = 3.5)" in text
    assert "4 KV groups" in text
    assert "allowed: 1, 2, 4" in text


def test_pp_3_on_32_layers() -> None:
    text = told("model=llama", "platform=nvidia", "gpus_per_node=3", f"{PP}=3")
    assert "llama31_8b has 32 layers, which PP 3 does not divide" in text
    assert "1, 2, 4, 8" in text


def test_gbs_100_on_dp_8() -> None:
    text = told(*LLAMA, "layout=data_parallel", "training.global_batch_size=100")
    assert "100 does not divide by micro-batch 1 × DP 8 = 8" in text
    assert "96, 104" in text


EP = "layout.expert_model_parallel_size"
MOE = ("model=mixtral_8x7b", "platform=nvidia", "gpus_per_node=8", "layout=data_parallel")


@pytest.mark.parametrize(
    "overrides",
    [
        [f"{EP}=8"],
        [f"{TP}=2", f"{EP}=4"],
        [f"{TP}=2", f"{EP}=2", f"{PP}=2"],
        ["model=gpt_oss_120b", f"{EP}=8"],
        ["model=qwen3_235b_a22b", f"{TP}=4", f"{EP}=2", "model.num_layers=4", f"{PP}=1"],
        ["model=deepseek_v3", f"{TP}=8", "nodes=4", f"{EP}=4"],
        ["model=moe_tiny", "platform=cpu", "gpus_per_node=4", f"{EP}=4"],
    ],
)
def test_layouts_of_experts_that_are_valid(overrides: list[str]) -> None:
    assert load_experiment(*MOE, *overrides).layout.expert_model_parallel_size > 1


def test_an_mlp_that_no_layer_has_need_not_divide() -> None:
    e = load_experiment(*MOE, f"{TP}=8", "model.ffn_hidden_size=3")
    assert e.layout.tensor_model_parallel_size == 8


def test_tp_beyond_the_node_is_a_warning_with_its_reason() -> None:
    e = load_experiment("model=llama31_70b", "platform=nvidia", "hardware=gb200", "nodes=2", f"{TP}=8")
    assert any("leaves the node (4 GPUs)" in warning.what for warning in e.warnings)


def test_derived_sizes_are_given_with_their_reason() -> None:
    e = load_experiment(*LLAMA, f"{TP}=4")
    assert (e.layout.data_parallel_size, e.layout.num_micro_batches) == (2, 64)
    assert "DP = 2: 8 GPUs / TP 4 / PP 1" in e.reasons
    assert "gradient accumulation = 64: global batch 128 / (micro-batch 1 × DP 2)" in e.reasons


@cache
def llama_on_h100s() -> Experiment:
    return load_experiment(*LLAMA, "layout=data_parallel")


def case(**sizes: Any) -> Any:
    """The rules' own input for llama31_8b on H100s, without loading an experiment each time."""
    from dataclasses import replace

    from conf.check import Case

    e = llama_on_h100s()
    choice = replace(
        _choice(),
        **{f"{k}_parallel_size": v for k, v in sizes.items() if k in ("tensor_model", "pipeline_model", "context")},
    )
    training = replace(e.training, global_batch_size=sizes["batch"], micro_batch_size=sizes["micro"])
    return Case(e.model, e.hardware, choice, training, e.optimizer, e.precision, sizes["nodes"], 8)


def _choice() -> Any:
    from conf.schema import LayoutChoice

    return LayoutChoice(
        name="explicit",
        table=None,
        tensor_model_parallel_size=1,
        pipeline_model_parallel_size=1,
        virtual_pipeline_model_parallel_size=None,
        context_parallel_size=1,
        expert_model_parallel_size=1,
        sequence_parallel=False,
    )


SIZE = st.integers(1, 16)
NODES = st.integers(1, 8)


@settings(max_examples=60, deadline=None)
@given(
    tensor=SIZE,
    pipeline=SIZE,
    context=SIZE,
    nodes=st.integers(1, 8),
    batch=st.integers(1, 256),
    micro=st.integers(1, 4),
)
def test_what_passes_divides_and_what_does_not_pass_does_not(
    tensor: int, pipeline: int, context: int, nodes: int, batch: int, micro: int
) -> None:
    from conf.check import check_layout

    it = case(tensor_model=tensor, pipeline_model=pipeline, context=context, nodes=nodes, batch=batch, micro=micro)
    world, model = nodes * 8, it.model
    try:
        dp, _ = check_layout(it)
    except ConfigError:
        dp = 0
    replicas, rest = divmod(world, tensor * pipeline * context)
    divides = (
        rest == 0
        and replicas > 0
        and model.num_attention_heads % tensor == 0
        and model.num_query_groups % tensor == 0
        and model.ffn_hidden_size % tensor == 0
        and model.padded_vocab_size % tensor == 0
        and model.num_layers % pipeline == 0
        and (context == 1 or it.training.seq_length % (2 * context) == 0)
        and batch % (micro * replicas) == 0
    )
    assert (dp == replicas) if divides else (dp == 0)


@settings(max_examples=40, deadline=None)
@given(tensor=SIZE, pipeline=SIZE, nodes=st.integers(1, 4))
def test_the_layouts_that_are_proposed_are_valid(tensor: int, pipeline: int, nodes: int) -> None:
    from conf.check import _nearest_splits, check_layout

    it = case(tensor_model=tensor, pipeline_model=pipeline, context=1, nodes=nodes, batch=256 * 3, micro=1)
    for tp, pp in _nearest_splits(it):
        check_layout(case(tensor_model=tp, pipeline_model=pp, context=1, nodes=nodes, batch=256 * 3, micro=1))
