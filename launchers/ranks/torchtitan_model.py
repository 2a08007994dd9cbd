"""Build a dense Llama or Qwen 3 of TorchTitan 0.2 from our settings, with the first weights of every other stack, and
read its settings back.

Its Llama has no tied embeddings and no head size of its own, and pairs adjacent elements in RoPE; its Qwen 3 has both,
and Megatron's RoPE, without Llama 3.1's scaling. So the one or the other is what was requested."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from plain_llama import LLAMA3
from plain_ranks import Settings, apart, together
from torchtitan.models.llama3.infra.parallelize import parallelize_llama
from torchtitan.models.llama3.model.args import RoPEScalingArgs, TransformerModelArgs
from torchtitan.models.llama3.model.model import Transformer
from torchtitan.models.qwen3.infra.parallelize import parallelize_qwen3
from torchtitan.models.qwen3.model.args import Qwen3ModelArgs
from torchtitan.models.qwen3.model.model import Qwen3Model
from torchtitan_names import NAMES, adjacent, plain_name, put


def is_llama(s: Settings) -> bool:
    """Return whether TorchTitan's Llama is what was requested, else its Qwen 3."""
    plain = s.num_attention_heads * s.kv_channels == s.hidden_size and s.untie_embeddings_and_output_weights
    return bool(plain and not s.qk_layernorm)


def arguments(s: Settings) -> Any:
    """Return the arguments of the model."""
    common = {
        "dim": s.hidden_size,
        "n_layers": s.num_layers,
        "n_heads": s.num_attention_heads,
        "n_kv_heads": s.num_query_groups,
        "vocab_size": s.padded_vocab_size,
        "norm_eps": s.norm_epsilon,
        "rope_theta": s.rotary_base,
        "max_seq_len": s.max_position_embeddings,
    }
    if not is_llama(s):
        more = {"qk_norm": s.qk_layernorm, "enable_weight_tying": not s.untie_embeddings_and_output_weights}
        return Qwen3ModelArgs(**common, **more, head_dim=s.kv_channels, hidden_dim=s.ffn_hidden_size)
    factor = s.rope_scaling_factor if s.use_rope_scaling else 1.0  # it always scales
    # the MLP is a multiple of multiple_of that is at least the product (FeedForward.__init__): this one
    ffn = {"multiple_of": s.ffn_hidden_size, "ffn_dim_multiplier": s.ffn_hidden_size / (8 * s.hidden_size)}
    return TransformerModelArgs(**common, **ffn, rope_scaling_args=RoPEScalingArgs(scaling_factor=factor, **LLAMA3))


def model_class(s: Settings) -> type:
    """Return TorchTitan's model, which begins with our weights."""
    values = dict(weights(s))
    base: Any = Transformer if is_llama(s) else Qwen3Model

    class Model(base):  # type: ignore[misc]
        def init_weights(self, buffer_device: Any = None) -> None:
            super().init_weights(buffer_device=buffer_device)
            for name, parameter in self.named_parameters():
                if parameter.dim() > 1:
                    put(parameter, torch.from_numpy(values[plain_name(name)]))

    return Model


def weights(s: Settings) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the first value of each matrix by TorchTitan's name: rows of queries and keys as its RoPE pairs them."""
    for name, values in apart(s, NAMES):
        heads = turned(s, name)
        yield name, adjacent(values, heads) if heads else values


def turned(s: Settings, name: str) -> int | None:
    """Return how many heads of a matrix its RoPE turns that pairs adjacent elements; None: there are none in it."""
    heads = {"attention.wq.weight": s.num_attention_heads, "attention.wk.weight": s.num_query_groups}
    return heads.get(name.partition("layers.")[2].partition(".")[2]) if is_llama(s) else None


def named(s: Settings, tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield complete tensors of the model by Megatron's names, and as its RoPE pairs them: the reverse of `weights`."""
    whole = {}
    for name, tensor in tensors.items():
        heads = turned(s, plain_name(name))
        halves = tensor.reshape(heads, -1, 2, tensor.shape[1]).transpose(1, 2) if heads else tensor
        whole[plain_name(name)] = halves.reshape(tensor.shape)
    return together(s, NAMES, whole)


def parallelize(s: Settings) -> Any:
    """Return what cuts a model over the ranks: TorchTitan's own function."""
    return parallelize_llama if is_llama(s) else parallelize_qwen3


def read_back(model: Any) -> dict[str, Any]:
    """Return the settings that a built model of TorchTitan has, by canonical name."""
    layer, made = next(iter(model.layers.values())), model.model_args
    attention, mlp = layer.attention, layer.feed_forward
    scaling = getattr(made, "rope_scaling_args", None)
    scaled = scaling is not None and scaling.scaling_factor != 1.0
    width = attention.head_dim
    return {
        "num_layers": len(model.layers),
        "hidden_size": model.tok_embeddings.embedding_dim,
        "padded_vocab_size": model.tok_embeddings.num_embeddings,
        "ffn_hidden_size": mlp.w2.in_features,
        "num_attention_heads": attention.wq.out_features // width,
        "num_query_groups": attention.wk.out_features // width,
        "kv_channels": width,
        "norm_epsilon": layer.attention_norm.eps,
        "add_qkv_bias": attention.wq.bias is not None,
        "add_bias_linear": mlp.w2.bias is not None,
        "qk_layernorm": getattr(attention, "q_norm", None) is not None,
        "untie_embeddings_and_output_weights": model.output.weight is not model.tok_embeddings.weight,
        "rotary_base": made.rope_theta,
        "use_rope_scaling": scaled,
        "rope_scaling_factor": scaling.scaling_factor if scaled and scaling else None,
        "max_position_embeddings": made.max_seq_len,
    }
