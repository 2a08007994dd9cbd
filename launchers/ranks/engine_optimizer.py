"""Build Megatron-Core's optimizer and learning rate schedule from the engine's settings."""

from __future__ import annotations

from typing import Any

import torch
from engine_settings import Settings
from megatron.core import optimizer as megatron_optimizer
from megatron.core.optimizer import OptimizerConfig, clip_grads, get_megatron_optimizer
from megatron.core.optimizer.distrib_optimizer import HAVE_APEX_OR_TE, DistributedOptimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from tprimat_standin import decayed_first

megatron_optimizer._get_param_groups = decayed_first(megatron_optimizer._get_param_groups)


def build_optimizer(settings: Settings, chunks: list[Any]) -> Any:
    """Return the optimizer of `chunks`, each a Megatron DistributedDataParallel."""
    dtype = getattr(torch, settings.params_dtype)
    options = settings.options(OptimizerConfig, "optimizer", "schedule", "ddp")
    config = OptimizerConfig(**options, lr=settings.lr, params_dtype=dtype, bf16=dtype is torch.bfloat16)
    if not HAVE_APEX_OR_TE:
        # the same bits as what stands in for theirs (megatron/core/utils.py:1022), which waits for each parameter's
        # norm on a GPU and scales through copies
        clip_grads.l2_norm_impl, clip_grads.multi_tensor_scale_impl = _norm, _scale
    # gloo groups beside NCCL's serve distributed checkpoints only
    optimizer = get_megatron_optimizer(config, chunks, use_gloo_process_groups=False)
    if settings.attention_backend == "sdpa" and not torch.cuda.is_available():
        for group in optimizer.param_groups:
            group["fused"] = True  # one pass over memory instead of ten: a step of 32 M parameters takes 4 % less
    return optimizer


def _norm(_chunk: int, _flag: Any, tensors: list[list[torch.Tensor]], *_: Any) -> tuple[torch.Tensor, None]:
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(tensors[0]))).reshape(1), None


def _scale(_chunk: int, _flag: Any, tensors: list[list[torch.Tensor]], factor: float) -> None:
    if tensors[0]:  # a rank may hold no part of any parameter
        torch._foreach_mul_(tensors[0], factor)  # source and target are the same


def build_scheduler(settings: Settings, optimizer: Any) -> Any:
    """Return the schedule, which counts steps: call `step(1)` after each. With lr_warmup_init = lr / (W + 1) for W
    warm-up steps, step s = 0, 1, ... uses lr (s + 1) / (W + 1) while s < W, then the cosine from lr at s = W to min_lr
    at s = lr_decay_iters."""
    options = settings.options(OptimizerParamScheduler, "schedule")
    decay = dict.fromkeys(("start_wd", "end_wd"), settings.weight_decay)
    constant = {"wd_incr_style": "constant", "wd_incr_steps": settings.lr_decay_iters}
    return OptimizerParamScheduler(optimizer, **options, **decay, **constant)


def sharded_optimizer_state(optimizer: Any, models: dict[str, Any], loading: bool) -> Any:
    """Return the optimizer's part of a distributed checkpoint; `models` are the sharded states of the chunks."""
    # AdamW makes its state in its first step, and DistributedOptimizer.state_dict() asserts that all parameters have it
    # (megatron/core/optimizer/distrib_optimizer.py, "Extract 'step', for non-Apex/TE support")
    for part in _distributed(optimizer) if loading else ():
        for parameter in (p for group in part.optimizer.param_groups for p in group["params"]):
            zeros = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            part.optimizer.state[parameter] = {"step": torch.tensor(0.0), **zeros}
    metadata = {
        "chained_optim_avoid_prefix": True,  # experts have an optimizer of their own, whatever the layout
        # the default writes slices that later releases read no more: https://github.com/NovaSky-AI/SkyRL/pull/1268
        **({"distrib_optim_sharding_type": "fully_reshardable"} if optimizer.config.use_distributed_optimizer else {}),
    }
    return optimizer.sharded_state_dict(models, is_loading=loading, metadata=metadata)


def take_optimizer_state(optimizer: Any, state: Any) -> None:
    """Load the state that `sharded_optimizer_state` describes."""
    for part in _distributed(optimizer):
        part._set_main_param_and_optimizer_states = _with_step(part)
    with torch.no_grad():  # fp32 parameters are copied into in place
        optimizer.load_state_dict(state)
    for part in _distributed(optimizer):
        for values in part.optimizer.state.values():
            # one tensor is every parameter's step after load_state_dict (distrib_optimizer.py, "Native PyTorch state
            # dict requires step"), and AdamW would count each step once for each parameter
            values["step"] = values["step"].clone()


def _distributed(optimizer: Any) -> list[Any]:
    """Return the distributed optimizers in `optimizer` that use torch's AdamW: with that alone resuming needs help."""
    parts = [] if HAVE_APEX_OR_TE else getattr(optimizer, "chained_optimizers", [optimizer])
    return [part for part in parts if isinstance(part, DistributedOptimizer)]


def _with_step(part: Any) -> Any:
    """Give `_set_main_param_and_optimizer_states` a step, which this format keeps once for all parameters, and
    load_state_dict has set already; upstream it is the other way round: https://github.com/radixark/Megatron-LM/pull/69."""
    original = part._set_main_param_and_optimizer_states

    def set_states(model_param: Any, tensors: dict[str, Any]) -> None:
        group, order = part.model_param_group_index_map[model_param]
        parameter = part.optimizer.param_groups[group]["params"][order]
        original(model_param, {"step": part.optimizer.state[parameter]["step"], **tensors})

    return set_states
