"""Build a dense Llama, Qwen 2 or Qwen 3 of Hugging Face's transformers from our settings, with the first weights of
every other stack, and read its settings back."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from plain_llama import LLAMA3
from plain_ranks import Settings, apart

NAMES = {
    "embedding": "model.embed_tokens",
    "output": "lm_head",
    "layer": "model.layers",
    **{part: f"self_attn.{part}_proj" for part in ("q", "k", "v")},
    "proj": "self_attn.o_proj",
    **{part: f"mlp.{part}_proj" for part in ("gate", "up", "down")},
    "input_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "final_norm": "model.norm",
    **{f"{part}_norm": f"self_attn.{part}_norm" for part in ("q", "k")},
}
"""The modules of transformers' Llama and Qwen (plain_ranks.apart, together)."""


def kind(s: Settings) -> str:
    """Return which family has these parts: Qwen 3 where queries and keys are normalised, Qwen 2 where their projections
    have biases (a Llama adds one to the output projection, too), else Llama."""
    return "Qwen3" if s.qk_layernorm else "Qwen2" if s.add_qkv_bias else "Llama"


def build(s: Settings) -> Any:
    """Return the model, in fp32, on the CPU."""
    family = kind(s)
    more = {"attention_bias": s.add_qkv_bias} if family == "Qwen3" else {}
    rope = {"rope_theta": s.rotary_base, "rope_type": "default"}
    if s.use_rope_scaling:
        rope |= {"rope_type": "llama3", "factor": s.rope_scaling_factor, **LLAMA3}
    config = getattr(transformers, f"{family}Config")(
        vocab_size=s.padded_vocab_size,
        hidden_size=s.hidden_size,
        intermediate_size=s.ffn_hidden_size,
        num_hidden_layers=s.num_layers,
        num_attention_heads=s.num_attention_heads,
        num_key_value_heads=s.num_query_groups,
        head_dim=s.kv_channels,
        max_position_embeddings=s.max_position_embeddings,
        rms_norm_eps=s.norm_epsilon,
        tie_word_embeddings=not s.untie_embeddings_and_output_weights,
        rope_parameters=rope,
        attn_implementation="eager" if s.attention_backend == "unfused" else "sdpa",
        initializer_range=s.init_method_std,
        use_cache=False,
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
        **more,
    )
    model = getattr(transformers, f"{family}ForCausalLM")(config).float()
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, values in apart(s, NAMES):
            parameters[name].copy_(torch.from_numpy(values))
    return model


def read_back(model: Any) -> dict[str, Any]:
    """Return the settings that a built model of transformers has, by canonical name."""
    layer, config = model.model.layers[0], model.config
    attention, mlp, rope = layer.self_attn, layer.mlp, config.rope_parameters
    scaled = rope["rope_type"] == "llama3"
    return {
        "num_layers": len(model.model.layers),
        "hidden_size": model.model.embed_tokens.embedding_dim,
        "padded_vocab_size": model.model.embed_tokens.num_embeddings,
        "ffn_hidden_size": mlp.down_proj.in_features,
        "num_attention_heads": attention.q_proj.out_features // attention.head_dim,
        "num_query_groups": attention.k_proj.out_features // attention.head_dim,
        "kv_channels": attention.head_dim,
        "norm_epsilon": layer.input_layernorm.variance_epsilon,
        "add_qkv_bias": attention.q_proj.bias is not None,
        "add_bias_linear": mlp.down_proj.bias is not None,
        "qk_layernorm": hasattr(attention, "q_norm"),
        "untie_embeddings_and_output_weights": model.lm_head.weight is not model.model.embed_tokens.weight,
        "rotary_base": rope["rope_theta"],
        "use_rope_scaling": scaled,
        "rope_scaling_factor": rope["factor"] if scaled else None,
        "max_position_embeddings": config.max_position_embeddings,
        "attention_backend": {"eager": "unfused"}.get(config._attn_implementation, config._attn_implementation),
        "attention_dropout": attention.attention_dropout,
    }
