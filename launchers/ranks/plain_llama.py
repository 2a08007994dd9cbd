"""A dense Llama or Qwen in plain PyTorch, as short and as fast as it gets without tricks: the model of framework=fsdp2
(fsdp2_ranks.py), and as Peer the standard model of `tprimat measure` and what the engine is measured against
(benchmarks/engine.py, benchmarks/gpu_day.py).

Parameters bear Megatron's names and shapes, so that they begin as those of every other stack here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""How Llama 3.1 divides the low frequencies of RoPE; Megatron-Core has the same (rotary_pos_embedding.py)."""
STANDARD = {
    "attention_backend": "sdpa",
    "add_qkv_bias": False,
    "qk_layernorm": False,
    "untie_embeddings_and_output_weights": True,
    "recompute_granularity": None,
    "use_rope_scaling": False,
}
"""The parts of a Peer, whose sizes alone are given."""

Angles = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines, [sequence, head size] each."""


class Attention(nn.Module):
    """Attend causally with grouped queries. linear_qkv has, for each group, its queries, its key and its value."""

    def __init__(self, s: SimpleNamespace) -> None:
        super().__init__()
        self.heads, self.groups, self.width = s.num_attention_heads, s.num_query_groups, s.kv_channels
        self.unfused = s.attention_backend == "unfused"
        rows = (self.heads + 2 * self.groups) * self.width
        self.linear_qkv = nn.Linear(s.hidden_size, rows, bias=s.add_qkv_bias)
        self.linear_proj = nn.Linear(self.heads * self.width, s.hidden_size, bias=False)
        norm = nn.RMSNorm if s.qk_layernorm else nn.Identity
        self.q_layernorm, self.k_layernorm = norm(self.width, s.norm_epsilon), norm(self.width, s.norm_epsilon)

    def forward(self, x: torch.Tensor, angles: Angles) -> torch.Tensor:
        """Return [batch, sequence, hidden] from the same."""
        batch, length, _ = x.shape
        per = self.heads // self.groups
        mixed = self.linear_qkv(x).view(batch, length, self.groups, per + 2, self.width)
        q, k, v = mixed.split([per, 1, 1], dim=3)
        q, k, v = (part.flatten(2, 3).transpose(1, 2) for part in (q, k, v))
        q, k = turned(self.q_layernorm(q), angles), turned(self.k_layernorm(k), angles)
        with sdpa_kernel(SDPBackend.MATH) if self.unfused else nullcontext():
            out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=per > 1)
        return self.linear_proj(out.transpose(1, 2).flatten(2))


def turned(heads: torch.Tensor, angles: Angles) -> torch.Tensor:
    """Return `heads` [batch, heads, sequence, head size] turned by `angles`: element i pairs with i + half."""
    first, second = heads.chunk(2, dim=-1)
    cos, sin = (part.to(heads.dtype) for part in angles)
    return heads * cos + torch.cat((-second, first), dim=-1) * sin


class MLP(nn.Module):
    """Be SwiGLU: linear_fc1 has the gate, then what it scales."""

    def __init__(self, s: SimpleNamespace) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(s.hidden_size, 2 * s.ffn_hidden_size, bias=False)
        self.linear_fc2 = nn.Linear(s.ffn_hidden_size, s.hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.linear_fc1(x).chunk(2, dim=-1)
        return self.linear_fc2(functional.silu(gate) * up)


class Layer(nn.Module):
    def __init__(self, s: SimpleNamespace) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(s.hidden_size, s.norm_epsilon)
        self.self_attention = Attention(s)
        self.pre_mlp_layernorm = nn.RMSNorm(s.hidden_size, s.norm_epsilon)
        self.mlp = MLP(s)

    def forward(self, x: torch.Tensor, angles: Angles) -> torch.Tensor:
        x = x + self.self_attention(self.input_layernorm(x), angles)
        return x + self.mlp(self.pre_mlp_layernorm(x))


class Decoder(nn.Module):
    def __init__(self, s: SimpleNamespace) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(s) for _ in range(s.num_layers))
        self.final_layernorm = nn.RMSNorm(s.hidden_size, s.norm_epsilon)


class Llama(nn.Module):
    """A dense decoder: RMSNorm, RoPE, grouped queries, SwiGLU."""

    def __init__(self, s: SimpleNamespace) -> None:
        super().__init__()
        self.embedding = nn.ModuleDict({"word_embeddings": nn.Embedding(s.padded_vocab_size, s.hidden_size)})
        self.decoder = Decoder(s)
        self.output_layer = nn.Linear(s.hidden_size, s.padded_vocab_size, bias=False)
        if not s.untie_embeddings_and_output_weights:
            self.output_layer.weight = self.embedding["word_embeddings"].weight
        self.recompute = s.recompute_granularity == "full"
        self.rotary_base, self.rope_scaling_factor = (
            s.rotary_base,
            s.rope_scaling_factor if s.use_rope_scaling else None,
        )
        self.frequencies = rope(s.kv_channels, self.rotary_base, self.rope_scaling_factor)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits [batch, sequence, vocabulary] of tokens [batch, sequence]."""
        positions = torch.arange(tokens.shape[1], device=tokens.device, dtype=torch.float32)
        turns = torch.outer(positions, self.frequencies.to(tokens.device)).repeat(1, 2)
        angles = turns.cos(), turns.sin()
        x = self.embedding["word_embeddings"](tokens)
        for layer in self.decoder.layers:
            x = checkpoint(layer, x, angles, use_reentrant=False) if self.recompute else layer(x, angles)
        return self.output_layer(self.decoder.final_layernorm(x))


