"""The rules of an experiment, run at once: values that make sense first, then what must divide and fit together.
Megatron would enforce most of them after minutes of start-up. Each rule yields its problems, with the valid values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from itertools import product
from math import isqrt, lcm, log
from types import SimpleNamespace
from typing import Any

from conf import fits
from conf.errors import Problem, listed
from conf.freeze import MOST, MOST_LAYERS
from conf.schema import IDENTICAL, Model, Request
from conf.shapes import ENDS, Sizes, tensor_widths
from conf.vendors import vendor_of
from conf.vocabulary import follow, leaves, requested, vocabulary

MAY_BE_ZERO = {"moe_first_dense_layers"}
TENSOR, EXPERT = "layout.tensor_model_parallel_size", "layout.expert_model_parallel_size"
_WORDS = {
    "num_attention_heads": "attention heads",
    "num_query_groups": "KV groups",
    "ffn_hidden_size": "MLP columns (ffn_hidden_size)",
    "moe_ffn_hidden_size": "columns of an expert (moe_ffn_hidden_size)",
    "moe_shared_expert_intermediate_size": "columns of the shared experts (moe_shared_expert_intermediate_size)",
    "hidden_size": "columns to join for multi-token prediction (hidden_size)",
    "padded_vocab_size": "rows of the padded vocabulary",
}


def data_parallel_size(r: Request, s: Sizes) -> int:
    """Return world size / (TP × PP × CP), 0 where that is no integer."""
    size, rest = divmod(r.world_size, s.tp * s.pp * s.cp)
    return 0 if rest else size


def divisors(n: int) -> list[int]:
    """Return all divisors of n, ascending."""
    small = [d for d in range(1, isqrt(n) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


def nearest(target: float, valid: list[int], count: int = 4) -> list[int]:
    """Return the `count` values of `valid` that are nearest to `target`, ascending."""
    return sorted(sorted(valid, key=lambda v: (abs(v - target), v))[:count])


def wrong(requested: object, key: str, what: str, allowed: str = "", hint: str = "") -> Problem:
    """Return the problem of the value that a request or an experiment has at `key`."""
    value = follow(requested, key)
    return Problem(key, what, "null" if value is None else str(value), allowed, hint)


def _world(r: Request, s: Sizes) -> Iterator[Problem]:
    if not fits.splits_world(r, s):
        size = s.tp * s.pp * s.cp
        what = (
            f"TP {s.tp} × PP {s.pp} × CP {s.cp} = {size} does not divide {r.world_size} GPUs "
            f"({r.nodes} × {r.ranks_per_node}): TP × PP × CP × DP = GPUs"
        )
        valid = [f"TP {tp} × PP {pp} × CP {s.cp}" for tp, pp in _nearest_splits(r, s)]
        multiple = -(-r.world_size // size) * size
        hint = f"{'one of these, or ' if valid else ''}{multiple} GPUs for this layout"
        yield Problem("layout", what, allowed=listed(valid), hint=hint)


def _nearest_splits(r: Request, s: Sizes) -> list[tuple[int, int]]:
    fits = [
        (tp, pp)
        for tp, pp in product(divisors(r.world_size), repeat=2)
        if r.world_size % (tp * pp * s.cp) == 0 and tp in tensor_sizes(r.model) and r.model.num_layers % pp == 0
    ]
    return sorted(fits, key=lambda split: abs(log(split[0] / s.tp)) + abs(log(split[1] / s.pp)))[:3]


def tensor_sizes(model: Model) -> list[int]:
    """Return the TP sizes that divide heads, KV groups, MLP and expert width and padded vocabulary of `model`."""
    widths = tensor_widths(model).values()
    return [tp for tp in divisors(model.num_attention_heads) if all(n % tp == 0 for n in widths)]


def _tensor(r: Request, s: Sizes) -> Iterator[Problem]:
    broken = {} if fits.splits_widths(r, s) else tensor_widths(r.model)
    for name, n in broken.items():
        if n % s.tp:
            what = f"{r.model.name} has {n} {_WORDS[name]}, which TP {s.tp} does not divide"
            yield Problem(TENSOR, f"{what} ({n} / {s.tp} = {n / s.tp:g})", allowed=listed(tensor_sizes(r.model)))


def _groups(r: Request, s: Sizes) -> Iterator[Problem]:
    heads, groups = r.model.num_attention_heads, r.model.num_query_groups
    if heads % groups:
        what = f"{heads} attention heads do not divide into {groups} groups of equal size"
        yield wrong(r, "model.num_query_groups", what, listed(nearest(groups, divisors(heads))))


def _pipeline(r: Request, s: Sizes) -> Iterator[Problem]:
    layers, stages = r.model.num_layers, s.pp * s.vp
    if not fits.splits_layers(r, s):
        virtual, counted = f" × VP {s.vp}" if s.vp > 1 else "", layers + s.first + s.last
        ends = " and ".join(name for name, count in zip(_ENDS, (s.first, s.last), strict=True) if count)
        has = f"{layers} layers" + (f", with {ends} {counted}" if ends else "")
        what = f"{r.model.name} has {has}, which PP {s.pp}{virtual} does not divide"
        valid = nearest(s.pp, [pp for pp in divisors(counted) if counted % (pp * s.vp) == 0])
        key = "layout.pipeline_model_parallel_size"
        yield Problem(
            key, f"{what} ({counted} / {stages} = {counted / stages:g})", allowed=listed(valid), hint=_uneven(r, s)
        )
    elif not fits.fills_ends(r, s):
        key = f"layout.{ENDS[0] if s.first else ENDS[1]}"
        what = f"the first or the last of {stages} chunks of {r.model.name}'s {layers} layers would have none"
        yield wrong(r, key, "there is one stage" if s.pp == 1 else what, "false", f"{key}=null, or another PP")
    if not fits.has_stages(r, s):
        key = "layout.virtual_pipeline_model_parallel_size"
        yield wrong(r, key, "virtual stages need PP above 1", hint=f"{key}=null, or PP above 1")


def _uneven(r: Request, s: Sizes) -> str:
    """Return with which ends counted as layers the stages divide; nothing where they do not."""
    for ends in (ENDS, ENDS[1:]):
        counted = s._replace(first=len(ends) - 1, last=1)
        if s.pp > 1 and fits.splits_layers(r, counted) and fits.fills_ends(r, counted):
            total = r.model.num_layers + len(ends)
            return f"{' '.join(f'layout.{name}=true' for name in ends)}, which makes {total} of them"
    return ""


_ENDS = ("the embedding", "the loss")


def _sequence(r: Request, s: Sizes) -> Iterator[Problem]:
    key, length, most = "training.seq_length", r.training.seq_length, r.model.max_position_embeddings
    by_tp = r.layout.sequence_parallel and s.tp in tensor_sizes(r.model)  # another TP is refused anyway
    counted = s if by_tp else s._replace(tp=1)
    if not fits.splits_sequence(r, counted):
        parts = fits.sequence_parts(r, counted)
        how = [f"2 × CP {s.cp}"] if s.cp > 1 else []
        how += [f"TP {s.tp} (sequence parallel)"] if by_tp else []
        yield wrong(r, key, f"must divide by {' × '.join(how)} = {parts}", _multiples_around(length, parts))
    if length > most:
        yield wrong(r, key, f"longer than {r.model.name} was made for", f"at most {most}")
    if not fits.has_tensor_ranks(r, s):
        what = "sequence parallel splits over the TP ranks: it needs TP above 1"
        yield Problem("layout.sequence_parallel", what, hint="layout.sequence_parallel=null")


def _multiples_around(n: int, unit: int) -> str:
    return listed([multiple for multiple in (n // unit * unit, -(-n // unit) * unit) if multiple])


def _batch(r: Request, s: Sizes) -> Iterator[Problem]:
    dp, key = data_parallel_size(r, s), "training.global_batch_size"
    micro, batch = r.training.micro_batch_size, r.training.global_batch_size
    if not dp:
        return
    step, count = fits.micro_batches(r, s)
    if not fits.splits_batch(r, s):
        what = f"{batch} does not divide by micro-batch {micro} × DP {dp} = {step} (GBS = MBS × DP × accumulation)"
        yield wrong(r, key, what, _multiples_around(batch, step))
    elif not fits.fills_stages(r, s):
        what = f"interleaving needs a multiple of PP {s.pp} micro-batches; {batch} / ({micro} × DP {dp}) = {count}"
        yield wrong(r, key, what, f"a multiple of {step * s.pp}")


def _routing(r: Request, s: Sizes) -> Iterator[Problem]:
    moe, key = r.model.moe, "model.moe.moe_router_topk"
    if moe is None:
        return
    if not 1 <= moe.moe_router_topk <= moe.num_experts:
        what = f"a token goes to at least one and at most all {moe.num_experts} experts"
        yield wrong(r, key, what, f"1 to {moe.num_experts}")
    if moe.moe_router_topk == 1 and moe.moe_router_score_function == "softmax" and not moe.moe_router_pre_softmax:
        what = "a softmax over the one chosen expert is always 1 and has no gradient"
        yield wrong(r, key, what, hint="model.moe.moe_router_pre_softmax=true")
    if not 0 <= moe.moe_first_dense_layers < r.model.num_layers:
        what = f"{r.model.name} has {r.model.num_layers} layers here, and at least one must have experts"
        yield wrong(r, "model.moe.moe_first_dense_layers", what, f"0 to {r.model.num_layers - 1}")
    groups = moe.moe_router_num_groups or 1
    if moe.num_experts % groups:
        what = f"{moe.num_experts} experts do not divide into groups of one size"
        yield wrong(r, "model.moe.moe_router_num_groups", what, listed(nearest(groups, divisors(moe.num_experts))))


def _experts(r: Request, s: Sizes) -> Iterator[Problem]:
    moe = r.model.moe
    if s.ep == 1:
        return
    if moe is None:
        yield wrong(r, EXPERT, f"{r.model.name} has no experts", "1")
    elif not fits.splits_experts(r, s):
        valid = listed(nearest(s.ep, divisors(moe.num_experts)))
        yield wrong(r, EXPERT, f"{moe.num_experts} experts do not divide by EP {s.ep}", valid)
    if not fits.splits_world_by_experts(r, s):
        ranks = fits.expert_ranks(r, s)
        least = ranks // (s.pp * s.ep)
        what = f"TP {least} × EP {s.ep} × PP {s.pp} does not divide {r.world_size} GPUs"
        fitting = [n for n in divisors(moe.num_experts if moe else 1) if r.world_size % (ranks // s.ep * n) == 0]
        more = f"a multiple of {lcm(s.tp * s.pp * s.cp, ranks)} GPUs for this layout"
        yield wrong(r, EXPERT, what, listed(nearest(s.ep, fitting)), more)


def _experts_with_tensor(r: Request, s: Sizes) -> Iterator[Problem]:
    if r.model.moe is None or s.tp == 1:
        return
    if not fits.routes_apart(r, s):
        what = f"experts with TP {s.tp} need sequence parallel: without it every TP rank would route the same tokens"
        yield Problem("layout.sequence_parallel", what, "false", "true", "layout.sequence_parallel=true, or TP 1")
    if not fits.splits_biases(r, s):
        what = f"{r.model.name}'s experts have biases, which Megatron-Core does not split over TP"
        yield wrong(r, TENSOR, what, "1", f"TP 1 and up to EP {r.model.moe.num_experts}")
    if not fits.gathers_equal(r, s):
        what = f"TP {s.tp} with EP {s.ep} gathers pieces of unequal size, which gloo on a CPU refuses"
        yield wrong(r, EXPERT, what, "1", "TP or EP alone, with PP or DP; on GPUs both work")


def _shards(r: Request, s: Sizes) -> Iterator[Problem]:
    """Yield that DP's ranks are not its shards times its replicas, or that nothing is cut into those shards."""
    dp, shards, replicas = data_parallel_size(r, s), r.layout.data_parallel_shards, r.layout.data_parallel_replicas
    key = "layout.data_parallel_replicas"
    if not dp or shards is None or replicas is None:
        return
    if shards * replicas != dp:
        what = f"{shards} shards × {replicas} replicas are not the {dp} data parallel ranks"
        pairs = [f"{dp // n} × {n}" for n in divisors(dp)]
        yield Problem(key, what, allowed=f"shards × replicas: {listed(pairs)}", hint="state one of the two")
    elif shards > 1 and not r.training.use_distributed_optimizer:
        what = f"without training.use_distributed_optimizer nothing is cut into {shards} shards"
        yield wrong(r, key, what, str(dp), "training.use_distributed_optimizer=true")
    elif shards == 1 and dp > 1 and r.training.use_distributed_optimizer and r.method == IDENTICAL:
        what = f"{replicas} replicas of {dp} data parallel ranks leave nothing to shard"
        valid = listed(divisors(dp)[:-1])
        yield wrong(r, key, what, valid, "training.use_distributed_optimizer=false shards nothing")
    elif replicas > 1 and shards > 1 and not fits.repeats_experts(r, s):
        what = f"{replicas} replicas do not divide the ranks that hold the same experts"
        yield wrong(r, key, what, "1")


