"""Pre-train a dense Llama or Qwen with plain PyTorch: a page of model, torch's FSDP2 and AdamW, and nothing else.

    python -m torch.distributed.run --standalone --nproc-per-node N fsdp2_ranks.py --settings FILE.json

Parameters bear Megatron's names and shapes, so that they begin as those of every other stack here. Exit codes are those
of plain_ranks.py."""

from __future__ import annotations

import math
import sys
from contextlib import nullcontext
from typing import Any

import plain_ranks
import torch
import torch.distributed as dist
from plain_ranks import LLAMA3, Reporter, Settings, adam, global_batches, matrices, micro_batches, schedule_of
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

Angles = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines, [sequence, head size] each."""


class Attention(nn.Module):
    """Attend causally with grouped queries. linear_qkv has, for each group, its queries, its key and its value."""

    def __init__(self, s: Settings) -> None:
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

    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(s.hidden_size, 2 * s.ffn_hidden_size, bias=False)
        self.linear_fc2 = nn.Linear(s.ffn_hidden_size, s.hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.linear_fc1(x).chunk(2, dim=-1)
        return self.linear_fc2(functional.silu(gate) * up)


class Layer(nn.Module):
    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(s.hidden_size, s.norm_epsilon)
        self.self_attention = Attention(s)
        self.pre_mlp_layernorm = nn.RMSNorm(s.hidden_size, s.norm_epsilon)
        self.mlp = MLP(s)

    def forward(self, x: torch.Tensor, angles: Angles) -> torch.Tensor:
        x = x + self.self_attention(self.input_layernorm(x), angles)
        return x + self.mlp(self.pre_mlp_layernorm(x))


class Decoder(nn.Module):
    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(s) for _ in range(s.num_layers))
        self.final_layernorm = nn.RMSNorm(s.hidden_size, s.norm_epsilon)


class Llama(nn.Module):
    """A dense decoder: RMSNorm, RoPE, grouped queries, SwiGLU."""

    def __init__(self, s: Settings) -> None:
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


def sharded(s: Settings, device: torch.device) -> Llama:
    """Return the model on its device: its parameters, gradients and optimizer states are cut over all ranks, or with
    use_distributed_optimizer=false whole on each."""
    world = dist.get_world_size()
    shards = world if s.use_distributed_optimizer else 1
    mesh = init_device_mesh(device.type, (world // shards, shards), mesh_dim_names=("replicas", "shards"))
    model = Llama(s)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, values in matrices(s):
            parameters[name].copy_(torch.from_numpy(values))
        for name in (name for name in parameters if name.endswith("bias")):
            parameters[name].zero_()
    model.to(device)
    dtype = getattr(torch, s.params_dtype)
    reduced = torch.float32 if s.accumulate_allreduce_grads_in_fp32 else dtype
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=reduced, cast_forward_inputs=False)
    for layer in model.decoder.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def train(s: Settings) -> str | None:
    """Run the complete training in this rank. Returns None after the last iteration, or what the loss was where it was
    not finite, equal on all ranks. Raises Refused: this machine or the corpus is not what the settings are for."""
    plain_ranks.check_machine(s)
    batches = global_batches(s)
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", torch.cuda.current_device()) if gpu else torch.device("cpu")
    dist.init_process_group("nccl" if gpu else "gloo")  # "nccl" is RCCL on ROCm
    plain_ranks.print_facts(framework_version=torch.__version__)
    model, reporter = sharded(s, device), Reporter(s)
    optimizer = adam(model.parameters(), s)
    schedule = schedule_of(optimizer, s)
    for index, batch in enumerate(batches):
        if index == 0:
            reporter.built(plain_ranks.effective(s, optimizer, s.arguments.get, batch, **read_back(model, s)), batch)
        lr_used = optimizer.param_groups[0]["lr"]
        loss = backward(
            model, torch.from_numpy(micro_batches(batch, s, dist.get_rank(), dist.get_world_size())).to(device)
        )
        norm = nn.utils.clip_grad_norm_(model.parameters(), **s.arguments).full_tensor()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        reporter.step(index, loss, norm.item(), lr_used)
        if reporter.stopped:
            break
    return reporter.stopped


def backward(model: Llama, parts: torch.Tensor) -> float:
    """Add up the gradients of this rank's micro-batches [micro-batches, samples, sequence + 1], reduced over the ranks
    with the last one, and return the mean loss of the global batch."""
    loss = torch.zeros((), device=parts.device)
    for number, part in enumerate(parts.long()):
        model.set_requires_gradient_sync(number == len(parts) - 1)
        logits = model(part[:, :-1]).float()
        share = functional.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten()) / len(parts)
        share.backward()
        loss += share.detach()
    dist.all_reduce(loss)
    return float(loss.item() / dist.get_world_size())


def read_back(model: Llama, s: Settings) -> dict[str, Any]:
    """Return the settings that the built model has, by canonical name."""
    layer, table = model.decoder.layers[0], model.embedding["word_embeddings"].weight
    attention, state = layer.self_attention, model._get_fsdp_state()
    policy, mesh = state._mp_policy, state._fsdp_param_group.mesh_info.mesh
    recompute = model.recompute
    return {
        "num_layers": len(model.decoder.layers),
        "hidden_size": table.shape[1],
        "ffn_hidden_size": layer.mlp.linear_fc2.in_features,
        "num_attention_heads": attention.heads,
        "num_query_groups": attention.groups,
        "kv_channels": attention.width,
        "padded_vocab_size": table.shape[0],
        "norm_epsilon": layer.input_layernorm.eps,
        "add_qkv_bias": attention.linear_qkv.bias is not None,
        "untie_embeddings_and_output_weights": model.output_layer.weight is not table,
        "qk_layernorm": isinstance(attention.q_layernorm, nn.RMSNorm),
        "rotary_base": model.rotary_base,
        "use_rope_scaling": model.rope_scaling_factor is not None,
        "rope_scaling_factor": model.rope_scaling_factor,
        "params_dtype": policy.param_dtype,
        "accumulate_allreduce_grads_in_fp32": policy.reduce_dtype == torch.float32,
        "attention_backend": "unfused" if attention.unfused else "sdpa",
        "recompute_granularity": "full" if recompute else None,
        "recompute_method": "uniform" if recompute else None,
        "recompute_num_layers": 1 if recompute else None,
        "use_distributed_optimizer": mesh.size(-1) > 1 or bool(s.use_distributed_optimizer),
        "overlap_grad_reduce": True,
        "overlap_param_gather": mesh.size(-1) > 1 or bool(s.use_distributed_optimizer),
        "max_position_embeddings": s.seq_length,
    }


if __name__ == "__main__":
    sys.exit(plain_ranks.main(train))
