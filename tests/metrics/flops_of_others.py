"""Megatron-LM's and TorchTitan's own counts of FLOPs, taken from checkouts elsewhere. A helper of test_flops.py.

    MEGATRON_PATH=~/Megatron-LM python tests/metrics/flops_of_others.py COMMIT > tests/metrics/megatron_flops.json
    TORCHTITAN_PATH=~/torchtitan python tests/metrics/flops_of_others.py COMMIT > tests/metrics/torchtitan_flops.json

Megatron's function is cut out of megatron/training/training.py and loaded alone: the file itself needs all of Megatron.
TorchTitan's models are built on the meta device, where they take no memory; needs torch, spmd_types, tyro and triton.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

SOURCE = Path("megatron") / "training" / "training.py"
BATCH = 8
_HEAD = """from typing import Optional, Tuple
is_hybrid_model = is_linear_attention_variant = is_gated_delta_net_variant = lambda _: False
"""
_PLAIN = {
    **dict.fromkeys(("num_experts", "moe_router_topk", "moe_ffn_hidden_size", "moe_first_dense_layers")),
    **dict.fromkeys(("moe_shared_expert_intermediate_size", "mtp_num_layers", "window_size")),
    "num_layers": 6,
    "hidden_size": 96,
    "ffn_hidden_size": 384,
    "num_attention_heads": 8,
    "num_query_groups": 8,
    "kv_channels": 12,
    "padded_vocab_size": 640,
    "swiglu": False,
    "gated_linear_unit": False,
    "multi_latent_attention": False,
    "untie_embeddings_and_output_weights": True,
}
_GATED = {"swiglu": True, "gated_linear_unit": True}
_MOE = {"num_experts": 8, "moe_router_topk": 2, "moe_ffn_hidden_size": 64, "moe_first_dense_layers": 0}
_MLA = {
    "multi_latent_attention": True,
    "q_lora_rank": None,
    "kv_lora_rank": 40,
    "qk_head_dim": 16,
    "qk_pos_emb_head_dim": 8,
    "v_head_dim": 20,
}
SHAPES: dict[str, dict[str, Any]] = {
    "plain MLP, multi-head": _PLAIN,
    "gated, grouped queries, heads wider than hidden": {**_PLAIN, **_GATED, "num_query_groups": 2, "kv_channels": 20},
    "tied": {**_PLAIN, "untie_embeddings_and_output_weights": False},
    "experts in every layer": {**_PLAIN, **_MOE},
    "experts as wide as the MLP": {**_PLAIN, **_MOE, "moe_ffn_hidden_size": None},
    "shared experts after two dense layers": {
        **_PLAIN,
        **_MOE,
        **_GATED,
        "moe_first_dense_layers": 2,
        "moe_shared_expert_intermediate_size": 128,
    },
    "latent attention, queries whole": {**_PLAIN, **_MLA},
    "latent attention, queries through a low rank, MTP": {**_PLAIN, **_MLA, "q_lora_rank": 24, "mtp_num_layers": 2},
    "experts and MTP": {**_PLAIN, **_MOE, "mtp_num_layers": 1},
}
SEQ_LENGTHS = (4096, 8192)
# Ours: TorchTitan's module, its flavour, and how many modules for multi-token prediction.
TITANS: dict[str, tuple[str, str, int]] = {
    "llama32_1b": ("llama3", "1B", 0),
    "llama32_3b": ("llama3", "3B", 0),
    "llama31_8b": ("llama3", "8B", 0),
    "llama31_70b": ("llama3", "70B", 0),
    "llama31_405b": ("llama3", "405B", 0),
    "qwen3_8b": ("qwen3", "8B", 0),
    "qwen3_30b_a3b": ("qwen3", "30B-A3B", 0),
    "qwen3_235b_a22b": ("qwen3", "235B-A22B", 0),
    "deepseek_v2_lite": ("deepseek_v3", "16B", 0),
    "deepseek_v3": ("deepseek_v3", "671B", 1),
    "gpt_oss_20b": ("gpt_oss", "20b", 0),
    "gpt_oss_120b": ("gpt_oss", "120b", 0),
}


def models() -> dict[str, dict[str, Any]]:
    """Return the shapes of conf/model that Megatron-LM's formula knows: no gate but SwiGLU, no windows."""
    from conf.compose import choices
    from conf.load import model_named
    from conf.vocabulary import requested

    known = {name: model for name in choices("model") if (model := model_named(name)) is not None}
    return {
        name: requested(SimpleNamespace(model=model), partial=True)
        for name, model in known.items()
        if model.quick_geglu is None and model.window_size is None
    }


def megatron(checkout: Path) -> Callable[[dict[str, Any], int], float]:
    """Megatron-LM's count for one token, as a function of canonical settings and the sequence length."""
    text = (checkout / SOURCE).read_text(encoding="utf-8")
    tree = ast.parse(text)
    node = next(n for n in tree.body if getattr(n, "name", "") == "num_floating_point_operations")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "megatron_count.py"
        file.write_text(_HEAD + (ast.get_source_segment(text, node) or ""), encoding="utf-8")
        spec = importlib.util.spec_from_file_location("megatron_count", file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return lambda settings, length: (
        module.num_floating_point_operations(_arguments(settings, length), BATCH) / BATCH / length
    )


def _arguments(settings: dict[str, Any], length: int) -> SimpleNamespace:
    """As Megatron's arguments.py has them: MLA excludes grouped queries there, dense layers are a pattern."""
    first, layers = settings["moe_first_dense_layers"] or 0, settings["num_layers"]
    more = {
        "seq_length": length,
        "group_query_attention": not settings["multi_latent_attention"],
        "moe_layer_freq": [0] * first + [1] * (layers - first),
        "moe_latent_size": None,
        "attention_output_gate": False,
        "experimental_attention_variant": None,
    }
    return SimpleNamespace(**{**settings, **more})


def table(count: Callable[[dict[str, Any], int], float]) -> list[dict[str, Any]]:
    """Return what Megatron counts for one token of every shape, at a short and a long sequence."""
    named = {**{f"model {name}": s for name, s in models().items()}, **SHAPES}
    return [
        {"shape": name, "seq_length": length, "flops_per_token": count(settings, length)}
        for name, settings in named.items()
        for length in (256, 4096, 8192)
    ]


def titan_row(name: str, seq_length: int) -> dict[str, Any]:
    """Return what TorchTitan says of one of our models, as its trainer calls it."""
    import torch

    sys.path.insert(0, os.environ["TORCHTITAN_PATH"])
    package, flavour, mtp = TITANS[name]
    more = {"num_mtp_layers": mtp} if mtp else {}
    config = importlib.import_module(f"torchtitan.models.{package}").model_registry(flavour, **more).model
    with torch.device("meta"):
        parameters, flops = config.get_nparams_and_flops(config.build(), seq_length)
    return {"model": name, "seq_length": seq_length, "parameters": parameters, "flops_per_token": flops}


if __name__ == "__main__":
    if "MEGATRON_PATH" in os.environ:
        source, rows = f"NVIDIA/Megatron-LM@{sys.argv[1]} {SOURCE}", table(megatron(Path(os.environ["MEGATRON_PATH"])))
    else:
        source = f"pytorch/torchtitan@{sys.argv[1]} torchtitan/models/utils.py"
        rows = [titan_row(name, length) for name in TITANS for length in SEQ_LENGTHS]
    lines = ",\n  ".join(map(json.dumps, rows))
    print(f'{{"source": "{source}",\n "rows": [\n  {lines}\n]}}')