def _schedule(r: Request, s: Sizes) -> Iterator[Problem]:
    end = min(r.training.train_iters, r.optimizer.lr_decay_iters or 0)
    if r.optimizer.lr_decay_style != "cosine":
        what = "only the cosine decay was shown to be equal on every stack"
        yield wrong(r, "optimizer.lr_decay_style", what, "cosine")
    if r.optimizer.lr_warmup_iters >= end:
        what = "the warm-up must end before the iterations and the decay do"
        hint = f"optimizer.lr_warmup_iters={end // 10}, or more training.train_iters"
        yield wrong(r, "optimizer.lr_warmup_iters", what, f"0 to {end - 1}", hint)
    if 0 < r.optimizer.lr <= r.optimizer.min_lr:
        what = "must be below optimizer.lr, or nothing decays"
        yield wrong(r, "optimizer.min_lr", what, f"at least 0 and below {r.optimizer.lr:g}")


def _validation(r: Request, s: Sizes) -> Iterator[Problem]:
    t, every, count = r.training, "training.eval_interval", "training.eval_iters"
    if t.eval_iters and t.eval_interval is None:
        yield wrong(r, every, "a validation needs an interval", f"1 to {t.train_iters}", f"{every}={t.train_iters}")
    if t.eval_interval is not None and not t.eval_iters:
        yield wrong(r, count, "an interval of validations of no batch", "at least 1", f"{count}=1, or {every}=null")
    if t.eval_interval is not None and t.eval_interval > t.train_iters:
        yield wrong(r, every, "no validation would be made", f"1 to {t.train_iters}")
    if t.eval_iters and r.data.name == "mock":
        yield wrong(r, count, "mock data is each stack's own: no two would validate on the same", "0", "data=synthetic")
    elif t.eval_iters and not r.data.shares[1]:
        hint = "'data.split=\"95,5,0\"': another split is another order of samples"
        yield wrong(r, "data.split", "leaves nothing to validate on", "a second weight above 0", hint)


