"""Schedule, switches, precision and hardware: rules that are not about dividing. Same form as conf/layout_check.py."""

from __future__ import annotations

from collections.abc import Iterator

from conf.errors import Problem
from conf.layout_check import Case, Rule
from conf.vendors import vendor_of
from conf.vocabulary import requested, vocabulary


def _schedule(case: Case) -> Iterator[Problem]:
    optimizer, iters = case.optimizer, case.training.train_iters
    decay = iters if optimizer.lr_decay_iters is None else optimizer.lr_decay_iters
    if optimizer.lr_decay_style != "cosine":
        what = "only the cosine decay was shown to be equal on every stack"
        yield Problem("optimizer.lr_decay_style", what, optimizer.lr_decay_style, "cosine")
    if optimizer.lr_warmup_iters >= min(iters, decay):
        what = "the warm-up must end before the iterations and the decay do"
        allowed = f"0 to {min(iters, decay) - 1}"
        yield Problem("optimizer.lr_warmup_iters", what, str(optimizer.lr_warmup_iters), allowed)
    if optimizer.min_lr >= optimizer.lr:
        what = "must be below optimizer.lr, or nothing decays"
        yield Problem("optimizer.min_lr", what, str(optimizer.min_lr), f"0 to {optimizer.lr}")


def _bounds(case: Case) -> Iterator[Problem]:
    """Values beyond the bounds of their row in conf/vocabulary.yaml."""
    for name, value in requested(case, partial=True).items():
        setting = vocabulary()[name]
        if not setting.in_bounds(value):
            what = f"must be {setting.bounds}" + (f": {setting.because}" if setting.because else "")
            yield Problem(str(setting.request), what, str(value))


def _recompute(case: Case) -> Iterator[Problem]:
    training = case.training
    full = training.recompute_granularity == "full"
    for name in ("recompute_method", "recompute_num_layers"):
        value = getattr(training, name)
        if full and value is None:
            yield Problem(f"training.{name}", "full recompute needs it", "null", hint="method uniform, num_layers 1")
        if not full and value is not None:
            yield Problem(f"training.{name}", "only for training.recompute_granularity=full", str(value), "null")


def _overlap(case: Case) -> Iterator[Problem]:
    training = case.training
    for name in ("use_distributed_optimizer", "overlap_grad_reduce"):
        if training.overlap_param_gather and not getattr(training, name):
            need = f"training.{name}=true"
            yield Problem("training.overlap_param_gather", f"needs {need}", "true", hint=need)


def _precision(case: Case) -> Iterator[Problem]:
    hardware, precision = case.hardware, case.precision
    if precision.fp8 and hardware.peak_dense_tflops and "fp8" not in hardware.peak_dense_tflops:
        yield Problem("precision", f"{hardware.name} has no fp8 units", precision.name, "bf16, fp32", "precision=bf16")
    elif precision.fp8_recipe == "mxfp8" and hardware.architecture == "sm_90":
        what = f"{hardware.name} ({hardware.architecture}) has no units for MXFP8, which came with Blackwell"
        yield Problem("precision", what, precision.name, "fp8, fp8_current, bf16, fp32", "precision=fp8")


def _node(case: Case) -> Iterator[Problem]:
    yield from vendor_of(case.hardware.vendor).node_problems(case.gpus_per_node)


def _tensor_leaves_node(case: Case) -> Iterator[Problem]:
    if case.tp > case.gpus_per_node:
        what = (
            f"TP {case.tp} leaves the node ({case.gpus_per_node} GPUs): every layer's all-reduce then crosses the "
            "network, an order of magnitude slower than the links inside"
        )
        yield Problem("layout.tensor_model_parallel_size", what, hint=f"TP {case.gpus_per_node} or less, and more PP")


SETTING_RULES: tuple[Rule, ...] = (_schedule, _bounds, _recompute, _overlap, _precision, _node)
WARNINGS: tuple[Rule, ...] = (_tensor_leaves_node,)
