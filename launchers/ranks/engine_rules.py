"""What a value of the settings file may be, and how the values must fit together."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine_settings import Settings


@dataclass(frozen=True, slots=True)
class Problem:
    """One reason for a refusal: the key, what was found, what is allowed, one thing to try."""

    key: str
    found: str
    allowed: str
    attempt: str

    def line(self, path: str) -> str:
        """The problem as one line of the message; `path` is the settings file."""
        return f"  {path}: {self.key}: found {self.found}; allowed: {self.allowed}; try: {self.attempt}"


@dataclass(frozen=True, slots=True)
class Rule:
    """Which single values a key accepts, in code and in words."""

    accepts: Callable[[Any], bool]
    allowed: str
    attempt: str


def whole(least: int, *, or_null: bool = False) -> Rule:
    """A whole number not below `least`."""

    def accepts(value: Any) -> bool:
        if value is None:
            return or_null
        return type(value) is int and value >= least  # bool is a subclass of int

    return Rule(accepts, f"a whole number >= {least}{' or null' * or_null}", f"write {least}, without quotes")


def real(least: float, *, below: float = math.inf, open_start: bool = False, or_null: bool = False) -> Rule:
    """A finite number in [least, below), or in (least, below) with `open_start`."""

    def accepts(value: Any) -> bool:
        if value is None:
            return or_null
        if type(value) not in (int, float) or not math.isfinite(value):
            return False
        return bool(value < below and (value > least if open_start else value >= least))

    words = f"a number {'>' if open_start else '>='} {least}"
    words += f" and < {below}" * (below != math.inf) + " or null" * or_null
    return Rule(accepts, words, "write a plain number, without quotes")


def flag() -> Rule:
    """`true` or `false`."""
    return Rule(lambda value: type(value) is bool, "true or false", "write true or false, without quotes")


def text(*, or_null: bool = False) -> Rule:
    """A text that is not empty."""

    def accepts(value: Any) -> bool:
        return (isinstance(value, str) and value != "") or (or_null and value is None)

    return Rule(accepts, f"a path{' or null' * or_null}", "write a path, in quotes")


def one_of(*choices: str | int | bool | None, because: str = "") -> Rule:
    """One of `choices`; `because` says why there is no other."""
    words = [json.dumps(choice) for choice in choices]
    return Rule(
        lambda value: any(type(value) is type(choice) and value == choice for choice in choices),
        " or ".join(words) + f" ({because})" * bool(because),
        f"write {words[0]}",
    )


def broken_relations(settings: Settings) -> Iterator[Problem]:
    """Every relation between the values of `settings` that does not hold."""
    for relations in (_data, _divisions, _bounds, _switches, _recomputation, _interleaving, _expert_settings):
        yield from relations(settings)


def _divisions(s: Settings) -> Iterator[Problem]:
    tp, batch = s.tensor_model_parallel_size, s.micro_batch_size * s.data_parallel_size
    tp_name, pp_name = "tensor_model_parallel_size", "pipeline_model_parallel_size"
    pieces = (tp if s.sequence_parallel else 1) * (2 * s.context_parallel_size if s.context_parallel_size > 1 else 1)
    checks = (
        ("num_attention_heads", s.num_attention_heads, "num_query_groups", s.num_query_groups),
        ("num_query_groups", s.num_query_groups, tp_name, tp),
        ("ffn_hidden_size", s.ffn_hidden_size, tp_name, tp),
        ("padded_vocab_size", s.padded_vocab_size, tp_name, tp),
        ("moe_ffn_hidden_size", s.moe_ffn_hidden_size or 0, tp_name, tp),
        ("moe_shared_expert_intermediate_size", s.moe_shared_expert_intermediate_size or 0, tp_name, tp),
        ("num_layers", s.num_layers, f"{pp_name} x virtual stages", _stages(s)),
        ("global_batch_size", s.global_batch_size, "micro_batch_size x data_parallel_size", batch),
        ("seq_length", s.seq_length, f"{tp_name} (sequence_parallel) x 2 context_parallel_size", pieces),
    )
    for key, number, divisor_name, divisor in checks:
        if number % divisor:
            near = max(divisor, number - number % divisor)
            yield Problem(key, str(number), f"a multiple of {divisor_name} = {divisor}", f"{near}")


def _bounds(s: Settings) -> Iterator[Problem]:
    checks = (
        ("vocab_size", s.vocab_size, "padded_vocab_size", s.padded_vocab_size),
        ("seq_length", s.seq_length, "max_position_embeddings", s.max_position_embeddings),
        ("min_lr", s.min_lr, "lr", s.lr),
        ("lr_warmup_init", s.lr_warmup_init, "lr", s.lr),
        ("lr_warmup_iters", s.lr_warmup_iters, "lr_decay_iters - 1", s.lr_decay_iters - 1),
    )
    for key, number, limit_name, limit in checks:
        if number > limit:
            yield Problem(key, str(number), f"not above {limit_name} = {limit}", f"{limit}")
    micro_batches = s.global_batch_size // (s.micro_batch_size * s.data_parallel_size)
    if s.num_micro_batches != micro_batches:
        allowed = f"{micro_batches} = global_batch_size / (micro_batch_size x data_parallel_size)"
        yield Problem("num_micro_batches", str(s.num_micro_batches), allowed, f"{micro_batches}")
    model_ranks = s.tensor_model_parallel_size * s.pipeline_model_parallel_size
    product = model_ranks * s.context_parallel_size * s.data_parallel_size
    if s.world_size != product:
        allowed = f"{product} = tensor x pipeline x context x data parallel size"
        yield Problem("world_size", str(s.world_size), allowed, f"{product}, or another layout")


def _data(s: Settings) -> Iterator[Problem]:
    mock = s.data == "mock"
    if mock != (s.data_path is None):
        allowed = "null with data mock, else the path of a corpus without .bin and .idx"
        yield Problem("data_path", str(s.data_path), allowed, "null" if mock else "write the path")
    split = "1,1,1" if mock else "100,0,0"
    if s.split != split:
        yield Problem("split", s.split, f"{split} with data {s.data}", split)
    if mock and s.vocab_size < 4096:
        allowed = "4096 or more with data mock: Megatron's mock data has ids up to 4094 whatever the vocabulary"
        yield Problem("vocab_size", str(s.vocab_size), allowed, "data synthetic")


def _switches(s: Settings) -> Iterator[Problem]:
    if s.sequence_parallel and s.tensor_model_parallel_size == 1:
        yield Problem("sequence_parallel", "true", "false where tensor_model_parallel_size is 1", "false")
    if s.kv_channels % 2:
        yield Problem("kv_channels", str(s.kv_channels), "an even number (RoPE turns pairs)", str(s.kv_channels + 1))
    if s.use_rope_scaling != (s.rope_scaling_factor is not None):
        allowed = "a number where use_rope_scaling is true, else null"
        yield Problem(
            "rope_scaling_factor", str(s.rope_scaling_factor), allowed, "8.0" if s.use_rope_scaling else "null"
        )
    if s.attention_backend == "unfused" and s.context_parallel_size > 1:
        allowed = '"sdpa" with context parallelism (transformer/dot_product_attention.py:58)'
        yield Problem("attention_backend", '"unfused"', allowed, '"sdpa", or context_parallel_size 1')
    # megatron/training/arguments.py asserts the same two
    if s.overlap_param_gather and not (s.use_distributed_optimizer and s.overlap_grad_reduce):
        allowed = "false without use_distributed_optimizer and overlap_grad_reduce"
        yield Problem("overlap_param_gather", "true", allowed, "set both to true")


def _recomputation(s: Settings) -> Iterator[Problem]:
    wanted = s.recompute_granularity == "full"
    for key in ("recompute_method", "recompute_num_layers"):
        found = getattr(s, key)
        if wanted != (found is not None):
            allowed = f"{'a value' if wanted else 'null'} with recompute_granularity {s.recompute_granularity}"
            attempt = ("uniform" if key == "recompute_method" else "1") if wanted else "null"
            yield Problem(key, str(found), allowed, attempt)
    stage = s.num_layers // _stages(s)
    if (s.recompute_num_layers or 0) > stage:
        allowed = f"not above {stage}, the layers of one (virtual) pipeline stage"
        yield Problem("recompute_num_layers", str(s.recompute_num_layers), allowed, str(stage))


def _stages(s: Settings) -> int:
    return s.pipeline_model_parallel_size * (s.virtual_pipeline_model_parallel_size or 1)


def _interleaving(s: Settings) -> Iterator[Problem]:
    if s.virtual_pipeline_model_parallel_size is None:
        return
    key, stages = "virtual_pipeline_model_parallel_size", s.pipeline_model_parallel_size
    if stages == 1:
        yield Problem(key, str(s.virtual_pipeline_model_parallel_size), "null without pipeline stages", "null")
    if s.num_micro_batches % stages:
        allowed = f"a multiple of pipeline_model_parallel_size = {stages} with virtual stages"
        yield Problem("num_micro_batches", str(s.num_micro_batches), allowed, "another global_batch_size")


def _expert_settings(s: Settings) -> Iterator[Problem]:
    needed = ("moe_router_topk", "moe_ffn_hidden_size", "moe_router_load_balancing_type", "moe_aux_loss_coeff")
    if s.num_experts is None:
        for key in (*needed, "moe_shared_expert_intermediate_size", "moe_first_dense_layers"):
            if getattr(s, key):
                yield Problem(key, str(getattr(s, key)), "null where num_experts is null", "null")
        if s.expert_model_parallel_size > 1:
            found = str(s.expert_model_parallel_size)
            yield Problem("expert_model_parallel_size", found, "1 where num_experts is null", "1")
        return
    for key in needed:
        if getattr(s, key) is None:
            yield Problem(key, "null", "a value where num_experts is one", "see the model's config file")
    yield from _expert_layout(s, s.num_experts)


def _expert_layout(s: Settings, experts: int) -> Iterator[Problem]:
    size, ranks = s.expert_model_parallel_size, s.data_parallel_size * s.context_parallel_size
    if (s.moe_router_topk or 1) > experts:
        yield Problem("moe_router_topk", str(s.moe_router_topk), f"not above num_experts = {experts}", str(experts))
    if (s.moe_first_dense_layers or 0) >= s.num_layers:
        yield Problem("moe_first_dense_layers", str(s.moe_first_dense_layers), f"below num_layers {s.num_layers}", "0")
    for name, number in (("num_experts", experts), ("data x context parallel size", ranks)):
        if number % size:
            yield Problem("expert_model_parallel_size", str(size), f"a divisor of {name} = {number}", "1")
    if s.add_bias_linear:
        yield Problem("add_bias_linear", "true", "false with experts (transformer/moe/moe_layer.py)", "false")
    if s.tensor_model_parallel_size > 1 and not s.sequence_parallel:
        allowed = "true with experts and tensor parallelism (transformer/moe/moe_layer.py)"
        yield Problem("sequence_parallel", "false", allowed, "true")
