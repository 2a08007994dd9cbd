"""Megatron-Core's optimizer and learning rate schedule from the engine's settings."""

from __future__ import annotations

from typing import Any

import torch
from engine_settings import Settings
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler


def build_optimizer(settings: Settings, model: Any) -> Any:
    """Return the optimizer of `model`, a Megatron DistributedDataParallel."""
    dtype = getattr(torch, settings.params_dtype)
    config = OptimizerConfig(
        optimizer=settings.optimizer,
        lr=settings.lr,
        min_lr=settings.min_lr,
        weight_decay=settings.weight_decay,
        adam_beta1=settings.adam_beta1,
        adam_beta2=settings.adam_beta2,
        adam_eps=settings.adam_eps,
        clip_grad=settings.clip_grad,
        params_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        use_distributed_optimizer=settings.use_distributed_optimizer,
        overlap_param_gather=settings.overlap_param_gather,
    )
    # gloo groups beside NCCL's serve distributed checkpoints only
    return get_megatron_optimizer(config, [model], use_gloo_process_groups=False)


def build_scheduler(settings: Settings, optimizer: Any) -> Any:
    """Return the schedule, which counts steps: call `step(1)` after each.

    With lr_warmup_init = lr / (W + 1) for W warm-up steps, step s = 0, 1, ... uses lr (s + 1) / (W + 1) while s < W,
    then the cosine from lr at s = W to min_lr at s = lr_decay_iters.
    """
    return OptimizerParamScheduler(
        optimizer,
        init_lr=settings.lr_warmup_init,
        max_lr=settings.lr,
        min_lr=settings.min_lr,
        lr_warmup_steps=settings.lr_warmup_iters,
        lr_decay_steps=settings.lr_decay_iters,
        lr_decay_style=settings.lr_decay_style,
        start_wd=settings.weight_decay,
        end_wd=settings.weight_decay,
        wd_incr_steps=settings.lr_decay_iters,
        wd_incr_style="constant",
    )
