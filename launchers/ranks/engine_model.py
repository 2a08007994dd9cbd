"""Build Megatron-Core's GPTModel from the engine's settings, with modules of ours through Megatron's ModuleSpec.

engine_layers.py says why each of them is needed.
"""

from __future__ import annotations

from typing import Any

import megatron.core
import torch
from engine_layers import ColumnLinear, RMSNorm, RotarySelfAttention, RowLinear, SDPACoreAttention
from engine_settings import Settings
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.mlp import MLP
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.nn import functional
from tprimat_equal_init import set_weights


def build_model(settings: Settings) -> list[Any]:
    """Return this rank's parts of the model on its device, initialised, each in Megatron's DistributedDataParallel.

    One part, or with a virtual pipeline one a virtual stage.
    """
    config = _transformer_config(settings)
    stages = range(settings.virtual_pipeline_model_parallel_size or 0)
    chunks = [_chunk(settings, config, stage) for stage in stages or (None,)]
    wrapped = [_distributed(settings, config, chunk, first=index == 0) for index, chunk in enumerate(chunks)]
    _overlap(settings, config, wrapped)
    return wrapped


def _chunk(settings: Settings, config: Any, stage: int | None) -> Any:
    model = GPTModel(
        config=config,
        transformer_layer_spec=_block_spec(settings, config, stage),
        vocab_size=settings.padded_vocab_size,
        max_sequence_length=settings.max_position_embeddings,
        pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage),
        post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage),
        position_embedding_type="rope",
        rotary_base=settings.rotary_base,
        rope_scaling=settings.use_rope_scaling,
        rope_scaling_factor=settings.rope_scaling_factor,
        share_embeddings_and_output_weights=not settings.untie_embeddings_and_output_weights,
        vp_stage=stage,
    )
    set_weights(model, settings.seed)
    return Float16Module(config, model) if config.bf16 else model


def _transformer_config(s: Settings) -> Any:
    dtype = getattr(torch, s.params_dtype)
    same_name = {name: getattr(s, name) for name in _SAME_NAME}
    return TransformerConfig(
        **same_name,
        **_schedule(s),
        **_experts(s),
        layernorm_epsilon=s.norm_epsilon,
        gated_linear_unit=s.swiglu,
        activation_func=functional.silu,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        use_cpu_initialization=not torch.cuda.is_available(),
        init_method=_leave,  # set_weights comes after; perform_initialization=False would also skip the biases' zeros
        output_layer_init_method=_leave,
        attention_softmax_in_fp32=False,  # of Megatron's own attention; as on every vendor's stack
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
    *("context_parallel_size", "expert_model_parallel_size", "fp8", "qk_layernorm"),
)


def _schedule(s: Settings) -> dict[str, Any]:
    if s.virtual_pipeline_model_parallel_size is None:
        return {"deallocate_pipeline_outputs": True}  # as megatron/training/arguments.py
    return {
        # with two stages, batched sends and receives of one pair of ranks meet wrongly: the losses are garbage,
        # silently. The guard against that is in megatron/training/arguments.py, which the wheel lacks
        "overlap_p2p_comm": True,
        "batch_p2p_comm": False,
        # the same garbage with gloo: it frees an output whose sending has begun (pipeline_parallel/schedules.py:148),
        # which gloo does not keep alive
        "deallocate_pipeline_outputs": torch.cuda.is_available(),
    }


def _experts(s: Settings) -> dict[str, Any]:
    if s.num_experts is None:
        return {}
    dense = s.moe_first_dense_layers or 0
    # RouterGatingLinearFunction reads a name that only TransformerEngine defines (transformer/moe/moe_utils.py:958)
    moe_utils.te_general_gemm = getattr(moe_utils, "te_general_gemm", None)
    return {
        "num_moe_experts": s.num_experts,
        # in bf16 a rounding sends tokens to other experts: layouts were 5e-3 apart in loss after 15 steps, now 2e-3
        "moe_router_dtype": "fp32",
        "moe_router_topk": s.moe_router_topk,
        "moe_ffn_hidden_size": s.moe_ffn_hidden_size,
        "moe_shared_expert_intermediate_size": s.moe_shared_expert_intermediate_size,
        "moe_router_load_balancing_type": s.moe_router_load_balancing_type,
        "moe_aux_loss_coeff": (s.moe_aux_loss_coeff or 0.0) * aux_loss_correction(s.context_parallel_size),
        "moe_layer_freq": [int(layer >= dense) for layer in range(s.num_layers)],
        "moe_token_dispatcher_type": "alltoall",
        "moe_grouped_gemm": False,  # needs grouped_gemm or TransformerEngine
    }


