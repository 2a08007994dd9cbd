"""A Llama in plain PyTorch, as short and as fast as it gets without tricks: the standard model of `tprimat
measure`, and the peer of the engine in benchmarks/engine.py and benchmarks/gpu_day.py.

One process, fp32 (or bf16 by autocast), SDPA attention with grouped keys, nn.RMSNorm, torch's cross-entropy,
AdamW(fused), gradient clipping, the same micro-batches, the loss read after each: the same mathematics as the
engine, in the same dtype. It is spared what a training needs beside that: it reads no data, keeps no schedule and
goes through no process group."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """Pre-norm attention and gated MLP; sizes from the engine's settings."""

    def __init__(self, s: dict[str, Any]) -> None:
        super().__init__()
        self.heads, self.groups, self.width = s["num_attention_heads"], s["num_query_groups"], s["kv_channels"]
        hidden, ffn = s["hidden_size"], s["ffn_hidden_size"]
        self.norm1, self.norm2 = (nn.RMSNorm(hidden, eps=s["norm_epsilon"]) for _ in range(2))
        self.qkv = nn.Linear(hidden, (self.heads + 2 * self.groups) * self.width, bias=False)
        self.proj = nn.Linear(self.heads * self.width, hidden, bias=False)
        self.gate_up = nn.Linear(hidden, 2 * ffn, bias=False)
        self.down = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Map [b, s, h] to [b, s, h]."""
        b, length, _ = x.shape
        qkv = self.qkv(self.norm1(x)).view(b, length, -1, self.width).transpose(1, 2)
        q, k, v = qkv.split([self.heads, self.groups, self.groups], dim=1)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        grouped = self.heads != self.groups
        o = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        x = x + self.proj(o.transpose(1, 2).reshape(b, length, -1))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(functional.silu(gate) * up)


class Llama(nn.Module):
    """Tokens [b, s] and labels [b, s] to the mean cross-entropy."""

    def __init__(self, s: dict[str, Any]) -> None:
        super().__init__()
        self.embed = nn.Embedding(s["padded_vocab_size"], s["hidden_size"])
        self.blocks = nn.ModuleList(Block(s) for _ in range(s["num_layers"]))
        self.norm = nn.RMSNorm(s["hidden_size"], eps=s["norm_epsilon"])
        self.head = nn.Linear(s["hidden_size"], s["padded_vocab_size"], bias=False)
        self.apply(lambda m: nn.init.normal_(m.weight, 0, 0.02) if isinstance(m, nn.Linear | nn.Embedding) else None)
        frequencies = s["rotary_base"] ** -(torch.arange(0, s["kv_channels"], 2) / s["kv_channels"])
        angles = torch.outer(torch.arange(s["seq_length"]), frequencies).repeat(1, 2)  # RoPE's, [s, width], each twice
        self.register_buffer("angles", angles, persistent=False)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x, cos, sin = self.embed(tokens), self.angles.cos(), self.angles.sin()
        for block in self.blocks:
            x = block(x, cos, sin)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Apply RoPE to [b, heads, s, width]."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Peer:
    """A training of the plain model that takes one step at a time. precision: float32, or bfloat16 by autocast."""

    def __init__(self, s: dict[str, Any], device: str | torch.device = "cpu", precision: str = "float32") -> None:
        with torch.device(device):
            self.settings, self.model = s, Llama(s)
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
            return self.model(batch[:, :-1], batch[:, 1:])

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
