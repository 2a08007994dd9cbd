"""The rules of an experiment, run at once: values that make sense first, then what must divide and fit together.

Megatron would enforce most of them after minutes of start-up. Each rule yields its problems, with the valid values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from itertools import product
from math import log
from typing import Any

from conf.errors import Problem, listed
from conf.freeze import field_types, required
from conf.schema import Model, Request
from conf.shapes import Sizes, tensor_widths
from conf.vendors import vendor_of
from conf.vocabulary import requested, vocabulary

MAY_BE_ZERO = {"moe_first_dense_layers"}

Rule = Callable[[Request, Sizes], Iterator[Problem]]


def data_parallel_size(r: Request, s: Sizes) -> int:
    """Return world size / (TP × PP × CP), 0 where that is no integer."""
    size, rest = divmod(r.world_size, s.tp * s.pp * s.cp)
    return 0 if rest else size


def divisors(n: int) -> list[int]:
    """Return all divisors of n, ascending."""
    return [d for d in range(1, n + 1) if n % d == 0]


def nearest(target: float, valid: list[int], count: int = 4) -> list[int]:
    """Return the `count` values of `valid` that are nearest to `target`, ascending."""
    return sorted(sorted(valid, key=lambda v: (abs(v - target), v))[:count])


def _world(r: Request, s: Sizes) -> Iterator[Problem]:
    size = s.tp * s.pp * s.cp
    if r.world_size % size:
        what = (
            f"TP {s.tp} × PP {s.pp} × CP {s.cp} = {size} does not divide {r.world_size} GPUs "
            f"({r.nodes} × {r.ranks_per_node}): TP × PP × CP × DP = GPUs"
        )
        valid = [f"TP {tp} × PP {pp} × CP {s.cp}" for tp, pp in _nearest_splits(r, s)]
        multiple = -(-r.world_size // size) * size
        yield Problem("layout", what, allowed=listed(valid), hint=f"one of these, or {multiple} GPUs for this layout")


def _nearest_splits(r: Request, s: Sizes) -> list[tuple[int, int]]:
    """Return pairs (TP, PP) that divide the world and the model, nearest first."""
    model, world = r.model, r.world_size
    fits = [
        (tp, pp)
        for tp, pp in product(divisors(world), repeat=2)
        if world % (tp * pp * s.cp) == 0 and tp in tensor_sizes(model) and model.num_layers % pp == 0
    ]
    return sorted(fits, key=lambda split: abs(log(split[0] / s.tp)) + abs(log(split[1] / s.pp)))[:3]


def tensor_sizes(model: Model) -> list[int]:
    """Return the TP sizes that divide heads, KV groups, MLP and expert width and padded vocabulary of `model`."""
    widths = tensor_widths(model).values()
    return [tp for tp in divisors(model.num_attention_heads) if all(n % tp == 0 for n in widths)]


_WORDS = {
    "num_attention_heads": "attention heads",
    "num_query_groups": "KV groups",
    "ffn_hidden_size": "MLP columns (ffn_hidden_size)",
    "moe_ffn_hidden_size": "columns of an expert (moe_ffn_hidden_size)",
    "moe_shared_expert_intermediate_size": "columns of the shared experts (moe_shared_expert_intermediate_size)",
    "hidden_size": "columns to join for multi-token prediction (hidden_size)",
    "padded_vocab_size": "rows of the padded vocabulary",
}


def _tensor(r: Request, s: Sizes) -> Iterator[Problem]:
    model = r.model
    for name, n in tensor_widths(model).items():
        if n % s.tp:
            what = f"{model.name} has {n} {_WORDS[name]}, which TP {s.tp} does not divide"
            equation = f"({n} / {s.tp} = {n / s.tp:g})"
            key = "layout.tensor_model_parallel_size"
            yield Problem(key, f"{what} {equation}", allowed=listed(tensor_sizes(model)))


def _groups(r: Request, s: Sizes) -> Iterator[Problem]:
    heads, groups = r.model.num_attention_heads, r.model.num_query_groups
    if heads % groups:
        what = f"{heads} attention heads do not divide into {groups} groups of equal size"
        yield Problem("model.num_query_groups", what, str(groups), listed(nearest(groups, divisors(heads))))


def _pipeline(r: Request, s: Sizes) -> Iterator[Problem]:
    layers, stages = r.model.num_layers, s.pp * s.vp
    key = "layout.pipeline_model_parallel_size"
    if layers % stages:
        virtual = f" × VP {s.vp}" if s.vp > 1 else ""
        what = f"{r.model.name} has {layers} layers, which PP {s.pp}{virtual} does not divide"
        equation = f"({layers} / {stages} = {layers / stages:g})"
        valid = nearest(s.pp, [pp for pp in divisors(layers) if layers % (pp * s.vp) == 0])
        yield Problem(key, f"{what} {equation}", allowed=listed(valid))
    if s.vp > 1 and s.pp == 1:
        key = "layout.virtual_pipeline_model_parallel_size"
        yield Problem(key, "virtual stages need PP above 1", str(s.vp), hint=f"{key}=null, or PP above 1")


def _sequence(r: Request, s: Sizes) -> Iterator[Problem]:
    training, model = r.training, r.model
    length = training.seq_length
    by_tp = r.layout.sequence_parallel and s.tp in tensor_sizes(model)  # another TP is refused anyway
    parts = (2 * s.cp if s.cp > 1 else 1) * (s.tp if by_tp else 1)
    if length % parts:
        valid = [length // parts * parts, -(-length // parts) * parts]
        how = f"2 × CP {s.cp}" if s.cp > 1 else ""
        how += (" × " if how else "") + (f"TP {s.tp} (sequence parallel)" if by_tp else "")
        allowed = listed([v for v in valid if v])
        yield Problem("training.seq_length", f"must divide by {how} = {parts}", str(length), allowed)
    if length > model.max_position_embeddings:
        limit = f"at most {model.max_position_embeddings}"
        yield Problem("training.seq_length", f"longer than {model.name} was made for", str(length), limit)
    if r.layout.sequence_parallel and s.tp == 1:
        what = "sequence parallel splits over the TP ranks: it needs TP above 1"
        yield Problem("layout.sequence_parallel", what, hint="layout.sequence_parallel=null")


def _batch(r: Request, s: Sizes) -> Iterator[Problem]:
    dp, training = data_parallel_size(r, s), r.training
    if not dp:
        return
    micro, batch = training.micro_batch_size or 1, training.global_batch_size
    if batch % (micro * dp):
        step = micro * dp
        what = f"{batch} does not divide by micro-batch {micro} × DP {dp} = {step} (GBS = MBS × DP × accumulation)"
        valid = [v for v in (batch // step * step, -(-batch // step) * step) if v]
        yield Problem("training.global_batch_size", what, str(batch), listed(valid))
    elif s.vp > 1 and batch // (micro * dp) % s.pp:
        count = f"{batch} / ({micro} × DP {dp}) = {batch // (micro * dp)}"
        what = f"interleaving needs a multiple of PP {s.pp} micro-batches; {count}"
        yield Problem("training.global_batch_size", what, str(batch), f"a multiple of {micro * dp * s.pp}")


EXPERTS_KEY = "layout.expert_model_parallel_size"


def _routing(r: Request, s: Sizes) -> Iterator[Problem]:
    moe, layers = r.model.moe, r.model.num_layers
    if moe is None:
        return
    if not 1 <= moe.moe_router_topk <= moe.num_experts:
        what = f"a token goes to at least one and at most all {moe.num_experts} experts"
        yield Problem("model.moe.moe_router_topk", what, str(moe.moe_router_topk), f"1 to {moe.num_experts}")
    if moe.moe_router_topk == 1 and moe.moe_router_score_function == "softmax" and not moe.moe_router_pre_softmax:
        what = "a softmax over the one chosen expert is always 1 and has no gradient"
        yield Problem("model.moe.moe_router_topk", what, "1", hint="model.moe.moe_router_pre_softmax=true")
    if not 0 <= moe.moe_first_dense_layers < layers:
        what = f"{r.model.name} has {layers} layers here, and at least one must have experts"
        found = str(moe.moe_first_dense_layers)
        yield Problem("model.moe.moe_first_dense_layers", what, found, f"0 to {layers - 1}")
    if moe.num_experts % (moe.moe_router_num_groups or 1):
        what = f"{moe.num_experts} experts do not divide into groups of one size"
        valid = listed(nearest(moe.moe_router_num_groups or 1, divisors(moe.num_experts)))
        yield Problem("model.moe.moe_router_num_groups", what, str(moe.moe_router_num_groups), valid)


def _experts(r: Request, s: Sizes) -> Iterator[Problem]:
    moe = r.model.moe
    if s.ep == 1:
        return
    if moe is None:
        yield Problem(EXPERTS_KEY, f"{r.model.name} has no experts", str(s.ep), "1")
    elif moe.num_experts % s.ep:
        valid = listed(nearest(s.ep, divisors(moe.num_experts)))
        yield Problem(EXPERTS_KEY, f"{moe.num_experts} experts do not divide by EP {s.ep}", str(s.ep), valid)
    if r.world_size % (s.tp * s.pp * s.ep):
        what = f"TP {s.tp} × EP {s.ep} × PP {s.pp} does not divide {r.world_size} GPUs"
        yield Problem(EXPERTS_KEY, what, str(s.ep), listed(nearest(s.ep, divisors(r.world_size))))


def _experts_with_tensor(r: Request, s: Sizes) -> Iterator[Problem]:
    if r.model.moe is None or s.tp == 1:
        return
    key = "layout.tensor_model_parallel_size"
    if not r.layout.sequence_parallel:
        what = f"experts with TP {s.tp} need sequence parallel: without it every TP rank would route the same tokens"
        yield Problem("layout.sequence_parallel", what, "false", "true", "layout.sequence_parallel=true, or TP 1")
    if r.model.add_bias_linear:
        what = f"{r.model.name}'s experts have biases, which Megatron-Core does not split over TP"
        yield Problem(key, what, str(s.tp), "1", f"TP 1 and up to EP {r.model.moe.num_experts}")
    if s.ep > 1 and r.hardware.vendor is None:
        what = f"TP {s.tp} with EP {s.ep} gathers pieces of unequal size, which gloo on a CPU refuses"
        yield Problem(EXPERTS_KEY, what, str(s.ep), "1", "TP or EP alone, with PP or DP; on GPUs both work")


def _schedule(r: Request, s: Sizes) -> Iterator[Problem]:
    optimizer, iters = r.optimizer, r.training.train_iters
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


def _bounds(r: Request, s: Sizes) -> Iterator[Problem]:
    """Yield values beyond the bounds of their row in conf/vocabulary.yaml."""
    for name, value in requested(r, partial=True).items():
        setting = vocabulary()[name]
        if not setting.in_bounds(value):
            what = f"must be {setting.bounds}" + (f": {setting.because}" if setting.because else "")
            yield Problem(str(setting.request), what, str(value))


def _recompute(r: Request, s: Sizes) -> Iterator[Problem]:
    training = r.training
    full = training.recompute_granularity == "full"
    for name in ("recompute_method", "recompute_num_layers"):
        value = getattr(training, name)
        if full and value is None:
            yield Problem(f"training.{name}", "full recompute needs it", "null", hint="method uniform, num_layers 1")
        if not full and value is not None:
            yield Problem(f"training.{name}", "only for training.recompute_granularity=full", str(value), "null")


def _overlap(r: Request, s: Sizes) -> Iterator[Problem]:
    training = r.training
    for name in ("use_distributed_optimizer", "overlap_grad_reduce"):
        if training.overlap_param_gather and not getattr(training, name):
            need = f"training.{name}=true"
            yield Problem("training.overlap_param_gather", f"needs {need}", "true", hint=need)


def _precision(r: Request, s: Sizes) -> Iterator[Problem]:
    hardware, precision = r.hardware, r.precision
    if precision.fp8 and hardware.peak_dense_tflops and "fp8" not in hardware.peak_dense_tflops:
        yield Problem("precision", f"{hardware.name} has no fp8 units", precision.name, "bf16, fp32", "precision=bf16")
    elif precision.fp8_recipe == "mxfp8" and hardware.architecture == "sm_90":
        what = f"{hardware.name} ({hardware.architecture}) has no units for MXFP8, which came with Blackwell"
        yield Problem("precision", what, precision.name, "fp8, fp8_current, bf16, fp32", "precision=fp8")


def _node(r: Request, s: Sizes) -> Iterator[Problem]:
    yield from vendor_of(r.hardware.vendor).node_problems(r.ranks_per_node)


def warnings(r: Request, s: Sizes) -> Iterator[Problem]:
    """Yield what is slow and allowed: TP beyond a node."""
    if s.tp > r.ranks_per_node:
        what = (
            f"TP {s.tp} leaves the node ({r.ranks_per_node} GPUs): every layer's all-reduce then crosses the "
            "network, an order of magnitude slower than the links inside"
        )
        yield Problem("layout.tensor_model_parallel_size", what, hint=f"TP {r.ranks_per_node} or less, and more PP")


LAYOUT_RULES: tuple[Rule, ...] = (
    *(_world, _groups, _tensor, _pipeline, _sequence, _batch),
    *(_routing, _experts, _experts_with_tensor),
)
SETTING_RULES: tuple[Rule, ...] = (_schedule, _bounds, _recompute, _overlap, _precision, _node)


def problems(r: Request, *, layout: bool = True) -> list[Problem]:
    """Return every violated rule, its equation, its numbers and the nearest valid values, of a request whose layout,
    training and optimizer are filled in. layout: False leaves out the rules about it."""
    rules = (*LAYOUT_RULES, *SETTING_RULES) if layout else SETTING_RULES
    return list(_positive(r)) or [problem for rule in rules for problem in rule(r, Sizes.of(r.layout))]


def _positive(r: Request) -> Iterator[Problem]:
    """Yield counts and sizes below 1, which no rule could divide by."""
    sizes = (name for name in r.layout.__slots__ if name.endswith("_parallel_size"))
    counts = ("micro_batch_size", "global_batch_size", "seq_length", "train_iters", "save_interval")
    values = {f"layout.{name}": getattr(r.layout, name) for name in sizes}
    values |= {f"training.{name}": getattr(r.training, name) for name in counts}
    values |= {"nodes": r.nodes, "gpus_per_node": r.ranks_per_node}
    values |= {"optimizer.lr_decay_iters": r.optimizer.lr_decay_iters, **_counts(r.model, "model")}
    for key, value in values.items():
        if value is not None and value < 1:
            yield Problem(key, "must be at least 1", str(value))


def _counts(part: Any, where: str) -> dict[str, int | None]:
    """Return every integer of a model and of its parts, by config key."""
    counts: dict[str, int | None] = {}
    for field in fields(part):
        value = getattr(part, field.name)
        if is_dataclass(value):
            counts |= _counts(value, f"{where}.{field.name}")
        elif required(field_types(type(part))[field.name]) is int and field.name not in MAY_BE_ZERO:
            counts[f"{where}.{field.name}"] = value
    return counts
