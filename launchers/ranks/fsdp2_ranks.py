"""Pre-train a dense Llama or Qwen with plain PyTorch: a page of model, torch's FSDP2 and AdamW, and nothing else.

    python -m torch.distributed.run --standalone --nproc-per-node N fsdp2_ranks.py --settings FILE.json

The model is plain_llama.py. Exit codes are those of plain_ranks.py."""

from __future__ import annotations

import sys
from typing import Any

import plain_ranks
import torch
import torch.distributed as dist
from plain_llama import Llama
from plain_ranks import Reporter, Settings, adam, global_batches, matrices, micro_batches, schedule_of
from plain_readings import Readings, Source, decays_of
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional


def sharded(s: Settings, device: torch.device) -> Llama:
    """Return the model on its device: its parameters, gradients and optimizer states are cut into shards, all of which
    every replica of them holds; in one shard they are whole on each rank."""
    sizes = s.data_parallel_replicas, s.data_parallel_shards
    mesh = init_device_mesh(device.type, sizes, mesh_dim_names=("replicas", "shards"))
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
    plain_ranks.print_facts(s.seed, framework_version=torch.__version__)
    model, reporter, readings = sharded(s, device), Reporter(s), Readings()
    readings.watch(model, s.seq_length, s.num_layers)
    optimizer = adam(model.parameters(), s)
    schedule = schedule_of(optimizer, s)
    for index, batch in enumerate(batches):
        if index == 0:
            reporter.built(plain_ranks.effective(s, optimizer, s.arguments.get, batch, **read_back(model, s)), batch)
            policy = {"MixedPrecisionPolicy": model._get_fsdp_state()._mp_policy}
            readings.begin(Source(model, lambda tensors: tensors.items()), policy, decays_of(optimizer))
        lr_used = optimizer.param_groups[0]["lr"]
        loss = backward(
            model, torch.from_numpy(micro_batches(batch, s, dist.get_rank(), dist.get_world_size())).to(device)
        )
        readings.gradients(model.parameters())
        norm = nn.utils.clip_grad_norm_(model.parameters(), **s.arguments).full_tensor()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        reporter.step(index, loss, norm.item(), lr_used)
        if reporter.stopped:
            break
    readings.finish(reporter.effective)
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
        "data_parallel_shards": mesh.size(-1),
        "data_parallel_replicas": mesh.size(0),
        "use_distributed_optimizer": mesh.size(-1) > 1 or bool(s.use_distributed_optimizer),
        "overlap_grad_reduce": True,
        "overlap_param_gather": mesh.size(-1) > 1 or bool(s.use_distributed_optimizer),
        "max_position_embeddings": s.seq_length,
    }


if __name__ == "__main__":
    sys.exit(plain_ranks.main(train))
