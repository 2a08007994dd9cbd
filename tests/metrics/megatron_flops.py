"""Megatron-LM's own count of FLOPs, taken from a checkout outside this repository. A helper of test_flops.py.

    MEGATRON_PATH=~/Megatron-LM python tests/metrics/megatron_flops.py COMMIT > tests/metrics/megatron_flops.json

The function is cut out of megatron/training/training.py and loaded alone: the file itself needs all of Megatron.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from conf.compose import choices
from conf.load import model_named
from conf.vocabulary import requested

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


def models() -> dict[str, dict[str, Any]]:
    """The shapes of conf/model that Megatron-LM's formula knows: no gate but SwiGLU, no windows."""
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
    """What Megatron counts for one token of every shape, at a short and a long sequence."""
    named = {**{f"model {name}": s for name, s in models().items()}, **SHAPES}
    return [
        {"shape": name, "seq_length": length, "flops_per_token": count(settings, length)}
        for name, settings in named.items()
        for length in (256, 4096, 8192)
    ]


if __name__ == "__main__":
    rows = table(megatron(Path(os.environ["MEGATRON_PATH"])))
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    print(f'{{"source": "NVIDIA/Megatron-LM@{sys.argv[1]} {SOURCE}",\n "rows": [\n  {lines}\n]}}')