def _bounds(r: Request, s: Sizes) -> Iterator[Problem]:
    """Yield values beyond the bounds of their row in conf/vocabulary.yaml."""
    for name, value in requested(r, partial=True).items():
        setting = vocabulary()[name]
        if not setting.in_bounds(value):
            what = f"must be {setting.bounds}" + (f": {setting.because}" if setting.because else "")
            yield Problem(str(setting.request), what, str(value))


def _recompute(r: Request, s: Sizes) -> Iterator[Problem]:
    full = r.training.recompute_granularity == "full"
    for name in ("recompute_method", "recompute_num_layers"):
        key, value = f"training.{name}", getattr(r.training, name)
        if full and value is None:
            yield wrong(r, key, "full recompute needs it", hint="method uniform, num_layers 1")
        if not full and value is not None:
            yield wrong(r, key, "only for training.recompute_granularity=full", "null")


def _overlap(r: Request, s: Sizes) -> Iterator[Problem]:
    for name in ("use_distributed_optimizer", "overlap_grad_reduce") if r.method == IDENTICAL else ():
        if r.training.overlap_param_gather and not getattr(r.training, name):
            need = f"training.{name}=true"
            yield Problem("training.overlap_param_gather", f"needs {need}", "true", hint=need)


def _precision(r: Request, s: Sizes) -> Iterator[Problem]:
    hardware, precision = r.hardware, r.precision
    if precision.fp8 and hardware.peak_dense_tflops and "fp8" not in hardware.peak_dense_tflops:
        yield Problem("precision", f"{hardware.name} has no fp8 units", precision.name, "bf16, fp32", "precision=bf16")
    elif precision.fp8_recipe == "mxfp8" and not hardware.scales_blocks:
        what = f"{hardware.name} ({hardware.architecture}) has no units for MXFP8, which came with Blackwell and CDNA 4"
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
        yield Problem(TENSOR, what, hint=f"TP {r.ranks_per_node} or less, and more PP")


