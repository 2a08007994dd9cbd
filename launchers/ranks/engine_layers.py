"""The parts of a layer that the engine builds in Megatron's place, through its ModuleSpec.

RMSNorm is needed: Megatron's own refuses sequence parallelism (transformer/torch_norm.py:32). The others are the same
mathematics in fewer operations, and only with `attention=sdpa`: `unfused` keeps Megatron's own, bit for bit. Gains are
of a whole step of llama_tiny on one core (benchmarks/engine.py); with 32 M parameters they are within the noise.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from megatron.core.models.gpt import GPTModel
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.attention import SelfAttention
from megatron.core.transformer.transformer_layer import TransformerLayer
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


class ColumnLinear(ColumnParallelLinear):
    """Without tensor parallelism just torch's linear: Megatron's is two autograd functions in Python. Gain, with
    RowLinear: 9 %."""

    def forward(self, input_: torch.Tensor, *args: Any, **options: Any) -> Any:
        """Return the output and, where its adding is left to the caller, the bias."""
        if self.tp_group.size() > 1:
            return super().forward(input_, *args, **options)
        return _linear(self, input_)


class RowLinear(RowParallelLinear):
    """The same for the projections back."""

    def forward(self, input_: torch.Tensor) -> Any:
        """Return the output and, where its adding is left to the caller, the bias."""
        return super().forward(input_) if self.tp_group.size() > 1 else _linear(self, input_)


def _linear(layer: Any, input_: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    if layer.skip_bias_add:
        return functional.linear(input_, layer.weight), layer.bias
    return functional.linear(input_, layer.weight, layer.bias), None


class Layer(TransformerLayer):
    """A decoder's layer; Megatron's goes through cross attention and much else that is not there. Gain: 2 %."""

    def forward(self, hidden_states: Any, attention_mask: None = None, rotary_pos_emb: Any = None, **_: Any) -> Any:
        """[s, b, h] to [s, b, h], and no context."""
        normed = self.input_layernorm(hidden_states)
        attended = self.self_attention(normed, attention_mask, rotary_pos_emb=rotary_pos_emb)
        hidden_states = self._add(hidden_states, *attended)
        return self._add(hidden_states, *self.mlp(self.pre_mlp_layernorm(hidden_states))), None

    def _add(self, residual: torch.Tensor, output: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        output = output if bias is None else output + bias
        return residual + functional.dropout(output, self.hidden_dropout, self.training)


class RotarySelfAttention(SelfAttention):
    """Queries and keys are rotated together; Megatron does it one after the other, with cosines anew in each layer, and
    joins what is rotated to nothing. Gain: 5 %."""

    def forward(self, hidden_states: Any, attention_mask: None, rotary_pos_emb: Any = None, **_: Any) -> Any:
        """[s, b, h] to [s, b, h] and the projection's bias; `rotary_pos_emb` are the angles [s, 1, 1, head size]."""
        mixed, _bias = self.linear_qkv(hidden_states)
        groups, width = self.num_query_groups_per_partition, self.hidden_size_per_attention_head
        heads = mixed.view(*mixed.shape[:2], groups, -1, width)  # a group has its queries, its key and its value
        count = heads.shape[3] - 2
        turning, value = heads.split([count + 1, 1], dim=3)
        query, key = rotate(turning, rotary_pos_emb).split([count, 1], dim=3)
        attend = self._checkpointed_attention_forward if self.checkpoint_core_attention else self.core_attention
        return self.linear_proj(attend(*(part.flatten(2, 3) for part in (query, key, value)), attention_mask))


def rotate(heads: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """RoPE of `heads` [s, b, groups, heads, head size] by `angles` [s, 1, 1, head size], whose two halves are equal."""
    cos, sin = _cos_sin(angles, heads.dtype)
    return torch.addcmul(heads * cos, heads.roll(heads.shape[-1] // 2, -1), sin)


@functools.lru_cache(maxsize=1)
def _cos_sin(angles: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The cosines, and the sines with the first half's sign turned; kept because Megatron keeps the angles."""
    angles = angles.unsqueeze(1)
    first, second = angles.sin().chunk(2, dim=-1)
    return angles.cos().to(dtype), torch.cat((-first, second), dim=-1).to(dtype)


class GPT(GPTModel):
    """Megatron's model with torch's cross-entropy where the vocabulary is whole. Gain: 3 %."""

    def compute_language_model_loss(self, labels: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Losses [b, s] from `labels` [b, s] and `logits` [s, b, vocabulary]."""
        if self.pg_collection.tp.size() > 1:
            return super().compute_language_model_loss(labels, logits)
        losses = functional.cross_entropy(logits.float().flatten(0, 1), labels.t().flatten(), reduction="none")
        return losses.view(logits.shape[:2]).t()
