"""Parameter counts against published totals, and per-rank counts against the sum over all ranks."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.architecture import MLA, MoE
from conf.errors import Problem
from conf.freeze import freeze
from conf.parameters import count, per_rank, per_stage
from conf.schema import Model

MODELS = Path(__file__).parents[2] / "conf" / "model"
HUB = "safetensors.total in huggingface.co/api/models/"
KERAS = "keras-team/keras-hub@71453d0 keras_hub/src/models/"
PUBLISHED = {  # total, and who says so; the hub and ollama were read as public files quote them
    "llama31_8b": (8_030_261_248, KERAS + "llama3/llama3_presets.py"),
    "llama31_70b": (70_553_706_496, "AlexsJones/llmfit@3f44fd3 scripts/scrape_hf_models.py:1833 (3.3, same shape)"),
    "llama31_405b": (405_853_388_800, HUB + "meta-llama/Llama-3.1-405B"),
    "llama32_1b": (1_235_814_400, "ModelCloud/GPTQModel@fdbd5b6 tests/test_parameter_count.py"),
    "llama32_3b": (6_425_499_648 // 2, "bytes of PANDASANG1231/llama_3.2-3B-huggingface-shard0@76307d2"),
    "qwen25_7b": (7_615_616_512, KERAS + "qwen/qwen_presets.py"),
    "qwen25_72b": (72_706_203_648, KERAS + "qwen/qwen_presets.py"),
    "qwen3_8b": (8_190_735_360, KERAS + "qwen3/qwen3_presets.py"),
    "qwen3_30b_a3b": (30_532_122_624, KERAS + "qwen3_moe/qwen3_moe_presets.py"),
    "qwen3_235b_a22b": (235_093_634_560, KERAS + "qwen3_moe/qwen3_moe_presets.py"),
    "mixtral_8x7b": (46_702_792_704, KERAS + "mixtral/mixtral_presets.py"),
    "mixtral_8x22b": (281_241_268_224 // 2, "bytes of tbressers/WizardLM-2-8x22B@c209267, of the same shape"),
    "deepseek_v2_lite": (31_412_968_448 // 2, "bytes of deepseek-ai/DeepSeek-V2-Lite model.safetensors.index.json"),
    "deepseek_v3": (671_026_419_200, "the elements of its checkpoint, see below"),
    "gpt_oss_20b": (20_914_757_184, "general.parameter_count of ollama's gpt-oss:20b"),
    "gpt_oss_120b": (116_829_156_672, "general.parameter_count of ollama's gpt-oss:120b"),
}
OURS = ("llama_tiny", "moe_tiny")


def load(name: str) -> Model:
    problems: list[Problem] = []
    model: Model = freeze(
        Model, yaml.safe_load((MODELS / f"{name}.yaml").read_text(encoding="utf-8"))["model"], "", problems
    )
    assert not problems, problems
    return model


def test_every_model_is_published_or_ours() -> None:
    files = (yaml.safe_load(path.read_text(encoding="utf-8")) for path in MODELS.glob("*.yaml"))
    assert {file["model"]["name"] for file in files if "model" in file} == {*PUBLISHED, *OURS}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_totals(name: str) -> None:
    assert count(load(name)).total == PUBLISHED[name][0]
    assert f"{PUBLISHED[name][0]:,} parameters" in (MODELS / f"{name}.yaml").read_text(encoding="utf-8")


def test_deepseek_v3_is_every_element_of_its_checkpoint() -> None:
    """huggingface.co/api/models/deepseek-ai/DeepSeek-V3: BF16 3,918,786,560, F8_E4M3 680,571,043,840, F32 41,555,600.

    The module for multi-token prediction brings its own copy of embedding and output; the fp32 ones are the correction
    biases and the scales of the fp8 blocks of 128 × 128.
    """
    model = load("deepseek_v3")
    biases = 256 * (58 + 1)
    copies = 2 * 129280 * 7168
    parts = count(model)
    assert parts.total + parts.mtp + copies == 3_918_786_560 + 680_571_043_840 + biases
    assert 41_555_600 - biases == pytest.approx(680_571_043_840 / 128**2, rel=1e-4)


@pytest.mark.parametrize(
    ("name", "billions", "embedding"),
    [
        ("mixtral_8x7b", "12.9", True),  # nosana-ci/pipeline-templates templates/Mixtral-8x7B-Instruct/README.md
        ("qwen3_30b_a3b", "3", True),  # NVIDIA-NeMo/Megatron-Bridge@067f987 docs/models/qwen/qwen3-moe.md
        ("qwen3_235b_a22b", "22", True),
        ("deepseek_v3", "37", False),  # AMD-AGI/Primus@fd1eeab primus/configs/models/megatron/deepseek_v3.yaml
        ("gpt_oss_20b", "3.6", False),  # openai/gpt-oss@7b58334 README.md
        ("gpt_oss_120b", "5.1", False),
    ],
)
def test_active_parameters_are_the_published_ones(name: str, billions: str, embedding: bool) -> None:
    """To the digits given. DeepSeek and OpenAI leave out the embedding, in which a token only looks up a row."""
    parts = count(load(name))
    active = parts.active if embedding else parts.active - parts.embedding
    assert f"{active / 1e9:.{len(billions.partition('.')[2])}f}" == billions


@pytest.mark.parametrize("name", [name for name in PUBLISHED if load(name).moe is None])
def test_a_dense_model_is_all_active(name: str) -> None:
    parts = count(load(name))
    assert (parts.active, parts.router, parts.experts, parts.mtp) == (parts.total, 0, 0, 0)


def test_llama_tiny_by_hand() -> None:
    attention = 128 * (128 + 2 * 64) + 128 * 128
    assert count(load("llama_tiny")).total == 2 * 512 * 128 + 4 * (attention + 3 * 128 * 352 + 2 * 128) + 128


def test_moe_tiny_by_hand() -> None:
    attention, expert = 128 * (128 + 2 * 64) + 128 * 128, 3 * 128 * 176
    parts = count(load("moe_tiny"))
    assert parts.total == 2 * 512 * 128 + 4 * (attention + 4 * 128 + 4 * expert + 2 * 128) + 128
    assert parts.active == count(load("llama_tiny")).total + 4 * 4 * 128, "as llama_tiny, and the router"


def counting(model: Model) -> list[str]:
    """Fields that change the total of `model`, as attribute paths."""
    names = ["num_layers", "hidden_size", "vocab_size", "num_attention_heads"]
    names += ["ffn_hidden_size"] if model.dense_layers else []
    names += ["kv_channels", "num_query_groups"] if model.mla is None else []
    names += ["add_qkv_bias"] if model.mla is None and not model.add_bias_linear else []
    names += ["moe.num_experts", "moe.moe_ffn_hidden_size", "moe.moe_first_dense_layers"] if model.moe else []
    names += [f"mla.{f.name}" for f in fields(MLA) if getattr(model.mla, f.name)] if model.mla else []
    return [*names, "qk_layernorm"]


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_wrong_size_cannot_reach_the_published_total(name: str) -> None:
    model = load(name)
    for path in counting(model):
        group, _, field = path.rpartition(".")
        owner = getattr(model, group) if group else model
        value = getattr(owner, field)
        changed: Any = replace(owner, **{field: not value if isinstance(value, bool) else value + 1})
        assert count(replace(model, **{group: changed}) if group else changed).total != PUBLISHED[name][0], path


def test_qwen_biases_are_those_of_q_k_and_v() -> None:
    model = load("qwen25_7b")
    without = replace(model, add_qkv_bias=False)
    assert count(model).total - count(without).total == 28 * (3584 + 512 + 512)


def test_gpt_oss_biases_and_sinks() -> None:
    model = load("gpt_oss_20b")
    without = replace(model, add_bias_linear=False, add_qkv_bias=False, softmax_type="vanilla")
    attention = (64 + 2 * 8) * 64 + 2880 + 64
    assert count(model).total - count(without).total == 24 * (attention + 32 + 32 * (2 * 2880 + 2880))


def test_fullest_rank_of_llama31_70b_by_hand() -> None:
    split = 8192 * (8192 + 2 * 1024) + 8192 * 8192 + 3 * 8192 * 28672
    first_stage = (20 * split + 128256 * 8192) // 8 + 20 * 2 * 8192
    held = per_rank(load("llama31_70b"), tensor_model_parallel_size=8, pipeline_model_parallel_size=4)
    assert (held.dense, held.experts) == (first_stage + 8192, 0)


def test_fullest_rank_of_qwen3_30b_a3b_by_hand() -> None:
    expert = 3 * 2048 * 768
    sizes = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 1, "expert_model_parallel_size": 8}
    held = per_rank(load("qwen3_30b_a3b"), **sizes)
    assert held.experts == 48 * 16 * expert // 2
    attention = 2048 * (4096 + 2 * 512) + 4096 * 2048
    whole = 48 * (2 * 2048 + 2 * 128 + 128 * 2048) + 2048
    assert held.dense == (48 * attention + 2 * 151936 * 2048) // 2 + whole


def test_one_rank_holds_the_whole_model() -> None:
    for name in ("llama31_8b", "gpt_oss_20b", "deepseek_v2_lite"):
        model = load(name)
        held = per_rank(model, tensor_model_parallel_size=1, pipeline_model_parallel_size=1)
        assert held.total == count(model).total


@pytest.mark.parametrize(("tp", "pp", "word"), [(3, 1, "num_query_groups"), (1, 3, "num_layers"), (0, 1, "/ 0")])
def test_a_layout_that_does_not_divide_is_refused(tp: int, pp: int, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        per_rank(load("llama31_8b"), tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp)


@pytest.mark.parametrize(("tp", "ep", "word"), [(1, 3, "num_experts 4 / 3"), (32, 1, "moe_ffn_hidden_size 176 / 32")])
def test_experts_that_do_not_divide_are_refused(tp: int, ep: int, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        per_stage(load("moe_tiny"), tp, 1, ep)


SMALL = st.integers(1, 4)


@st.composite
def mixtures(draw: st.DrawFn, tp: int, ep: int, num_layers: int) -> MoE:
    moe = load("moe_tiny").moe
    assert moe
    return replace(
        moe,
        num_experts=ep * draw(SMALL),
        moe_router_topk=1,
        moe_ffn_hidden_size=tp * draw(SMALL),
        moe_shared_expert_intermediate_size=draw(st.none() | st.integers(1, 4).map(lambda n: n * tp)),
        moe_first_dense_layers=draw(st.integers(0, num_layers - 1)),
        moe_router_enable_expert_bias=draw(st.booleans()),
    )


@st.composite
def models_and_layouts(draw: st.DrawFn) -> tuple[Model, int, int, int]:
    tp, pp, ep = draw(st.sampled_from([1, 2, 4, 8])), draw(st.integers(1, 4)), draw(st.sampled_from([None, 1, 2, 4]))
    groups, num_layers = tp * draw(SMALL), pp * draw(SMALL)
    rank = draw(st.none() | SMALL)
    latent = MLA(q_lora_rank=rank, kv_lora_rank=3, qk_head_dim=2, qk_pos_emb_head_dim=draw(SMALL), v_head_dim=5)
    return (
        replace(
            load("llama_tiny"),
            num_layers=num_layers,
            hidden_size=8 * draw(st.integers(1, 16)),
            ffn_hidden_size=tp * draw(st.integers(1, 64)),
            num_attention_heads=groups * draw(SMALL),
            num_query_groups=groups,
            kv_channels=2 * draw(SMALL),
            vocab_size=draw(st.integers(1, 1000)),
            swiglu=draw(st.booleans()),
            qk_layernorm=draw(st.booleans()),
            softmax_type=draw(st.sampled_from(["vanilla", "learnable"])),
            add_bias_linear=draw(st.booleans()),
            add_qkv_bias=draw(st.booleans()),
            untie_embeddings_and_output_weights=draw(st.booleans()),
            mla=draw(st.sampled_from([None, latent])),
            moe=draw(mixtures(tp, ep, num_layers)) if ep else None,
            mtp_num_layers=draw(st.sampled_from([None, 1, 2])),
        ),
        tp,
        pp,
        ep or 1,
    )


def replicated(model: Model) -> int:
    """What each tensor-parallel rank holds in full, experts excepted: norms, routers, down-projections, biases."""
    h, mla, moe, mtp = model.hidden_size, model.mla, model.moe, model.mtp_num_layers or 0
    biases = int(model.add_bias_linear)
    low = (mla.kv_lora_rank, mla.q_lora_rank or 0) if mla else ()
    down = h * (sum(low) + mla.qk_pos_emb_head_dim) if mla else 0
    normed = sum(low) if mla else 2 * model.kv_channels
    everywhere = 2 * h + biases * h + down + (normed if model.qk_layernorm else 0)
    routed, plain = 0, biases * h
    if moe:
        shared = biases * h if moe.moe_shared_expert_intermediate_size else 0
        routed = moe.num_experts * (h + biases) + shared
    layers = model.num_layers + mtp
    with_experts = layers - model.dense_layers if moe else 0
    return layers * everywhere + with_experts * routed + (layers - with_experts) * plain + (1 + 3 * mtp) * h


@settings(deadline=None)
@given(models_and_layouts())
def test_ranks_sum_to_the_padded_total_and_what_is_replicated(case: tuple[Model, int, int, int]) -> None:
    model, tp, pp, ep = case
    stages = per_stage(model, tp, pp, ep)
    parts = count(replace(model, vocab_size=model.padded_vocab_size))
    moe_layers = model.num_layers - model.dense_layers + (model.mtp_num_layers or 0)
    buffers = moe_layers * model.moe.num_experts if model.moe and model.moe.moe_router_enable_expert_bias else 0
    tied = not model.untie_embeddings_and_output_weights
    copy = parts.embedding if pp > 1 and (tied or model.mtp_num_layers) else 0
    experts = ep * sum(stage.experts for stage in stages)
    biases = moe_layers * model.moe.num_experts * model.hidden_size * int(model.add_bias_linear) if model.moe else 0
    held = tp * (sum(stage.dense for stage in stages) + experts)
    assert held == parts.total + parts.mtp - buffers + copy + (tp - 1) * (replicated(model) + biases)
    sizes = {"tensor_model_parallel_size": tp, "pipeline_model_parallel_size": pp, "expert_model_parallel_size": ep}
    assert per_rank(model, **sizes).total == max(stage.total for stage in stages)


@settings(deadline=None)
@given(models_and_layouts())
def test_parts_add_up(case: tuple[Model, int, int, int]) -> None:
    parts = count(case[0])
    values = {f.name: getattr(parts, f.name) for f in fields(parts)}
    assert all(isinstance(value, int) and value >= 0 for value in values.values())
    assert parts.total == sum(values.values()) - parts.mtp - parts.active_experts
    assert parts.active_experts <= parts.experts
    assert parts.active <= parts.total
