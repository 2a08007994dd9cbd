"""Read canonical settings (conf/vocabulary.yaml) off Megatron-Core's own objects, for every stack that builds on it.

Values are read, never echoed: a setting that no object here keeps is left out, and the caller adds what it knows.
"""

from __future__ import annotations

import math
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
    """Read a TransformerConfig as it was built. Vocabulary, RoPE and seq_length are kept elsewhere by each stack."""
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
    """Return the layers before the first with experts; None where they do not all come first."""
    frequency = config.moe_layer_freq
    if isinstance(frequency, int):
        return 0 if frequency == 1 else None
    pattern = [int(layer) for layer in frequency]
    dense = pattern.index(1) if 1 in pattern else len(pattern)
    return dense if pattern == [0] * dense + [1] * (len(pattern) - dense) else None


def ddp_settings(config: Any) -> dict[str, Any]:
    """Read Megatron's DistributedDataParallelConfig as the wrapped model has it."""
    return {
        "overlap_grad_reduce": config.overlap_grad_reduce,
        "overlap_param_gather": config.overlap_param_gather,
        "accumulate_allreduce_grads_in_fp32": config.grad_reduce_in_fp32,
        "use_distributed_optimizer": config.use_distributed_optimizer,
        "average_in_collective": config.average_in_collective,
    }


def optimizer_settings(config: Any, groups: Iterable[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Read an OptimizerConfig; where the built optimizer's parameter groups are given, what steps is read from those.

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
    """Read the process groups that were made."""
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
    """Read a GPTModel and what trains it, all that Megatron-Core's own objects have. Schedule, batches and data are
    each stack's own."""
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


def planned_layout(sizes: Any, data_size: int, micro_batch: int, batch: int) -> dict[str, Any]:
    """Read a config that no process group was made from yet. sizes: what has the sizes of the model's parts;
    data_size: replicas; micro_batch, batch: samples."""
    tp, pp, cp = sizes.tensor_model_parallel_size, sizes.pipeline_model_parallel_size, sizes.context_parallel_size
    return {
        "tensor_model_parallel_size": tp,
        "pipeline_model_parallel_size": pp,
        "virtual_pipeline_model_parallel_size": sizes.virtual_pipeline_model_parallel_size,
        "context_parallel_size": cp,
        "expert_model_parallel_size": sizes.expert_model_parallel_size,
        "sequence_parallel": sizes.sequence_parallel,
        "data_parallel_size": data_size,
        "world_size": data_size * tp * pp * cp,
        "micro_batch_size": micro_batch,
        "global_batch_size": batch,
        "num_micro_batches": batch // (micro_batch * data_size),
    }


def batch_settings() -> dict[str, Any]:
    """Read Megatron's calculator of micro-batches; empty where none was made."""
    from megatron.core import num_microbatches_calculator as batches

    if batches._GLOBAL_NUM_MICROBATCHES_CALCULATOR is None:  # its functions would raise
        return {}
    return {
        "micro_batch_size": batches.get_micro_batch_size(),
        "num_micro_batches": batches.get_num_microbatches(),
        "global_batch_size": batches.get_current_global_batch_size(),
    }


def megatron_schedule(schedule: Any, unit: float | None = 1) -> dict[str, Any]:
    """Read Megatron's OptimizerParamScheduler. unit: by how much it counts a step; without it, lengths are left out."""
    values = {
        "lr": schedule.max_lr,
        "min_lr": schedule.min_lr,
        "lr_warmup_init": schedule.init_lr,
        "lr_decay_style": schedule.lr_decay_style,
    }
    if not unit:
        return values
    lengths = {"lr_warmup_iters": schedule.lr_warmup_steps / unit, "lr_decay_iters": schedule.lr_decay_steps / unit}
    return values | {name: int(n) if n == int(n) else n for name, n in lengths.items()}


def nemo_schedule(schedule: Any, first_lr: float | None) -> dict[str, Any]:
    """Read a schedule of NeMo's, which begins at lr / (warm-up steps + 1), whatever it was given. first_lr: the rate of
    the first step, where it is known."""
    lr, steps = schedule.base_lrs[0], schedule.warmup_steps
    values = {
        "lr": lr,
        "min_lr": schedule.min_lr,
        "lr_warmup_iters": steps,
        "lr_decay_iters": schedule.max_steps - (schedule.constant_steps or 0),
        "lr_decay_style": {"CosineAnnealing": "cosine"}.get(type(schedule).__name__, type(schedule).__name__),
    }
    if first_lr is not None:
        start = lr / (steps + 1)
        # its product rounds otherwise in the last digit
        values["lr_warmup_init"] = start if math.isclose(first_lr, start, rel_tol=1e-12) else first_lr
    return values


def rope_scaling(factor: float) -> dict[str, Any]:
    """Return the settings of a factor that the low frequencies are divided by, 1 where they are not."""
    scaled = not math.isclose(factor, 1.0, rel_tol=1e-3)
    return {"use_rope_scaling": scaled, "rope_scaling_factor": factor if scaled else None}


def padded_vocab_size(parameters: Iterable[tuple[str, Any]], tensor_size: int) -> int | None:
    """Return the rows of the embedding over all TP ranks; None on a rank without an embedding."""
    shapes = (parameter.shape for name, parameter in parameters if name.endswith("word_embeddings.weight"))
    first = next(shapes, None)
    return None if first is None else int(first[0]) * tensor_size


def attention(modules: Iterable[Any]) -> dict[str, Any]:
    """Return attention_backend and transformer_impl as the built modules show them: TransformerEngine's attention takes
    the kernel that its config names, or chooses (auto); Megatron's own is "unfused"."""
    found = {type(module).__name__: module for module in modules}
    kind = "unfused" if "DotProductAttention" in found else None
    if "SDPACoreAttention" in found:  # the embedded engine's
        kind = "sdpa"
    if "TEDotProductAttention" in found:
        kind = found["TEDotProductAttention"].config.attention_backend.name
    engine = any(name.startswith("TE") for name in found)
    return {"attention_backend": kind, "transformer_impl": "transformer_engine" if engine else "local"}


def plain_name(value: Any) -> Any:
    """Return an enum's value, anything else as it is."""
    return getattr(value, "value", value)
