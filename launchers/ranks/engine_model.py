"""Build Megatron-Core's GPTModel from the engine's settings, with modules of ours through Megatron's ModuleSpec.

They are plain torch, the same on CPU and GPU. RMSNorm is needed: Megatron's own refuses sequence parallelism
(transformer/torch_norm.py:32). So is SDPACoreAttention: Megatron's own attention writes out the full [s, s] scores and
refuses context parallelism (transformer/dot_product_attention.py:58); only TransformerEngine's does not. The others are
the same mathematics in fewer operations, and only with `attention=sdpa`: `unfused` keeps Megatron's own, bit for bit.
Their gains are of a step of llama_tiny on one core (paired, as in benchmarks/engine.py); with 32 M parameters they are
within the noise."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import torch
import torch.distributed as dist
from engine_settings import Settings
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear, get_cuda_rng_tracker
from megatron.core.transformer.attention import SelfAttention
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.mlp import MLP
from megatron.core.transformer.module import Float16Module, MegatronModule
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.nn import functional
from torch.nn.attention.bias import CausalBias, causal_lower_right
from tprimat_parameters import set_weights
from tprimat_settings import aux_loss_correction


def build_model(settings: Settings) -> list[Any]:
    """Return this rank's parts of the model on its device, initialised, each in Megatron's DistributedDataParallel: one
    part, or with a virtual pipeline one a virtual stage."""
    config = _transformer_config(settings)
    stages = range(settings.virtual_pipeline_model_parallel_size or 0)
    chunks = [_chunk(settings, config, stage) for stage in stages or (None,)]
    wrapped = [_distributed(settings, config, chunk, first=chunk is chunks[0]) for chunk in chunks]
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
    options = {
        **s.options(TransformerConfig, "model", "sizes"),
        **_schedule(s),
        **_experts(s),
        "gated_linear_unit": s.swiglu,
        "activation_func": functional.silu,
        **dict.fromkeys(("params_dtype", "pipeline_dtype"), dtype),
        "bf16": dtype is torch.bfloat16,
        "use_cpu_initialization": not torch.cuda.is_available(),
        # set_weights comes after; perform_initialization=False would also skip the biases' zeros
        **dict.fromkeys(("init_method", "output_layer_init_method"), _leave),
        "attention_softmax_in_fp32": False,  # of Megatron's own attention; as on every vendor's stack
        **dict.fromkeys(_NEED_MORE, False),
    }
    return TransformerConfig(**options)


_NEED_MORE = ("persist_layer_norm", "gradient_accumulation_fusion", "bias_activation_fusion", "bias_dropout_fusion")
"""These need TransformerEngine or apex, or compile at the first step."""


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
        # in bf16 a rounding sends tokens to other experts: layouts were 5e-3 apart in loss after 15 steps, now 2e-3
        "moe_router_dtype": "fp32",
        "moe_aux_loss_coeff": (s.moe_aux_loss_coeff or 0.0) * aux_loss_correction(s.context_parallel_size),
        "moe_layer_freq": [int(layer >= dense) for layer in range(s.num_layers)],
        "moe_token_dispatcher_type": "alltoall",
        "moe_grouped_gemm": False,  # needs grouped_gemm or TransformerEngine
    }


def _leave(weight: torch.Tensor) -> torch.Tensor:
    return weight


def _block_spec(s: Settings, config: Any, stage: int | None) -> Any:
    block = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization="RMSNorm", vp_stage=stage)
    for layer in block.layer_specs:
        layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = RMSNorm
        attention, mlp = layer.submodules.self_attention, layer.submodules.mlp
        parts = attention.submodules
        if config.qk_layernorm:
            parts.q_layernorm = parts.k_layernorm = RMSNorm
        if s.attention_backend != "sdpa":
            parts.core_attention = DotProductAttention
            continue
        parts.core_attention, parts.linear_qkv, parts.linear_proj = SDPACoreAttention, ColumnLinear, RowLinear
        if not config.qk_layernorm:
            attention.module = RotarySelfAttention
        if mlp.module is MLP:  # and not experts
            mlp.submodules.linear_fc1, mlp.submodules.linear_fc2 = ColumnLinear, RowLinear
    block.layer_norm = RMSNorm  # the final one
    return block


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
    made = s.options(DistributedDataParallelConfig, "ddp")
    options = DistributedDataParallelConfig(**made, align_param_gather=_aligned(s))
    # as megatron/training/training.py, get_model(): later virtual stages have nothing left to hide buckets behind
    kind = DistributedDataParallel if s.overlap_grad_reduce else _InPlace
    wrapped = kind(config=config, ddp_config=options, module=model, disable_bucketing=not first)
    wrapped.train()
    return wrapped


def _overlap(s: Settings, config: Any, chunks: list[Any]) -> None:
    """Set the functions that overlap communication, as megatron/training/training.py, train(): each a list with VP."""

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


class RMSNorm(torch.nn.RMSNorm):
    """Normalise by RMS over the last dimension of [s, b, h]."""

    def __init__(self, config: Any, hidden_size: int, eps: float, **_: Any) -> None:
        """Take Megatron's TransformerConfig as `config`; its further options have no meaning here."""
        device = None if config.use_cpu_initialization else torch.cuda.current_device()
        super().__init__(hidden_size, eps, dtype=config.params_dtype, device=device)
        # distributed/finalize_model_grads.py sums the gradients of weights so marked over the sequence parallel ranks
        self.weight.sequence_parallel = config.sequence_parallel


