"""Parameter counts against published totals, and per-rank counts against the sum over all ranks."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from conf.errors import Problem
from conf.freeze import freeze
from conf.parameters import count, per_rank, per_stage
from conf.schema import Model

MODELS = Path(__file__).parents[2] / "conf" / "model"
PUBLISHED = {"llama31_8b": 8_030_261_248, "llama31_70b": 70_553_706_496, "qwen25_7b": 7_615_616_512}


def load(name: str) -> Model:
    problems: list[Problem] = []
    model: Model = freeze(
        Model, yaml.safe_load((MODELS / f"{name}.yaml").read_text(encoding="utf-8"))["model"], "", problems
    )
    assert not problems, problems
    return model


def replicated(model: Model) -> int:
    """What each tensor-parallel rank holds in full, over all layers: norms and row-parallel biases."""
    biases = 2 * model.hidden_size if model.add_bias_linear else 0
    return model.num_layers * (2 * model.hidden_size + biases) + model.hidden_size


def padded_total(model: Model) -> int:
    return count(replace(model, vocab_size=model.padded_vocab_size)).total


@pytest.mark.parametrize(("name", "total"), PUBLISHED.items())
def test_published_totals(name: str, total: int) -> None:
    assert count(load(name)).total == total


def test_llama_tiny_by_hand() -> None:
    attention = 128 * (128 + 2 * 64) + 128 * 128
    assert count(load("llama_tiny")).total == 2 * 512 * 128 + 4 * (attention + 3 * 128 * 352 + 2 * 128) + 128


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize(
    "field",
    ["num_layers", "hidden_size", "ffn_hidden_size", "num_query_groups", "kv_channels", "vocab_size", "add_qkv_bias"],
)
def test_a_wrong_size_cannot_reach_the_published_total(name: str, field: str) -> None:
    model = load(name)
    value = getattr(model, field)
    change: dict[str, Any] = {field: not value if isinstance(value, bool) else value + 1}
    wrong = replace(model, **change)
    assert count(wrong).total != PUBLISHED[name]


def test_qwen_biases_are_those_of_q_k_and_v() -> None:
    model = load("qwen25_7b")
    without = replace(model, add_qkv_bias=False)
    assert count(model).total - count(without).total == 28 * (3584 + 512 + 512)


def test_fullest_rank_of_llama31_70b_by_hand() -> None:
    split = 8192 * (8192 + 2 * 1024) + 8192 * 8192 + 3 * 8192 * 28672
    first_stage = (20 * split + 128256 * 8192) // 8 + 20 * 2 * 8192
    model = load("llama31_70b")
    assert per_rank(model, tensor_model_parallel_size=8, pipeline_model_parallel_size=4) == first_stage + 8192


def test_one_rank_holds_the_whole_model() -> None:
    model = load("llama31_8b")
    assert per_rank(model, tensor_model_parallel_size=1, pipeline_model_parallel_size=1) == count(model).total


@pytest.mark.parametrize(("tp", "pp", "word"), [(3, 1, "num_query_groups"), (1, 3, "num_layers"), (0, 1, "/ 0")])
def test_a_layout_that_does_not_divide_is_refused(tp: int, pp: int, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        per_rank(load("llama31_8b"), tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp)


def test_experts_are_refused_and_not_counted_as_dense() -> None:
    with pytest.raises(ValueError, match="8 experts"):
        count(replace(load("llama_tiny"), num_experts=8))


@st.composite
def models_and_layouts(draw: st.DrawFn) -> tuple[Model, int, int]:
    tp, pp = draw(st.sampled_from([1, 2, 4, 8])), draw(st.integers(1, 4))
    small = st.integers(1, 4)
    groups = tp * draw(small)
    heads = groups * draw(small)
    return (
        replace(
            load("llama_tiny"),
            num_layers=pp * draw(small),
            hidden_size=8 * draw(st.integers(1, 16)),
            ffn_hidden_size=tp * draw(st.integers(1, 64)),
            num_attention_heads=heads,
            num_query_groups=groups,
            kv_channels=2 * draw(small),
            vocab_size=draw(st.integers(1, 1000)),
            swiglu=draw(st.booleans()),
            add_bias_linear=draw(st.booleans()),
            add_qkv_bias=draw(st.booleans()),
            untie_embeddings_and_output_weights=draw(st.booleans()),
        ),
        tp,
        pp,
    )


@given(models_and_layouts())
def test_ranks_sum_to_the_padded_total_and_what_is_replicated(case: tuple[Model, int, int]) -> None:
    model, tp, pp = case
    stages = per_stage(model, tp, pp)
    tied_copy = (
        0 if model.untie_embeddings_and_output_weights or pp == 1 else model.padded_vocab_size * model.hidden_size
    )
    assert tp * sum(stages) == padded_total(model) + (tp - 1) * replicated(model) + tied_copy
    assert tp * sum(stages) >= count(model).total
    assert per_rank(model, tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp) == max(stages)


@given(models_and_layouts())
def test_parts_add_up(case: tuple[Model, int, int]) -> None:
    parts = count(case[0])
    assert all(isinstance(getattr(parts, f.name), int) and getattr(parts, f.name) >= 0 for f in fields(parts))
    layers = parts.num_layers * (parts.per_layer_attention + parts.per_layer_mlp + parts.per_layer_norms)
    assert parts.total == parts.embedding + parts.output + layers + parts.final_norm
