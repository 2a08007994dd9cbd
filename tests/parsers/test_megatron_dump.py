"""Test what a Megatron argument dump means: rules by which a printed default is no setting."""

from __future__ import annotations

from typing import Any

from parsers import Reading
from parsers.megatron_dump import in_effect, other_layers

FORCED = {"save": "/primus/checkpoints", "disable_last_saving": True}

ONE_GROUP = {"group_query_attention": False, "num_query_groups": 1, "num_attention_heads": 16}


def effect(**arguments: Any) -> dict[str, Any]:
    readings = {name: Reading(value, 7) for name, value in arguments.items()}
    settings = {name: reading for name, reading in readings.items() if name != "model_type"}
    return {name: reading.value for name, reading in in_effect(settings, readings).items()}


def test_a_rule() -> None:
    for dump, name, value in (
        ({"num_experts": None, "moe_router_topk": 2}, "moe_router_topk", None),
        ({"num_experts": 8, "moe_router_topk": 2}, "moe_router_topk", 2),
        ({"multi_latent_attention": False, "kv_lora_rank": 32}, "kv_lora_rank", None),
        ({"use_rope_scaling": False, "rope_scaling_factor": 8.0}, "rope_scaling_factor", None),
        ({"fp8": None, "fp8_recipe": "delayed"}, "fp8_recipe", None),
        ({"norm_epsilon": 1e-5, "layernorm_epsilon": 1e-6}, "norm_epsilon", 1e-6),
        ({"save": None, "save_interval": 500}, "save_interval", None),
        (FORCED | {"save_interval": 500, "train_iters": 499}, "save_interval", None),
        (FORCED | {"save_interval": 500, "train_iters": 500}, "save_interval", 500),
        ({"save": "/a", "save_interval": 500, "train_iters": 9}, "save_interval", 500),
        ({"tokenizer_type": "NullTokenizer", "vocab_size": 1000}, "vocab_size", 1001),
        ({"tokenizer_type": "HuggingFaceTokenizer", "vocab_size": 1000}, "vocab_size", 1000),
        (ONE_GROUP, "num_query_groups", 16),
        ({**ONE_GROUP, "model_type": "ModelType.encoder_or_decoder"}, "num_query_groups", 16),
        ({**ONE_GROUP, "model_type": "gpt"}, "num_query_groups", 16),
        ({**ONE_GROUP, "model_type": "deepseek_v4"}, "num_query_groups", 1),  # one latent head, in Primus
        ({"group_query_attention": True, "num_query_groups": 4, "num_attention_heads": 16}, "num_query_groups", 4),
        ({"swiglu": False, "quick_geglu": True}, "gated_linear_unit", True),
        ({"window_size": "(127, 0)"}, "window_size", 128),
        ({"attention_backend": "AttnBackend.flash"}, "attention_backend", "sdpa"),
        ({"data_path": "['/data/a']"}, "data_path", "/data/a"),
        ({"data_path": "['0.5', '/data/a']"}, "data_path", "0.5 /data/a"),
        ({"data_path": None, "train_data_path": "['/data/a']", "split": None}, "split", "100,0,0"),
        ({"mock_data": True, "split": None}, "split", "1,1,1"),
        ({"mock_data": True, "split": "969,30,1"}, "split", "1,1,1"),  # BlendedMegatronDatasetConfig knows no other
        ({"mock_data": True, "data_path": None}, "data", "mock"),
        ({"num_experts": 8, "moe_layer_freq": "[0, 1, 1]"}, "moe_first_dense_layers", 1),
        ({"num_experts": 8, "moe_layer_freq": 1}, "moe_first_dense_layers", 0),
    ):
        assert effect(**dump)[name] == value


def test_what_a_dump_does_not_state_stays_unknown() -> None:
    for dump, name in (
        ({"padded_vocab_size": None}, "padded_vocab_size"),
        ({"swiglu": True}, "gated_linear_unit"),
        ({"window_size": "(127, 5)"}, "window_size_"),
        ({"num_experts": 8, "moe_layer_freq": "[1, 0, 1]"}, "moe_first_dense_layers"),
        ({"num_layers": 2}, "num_experts"),
        ({"mock_data": False, "data_path": "['/data/a']"}, "data"),
        ({"mock_data": False, "split": None}, "data"),
    ):
        assert name not in effect(**dump)


def test_a_complete_dump_of_an_older_version_says_what_it_lacks() -> None:
    readings = {f"argument_{i}": Reading(i, i + 1) for i in range(60)}
    heads = {"num_attention_heads": Reading(16, 61)}
    stated = in_effect(heads, {**readings, **heads}, complete=True)
    assert {name: reading.value for name, reading in stated.items()} == {
        "num_attention_heads": 16,
        "num_query_groups": 16,
        "multi_latent_attention": False,
        "mtp_num_layers": None,
        "num_experts": None,
        "gated_linear_unit": False,
    }
    assert stated["num_experts"].line == 61
    older = {**readings, "swiglu": Reading(True, 62)}
    assert in_effect({}, older, complete=True)["gated_linear_unit"].value is True
    assert "gated_linear_unit" not in in_effect({}, older)
    assert "gated_linear_unit" not in in_effect({}, {**readings, "glu_activation": Reading("geglu", 62)}, complete=True)


def test_layers_that_no_formula_here_counts_are_reported() -> None:
    """In Hyena and Mamba hybrids attention and MLP are half the story: an MFU of these would be wrong."""
    assert other_layers({"model.hybrid_override_pattern": Reading("SDH*", 3)}) == "model.hybrid_override_pattern SDH*"
    plain = {"hybrid_override_pattern": Reading(None, 3), "hybrid_model": Reading(False, 4)}
    assert other_layers(plain) is None
