"""Causal attention through torch's scaled_dot_product_attention, with context parallelism.

Megatron's own core attention writes out the full [s, s] scores and refuses context parallelism
(transformer/dot_product_attention.py:58); the one that does not is TransformerEngine's.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import get_cuda_rng_tracker
from megatron.core.transformer.module import MegatronModule
from torch.nn import functional
from torch.nn.attention.bias import CausalBias, causal_lower_right


def context_shard(batch: torch.Tensor) -> torch.Tensor:
    """This rank's part [b, s / CP] of `batch` [b, s]: pieces r and 2 CP - 1 - r of 2 CP, so that causal work is even.

    As get_pos_emb_on_this_cp_rank (models/common/embeddings/rope_utils.py) cuts the positions.
    """
    size, rank = parallel_state.get_context_parallel_world_size(), parallel_state.get_context_parallel_rank()
    if size == 1:
        return batch
    pieces = batch.chunk(2 * size, dim=1)
    return torch.cat([pieces[rank], pieces[2 * size - 1 - rank]], dim=1)


class SDPACoreAttention(MegatronModule):
    """Causal attention through torch.nn.functional.scaled_dot_product_attention."""

    def __init__(self, config: Any, softmax_scale: float | None = None, **_: Any) -> None:
        """`config` is Megatron's TransformerConfig; Megatron passes further options that have no meaning here."""
        super().__init__(config=config)
        self.scale = softmax_scale
        self.group = parallel_state.get_context_parallel_group()

    def forward(self, query: Any, key: Any, value: Any, attention_mask: None, **_: Any) -> torch.Tensor:
        """Return [s, b, heads * head size] from `query` [s, b, heads, head size], `key` and `value` (fewer heads)."""
        if self.group.size() == 1:
            return self._attend(query, key, value, None)
        keys, values = _whole_sequence(torch.stack((key, value)), self.group)
        size, rank, piece = self.group.size(), self.group.rank(), query.shape[0] // 2
        parts = []
        for half, index in zip(query.split(piece), (rank, 2 * size - 1 - rank), strict=True):
            seen = (index + 1) * piece  # piece `index` sees all before it, and itself causally
            parts.append(self._attend(half, keys[:seen], values[:seen], causal_lower_right(piece, seen)))
        return torch.cat(parts)

    def _attend(self, query: Any, key: Any, value: Any, bias: CausalBias | None) -> torch.Tensor:
        q, k, v = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        if bias is not None:  # one branch of CausalBias ignores enable_gqa (torch/nn/attention/bias.py:258)
            k, v = (tensor.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for tensor in (k, v))
        dropout = self.config.attention_dropout if self.training else 0.0
        with self._generator(dropout):
            options = {"dropout_p": dropout, "is_causal": bias is None, "scale": self.scale}
            out = functional.scaled_dot_product_attention(q, k, v, bias, enable_gqa=q.shape[1] != k.shape[1], **options)
        return out.permute(2, 0, 1, 3).reshape(*query.shape[:2], -1)

    def _generator(self, dropout: float) -> contextlib.AbstractContextManager[None]:
        # as transformer/dot_product_attention.py:206: tensor parallel ranks hold different heads, so they draw
        # differently; with sequence parallelism the whole block does so already
        if dropout and not self.config.sequence_parallel:
            return get_cuda_rng_tracker().fork()
        return contextlib.nullcontext()


def _whole_sequence(part: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """[2, s, ...] in the sequence's order from every rank's [2, s / CP, ...]."""
    size = group.size()
    pieces = _Gather.apply(part, group).chunk(2 * size, dim=1)  # 0, 2n - 1, 1, 2n - 2, ... as the ranks hold them
    return torch.cat([*pieces[::2], *pieces[::-2]], dim=1)


class _Gather(torch.autograd.Function):
    """All ranks' [2, s, ...] side by side in dimension 1; backward sums what every rank makes of a part."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        whole = part.new_empty((group.size() * part.shape[0], *part.shape[1:]))  # gloo joins in dimension 0 only
        dist.all_gather_into_tensor(whole, part.contiguous(), group=group)
        return torch.cat(whole.chunk(group.size()), dim=1)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        parts = gradients[0].chunk(ctx.group.size(), dim=1)
        whole, part = torch.cat(parts), torch.empty_like(parts[0], memory_format=torch.contiguous_format)
        dist.reduce_scatter_tensor(part, whole, group=ctx.group)
        return part, None
