"""Floating-point operations of a transformer, from its shape: one formula, and the field's ways to count as data.

A multiply-add is two operations; a training step does the forward matrices three times (forward, and the gradients of
data and of weights). The default equals `num_floating_point_operations` of Megatron-LM@d98e8a6
megatron/training/training.py:802 for every shape that function knows, and Megatron-Bridge@067f987
src/megatron/bridge/training/utils/flop_utils.py for gated MLPs other than SwiGLU and for attention windows, which
Megatron-LM's does not see. No softmax, norm, bias, rotary embedding or router: none of the vendors counts them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from conf.facts import read_lines
from metrics.shape import Facts, Shape

_AGAIN = ("core_attn", "mlp", "moe")
_NOT_COUNTED = ("layernorm", "moe_act")
FORWARD = 1
TRAINING = 3


class Convention(Struct, frozen=True, forbid_unknown_fields=True):
    """A way to count: a line of conventions.jsonl.

    attention: a query is multiplied with half the sequence (causal), with all of it, or not counted. weights: those of
    the matrices that a token passes; or all parameters, including the embedding table, which is only looked up (and
    without multi-token prediction, as published totals). recompute: forward work that is repeated counts."""

    name: str
    source: str
    attention: Literal["causal", "full", "none"] = "causal"
    weights: Literal["multiplied", "all"] = "multiplied"
    recompute: bool = False


_CONVENTIONS = read_lines(Path(__file__).with_name("conventions.jsonl"), Convention)
CONVENTIONS: Mapping[str, Convention] = {convention.name: convention for convention in _CONVENTIONS}
DEFAULT = CONVENTIONS["megatron_causal"]


@dataclass(frozen=True, slots=True)
class Recompute:
    """The recomputed part. layers: share of the layers whose forward pass is done again, 0 to 1. modules: what is done
    again in all others, too: core_attn, mlp (dense MLPs) and moe (expert layers)."""

    layers: float = 0.0
    modules: frozenset[str] = frozenset()


def flops_per_token(
    shape: Shape,
    seq_length: int,
    convention: Convention = DEFAULT,
    recompute: Recompute | None = None,
    passes: int = TRAINING,
) -> float:
    """Return the operations for one token of a sequence of `seq_length` tokens. passes: FORWARD or TRAINING.

    `recompute` counts only where the convention counts it. ValueError: the convention counts the embedding table, and
    it is unknown whether the output matrix is another one."""
    layers, rest = _work(shape, seq_length, convention)
    in_layers, again = sum(layers.values()), 0.0
    if convention.recompute and recompute and passes == TRAINING:
        chosen = sum(layers[part] for part in _AGAIN if part in recompute.modules)
        again = recompute.layers * in_layers + (1 - recompute.layers) * chosen
    return 2 * (passes * (in_layers + rest) + again)


def convert(
    tflops: float, shape: Shape, seq_length: int, counted_by: Convention, wanted: Convention = DEFAULT
) -> float:
    """Convert TFLOP/s from one convention to another, neither of which may count recomputation."""
    return tflops * flops_per_token(shape, seq_length, wanted) / flops_per_token(shape, seq_length, counted_by)


def explaining(ratio: float, shape: Shape, seq_length: int, tolerance: float = 0.015) -> tuple[str, ...]:
    """Return the conventions that count `ratio` times as much as the default; none that the shape is too little for."""
    ours = flops_per_token(shape, seq_length)
    tied_known = shape.untie_embeddings_and_output_weights is not None
    plain = [c for c in _CONVENTIONS if not c.recompute and (tied_known or c.weights != "all")]
    return tuple(c.name for c in plain if abs(flops_per_token(shape, seq_length, c) / ours / ratio - 1) <= tolerance)


def recompute_of(facts: Facts) -> Recompute | None:
    """Return what Megatron recomputes under a run's settings; None where they do not say.

    `uniform` does every layer again in units of recompute_num_layers; `block` the first recompute_num_layers of each
    chunk of each pipeline stage (Megatron-LM@d98e8a6 megatron/core/recompute.py:170-180), taken here as that share of
    all layers; `selective` the modules that the dump names, else the core attention (recompute_modules' default)."""
    if "recompute_granularity" not in facts.settings:
        return None
    granularity = facts.settings["recompute_granularity"]
    if granularity in (None, "none"):
        return Recompute()
    if granularity == "selective":
        return _selected(facts.settings.get("recompute_modules"))
    method, layers = facts.settings.get("recompute_method"), facts.size("num_layers")
    if granularity != "full" or layers is None:
        return None
    if method == "uniform":
        return Recompute(layers=1.0)
    each, stages = facts.size("recompute_num_layers"), facts.size("pipeline_model_parallel_size")
    if method != "block" or each is None or stages is None:
        return None
    chunks = facts.size("virtual_pipeline_model_parallel_size") or 1
    return Recompute(layers=min(1.0, each * stages * chunks / layers))


def _selected(modules: Any) -> Recompute | None:
    """Read recompute_modules (megatron/core/transformer/transformer_config.py:1313); norms and activations count
    nothing here. None: a module that is part of a matrix product not taken apart here (mla_up_proj, shared_experts)."""
    named = {"core_attn"} if modules is None else {*re.findall(r"[a-z_]+", str(modules))}
    return Recompute(modules=frozenset(named.intersection(_AGAIN))) if named <= {*_AGAIN, *_NOT_COUNTED} else None


def _work(shape: Shape, seq_length: int, convention: Convention) -> tuple[Mapping[str, float], float]:
    """Return the multiply-adds of one token's forward pass: by part of the layers, and of what is beside them (logits,
    once for each prediction, and what joins the modules for multi-token prediction).

    With the weights of all parameters every active one but norms and biases (below 0.1 %) counts as if multiplied."""
    everything, untied = convention.weights == "all", shape.untie_embeddings_and_output_weights
    if everything and untied is None:
        raise ValueError(f"{convention.name} counts the embedding table; whether it is tied is unknown")
    modules = 0 if everything else shape.mtp_num_layers
    layers = shape.num_layers + modules
    moe_layers = shape.num_layers - shape.dense_layers
    moe_layers += modules if moe_layers else 0  # a module's layer is like the last one
    hidden, mla = shape.hidden_size, shape.mla
    # one query with one key, and its score with one value
    core = 2 * shape.kv_channels if mla is None else mla.qk_head_dim + mla.qk_pos_emb_head_dim + mla.v_head_dim
    width = shape.moe_router_topk * shape.moe_ffn_hidden_size + shape.moe_shared_expert_intermediate_size
    routers = hidden * shape.num_experts if everything else 0
    matrices = 3 if shape.gated_linear_unit else 2
    parts = {
        "projections": layers * _attention(shape),
        "mlp": (layers - moe_layers) * hidden * shape.ffn_hidden_size * matrices,
        "moe": moe_layers * (hidden * width * matrices + routers),
        "core_attn": sum(_keys(shape, seq_length, n, convention) for n in range(1, layers + 1))
        * (shape.num_attention_heads * core),
    }
    tables = bool(untied) if everything else modules
    joints = modules * (2 * hidden**2 + 3 * hidden)  # Megatron counts the module's three norms
    return parts, (1 + tables) * hidden * shape.vocabulary + joints


def _attention(shape: Shape) -> int:
    """Count the projections of one layer. MLA: Megatron adds a multiply-add for each element of the low-rank norms."""
    hidden, heads, mla = shape.hidden_size, shape.num_attention_heads, shape.mla
    if mla is None:
        return 2 * hidden * shape.kv_channels * (heads + shape.num_query_groups)
    queries = heads * (mla.qk_head_dim + mla.qk_pos_emb_head_dim)
    query = hidden * queries if mla.q_lora_rank is None else mla.q_lora_rank * (hidden + queries + 1)
    keys_values = mla.kv_lora_rank * (hidden + heads * (mla.qk_head_dim + mla.v_head_dim) + 1)
    return query + keys_values + hidden * mla.qk_pos_emb_head_dim + heads * mla.v_head_dim * hidden


def _keys(shape: Shape, seq_length: int, layer: int, convention: Convention) -> float:
    """Return the keys that a query of `layer` (from 1) sees, on average over the sequence; causal as Megatron: half."""
    window, skip, causal = shape.window_size, shape.window_attn_skip_freq, convention.attention == "causal"
    if convention.attention == "none":
        return 0
    if window is None or window >= seq_length or (skip is not None and layer % skip == 0):
        return seq_length / 2 if causal else seq_length
    return window - window * (window - 1) / (2 * seq_length) if causal else window