def rope(width: int, base: float, factor: float | None) -> torch.Tensor:
    """Return RoPE's frequencies [width / 2]. factor: what Llama 3.1's rule divides the low ones by."""
    frequencies = base ** -(torch.arange(0, width, 2, dtype=torch.float32) / width)
    if factor is None:
        return frequencies
    low, high, original = LLAMA3.values()
    turns = original * frequencies / (2 * math.pi)  # of each frequency, in the original context
    share = ((turns - low) / (high - low)).clamp(0, 1)
    return frequencies * (share + (1 - share) / factor)


class Peer:
    """A training of the plain model in one process that takes one step at a time: AdamW(fused), clipping, the loss read
    after each micro-batch. precision: float32, or bfloat16 by autocast. It is spared what a training needs beside that:
    it reads no data, keeps no schedule and goes through no process group."""

    def __init__(self, s: Mapping[str, Any], device: str | torch.device = "cpu", precision: str = "float32") -> None:
        with torch.device(device):
            self.model = Llama(SimpleNamespace(**{**s, **STANDARD}))
        for module in self.model.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, 0, 0.02)
        self.device, self.precision = torch.device(device), getattr(torch, precision)
        betas = s["adam_beta1"], s["adam_beta2"]
        decay = [p for p in self.model.parameters() if p.dim() > 1]
        rest = [p for p in self.model.parameters() if p.dim() <= 1]
        groups = [{"params": decay, "weight_decay": s["weight_decay"]}, {"params": rest, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=s["lr"], betas=betas, fused=True)  # eps: 1e-8, as conf/optimizer

    def loss(self, batch: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of one micro-batch [b, s + 1]: the forward pass."""
        low = self.precision != torch.float32
        with torch.autocast(self.device.type, self.precision) if low else nullcontext():
            logits = self.model(batch[:, :-1])
            return functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())

    def step(self, batches: torch.Tensor) -> float:
        """Take one step over `batches` [micro-batches, b, s + 1]; return the mean loss."""
        self.optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for batch in batches:
            loss = self.loss(batch) / len(batches)
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)  # as conf/optimizer; its value costs no time
        self.optimizer.step()
        return total
