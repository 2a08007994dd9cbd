"""The FLOPs formula against the frameworks' own, and the figures that the field prints."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conf import shapes
from conf.load import model_named
from conf.schema import Model
from conf.shapes import count
from metrics.flops import CONVENTIONS, DEFAULT, FORWARD, Recompute, convert, explaining, flops_per_token, recompute_of
from metrics.shape import Facts, Shape, shape_from, shape_of_model
from tests.metrics import flops_of_others

HERE = Path(__file__).parent
KNOWN = {**{f"model {name}": s for name, s in flops_of_others.models().items()}, **flops_of_others.SHAPES}
TABLE = json.loads((HERE / "megatron_flops.json").read_text(encoding="utf-8"))
COUNTED = {row["shape"] for row in TABLE["rows"]}
TITAN = json.loads((HERE / "torchtitan_flops.json").read_text(encoding="utf-8"))
OF_LOW_RANKS = ("self_attention.q_layernorm.weight", "self_attention.kv_layernorm.weight")
OF_JOINTS = ("enorm.weight", "hnorm.weight", "final_layernorm.weight")


def model(name: str) -> Model:
    found = model_named(name)
    assert found is not None
    return found


def shape(name: str) -> Shape:
    return shape_of_model(model(name))


def named(settings: dict[str, Any]) -> Shape:
    return shape_from(Facts(settings)).shape or pytest.fail("no shape")


def test_equal_to_megatron() -> None:
    """Counted by NVIDIA/Megatron-LM at the commit that the table names, of the shapes and models that it has."""
    assert {*flops_of_others.SHAPES} < COUNTED <= {*KNOWN}
    for row in TABLE["rows"]:
        ours = flops_per_token(named(KNOWN[row["shape"]]), row["seq_length"])
        assert ours == pytest.approx(row["flops_per_token"], rel=1e-9), row


@pytest.mark.skipif("MEGATRON_PATH" not in os.environ, reason="MEGATRON_PATH names no checkout of Megatron-LM")
def test_equal_to_megatron_for_any_shape() -> None:
    count_ = flops_of_others.megatron(Path(os.environ["MEGATRON_PATH"]))
    today = [row for row in flops_of_others.table(count_) if row["shape"] in COUNTED]
    assert today == TABLE["rows"], "as it counted when the table was made"
    dice = random.Random(5)
    for _ in range(300):
        settings = dict(dice.choice(list(flops_of_others.SHAPES.values())))
        for name in ("hidden_size", "ffn_hidden_size", "kv_channels", "padded_vocab_size", "num_attention_heads"):
            settings[name] = dice.randrange(1, 3000)
        settings |= {"swiglu": dice.random() < 0.5, "num_query_groups": dice.randrange(1, 64)}
        settings["gated_linear_unit"] = settings["swiglu"]
        length = dice.randrange(1, 10**6)
        assert flops_per_token(named(settings), length) == pytest.approx(count_(settings, length), rel=1e-9), settings


def only_torchtitan_counts(m: Model) -> int:
    """Multiply-adds of vectors (norms, biases, attention sinks) and routers. The norms of latent attention's low ranks
    and of what joins a module for multi-token prediction are Megatron's too, and so ours."""
    both, found = (*OF_JOINTS, *(OF_LOW_RANKS if m.mla else ())), 0
    for module in shapes.modules(m, shapes.Sizes(), 0):
        roles = [role for role in module.roles if role.name not in both]
        found += sum(role.numel for role in roles if len(role.shape) == 1 or role.part == "router")
        if m.moe and module.routed:
            found += m.moe.moe_router_topk * sum(r.numel for r in shapes.expert(m, m.moe) if len(r.shape) == 1)
    return found


assert {row["model"] for row in TITAN["rows"]} == {*flops_of_others.TITANS}


