"""framework=megatron_bridge: the table of settings, releases, config.json from our own facts, and what is refused."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from conf import load_experiment
from conf.compose import choices
from conf.resolve import Experiment
from launchers import attribute_settings, make_plan
from launchers.frameworks.megatron_bridge import hub_config
from launchers.plan import Host
from launchers.rank_modules import rank_module

HOST = Host(python="python", cpu_count=64)


def experiment(*overrides: str) -> Experiment:
    return load_experiment("platform=nvidia", "framework=megatron_bridge", *overrides)


def settings(*overrides: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(make_plan(experiment(*overrides), HOST).files["settings.yaml"])
    return found


def test_switches_that_bridge_ors_are_both_switched_off() -> None:
    switches = ("overlap_grad_reduce", "overlap_param_gather", "use_distributed_optimizer")
    stated = settings("model=llama", *(f"training.{switch}=false" for switch in switches))["set"]
    for switch in ("overlap_param_gather", "use_distributed_optimizer"):
        assert (stated[f"ddp.{switch}"], stated[f"optimizer.{switch}"]) == (False, False)
    assert stated["comm_overlap"] is None


@pytest.mark.parametrize("model", ["llama", "qwen", "deepseek_v3"])
def test_the_vocabulary_is_preset_padded_and_the_tokenizers_is_not(model: str) -> None:
    stated, e = settings(f"model={model}", "layout=data_parallel"), experiment(f"model={model}", "layout=data_parallel")
    assert stated["set"]["model.vocab_size"] == e.model.padded_vocab_size
    assert stated["set"]["tokenizer.vocab_size"] == e.model.vocab_size
    assert stated["set"]["model.should_pad_vocab"] is False
    assert stated["set_if_there"]["tokenizer.use_tokenizer_vocab_size"] is False


def test_precision_is_set_in_the_one_place_that_wins() -> None:
    for precision, factory in {
        "bf16": "bf16_mixed",
        "fp32": "fp32",
        "fp8": "bf16_with_fp8_delayed_scaling_mixed",
        "fp8_current": "bf16_with_fp8_current_scaling_mixed",
        "mxfp8": "bf16_with_mxfp8_mixed",
    }.items():
        stated = settings("model=llama", f"precision={precision}", "hardware=b200")
        assert stated["precision"]["factory"] == factory
        assert not [path for path in stated["set"] if re.search(r"\.(fp8|bf16|fp16|params_dtype|grad_reduce)", path)]


def test_data_that_is_mock_has_no_blend() -> None:
    assert settings("model=llama", "data=mock")["set"]["dataset.blend"] is None
    assert settings("model=llama", "data=/x/y")["set"]["dataset.blend"] == [["/x/y"], None]


@pytest.mark.parametrize("model", sorted(set(choices("model")) - {"mixtral_8x7b", "mixtral_8x22b"}))
def test_config_json_says_the_models_own_shapes(model: str) -> None:
    given = (f"model={model}", "layout=data_parallel")
    stated, e = settings(*given)["hugging_face"], experiment(*given)
    config = stated["config"]
    assert json.loads(json.dumps(config)) == config
    assert config["num_hidden_layers"] == e.model.num_layers
    assert config["rope_theta"] == e.model.rotary_base
    assert (config.get("rope_scaling") is not None) == (e.model.use_rope_scaling or e.model.yarn is not None)
    assert re.fullmatch(r"[\w-]+/[\w.-]+", stated["id"])


def test_config_json_is_the_published_one_where_we_know_it() -> None:
    """Llama 3.2 1B's, as NVIDIA's own test carries it (Megatron-Bridge@067f987
    tests/unit_tests/models/llama/test_llama_bridge.py:41-76), without what names tokens and programs."""
    published = """{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192,
        "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32,
        "num_hidden_layers": 16, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 32.0,
        "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
        "rope_type": "llama3"}, "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
        "vocab_size": 128256}"""
    model = experiment("model=llama32_1b", "layout=data_parallel").model
    assert hub_config("llama32_1b_pretrain_config", model) == json.loads(published)


def test_every_recipe_has_an_id_and_every_id_a_recipe() -> None:
    recipes = {name.partition(".")[2] for name in experiment("model=llama").framework.recipes.values()}
    ids = yaml.safe_load((attribute_settings.FOLDER / "hugging_face.yaml").read_text(encoding="utf-8"))["ids"]
    assert recipes == set(ids)


def test_the_cache_is_what_the_hubs_client_looks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bridge_ranks = rank_module("bridge_ranks")

    monkeypatch.setenv("HF_HUB_CACHE", "/elsewhere")
    answer = settings("model=qwen3_8b", "layout=data_parallel")["hugging_face"]
    bridge_ranks.seed_cache(str(tmp_path), answer)
    home = tmp_path / "hub" / "models--Qwen--Qwen3-8B"
    commit = (home / "refs" / "main").read_text(encoding="utf-8")
    for snapshot in (commit, *answer["revisions"]):
        found = (home / "snapshots" / snapshot / "config.json").read_text(encoding="utf-8")
        assert json.loads(found) == answer["config"]
    variables = {name: os.environ.pop(name, None) for name in ("HF_HOME", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")}
    assert variables == {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    assert "HF_HUB_CACHE" not in os.environ
