"""The arguments a run really has: read back from the objects that were built, not echoed from the request."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from engine_data import TokenData
from engine_layers import SDPACoreAttention
from engine_model import aux_loss_correction
from engine_settings import Settings
from megatron.core import parallel_state
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.utils import get_attr_wrapped_model
from torch.nn import functional


class Built(NamedTuple):
    """What one rank trains with."""

    settings: Settings
    chunks: list[Any]
    """Megatron's DistributedDataParallel around GPTModel; several with a virtual pipeline."""
    optimizer: Any
    scheduler: Any
    data: TokenData


def effective_arguments(built: Built) -> dict[str, Any]:
    """Return every argument under its Megatron name.

    Read on rank 0, which holds the first pipeline stage. `train_iters`, `save_interval` and `rope_scaling_factor` are
    the request's: no object keeps them.
    """
    gpt = get_attr_wrapped_model(built.chunks[0], "decoder", return_model_obj=True)
    return {
        **_model(gpt, built.settings),
        **_transformer(gpt),
        **_batches(built),
        **_optimizer(built),
        **_parallel(built),
    }


def _model(gpt: Any, requested: Settings) -> dict[str, Any]:
    embedding = gpt.embedding.word_embeddings.weight
    return {
        "padded_vocab_size": embedding.shape[0] * parallel_state.get_tensor_model_parallel_world_size(),
        "params_dtype": embedding.dtype,
        "max_position_embeddings": gpt.max_position_embeddings,
        "rotary_base": gpt.rotary_base,
        "use_rope_scaling": gpt.rotary_scaling,
        "rope_scaling_factor": requested.rope_scaling_factor,
        "untie_embeddings_and_output_weights": not gpt.share_embeddings_and_output_weights,
        "attention_backend": _attention(gpt),
        "transformer_impl": "local",
    }


def _transformer(gpt: Any) -> dict[str, Any]:
    config = gpt.config
    return {
        **{name: getattr(config, name) for name in _CONFIG_NAMES},
        **_experts(gpt),
        **{name: getattr(config, name, None) for name in _LATENT_NAMES},
        "fp8_recipe": config.fp8_recipe if config.fp8 else None,
        "norm_epsilon": gpt.decoder.layers[0].input_layernorm.eps,
        "swiglu": config.gated_linear_unit and config.activation_func is functional.silu,
    }


_CONFIG_NAMES = (
    *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "kv_channels"),
    *("normalization", "add_bias_linear", "add_qkv_bias", "init_method_std", "hidden_dropout", "attention_dropout"),
    *("recompute_granularity", "recompute_method", "recompute_num_layers", "sequence_parallel", "fp8", "bf16"),
    *("qk_layernorm", "multi_latent_attention", "mtp_num_layers"),
)


def _batches(built: Built) -> dict[str, Any]:
    data_size = parallel_state.get_data_parallel_world_size()
    micro_batches, micro_batch_size, tokens = built.data.rank_batches(0, 0, data_size).shape
    return {
        **built.data.effective(),
        "seq_length": tokens - 1,  # a sample has one more, for the last label
        "micro_batch_size": micro_batch_size,
        "num_micro_batches": micro_batches,
        "global_batch_size": micro_batches * micro_batch_size * data_size,
        "train_iters": built.settings.train_iters,
        "save_interval": built.settings.save_interval,
    }


def _optimizer(built: Built) -> dict[str, Any]:
    config, scheduler, group = built.optimizer.config, built.scheduler, built.optimizer.param_groups[0]
    options = built.chunks[0].ddp_config
    return {
        "optimizer": config.optimizer,
        "clip_grad": config.clip_grad,
        "adam_beta1": group["betas"][0],
        "adam_beta2": group["betas"][1],
        "adam_eps": group["eps"],
        "lr": scheduler.max_lr,
        "min_lr": scheduler.min_lr,
        "lr_warmup_init": scheduler.init_lr,
        "lr_warmup_iters": scheduler.lr_warmup_steps,
        "lr_decay_iters": scheduler.lr_decay_steps,
        "lr_decay_style": scheduler.lr_decay_style,
        "weight_decay": scheduler.end_wd,
        "use_distributed_optimizer": options.use_distributed_optimizer,
        "overlap_grad_reduce": options.overlap_grad_reduce,
        "overlap_param_gather": options.overlap_param_gather,
        "accumulate_allreduce_grads_in_fp32": options.grad_reduce_in_fp32,
    }


def _parallel(built: Built) -> dict[str, Any]:
    return {
        "tensor_model_parallel_size": parallel_state.get_tensor_model_parallel_world_size(),
        "pipeline_model_parallel_size": parallel_state.get_pipeline_model_parallel_world_size(),
        "virtual_pipeline_model_parallel_size": parallel_state.get_virtual_pipeline_model_parallel_world_size(),
        "context_parallel_size": parallel_state.get_context_parallel_world_size(),
        "expert_model_parallel_size": parallel_state.get_expert_model_parallel_world_size(),
        "data_parallel_size": parallel_state.get_data_parallel_world_size(),
        "world_size": torch.distributed.get_world_size(),
        "device": ("rocm" if torch.version.hip else "cuda") if torch.cuda.is_available() else "cpu",
        "distributed_backend": torch.distributed.get_backend(),
    }


def _attention(gpt: Any) -> str | None:
    kinds = {SDPACoreAttention: "sdpa", DotProductAttention: "unfused"}
    return next((kinds[type(module)] for module in gpt.modules() if type(module) in kinds), None)


def _experts(gpt: Any) -> dict[str, Any]:
    """What Megatron's config keeps for experts; None, not its defaults, where the model has none."""
    config = gpt.config
    if config.num_moe_experts is None:
        return dict.fromkeys(("num_experts", *_EXPERT_NAMES, "moe_aux_loss_coeff", "moe_first_dense_layers"))
    return {
        "num_experts": config.num_moe_experts,
        **{name: getattr(config, name) for name in _EXPERT_NAMES},
        "moe_aux_loss_coeff": config.moe_aux_loss_coeff / aux_loss_correction(config.context_parallel_size),
        "moe_first_dense_layers": config.moe_layer_freq.index(1),
    }


_LATENT_NAMES = ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")
_EXPERT_NAMES = (
    *("moe_router_topk", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size"),
    "moe_router_load_balancing_type",
)
