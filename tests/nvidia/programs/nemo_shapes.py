"""The shape that each of NeMo's own recipes has before anything is set on it, as JSON: recipe → field → value."""

from __future__ import annotations

import dataclasses
import gc
import importlib
import json
import sys

gc.disable()
import fiddle as fdl  # noqa: E402
from nemo.collections.llm import recipes  # noqa: E402

FIELDS = (
    *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "kv_channels"),
    *("vocab_size", "rotary_base", "layernorm_epsilon", "add_bias_linear", "add_qkv_bias", "qk_layernorm"),
    *("share_embeddings_and_output_weights", "scale_factor", "init_method_std", "normalization", "num_moe_experts"),
    *("moe_router_topk", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size", "moe_aux_loss_coeff"),
    *("moe_router_load_balancing_type", "moe_router_score_function", "moe_router_pre_softmax", "moe_layer_freq"),
    *("moe_router_topk_scaling_factor", "moe_router_num_groups", "moe_router_group_topk", "q_lora_rank"),
    *("moe_router_enable_expert_bias", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim"),
    *("mtp_num_layers", "rotary_scaling_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"),
    "original_max_position_embeddings",
)


def shape(name: str) -> dict[str, object]:
    """Return what the recipe gives, else the class's default; a field that the class does not have is left out."""
    module = importlib.import_module(f"{recipes.__name__}.{name}")
    config = module.pretrain_recipe(dir="x", name="x", num_nodes=1, num_gpus_per_node=8).model.config
    given = fdl.ordered_arguments(config)
    fields = {field.name: field for field in dataclasses.fields(fdl.get_callable(config))}
    return {name: given.get(name, default(fields[name])) for name in FIELDS if name in fields}


def default(field: dataclasses.Field[object]) -> object:
    return field.default_factory() if callable(field.default_factory) else field.default


print("SHAPES " + json.dumps({name: shape(name) for name in sys.argv[1:]}, default=str))