class _Linear(torch.nn.Module):
    """Be torch's linear without tensor parallelism: Megatron's is two autograd functions in Python. Gain: 9 %."""

    def forward(self, input_: torch.Tensor, *args: Any, **options: Any) -> Any:
        """Return the output and, where its adding is left to the caller, the bias."""
        if self.tp_group.size() > 1:
            return super().forward(input_, *args, **options)
        if self.skip_bias_add:
            return functional.linear(input_, self.weight), self.bias
        return functional.linear(input_, self.weight, self.bias), None


class ColumnLinear(_Linear, ColumnParallelLinear):
    """Project into the layer."""


class RowLinear(_Linear, RowParallelLinear):
    """Project back."""


class RotarySelfAttention(SelfAttention):
    """Rotate queries and keys together: Megatron rotates them one after the other, computes the cosines again in each
    layer, and joins what is rotated to an empty tensor. Gain: 5 %."""

    def forward(self, hidden_states: Any, attention_mask: None, rotary_pos_emb: Any = None, **_: Any) -> Any:
        """Return [s, b, h] and the projection's bias; `rotary_pos_emb` are the angles [s, 1, 1, head size]."""
        mixed, _bias = self.linear_qkv(hidden_states)
        groups, width = self.num_query_groups_per_partition, self.hidden_size_per_attention_head
        heads = mixed.view(*mixed.shape[:2], groups, -1, width)  # a group has its queries, its key and its value
        count = heads.shape[3] - 2
        turning, value = heads.split([count + 1, 1], dim=3)
        query, key = rotate(turning, rotary_pos_emb).split([count, 1], dim=3)
        attend = self._checkpointed_attention_forward if self.checkpoint_core_attention else self.core_attention
        return self.linear_proj(attend(*(part.flatten(2, 3) for part in (query, key, value)), attention_mask))


