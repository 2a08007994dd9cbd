"""The roofline of each module of a layer: what one GPU computes and moves for one micro-batch in the forward pass, and
which of the two bounds it. Shapes are those of Megatron-Core's matrices, cut by TP, CP and EP."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np

from estimate.jobs import Jobs

_ELEMENT = {"fp8": 1.0, "mxfp8": 33 / 32, "nvfp4": 9 / 16, "fp32": 4.0}  # bytes, with the scales of blocks
_HALF = 2.0
_RESIDUAL = 8  # reads and writes of the residual stream by two norms and two additions


class Bound(NamedTuple):
    """A module: FLOP and bytes of one GPU and micro-batch, and the least time that the data sheet allows, s."""

    module: str
    flop: float
    moved_bytes: float
    least_s: float
    limit: str

    @property
    def intensity(self) -> float:
        """Return FLOP for each byte moved."""
        return self.flop / self.moved_bytes


class _Product(NamedTuple):
    """`times` products of m × k by k × n."""

    module: str
    m: float
    n: float
    k: float
    times: float = 1.0


def rooflines(jobs: Jobs, job: int = 0) -> tuple[Bound, ...]:
    """Return the modules of a layer of one job, and its logits; with experts, those of a layer that has them."""
    one: dict[str, Any] = {each.name: _at(getattr(jobs, each.name), job) for each in fields(Jobs)}
    tokens = one["micro_batch_size"] * one["seq_length"] / one["context_parallel_size"]
    element = _ELEMENT.get(str(one["precision"]), _HALF)
    full, half, rate = (float(one[name]) for name in ("peak_flops", "peak_bf16_flops", "memory_bandwidth"))
    found = []
    for module, m, n, k, times in _products(one, tokens):
        width, peak = (_HALF, half) if module in ("logits", "router") else (element, full)
        found.append(_bound(module, 2 * m * n * k * times, (width * k * (m + n) + _HALF * m * n) * times, peak, rate))
    core = _core(one, tokens)
    kept = tokens / (one["tensor_model_parallel_size"] if one["sequence_parallel"] else 1) * one["hidden_size"]
    found += [
        _bound("attention", *core, half, rate),
        _bound("norms and residuals", 5 * kept, _HALF * _RESIDUAL * kept, half, rate),
    ]
    return tuple(bound for bound in found if bound.flop > 0)


def _at(values: Any, job: int) -> Any:
    array = np.asarray(values)
    return array[job] if array.ndim else array[()]


def _bound(module: str, flop: float, moved: float, peak: float, rate: float) -> Bound:
    computing, moving = flop / peak, moved / rate
    return Bound(module, flop, moved, max(computing, moving), "compute" if computing >= moving else "memory")


def _products(one: Mapping[str, Any], t: float) -> Iterator[_Product]:
    h, tp, heads = one["hidden_size"], one["tensor_model_parallel_size"], one["num_attention_heads"]
    if one["mla"]:
        low, query = one["q_lora_rank"], one["qk_head_dim"] + one["qk_pos_emb_head_dim"]
        yield _Product("down-projections", t, one["kv_lora_rank"] + one["qk_pos_emb_head_dim"] + low, h)
        yield _Product("queries", t, query * heads / tp, low or h)
        yield _Product("keys and values", t, (one["qk_head_dim"] + one["v_head_dim"]) * heads / tp, one["kv_lora_rank"])
        yield _Product("projection", t, h, one["v_head_dim"] * heads / tp)
    else:
        yield _Product("qkv", t, one["kv_channels"] * (heads + 2 * one["num_query_groups"]) / tp, h)
        yield _Product("projection", t, h, one["kv_channels"] * heads / tp)
    gated = 1 + one["gated"]
    if one["num_experts"]:
        cut = one["expert_tensor_parallel_size"]
        own = one["num_experts"] / one["expert_model_parallel_size"]
        each, width = t / tp * cut * one["moe_router_topk"] / own, one["moe_ffn_hidden_size"] / cut
        yield _Product("router", t / tp, one["num_experts"], h)
        yield _Product("experts, fc1", each, gated * width, h, own)
        yield _Product("experts, fc2", each, h, width, own)
        shared = one["moe_shared_expert_intermediate_size"] / tp
        yield _Product("shared experts, fc1", t, gated * shared, h)
        yield _Product("shared experts, fc2", t, h, shared)
    else:
        yield _Product("fc1", t, gated * one["ffn_hidden_size"] / tp, h)
        yield _Product("fc2", t, h, one["ffn_hidden_size"] / tp)
    yield _Product("logits", t, one["vocabulary"] / tp, h)


def _core(one: Mapping[str, Any], t: float) -> tuple[float, float]:
    """Return FLOP and bytes of causal attention without a window, whose scores a fused kernel keeps on the chip."""
    heads = one["num_attention_heads"] / one["tensor_model_parallel_size"]
    if one["mla"]:
        channels = one["qk_head_dim"] + one["qk_pos_emb_head_dim"] + one["v_head_dim"]
        moved = 2 * heads * channels
    else:
        channels = 2 * one["kv_channels"]
        groups = one["num_query_groups"] / one["tensor_model_parallel_size"]
        moved = 2 * one["kv_channels"] * (heads + groups)
    return t * one["seq_length"] * heads * channels, _HALF * t * moved