LAYOUT_RULES: tuple[Callable[[Request, Sizes], Iterator[Problem]], ...] = (
    *(_world, _groups, _tensor, _pipeline, _sequence, _batch, _shards),
    *(_routing, _experts, _experts_with_tensor),
)
SETTING_RULES = (_schedule, _validation, _bounds, _recompute, _overlap, _precision, _node)


def problems(r: Request, *, layout: bool = True) -> list[Problem]:
    """Return every violated rule, its equation, its numbers and the nearest valid values, of a request whose layout,
    training and optimizer are filled in. layout: False leaves out the rules about it."""
    rules = (*LAYOUT_RULES, *SETTING_RULES) if layout else SETTING_RULES
    return list(_positive(r)) or [problem for rule in rules for problem in rule(r, Sizes.of(r.layout))]


def _positive(r: Request) -> Iterator[Problem]:
    """Yield counts and sizes below 1, which no rule could divide by, and those beyond any that there will be."""
    sizes = [f"layout.{name}" for name in r.layout.__slots__ if name.endswith("_parallel_size")]
    sizes += ["layout.data_parallel_shards", "layout.data_parallel_replicas"]
    counts = (
        *("micro_batch_size", "global_batch_size", "seq_length", "train_iters"),
        *("eval_interval", "save_interval", "keep_checkpoints"),
    )
    others = ("nodes", "gpus_per_node", "optimizer.lr_decay_iters")
    values = {key: follow(r, key) for key in (*sizes, *(f"training.{name}" for name in counts), *others)}
    yield from _counts({**values, **_model_counts(r.model)})


def _model_counts(model: Model) -> dict[str, int]:
    counts = leaves({"model": asdict(model)})
    return {key: n for key, n in counts if type(n) is int and key.rpartition(".")[2] not in MAY_BE_ZERO}


def _counts(values: Mapping[str, int | None]) -> Iterator[Problem]:
    for key, value in values.items():
        most = MOST_LAYERS if key in ("model.num_layers", "model.mtp_num_layers") else MOST
        if value is not None and not 1 <= value <= most:
            yield Problem(key, "must be at least 1" if value < 1 else f"must be at most {most}", str(value))


def model_problems(model: Model) -> list[Problem]:
    """Return every violated rule of a model by itself: `problems` without what an experiment adds."""
    alone: Any = SimpleNamespace(model=model)
    rules = (_groups, _routing, _bounds)
    return list(_counts(_model_counts(model))) or [problem for rule in rules for problem in rule(alone, Sizes())]