def rotate(heads: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Rotate `heads` [s, b, groups, heads, head size] by `angles` [s, 1, 1, head size], whose two halves are equal."""
    cos, sin = _cos_sin(angles, heads.dtype)
    return torch.addcmul(heads * cos, heads.roll(heads.shape[-1] // 2, -1), sin)


@functools.lru_cache(maxsize=1)
def _cos_sin(angles: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the cosines, and the sines with the first half's sign turned; cached, as Megatron keeps the angles."""
    angles = angles.unsqueeze(1)
    first, second = angles.sin().chunk(2, dim=-1)
    return angles.cos().to(dtype), torch.cat((-first, second), dim=-1).to(dtype)


class SDPACoreAttention(MegatronModule):
    """Attend causally through torch.nn.functional.scaled_dot_product_attention, with context parallelism."""

    def __init__(self, config: Any, softmax_scale: float | None = None, **_: Any) -> None:
        """Take Megatron's TransformerConfig as `config`; its further options have no meaning here."""
        super().__init__(config=config)
        self.scale = softmax_scale
        self.group = parallel_state.get_context_parallel_group()

    def forward(self, query: Any, key: Any, value: Any, attention_mask: None, **_: Any) -> torch.Tensor:
        """Return [s, b, heads * head size] from `query` [s, b, heads, head size], `key` and `value` (fewer heads)."""
        if self.group.size() == 1:
            return self._attend(query, key, value, None)
        keys, values = _full_sequence(torch.stack((key, value)), self.group)
        size, rank, piece = self.group.size(), self.group.rank(), query.shape[0] // 2
        parts = []
        for half, index in zip(query.split(piece), (rank, 2 * size - 1 - rank), strict=True):
            seen = (index + 1) * piece  # piece `index` sees all pieces before it, and itself causally
            parts.append(self._attend(half, keys[:seen], values[:seen], causal_lower_right(piece, seen)))
        return torch.cat(parts)

    def _attend(self, query: Any, key: Any, value: Any, bias: CausalBias | None) -> torch.Tensor:
        q, k, v = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        if bias is not None:  # one branch of CausalBias ignores enable_gqa (torch/nn/attention/bias.py:258)
            k, v = (tensor.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for tensor in (k, v))
        dropout = self.config.attention_dropout if self.training else 0.0
        # as transformer/dot_product_attention.py:206: tensor parallel ranks hold different heads, so they draw
        # differently; with sequence parallelism the complete block does so already
        apart = dropout and not self.config.sequence_parallel
        options = {"is_causal": bias is None, "scale": self.scale, "enable_gqa": q.shape[1] != k.shape[1]}
        with get_cuda_rng_tracker().fork() if apart else contextlib.nullcontext():
            out = functional.scaled_dot_product_attention(q, k, v, bias, dropout, **options)
        return out.permute(2, 0, 1, 3).reshape(*query.shape[:2], -1)


def context_shard(batch: torch.Tensor) -> torch.Tensor:
    """Return this rank's part [b, s / CP] of `batch` [b, s]: pieces r and 2 CP - 1 - r of 2 CP, so that causal work is
    even; get_pos_emb_on_this_cp_rank (models/common/embeddings/rope_utils.py) cuts the positions so."""
    size, rank = parallel_state.get_context_parallel_world_size(), parallel_state.get_context_parallel_rank()
    if size == 1:
        return batch
    pieces = batch.chunk(2 * size, dim=1)
    return torch.cat([pieces[rank], pieces[2 * size - 1 - rank]], dim=1)


def _full_sequence(part: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Return [2, s, ...] in the sequence's order from every rank's [2, s / CP, ...]."""
    size = group.size()
    pieces = _Gather.apply(part, group).chunk(2 * size, dim=1)  # 0, 2n - 1, 1, 2n - 2, ... as the ranks hold them
    return torch.cat([*pieces[::2], *pieces[::-2]], dim=1)


class _Gather(torch.autograd.Function):
    """Gather all ranks' [2, s, ...] side by side in dimension 1; backward sums every rank's gradient of a part."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        gathered = part.new_empty((group.size() * part.shape[0], *part.shape[1:]))  # gloo joins in dimension 0 only
        dist.all_gather_into_tensor(gathered, part.contiguous(), group=group)
        return torch.cat(gathered.chunk(group.size()), dim=1)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        parts = gradients[0].chunk(ctx.group.size(), dim=1)
        joined, part = torch.cat(parts), torch.empty_like(parts[0], memory_format=torch.contiguous_format)
        dist.reduce_scatter_tensor(part, joined, group=ctx.group)
        return part, None
