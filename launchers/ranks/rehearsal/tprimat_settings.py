"""Megatron-Core's own config objects → canonical settings (conf/vocabulary.yaml), for every stack that builds on it.

Values are read, never echoed: a setting that no object here keeps is left out, and the caller adds what it knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_SAME_NAME = (
    *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "kv_channels"),
    *("normalization", "add_bias_linear", "add_qkv_bias", "init_method_std", "hidden_dropout", "attention_dropout"),
    *("recompute_granularity", "recompute_method", "recompute_num_layers", "sequence_parallel", "qk_layernorm"),
    *("multi_latent_attention", "mtp_num_layers"),
    *("attention_softmax_in_fp32", "gradient_accumulation_fusion"),
)
_EXPERT_NAMES = (
    *("moe_router_topk", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size"),
    *("moe_router_load_balancing_type", "moe_aux_loss_coeff", "moe_grouped_gemm", "moe_token_dispatcher_type"),
)
_LATENT_NAMES = ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")


def model_settings(config: Any) -> dict[str, Any]:
    """Of a TransformerConfig as it was built. Vocabulary, RoPE and seq_length are kept elsewhere by each stack."""
    from torch.nn import functional

    latent = bool(getattr(config, "multi_latent_attention", False))
    experts = config.num_moe_experts is not None
    values = {name: getattr(config, name) for name in _SAME_NAME if hasattr(config, name)}
    return {
        **values,
        "norm_epsilon": config.layernorm_epsilon,
        "swiglu": bool(config.gated_linear_unit and config.activation_func is functional.silu),
        "params_dtype": str(config.params_dtype).removeprefix("torch."),
        "fp8": config.fp8 or None,
        "fp8_recipe": plain_name(config.fp8_recipe) if config.fp8 else None,
        "num_experts": config.num_moe_experts,
        **{name: getattr(config, name, None) if experts else None for name in _EXPERT_NAMES},
        "moe_first_dense_layers": first_dense_layers(config) if experts else None,
        **{name: getattr(config, name) if latent else None for name in _LATENT_NAMES},
    }


def first_dense_layers(config: Any) -> int | None:
    """Layers before the first with experts; None where they do not all come first."""
    frequency = config.moe_layer_freq
    if isinstance(frequency, int):
        return 0 if frequency == 1 else None
    pattern = [int(layer) for layer in frequency]
    dense = pattern.index(1) if 1 in pattern else len(pattern)
    return dense if pattern == [0] * dense + [1] * (len(pattern) - dense) else None


def ddp_settings(config: Any) -> dict[str, Any]:
    """Of Megatron's DistributedDataParallelConfig as the wrapped model has it."""
    return {
        "overlap_grad_reduce": config.overlap_grad_reduce,
        "overlap_param_gather": config.overlap_param_gather,
        "accumulate_allreduce_grads_in_fp32": config.grad_reduce_in_fp32,
        "use_distributed_optimizer": config.use_distributed_optimizer,
        "average_in_collective": config.average_in_collective,
    }


def optimizer_settings(config: Any, groups: Iterable[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Of an OptimizerConfig; where the built optimizer's parameter groups are given, what steps is read from those.

    weight_decay is that of the groups that decay: the largest.
    """
    values = {
        "optimizer": config.optimizer,
        "clip_grad": config.clip_grad,
        "adam_beta1": config.adam_beta1,
        "adam_beta2": config.adam_beta2,
        "adam_eps": config.adam_eps,
        "weight_decay": config.weight_decay,
    }
    found = [dict(group) for group in groups if group.get("params") is not None]
    if found:
        beta1, beta2 = found[0]["betas"]
        decay = max(group["weight_decay"] for group in found)
        values |= {"adam_beta1": beta1, "adam_beta2": beta2, "adam_eps": found[0]["eps"], "weight_decay": decay}
    return values


def layout_settings() -> dict[str, Any]:
    """Of the process groups that were made."""
    import torch
    from megatron.core import parallel_state as groups

    return {
        "tensor_model_parallel_size": groups.get_tensor_model_parallel_world_size(),
        "pipeline_model_parallel_size": groups.get_pipeline_model_parallel_world_size(),
        "virtual_pipeline_model_parallel_size": groups.get_virtual_pipeline_model_parallel_world_size(),
        "context_parallel_size": groups.get_context_parallel_world_size(),
        "expert_model_parallel_size": groups.get_expert_model_parallel_world_size(),
        "data_parallel_size": groups.get_data_parallel_world_size(),
        "world_size": torch.distributed.get_world_size(),
        "distributed_backend": torch.distributed.get_backend(),
    }


def built_settings(
    gpt: Any, ddp_config: Any, optimizer_config: Any, groups: Iterable[Mapping[str, Any]]
) -> dict[str, Any]:
    """Of a GPTModel and what trains it, all that Megatron-Core's own objects tell. Schedule, batches and data are each
    stack's own."""
    layout = layout_settings()
    return {
        **model_settings(gpt.config),
        **optimizer_settings(optimizer_config, groups),
        **ddp_settings(ddp_config),
        **attention(gpt.modules()),
        **layout,
        "padded_vocab_size": padded_vocab_size(gpt.named_parameters(), layout["tensor_model_parallel_size"]),
        "max_position_embeddings": gpt.max_sequence_length,
        "untie_embeddings_and_output_weights": not gpt.share_embeddings_and_output_weights,
        "rotary_base": gpt.rotary_base,
    }


def padded_vocab_size(parameters: Iterable[tuple[str, Any]], tensor_size: int) -> int | None:
    """Rows of the embedding over all TP ranks; None on a rank that holds no embedding."""
    shapes = (parameter.shape for name, parameter in parameters if name.endswith("word_embeddings.weight"))
    first = next(shapes, None)
    return None if first is None else int(first[0]) * tensor_size


def attention(modules: Iterable[Any]) -> dict[str, Any]:
    """attention_backend and transformer_impl as the built modules show them: TransformerEngine's attention takes the
    kernel that its config names, or chooses (auto); Megatron's own is "unfused"."""
    found = {type(module).__name__: module for module in modules}
    kind = "unfused" if "DotProductAttention" in found else None
    if "SDPACoreAttention" in found:  # the embedded engine's
        kind = "sdpa"
    if "TEDotProductAttention" in found:
        kind = found["TEDotProductAttention"].config.attention_backend.name
    engine = any(name.startswith("TE") for name in found)
    return {"attention_backend": kind, "transformer_impl": "transformer_engine" if engine else "local"}


def plain_name(value: Any) -> Any:
    """An enum's value, anything else as it is."""
    return getattr(value, "value", value)
