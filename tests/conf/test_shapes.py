"""Shapes on the ranks of a layout against those of the full model, whose sizes test_parameters.py checks against
published totals; and by hand. That Megatron-Core builds these, the rehearsals show (tests/rehearsal)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product, starmap
from math import prod

import pytest

from conf.schema import Model
from conf.shapes import EMBEDDING, Place, Sizes, count, on_rank, per_stage, usual_name
from tests.conf.test_parameters import OURS, PUBLISHED, load

LAYERS, EXPERTS = 8, 16
ALTERED = ", tied, with biases, two modules for multi-token prediction"
MODELS = [*PUBLISHED, *OURS, *(f"{name}{ALTERED}" for name in ("deepseek_v3", "gpt_oss_20b", "llama_tiny", "moe_tiny"))]


def cut(name: str) -> Model:
    """Return the model with fewer layers and experts, which are the same again."""
    model = load(name.removesuffix(ALTERED))
    if name.endswith(ALTERED):
        model = replace(model, untie_embeddings_and_output_weights=False, add_bias_linear=True, mtp_num_layers=2)
    moe = model.moe and replace(model.moe, num_experts=min(EXPERTS, model.moe.num_experts))
    return replace(model, num_layers=LAYERS, moe=moe)


def layouts(model: Model) -> list[Sizes]:
    experts = [ep for ep in (1, 4) if ep == 1 or (model.moe and model.moe.num_experts % ep == 0)]
    found = []
    for sizes in starmap(Sizes, product((1, 2, 4, 8), (1, 2, 4), experts, (1, 2))):
        try:
            per_stage(model, sizes)
        except ValueError:
            continue
        found.append(sizes)
    return found


def test_the_ranks_of_every_layout_hold_the_complete_model_once() -> None:
    for name in MODELS:
        check_the_ranks(name)


def check_the_ranks(name: str) -> None:
    model = cut(name)
    parts = count(replace(model, vocab_size=model.padded_vocab_size))
    buffers = model.moe.num_experts if model.moe and model.moe.moe_router_enable_expert_bias else 0
    routed = LAYERS - model.dense_layers + (model.mtp_num_layers or 0) if model.moe else 0
    complete = on_rank(model, Sizes(), Place())
    assert sum(map(prod, complete.values())) == parts.total + parts.mtp - routed * buffers
    found = layouts(model)
    assert len(found) >= 4
    for sizes in found:
        tp, pp, ep, *_ = sizes
        stages = [[on_rank(model, sizes, Place(stage, rank)) for rank in range(ep)] for stage in range(pp)]
        for stage, counted in enumerate(per_stage(model, sizes)):
            assert {sum(map(prod, rank.values())) for rank in stages[stage]} == {counted.total}
        owners: dict[str, set[int]] = {}
        for stage, ranks in enumerate(stages):
            for rank in ranks:
                for parameter, shape in rank.items():
                    owners.setdefault(parameter, set()).add(stage)
                    full = complete[parameter]
                    differs = [(own, all_) for own, all_ in zip(shape, full, strict=True) if own != all_]
                    assert all(tp * own == all_ for own, all_ in differs) and len(differs) <= 1, parameter
        assert owners.keys() == complete.keys()
        assert {parameter for parameter, owned_by in owners.items() if len(owned_by) > 1} <= {EMBEDDING}


BY_HAND: dict[tuple[str, Sizes, Place], dict[str, tuple[int, ...]]] = {
    ("qwen3_30b_a3b", Sizes(2, 1, 8), Place(0, 3)): {
        "decoder.layers.0.self_attention.q_layernorm.weight": (128,),
        "decoder.layers.0.mlp.router.weight": (128, 2048),
        "decoder.layers.0.mlp.experts.local_experts.63.linear_fc1.weight": (768, 2048),
        "decoder.layers.47.mlp.experts.local_experts.48.linear_fc2.weight": (2048, 384),
    },
    ("gpt_oss_20b", Sizes(8), Place()): {
        "decoder.layers.0.self_attention.core_attention.softmax_offset": (8,),
        "decoder.layers.0.self_attention.linear_qkv.bias": (640,),
        "decoder.layers.0.self_attention.linear_proj.bias": (2880,),
        "decoder.layers.0.mlp.router.bias": (32,),
        "decoder.layers.0.mlp.experts.local_experts.0.linear_fc1.bias": (720,),
        "decoder.layers.0.mlp.experts.local_experts.0.linear_fc2.bias": (2880,),
    },
    ("deepseek_v3", Sizes(8, 1, 8), Place()): {
        "decoder.layers.0.self_attention.linear_q_down_proj.weight": (1536, 7168),
        "decoder.layers.0.self_attention.linear_q_up_proj.weight": (3072, 1536),
        "decoder.layers.0.self_attention.linear_kv_down_proj.weight": (576, 7168),
        "decoder.layers.0.self_attention.linear_kv_up_proj.weight": (4096, 512),
        "decoder.layers.0.mlp.linear_fc1.weight": (4608, 7168),
        "decoder.layers.3.mlp.shared_experts.linear_fc2.weight": (7168, 256),
        "mtp.layers.0.eh_proj.weight": (896, 14336),
        "mtp.layers.0.transformer_layer.mlp.router.weight": (256, 7168),
    },
}


def test_shapes_by_hand() -> None:
    for (name, sizes, place), expected in BY_HAND.items():
        assert expected.items() <= on_rank(load(name), sizes, place).items(), name


def test_megatrons_own_modules_cut_the_down_projections() -> None:
    ours = on_rank(load("deepseek_v2_lite"), Sizes(8), Place(), local=True)
    assert ours["decoder.layers.0.self_attention.linear_kv_down_proj.weight"] == (72, 2048)
    assert ours["decoder.layers.0.self_attention.linear_q_proj.weight"] == (384, 2048)


def test_fused_experts_are_two_matrices_of_the_same_size() -> None:
    model, sizes = load("moe_tiny"), Sizes(2, 1, 2)
    fused, apart = (on_rank(model, sizes, Place(0, 1), fused=fused) for fused in (True, False))
    assert fused["decoder.layers.0.mlp.experts.weight1"] == (128, 2 * 176)
    assert fused["decoder.layers.0.mlp.experts.weight2"] == (2 * 88, 128)
    assert sum(map(prod, fused.values())) == sum(map(prod, apart.values()))


def test_norms_that_transformer_engine_keeps_in_a_matrix_have_their_usual_name() -> None:
    ours = on_rank(load("llama_tiny"), Sizes(), Place())
    fused = {
        "input_layernorm": "self_attention.linear_qkv.layer_norm",
        "pre_mlp_layernorm": "mlp.linear_fc1.layer_norm",
    }
    for usual, other in fused.items():
        assert usual_name(f"decoder.layers.2.{other}_weight") == f"decoder.layers.2.{usual}.weight"
    assert all(usual_name(name) == name for name in ours)


@pytest.mark.parametrize(
    ("layers", "sizes", "chunks"),
    [
        (126, Sizes(pp=16, first=1, last=1), (7, *(8,) * 14, 7)),
        (6, Sizes(pp=2, vp=2, first=1, last=1), (1, 2, 2, 1)),
        (7, Sizes(pp=4, last=1), (2, 2, 2, 1)),
        (7, Sizes(pp=4, first=1), (1, 2, 2, 2)),
        (8, Sizes(pp=4), (2, 2, 2, 2)),
    ],
)
def test_embedding_and_loss_are_a_layer_each_where_they_count(
    layers: int, sizes: Sizes, chunks: tuple[int, ...]
) -> None:
    model = replace(load("llama_tiny"), num_layers=layers)
    first = sizes.first_layers(model)
    assert tuple(b - a for a, b in pairwise(first)) == chunks
    assert sum(rank.total for rank in per_stage(model, sizes)) == per_stage(model, Sizes())[0].total


def test_uneven_stages_hold_the_model_once_and_experts_are_cut_by_themselves() -> None:
    model = cut("qwen3_30b_a3b")
    sizes = Sizes(tp=2, pp=2, vp=2, etp=1, chunks=(0, 1, 2, LAYERS - 3))
    first, last = (on_rank(model, sizes, Place(stage)) for stage in range(2))
    layers = [{name.split(".")[2] for name in rank if name.startswith("decoder.layers.")} for rank in (first, last)]
    assert layers == [{"1", "2"}, {"0", *map(str, range(3, LAYERS))}], "chunks are dealt in turn"
    assert [sum(map(prod, rank.values())) for rank in (first, last)] == [one.total for one in per_stage(model, sizes)]
    complete = on_rank(model, Sizes(), Place())
    expert, router = (
        f"decoder.layers.1.mlp.{name}.weight" for name in ("experts.local_experts.0.linear_fc1", "router")
    )
    assert first[expert] == complete[expert] and first[router] == complete[router]
    qkv = "decoder.layers.1.self_attention.linear_qkv.weight"
    assert first[qkv][0] * 2 == complete[qkv][0]
    with pytest.raises(ValueError, match="in 4 chunks"):
        per_stage(model, sizes._replace(chunks=(1, 1)))