@pytest.mark.parametrize("row", TITAN["rows"], ids=lambda row: f"{row['model']} {row['seq_length']}")
def test_equal_to_torchtitan(row: dict[str, Any]) -> None:
    """Counted by pytorch/torchtitan at the commit that the table names. What its way differs in, all of it: it adds
    vectors and routers, has no padding, no windows, and of multi-token prediction neither attention nor logits."""
    m, s = model(row["model"]), row["seq_length"]
    seen = replace(shape_of_model(m), window_size=None)
    ours = flops_per_token(seen, s, CONVENTIONS["full_attention"]) / 6
    modules = m.mtp_num_layers or 0
    width = 0 if m.mla is None else m.mla.qk_head_dim + m.mla.qk_pos_emb_head_dim + m.mla.v_head_dim
    not_theirs = modules * (m.num_attention_heads * width * s + m.hidden_size * m.padded_vocab_size)
    not_theirs += (m.padded_vocab_size - m.vocab_size) * m.hidden_size
    assert ours - not_theirs + only_torchtitan_counts(m) == row["flops_per_token"] / 6
    assert flops_per_token(seen, s, CONVENTIONS["full_attention"]) == pytest.approx(
        row["flops_per_token"], rel=0.03 if modules else 0.003
    )


@pytest.mark.skipif("TORCHTITAN_PATH" not in os.environ, reason="TORCHTITAN_PATH names no checkout of TorchTitan")
def test_equal_to_the_torchtitan_of_today() -> None:
    helper = ["env", "-u", "MEGATRON_PATH", sys.executable, str(HERE / "flops_of_others.py"), "today"]
    done = subprocess.run(helper, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["rows"] == TITAN["rows"]


@pytest.mark.parametrize("name", ["llama31_8b", "mixtral_8x7b", "qwen3_30b_a3b", "deepseek_v3", "llama32_1b"])
def test_6n_is_six_times_the_published_active_parameters(name: str) -> None:
    assert flops_per_token(shape(name), 1, CONVENTIONS["6n"]) == pytest.approx(6 * count(model(name)).active, rel=2e-4)


def test_palm_adds_twelve_l_h_q_t() -> None:
    m, s = shape("llama31_8b"), 8192
    extra = flops_per_token(m, s, CONVENTIONS["palm"]) - flops_per_token(m, s, CONVENTIONS["6n"])
    assert extra == pytest.approx(12 * m.num_layers * m.num_attention_heads * m.kv_channels * s)


def test_a_window_is_counted_as_megatron_bridge_does() -> None:
    """Megatron-Bridge@067f987 flop_utils.py:1366-1383: w - w (w - 1) / 2 s keys in all but every second layer."""
    m, s = shape("gpt_oss_20b"), 8192
    keys = 12 * (s / 2) + 12 * (128 - 128 * 127 / (2 * s))
    attention = m.num_layers * 2 * m.hidden_size * m.kv_channels * (m.num_attention_heads + m.num_query_groups)
    experts = m.num_layers * 3 * m.hidden_size * 4 * 2880
    core = 2 * m.num_attention_heads * m.kv_channels * keys
    by_hand = 6 * (attention + experts + core + m.hidden_size * m.vocabulary)
    assert flops_per_token(m, s) == pytest.approx(by_hand, rel=1e-12)
    assert flops_per_token(m, 64) < flops_per_token(m, 128), "a window wider than the sequence hides nothing"


def test_every_nth_layer_sees_everything() -> None:
    """Layers count from 1 there (window_attn_skip_freq): of five, with 2, the second and the fourth."""
    m, s = replace(shape("gpt_oss_20b"), num_layers=5, window_size=1), 100
    without = replace(m, window_attn_skip_freq=None)
    assert flops_per_token(m, s) - flops_per_token(without, s) == 6 * 2 * (2 * 64 * 64) * (s / 2 - 1)


def test_recomputation_counts_in_hardware_flops_only() -> None:
    m, s, hardware = shape("llama31_8b"), 8192, CONVENTIONS["hardware"]
    logits = 2 * m.hidden_size * m.vocabulary
    forward = flops_per_token(m, s, passes=FORWARD)
    assert forward * 3 == pytest.approx(flops_per_token(m, s))
    full = flops_per_token(m, s, hardware, Recompute(layers=1.0))
    assert full == pytest.approx(4 * forward - logits)
    core = flops_per_token(m, s, hardware, Recompute(modules=frozenset({"core_attn"}))) - flops_per_token(m, s)
    assert core == pytest.approx(2 * 32 * 32 * 128 * s)
    mlp = flops_per_token(m, s, hardware, Recompute(modules=frozenset({"mlp"}))) - flops_per_token(m, s)
    assert mlp == pytest.approx(2 * 32 * 3 * 4096 * 14336)
    most = Recompute(0.5, frozenset({"core_attn"}))
    assert flops_per_token(m, s, hardware, most) == pytest.approx((full + flops_per_token(m, s) + core) / 2)
    assert flops_per_token(m, s, DEFAULT, Recompute(layers=1.0)) == flops_per_token(m, s)
    assert flops_per_token(m, s, hardware, Recompute(layers=1.0), FORWARD) == forward


def test_what_is_recomputed() -> None:
    def recomputed(granularity: str | None, layout: dict[str, int] | None = None, **more: Any) -> Recompute | None:
        known = {f"recompute_{name}": value for name, value in {"granularity": granularity, **more}.items()}
        return recompute_of(Facts({"num_layers": 32, **(layout or {}), **known}))

    assert recompute_of(Facts({"num_layers": 32})) is None
    assert recomputed(None) == Recompute()
    assert recomputed("selective") == Recompute(modules=frozenset({"core_attn"}))
    assert recomputed("selective", modules="['core_attn']") == Recompute(modules=frozenset({"core_attn"}))
    assert recomputed("selective", modules=["mlp", "layernorm"]) == Recompute(modules=frozenset({"mlp"}))
    assert recomputed("selective", modules="moe moe_act") == Recompute(modules=frozenset({"moe"}))
    assert recomputed("selective", modules="['mla_up_proj']") is None
    assert recomputed("full", method="uniform") == Recompute(layers=1.0)
    assert recomputed("full") is None
    assert recomputed("full", method="block", num_layers=2) is None
    stages = {"pipeline_model_parallel_size": 4, "virtual_pipeline_model_parallel_size": 2}
    assert recomputed("full", method="block", num_layers=2, layout=stages) == Recompute(layers=0.5)


def test_the_same_speed_in_two_of_amds_logs() -> None:
    """25,033 tokens/s as 1,290 TFLOP/s (Primus) and 24,889 as 1,441 (rocm/megatron-lm): reference/primus.md, 5."""
    m, s = shape("llama31_8b"), 8192
    assert 24889 * flops_per_token(m, s, CONVENTIONS["full_attention"]) / 1e12 == pytest.approx(1441, rel=1e-3)
    assert convert(1441, m, s, CONVENTIONS["full_attention"]) == pytest.approx(24889 * 5.147e10 / 1e12, rel=1e-3)
    assert explaining(1441 / 24889 / (1290 / 25033), m, s) == ("full_attention",)
    assert explaining(1.0, m, s) == ("megatron_causal",)
    assert explaining(1.5, m, s) == ()


def test_none_is_reported_where_megatron_derives_it() -> None:
    """TransformerConfig.__post_init__: no groups are one a head, no width is the hidden size by the heads."""
    plain = {**flops_of_others.SHAPES["plain MLP, multi-head"]}
    assert named({**plain, "num_query_groups": None, "kv_channels": None}) == named(plain)


def test_whether_the_table_is_tied_adds_no_operation() -> None:
    settings = {**flops_of_others.SHAPES["plain MLP, multi-head"]}
    del settings["untie_embeddings_and_output_weights"]
    unknown = named(settings)
    assert flops_per_token(unknown, 4096) == flops_per_token(named(flops_of_others.SHAPES["tied"]), 4096)
    assert explaining(1.0, unknown, 4096) == ("megatron_causal",)
    with pytest.raises(ValueError, match="embedding table"):
        flops_per_token(unknown, 4096, CONVENTIONS["6n"])


def test_layers_that_no_formula_counts_give_no_shape() -> None:
    found = shape_from(Facts(flops_of_others.SHAPES["tied"], other_layers="hybrid_override_pattern M-M*"))
    assert found.shape is None
    assert "hybrid_override_pattern M-M*" in found.missing[0]


def test_a_setting_that_is_missing_gives_no_shape() -> None:
    settings = flops_of_others.SHAPES["plain MLP, multi-head"]
    needed = ("num_layers", "num_query_groups", "num_experts", "multi_latent_attention", "mtp_num_layers")
    for missing in (*needed, "gated_linear_unit"):
        found = shape_from(Facts({name: value for name, value in settings.items() if name != missing}))
        assert (found.shape, found.missing) == (None, (missing,))
