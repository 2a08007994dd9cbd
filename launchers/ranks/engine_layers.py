"""Define what the engine builds in Megatron's place, through its ModuleSpec: plain torch, the same on CPU and GPU.

RMSNorm is needed: Megatron's own refuses sequence parallelism (transformer/torch_norm.py:32). So is SDPACoreAttention:
Megatron's own attention writes out the full [s, s] scores and refuses context parallelism
(transformer/dot_product_attention.py:58); only TransformerEngine's does not. The others are the same mathematics in
fewer operations, and only with `attention=sdpa`: `unfused` keeps Megatron's own, bit for bit. Their gains are of a step
of llama_tiny on one core (paired, as in benchmarks/engine.py); with 32 M parameters they are within the noise.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear, get_cuda_rng_tracker
from megatron.core.transformer.attention import SelfAttention
from megatron.core.transformer.module import MegatronModule
from torch.nn import functional
from torch.nn.attention.bias import CausalBias, causal_lower_right


class RMSNorm(torch.nn.Module):
    """Normalise by RMS over the last dimension of [s, b, h]."""

    def __init__(self, config: Any, hidden_size: int, eps: float, **_: Any) -> None:
        """Take Megatron's TransformerConfig as `config`; its further options have no meaning here."""
        super().__init__()
        self.eps = eps
        device = None if config.use_cpu_initialization else torch.cuda.current_device()
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype, device=device))
        # distributed/finalize_model_grads.py sums the gradients of weights so marked over the sequence parallel ranks
        self.weight.sequence_parallel = config.sequence_parallel

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the normalised tensor, in the shape and dtype of `hidden`."""
        return functional.rms_norm(hidden, self.weight.shape, self.weight, self.eps)


class ColumnLinear(ColumnParallelLinear):
    """Be torch's linear without tensor parallelism: Megatron's is two autograd functions in Python. Gain, with
    RowLinear: 9 %."""

    def forward(self, input_: torch.Tensor, *args: Any, **options: Any) -> Any:
        """Return the output and, where its adding is left to the caller, the bias."""
        if self.tp_group.size() > 1:
            return super().forward(input_, *args, **options)
        return _linear(self, input_)


class RowLinear(RowParallelLinear):
    """Do the same for the projections back."""

    def forward(self, input_: torch.Tensor) -> Any:
        """Return the output and, where its adding is left to the caller, the bias."""
        return super().forward(input_) if self.tp_group.size() > 1 else _linear(self, input_)


def _linear(layer: Any, input_: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    if layer.skip_bias_add:
        return functional.linear(input_, layer.weight), layer.bias
    return functional.linear(input_, layer.weight, layer.bias), None


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
        with self._generator(dropout):
            grouped, causal = q.shape[1] != k.shape[1], bias is None
            out = functional.scaled_dot_product_attention(
                q, k, v, bias, dropout, causal, scale=self.scale, enable_gqa=grouped
            )
        return out.permute(2, 0, 1, 3).reshape(*query.shape[:2], -1)

    def _generator(self, dropout: float) -> contextlib.AbstractContextManager[Any]:
        # as transformer/dot_product_attention.py:206: tensor parallel ranks hold different heads, so they draw
        # differently; with sequence parallelism the whole block does so already
        if dropout and not self.config.sequence_parallel:
            forked: contextlib.AbstractContextManager[Any] = get_cuda_rng_tracker().fork()
            return forked
        return contextlib.nullcontext()


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
