"""Train: process groups, the objects of a run, and the loop over Megatron-Core's pipeline schedules."""

from __future__ import annotations

import gc
import math
import os
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from engine_checkpoint import resume, save
from engine_data import TokenData
from engine_effective import Built, effective_arguments
from engine_layers import context_shard
from engine_log import print_arguments, print_facts, print_step
from engine_model import build_model
from engine_optimizer import build_optimizer, build_scheduler
from engine_settings import Settings
from megatron.core import parallel_state
from megatron.core.distributed import finalize_model_grads
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
from megatron.core.utils import get_model_config
from rank_program import mark, say

Batch = tuple[torch.Tensor, torch.Tensor]
"""Tokens and labels, [micro-batch size, sequence length] each."""


class DeviceError(Exception):
    """This machine, or its communication library, cannot run the layout."""


def train(settings: Settings, stand_in: bool, checkpoints: Path) -> str | None:
    """Run the complete training in this rank; `stand_in` says whether torch.cuda is the CPU stand-in.

    Goes on from the newest checkpoint in the folder `checkpoints`, where there is one.

    Returns None after the last iteration, or, where the loss was not finite, what it was and when. Equal on all ranks.

    Raises:
        DeviceError: this machine has fewer accelerators than ranks, or none and a layout that needs them.
        CheckpointError: what is in `checkpoints` is of another run, or damaged.
    """
    _set_up_groups(settings)
    if dist.get_rank() == 0:
        print_facts(stand_in)
    built = _build(settings)
    if dist.get_rank() == 0:
        print_arguments(effective_arguments(built))
        mark("facts", {"data_first_batch": built.data.first_batch()})
    if parallel_state.get_data_parallel_rank(with_context_parallel=True) == 0:
        tp, pp = parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_pipeline_model_parallel_rank()
        count = sum(parameter.numel() for chunk in built.chunks for parameter in chunk.parameters())
        say(f" > number of parameters on (tensor, pipeline) model parallel rank ({tp}, {pp}): {count}")
    done = resume(built, checkpoints)
    gc.freeze()  # what is here now stays to the end; searched at exit as well, it would cost a second there
    gc.enable()
    stopped = _loop(built, done, checkpoints)
    if dist.get_rank() == 0 and not stopped:
        say(f"[after training is done] datetime: {datetime.now().strftime('%Y-%m-%d %H:%M:%S')}")  # as Megatron-LM
    dist.barrier()  # torchrun ends all ranks as soon as one fails: all must have printed
    dist.destroy_process_group()
    return stopped


def _set_up_groups(s: Settings) -> None:
    gpu = torch.cuda.is_available()
    device = ("rocm" if torch.version.hip else "cuda") if gpu else "cpu"
    if device != s.device:  # or a CPU's figures would be kept as a GPU's
        here = f"torch {torch.__version__} has {device} here"
        raise DeviceError(f"meant for {s.device}, and {here}; try a torch built for {s.device}")
    if gpu:
        ranks, devices = int(os.environ["LOCAL_WORLD_SIZE"]), torch.cuda.device_count()
        if ranks > devices:
            raise DeviceError(f"{ranks} ranks on a machine with {devices} visible GPUs; try --nproc-per-node {devices}")
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    elif s.tensor_model_parallel_size > 1 and s.expert_model_parallel_size > 1:
        sizes = f"TP {s.tensor_model_parallel_size} x EP {s.expert_model_parallel_size}"
        raise DeviceError(f"{sizes}: gloo cannot gather the experts' unequal numbers of tokens; try TP 1 or EP 1")
    dist.init_process_group("nccl" if gpu else "gloo")  # "nccl" is RCCL on ROCm
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=s.tensor_model_parallel_size,
        pipeline_model_parallel_size=s.pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size=s.virtual_pipeline_model_parallel_size,
        context_parallel_size=s.context_parallel_size,
        expert_model_parallel_size=s.expert_model_parallel_size,
        create_gloo_process_groups=False,
    )
    # as megatron/training/initialize.py: pipeline stages hold different layers, so their dropout differs
    seed = s.seed + 100 * parallel_state.get_pipeline_model_parallel_rank()
    torch.manual_seed(seed)
    model_parallel_cuda_manual_seed(seed)