def aux_loss_correction(context_size: int) -> int:
    """Return the factor of the auxiliary loss's coefficient that makes Megatron-Core weigh it as requested.

    0.15 divides its gradient by the context parallel size: https://github.com/NVIDIA/Megatron-LM/pull/2217.
    """
    return context_size if megatron.core.__version__.startswith("0.15.") else 1


def _leave(weight: torch.Tensor) -> torch.Tensor:
    return weight


def _block_spec(s: Settings, config: Any, stage: int | None) -> Any:
    block = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization="RMSNorm", vp_stage=stage)
    for layer in block.layer_specs:
        layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = RMSNorm
        parts = layer.submodules.self_attention.submodules
        parts.core_attention = DotProductAttention
        if config.qk_layernorm:
            parts.q_layernorm = parts.k_layernorm = RMSNorm
        if s.attention_backend == "sdpa":
            _ours(layer, config)
    block.layer_norm = RMSNorm  # the final one
    return block


def _ours(layer: Any, config: Any) -> None:
    attention, mlp = layer.submodules.self_attention, layer.submodules.mlp
    parts = attention.submodules
    parts.core_attention, parts.linear_qkv, parts.linear_proj = SDPACoreAttention, ColumnLinear, RowLinear
    if not config.qk_layernorm:
        attention.module = RotarySelfAttention
    if mlp.module is MLP:  # and not experts
        mlp.submodules.linear_fc1, mlp.submodules.linear_fc2 = ColumnLinear, RowLinear


class _InPlace(DistributedDataParallel):
    """Let autograd add gradients up in place, where they are not reduced while backward runs."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # autograd adds up where Megatron keeps the sums; its hooks do so in Python, for each parameter and micro-batch
        self.adds_in_place = all(p.main_grad.dtype == p.dtype for p in self.params_with_grad)
        if self.adds_in_place:
            self.grad_accs.clear()  # nothing else keeps the hooks

    def zero_grad_buffer(self) -> None:
        """Call it after the optimizer's zero_grad()."""
        super().zero_grad_buffer()
        if self.adds_in_place:
            for parameter in self.params_with_grad:
                parameter.grad = parameter.main_grad

    def finish_grad_sync(self) -> None:
        """Do nothing where there is one rank: gloo would copy all gradients (and below, all parameters: together 7 % of
        a step of 32 M parameters)."""
        if self.dp_cp_group.size() > 1:
            super().finish_grad_sync()

    def start_param_sync(self, *unused: Any, **options: Any) -> None:
        """Do the same for the parameters, with the distributed optimizer."""
        if self.dp_cp_group.size() > 1:
            super().start_param_sync(*unused, **options)


def _distributed(s: Settings, config: Any, model: Any, first: bool) -> Any:
    if torch.cuda.is_available():
        model.cuda(torch.cuda.current_device())
    options = DistributedDataParallelConfig(
        grad_reduce_in_fp32=s.accumulate_allreduce_grads_in_fp32,
        use_distributed_optimizer=s.use_distributed_optimizer,
        overlap_grad_reduce=s.overlap_grad_reduce,
        overlap_param_gather=s.overlap_param_gather,
        align_param_gather=_aligned(s),
    )
    # as megatron/training/training.py, get_model(): later virtual stages have nothing left to hide buckets behind
    kind = DistributedDataParallel if s.overlap_grad_reduce else _InPlace
    wrapped = kind(config=config, ddp_config=options, module=model, disable_bucketing=not first)
    wrapped.train()
    return wrapped


def _overlap(s: Settings, config: Any, chunks: list[Any]) -> None:
    """Set the functions that overlap communication, as megatron/training/training.py, train(): a list of them where
    there are several chunks."""

    def each(name: str) -> Any:
        functions = [getattr(chunk, name) for chunk in chunks]
        return functions if len(functions) > 1 else functions[0]

    if s.overlap_grad_reduce:
        config.no_sync_func, config.grad_sync_func = each("no_sync"), each("start_grad_sync")
    if _aligned(s):
        config.param_sync_func = each("start_param_sync")


def _aligned(s: Settings) -> bool:
    """Return whether all pipeline ranks gather a chunk's parameters at the same time; the schedule does it for
    interleaving only."""
    return s.overlap_param_gather and s.virtual_pipeline_model_parallel_size is not None
