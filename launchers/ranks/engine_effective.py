"""The arguments a run really has: read back from the objects that were built, not echoed from the request."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from engine_data import SyntheticData
from engine_model import SDPACoreAttention
from engine_settings import Settings
from megatron.core import parallel_state
from megatron.core.utils import get_attr_wrapped_model
from torch.nn import functional


class Built(NamedTuple):
    """What one rank trains with."""

    settings: Settings
    model: Any
    """Megatron's DistributedDataParallel around GPTModel."""
    optimizer: Any
    scheduler: Any
    data: SyntheticData


def effective_arguments(built: Built) -> dict[str, Any]:
    """Return every argument under its Megatron name.

    Read on rank 0, which holds the first pipeline stage. `train_iters` and `rope_scaling_factor` are the request's: no
    object keeps them.
    """
    gpt = get_attr_wrapped_model(built.model, "decoder", return_model_obj=True)
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
        "attention_backend": "sdpa" if _has(gpt, SDPACoreAttention) else None,
        "transformer_impl": "local",
    }


def _transformer(gpt: Any) -> dict[str, Any]:
    config = gpt.config
    return {
        **{name: getattr(config, name) for name in _CONFIG_NAMES},
        "num_experts": config.num_moe_experts,
        "fp8_recipe": config.fp8_recipe if config.fp8 else None,
        "norm_epsilon": gpt.decoder.layers[0].input_layernorm.eps,
        "swiglu": config.gated_linear_unit and config.activation_func is functional.silu,
    }


_CONFIG_NAMES = (
    *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "kv_channels"),
    *("normalization", "add_bias_linear", "add_qkv_bias", "init_method_std", "hidden_dropout", "attention_dropout"),
    *("recompute_granularity", "recompute_method", "recompute_num_layers", "sequence_parallel", "fp8", "bf16"),
)


def _batches(built: Built) -> dict[str, Any]:
    data_size = parallel_state.get_data_parallel_world_size()
    micro_batches, micro_batch_size, tokens = built.data.rank_batches(0, 0, data_size).shape
    return {
        "vocab_size": built.data.vocab_size,
        "seq_length": tokens - 1,  # a sample has one more, for the last label
        "micro_batch_size": micro_batch_size,
        "num_micro_batches": micro_batches,
        "global_batch_size": micro_batches * micro_batch_size * data_size,
        "train_iters": built.settings.train_iters,
        "seed": built.data.seed,
        "data": "synthetic",
    }


def _optimizer(built: Built) -> dict[str, Any]:
    config, scheduler, group = built.optimizer.config, built.scheduler, built.optimizer.param_groups[0]
    options = built.model.ddp_config
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
        "distributed_backend": torch.distributed.get_backend(),
    }


def _has(model: Any, kind: type) -> bool:
    return any(isinstance(module, kind) for module in model.modules())
