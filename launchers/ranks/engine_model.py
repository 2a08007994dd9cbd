"""Megatron-Core's GPTModel from the engine's settings, with two modules of ours through Megatron's ModuleSpec.

Without TransformerEngine, Megatron's own norm refuses sequence parallelism (transformer/torch_norm.py:32) and its own
core attention writes out the full [s, s] scores. Ours are plain torch and run on CPU, CUDA and ROCm alike.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from engine_init import set_weights
from engine_settings import Settings
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel import get_cuda_rng_tracker
from megatron.core.transformer.module import Float16Module, MegatronModule
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.nn import functional


class RMSNorm(torch.nn.Module):
    """RMSNorm over the last dimension of [s, b, h]."""

    def __init__(self, config: Any, hidden_size: int, eps: float, **_: Any) -> None:
        """`config` is Megatron's TransformerConfig; Megatron passes further options that have no meaning here."""
        super().__init__()
        self.eps = eps
        device = None if config.use_cpu_initialization else torch.cuda.current_device()
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype, device=device))
        # distributed/finalize_model_grads.py sums the gradients of weights so marked over the sequence parallel ranks
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the normalised tensor, in the shape and dtype of `hidden`."""
        return functional.rms_norm(hidden, self.weight.shape, self.weight, self.eps)


class SDPACoreAttention(MegatronModule):
    """Causal attention through torch.nn.functional.scaled_dot_product_attention."""

    def __init__(self, config: Any, softmax_scale: float | None = None, **_: Any) -> None:
        """`config` is Megatron's TransformerConfig; Megatron passes further options that have no meaning here."""
        super().__init__(config=config)
        self.scale = softmax_scale

    def forward(self, query: Any, key: Any, value: Any, attention_mask: None, **_: Any) -> torch.Tensor:
        """Return [s, b, heads * head size] from `query` [s, b, heads, head size], `key` and `value` (fewer heads)."""
        q, k, v = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        dropout = self.config.attention_dropout if self.training else 0.0
        with self._generator(dropout):
            out = functional.scaled_dot_product_attention(
                q, k, v, dropout_p=dropout, is_causal=True, scale=self.scale, enable_gqa=q.shape[1] != k.shape[1]
            )
        return out.permute(2, 0, 1, 3).reshape(*query.shape[:2], -1)

    def _generator(self, dropout: float) -> contextlib.AbstractContextManager[None]:
        # as transformer/dot_product_attention.py:206: tensor parallel ranks hold different heads, so they draw
        # differently; with sequence parallelism the whole block does so already
        if dropout and not self.config.sequence_parallel:
            return get_cuda_rng_tracker().fork()
        return contextlib.nullcontext()


def build_model(settings: Settings) -> Any:
    """Return this rank's part of the model on its device, initialised, in Megatron's DistributedDataParallel."""
    config = _transformer_config(settings)
    model = GPTModel(
        config=config,
        transformer_layer_spec=_block_spec(config),
        vocab_size=settings.padded_vocab_size,
        max_sequence_length=settings.max_position_embeddings,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        position_embedding_type="rope",
        rotary_base=settings.rotary_base,
        rope_scaling=settings.use_rope_scaling,
        rope_scaling_factor=settings.rope_scaling_factor,
        share_embeddings_and_output_weights=not settings.untie_embeddings_and_output_weights,
    )
    set_weights(model, settings.seed)
    wrapped = _distributed(settings, config, Float16Module(config, model) if config.bf16 else model)
    wrapped.train()
    return wrapped


def _transformer_config(s: Settings) -> Any:
    dtype = getattr(torch, s.params_dtype)
    same_name = {name: getattr(s, name) for name in _SAME_NAME}
    return TransformerConfig(
        **same_name,
        layernorm_epsilon=s.norm_epsilon,
        gated_linear_unit=s.swiglu,
        activation_func=functional.silu,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        deallocate_pipeline_outputs=True,  # as megatron/training/arguments.py
        use_cpu_initialization=not torch.cuda.is_available(),
        init_method=_leave,  # set_weights comes after; perform_initialization=False would also skip the biases' zeros
        output_layer_init_method=_leave,
        # these need TransformerEngine or apex, or compile at the first step
        persist_layer_norm=False,
        gradient_accumulation_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
    )


_SAME_NAME = (
    *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "kv_channels"),
    *("normalization", "add_bias_linear", "add_qkv_bias", "init_method_std", "hidden_dropout", "attention_dropout"),
    *("recompute_granularity", "recompute_method", "recompute_num_layers", "sequence_parallel"),
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size"),
    *("context_parallel_size", "expert_model_parallel_size", "fp8"),
)


def _leave(weight: torch.Tensor) -> torch.Tensor:
    return weight


def _block_spec(config: Any) -> Any:
    layer = get_gpt_layer_local_spec(normalization=config.normalization)
    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = RMSNorm
    layer.submodules.self_attention.submodules.core_attention = SDPACoreAttention
    # a layer's spec alone would get Megatron's norm back as the final one (transformer/transformer_block.py)
    return TransformerBlockSubmodules(layer_specs=[layer] * get_num_layers_to_build(config), layer_norm=RMSNorm)


def _distributed(s: Settings, config: Any, model: Any) -> Any:
    if torch.cuda.is_available():
        model.cuda(torch.cuda.current_device())
    options = DistributedDataParallelConfig(
        grad_reduce_in_fp32=s.accumulate_allreduce_grads_in_fp32,
        use_distributed_optimizer=s.use_distributed_optimizer,
        overlap_grad_reduce=s.overlap_grad_reduce,
        overlap_param_gather=s.overlap_param_gather,
    )
    wrapped = DistributedDataParallel(config=config, ddp_config=options, module=model)
    if s.overlap_grad_reduce:  # as megatron/training/training.py, train(); align_param_gather is for interleaving only
        config.no_sync_func = wrapped.no_sync
        config.grad_sync_func = wrapped.start_grad_sync
    return wrapped
