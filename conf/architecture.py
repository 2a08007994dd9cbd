"""The shape of a model: one frozen dataclass, and one for each part that only some models have (null in the others).

Field names are Megatron's where it has one. Every key is required, so that a file says what a model lacks, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class MoE:
    """Experts in place of the MLP, in every layer but the first moe_first_dense_layers.

    moe_shared_expert_intermediate_size: of all shared experts together. moe_router_enable_expert_bias: the correction
    bias that is not trained but moved by the load (DeepSeek-V3). moe_router_num_groups and moe_router_group_topk:
    only experts of the best groups are chosen from.
    """

    num_experts: int
    moe_router_topk: int
    moe_ffn_hidden_size: int
    moe_shared_expert_intermediate_size: int | None
    moe_first_dense_layers: int
    moe_router_load_balancing_type: Literal["none", "aux_loss", "seq_aux_loss"]
    moe_aux_loss_coeff: float
    moe_router_score_function: Literal["softmax", "sigmoid"]
    moe_router_pre_softmax: bool
    moe_router_topk_scaling_factor: float | None
    moe_router_num_groups: int | None
    moe_router_group_topk: int | None
    moe_router_enable_expert_bias: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MLA:
    """Multi-head latent attention: keys and values through a low rank, queries too unless q_lora_rank is null.

    A head of queries and keys is qk_head_dim + qk_pos_emb_head_dim wide, one of values v_head_dim.
    """

    q_lora_rank: int | None
    kv_lora_rank: int
    qk_head_dim: int
    qk_pos_emb_head_dim: int
    v_head_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Yarn:
    """YaRN scaling of the rotary embedding, from original_max_position_embeddings on."""

    rotary_scaling_factor: float
    original_max_position_embeddings: int
    beta_fast: float
    beta_slow: float
    mscale: float | None
    mscale_all_dim: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuickGeglu:
    """gpt-oss's gated activation in place of SwiGLU: quick GELU, both halves clamped, the linear one shifted."""

    activation_func_clamp_value: float
    glu_linear_offset: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A decoder-only transformer, exact to the config file named in `source`. Sizes in elements, not bytes.

    window_size: tokens that a query sees, itself among them (Megatron writes (window_size - 1, 0)), in all layers but
    every window_attn_skip_freq-th. softmax_type learnable: an attention sink for each head. mtp_num_layers:
    multi-token prediction modules after the last layer.
    """

    name: str
    source: str
    hf_id: str | None
    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_attention_heads: int
    num_query_groups: int
    kv_channels: int
    vocab_size: int
    make_vocab_size_divisible_by: int
    max_position_embeddings: int
    rotary_base: float
    use_rope_scaling: bool
    rope_scaling_factor: float | None
    yarn: Yarn | None
    normalization: Literal["RMSNorm"]
    norm_epsilon: float
    qk_layernorm: bool
    swiglu: bool
    quick_geglu: QuickGeglu | None
    add_bias_linear: bool
    add_qkv_bias: bool
    softmax_type: Literal["vanilla", "learnable"]
    window_size: int | None
    window_attn_skip_freq: int | None
    untie_embeddings_and_output_weights: bool
    mla: MLA | None
    moe: MoE | None
    mtp_num_layers: int | None
    init_method_std: float
    hidden_dropout: float
    attention_dropout: float

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the embedding: vocab_size rounded up to make_vocab_size_divisible_by, the same in every layout.

        Megatron pads to a multiple of that times TP, so its model depends on the layout; ours does not, and the
        layout check requires that TP divides it.
        """
        return -(-self.vocab_size // self.make_vocab_size_divisible_by) * self.make_vocab_size_divisible_by

    @property
    def multi_latent_attention(self) -> bool:
        """Whether attention goes through a low rank."""
        return self.mla is not None

    @property
    def gated_linear_unit(self) -> bool:
        """Whether the MLP has a gate beside its first matrix."""
        return self.swiglu or self.quick_geglu is not None

    @property
    def dense_layers(self) -> int:
        """Layers with an MLP of ffn_hidden_size, not experts: the first ones."""
        return self.num_layers if self.moe is None else min(self.moe.moe_first_dense_layers, self.num_layers)


def tensor_widths(model: Model) -> dict[str, int]:
    """Return what tensor parallelism cuts, so that its size must divide each, by field name."""
    widths = {"num_attention_heads": model.num_attention_heads, "num_query_groups": model.num_query_groups}
    if model.dense_layers:
        widths["ffn_hidden_size"] = model.ffn_hidden_size
    if model.moe:
        widths["moe_ffn_hidden_size"] = model.moe.moe_ffn_hidden_size
        widths["moe_shared_expert_intermediate_size"] = model.moe.moe_shared_expert_intermediate_size or 0
    if model.mtp_num_layers:
        widths["hidden_size"] = model.hidden_size
    return widths | {"padded_vocab_size": model.padded_vocab_size}