def _build(s: Settings) -> Built:
    chunks = build_model(s)
    optimizer = build_optimizer(s, chunks)
    config = get_model_config(chunks[0])  # all chunks share it
    config.finalize_model_grads_func = finalize_model_grads
    config.grad_scale_func = optimizer.scale_loss
    return Built(s, chunks, optimizer, build_scheduler(s, optimizer), TokenData(s))


def _loop(built: Built, done: int, checkpoints: Path) -> str | None:
    logs = dist.get_rank() == dist.get_world_size() - 1
    saving_s = 0.0
    last_end = time.monotonic()
    for index in range(done, built.settings.train_iters):
        step = _step(built, index)
        end = time.monotonic() - saving_s
        if logs:
            step |= {"iteration": index + 1, "elapsed_s": end - last_end, "end_monotonic_s": end}
            print_step(step, built.settings.train_iters, built.settings.global_batch_size)
        last_end = end
        if not math.isfinite(step["loss"]):
            return f"loss is {step['loss']} at iteration {index + 1} of {built.settings.train_iters}"
        if built.settings.save_interval and (index + 1) % built.settings.save_interval == 0:
            save(built, checkpoints, index + 1)
            saving_s = time.monotonic() - end
    return None


def _step(built: Built, index: int) -> dict[str, Any]:
    """Take one step and return what it reports (engine_log.print_step), equal on all ranks."""
    lr_used = built.optimizer.param_groups[0]["lr"]
    built.optimizer.zero_grad()
    for chunk in built.chunks:
        chunk.zero_grad_buffer()
    reports = get_forward_backward_func()(
        forward_step_func=_forward,
        data_iterator=[_batches(built, index) for _ in built.chunks],
        model=built.chunks,
        num_microbatches=built.settings.num_micro_batches,
        seq_length=built.settings.seq_length,
        micro_batch_size=built.settings.micro_batch_size,
        forward_only=False,
    )
    updated, grad_norm, _ = built.optimizer.step()
    built.scheduler.step(1)
    return {
        "loss": _global_loss(reports),
        "lr_used": lr_used,
        "lr_next": built.optimizer.param_groups[0]["lr"],
        "loss_scale": built.optimizer.get_loss_scale().item(),
        "grad_norm": None if grad_norm is None else float(grad_norm),
        "skipped": not updated,
    }


def _batches(built: Built, index: int) -> Iterator[Batch]:
    rank, size = parallel_state.get_data_parallel_rank(), parallel_state.get_data_parallel_world_size()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for batch in torch.from_numpy(built.data.rank_batches(index, rank, size)).to(device):
        yield batch[:, :-1].contiguous(), batch[:, 1:].contiguous()


def _forward(batches: Iterator[Batch], model: Any) -> tuple[torch.Tensor, Any]:
    """Be Megatron's forward_step_func: return the output, and the function that makes the loss of it on the last
    stage."""
    tokens, labels = map(context_shard, next(batches))
    # RoPE needs no position ids, and causal SDPA no mask
    return model(tokens, None, None, labels=labels), _loss


def _loss(losses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the sum, the number of tokens, and both for the report, as loss_func in Megatron-LM's pretrain_gpt.py.

    With the number, schedules.py takes the mean of this rank's tokens, and DDP the mean over data and context parallel
    ranks; with a mean alone it would multiply by the context parallel size.
    """
    total = losses.float().sum()  # divided in place
    count = torch.tensor(losses.numel(), dtype=torch.int, device=losses.device)
    return total, count, torch.stack((total.detach(), count.to(total.dtype)))


def _global_loss(reports: list[torch.Tensor]) -> float:
    """Return the mean over the global batch on every rank; `reports` are the last stage's micro-batches."""
    if parallel_state.is_pipeline_last_stage():
        summed = torch.stack(reports).sum(dim=0)
        dist.all_reduce(summed, group=parallel_state.get_data_parallel_group(with_context_parallel=True))
        loss = summed[0] / summed[1]
    else:
        loss = torch.zeros((), device=torch.cuda.current_device())
    last = parallel_state.get_pipeline_model_parallel_last_rank()
    dist.broadcast(loss, last, group=parallel_state.get_pipeline_model_parallel_group())
    return float(loss.item())  # waits for the complete step on a GPU: the collectives above come after the optimizer
