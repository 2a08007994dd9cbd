"""Layouts that are valid, and properties over all of them; what is refused with which words: tests/refusals.yaml."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf import load_experiment
from conf.check import _nearest_splits
from conf.compose import compose
from conf.errors import ConfigError
from conf.load import _request
from conf.resolve import resolve
from conf.schema import Request
from conf.shapes import Sizes

LLAMA = ("model=llama", "platform=nvidia", "gpus_per_node=8")
TP, PP = "layout.tensor_model_parallel_size", "layout.pipeline_model_parallel_size"
EP = "layout.expert_model_parallel_size"
MOE = ("model=mixtral_8x7b", "platform=nvidia", "gpus_per_node=8", "layout=data_parallel")


def test_layouts_of_experts_that_are_valid() -> None:
    for overrides in (
        [f"{EP}=8"],
        [f"{TP}=2", f"{EP}=4"],
        [f"{TP}=2", f"{EP}=2", f"{PP}=2"],
        ["model=gpt_oss_120b", f"{EP}=8"],
        ["model=qwen3_235b_a22b", f"{TP}=4", f"{EP}=2", "model.num_layers=4", f"{PP}=1"],
        ["model=deepseek_v3", f"{TP}=8", "nodes=4", f"{EP}=4"],
        ["model=moe_tiny", "platform=cpu", "gpus_per_node=4", f"{EP}=4"],
        # an MLP that no layer has need not divide:
        [f"{TP}=8", "model.ffn_hidden_size=3"],
    ):
        layout = load_experiment(*MOE, *overrides).layout
        assert layout.expert_model_parallel_size * layout.tensor_model_parallel_size > 1


def test_tp_beyond_the_node_is_a_warning_with_its_reason() -> None:
    e = load_experiment("model=llama31_70b", "platform=nvidia", "hardware=gb200", "nodes=2", f"{TP}=8")
    assert any("leaves the node (4 GPUs)" in warning.what for warning in e.warnings)


def test_derived_sizes_are_given_with_their_reason() -> None:
    e = load_experiment(*LLAMA, f"{TP}=4")
    assert (e.layout.data_parallel_size, e.layout.num_micro_batches) == (2, 64)
    assert "DP = 2: 8 GPUs / TP 4 / PP 1" in e.reasons
    assert "gradient accumulation = 64: global batch 128 / (micro-batch 1 × DP 2)" in e.reasons


@cache
def llama_on_h100s() -> Request:
    return _request(compose([*LLAMA, "layout=data_parallel"]))


def case(tp: int, pp: int, cp: int, nodes: int, batch: int, micro: int) -> Request:
    """Return a request of llama31_8b on H100s, without composing it each time."""
    r = llama_on_h100s()
    training = replace(r.training, global_batch_size=batch, micro_batch_size=micro)
    layout = replace(
        r.layout,
        table=None,
        sequence_parallel=False,
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp,
        context_parallel_size=cp,
    )
    return replace(r, nodes=nodes, layout=layout, training=training)


SIZE = st.integers(1, 16)


@settings(max_examples=60, deadline=None)
@given(SIZE, SIZE, SIZE, st.integers(1, 8), st.integers(1, 256), st.integers(1, 4))
def test_what_passes_divides_and_what_does_not_pass_does_not(
    tp: int, pp: int, cp: int, nodes: int, batch: int, micro: int
) -> None:
    r = case(tp, pp, cp, nodes, batch, micro)
    try:
        dp = resolve(r, ()).layout.data_parallel_size
    except ConfigError:
        dp = 0
    m, (replicas, rest) = r.model, divmod(nodes * 8, tp * pp * cp)
    widths = (m.num_attention_heads, m.num_query_groups, m.ffn_hidden_size, m.padded_vocab_size)
    length = cp == 1 or r.training.seq_length % (2 * cp) == 0
    model_divides = all(width % tp == 0 for width in widths) and m.num_layers % pp == 0 and length
    divides = rest == 0 and replicas > 0 and model_divides and batch % (micro * replicas) == 0
    assert dp == (replicas if divides else 0)


@settings(max_examples=40, deadline=None)
@given(SIZE, SIZE, st.integers(1, 4))
def test_the_layouts_that_are_proposed_are_valid(tensor: int, pipeline: int, nodes: int) -> None:
    it = case(tensor, pipeline, 1, nodes, 256 * 3, 1)
    for tp, pp in _nearest_splits(it, Sizes.of(it.layout)):
        resolve(case(tp, pp, 1, nodes, 256 * 3, 1), ())


def test_no_layouts_are_offered_where_none_is_near() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(case(1, 1, 3, 1, 128, 1), ())
    (world,) = [problem for problem in caught.value.problems if "does not divide 8 GPUs" in problem.what]
    assert (world.allowed, world.hint) == ("", "9 GPUs for this layout")


def test_a_row_says_nothing_of_what_is_no_layout() -> None:
    with pytest.raises(ConfigError) as caught:
        load_experiment("model=llama31_8b", "platform=nvidia", "hardware=h100", "training.micro_batch_size=0")
    assert [problem.where for problem in caught.value.problems] == ["training.micro_batch_size"]
