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
        return value < below and (value > least if open_start else value >= least)

    words = f"a number {'>' if open_start else '>='} {least}"
    words += f" and < {below}" * (below != math.inf) + " or null" * or_null
    return Rule(accepts, words, "write a plain number, without quotes")


def flag() -> Rule:
    """`true` or `false`."""
    return Rule(lambda value: type(value) is bool, "true or false", "write true or false, without quotes")


def one_of(*choices: str | int | bool | None, because: str = "") -> Rule:
    """One of `choices`; `because` is told where there is a single one."""
    words = [json.dumps(choice) for choice in choices]
    return Rule(
        lambda value: any(type(value) is type(choice) and value == choice for choice in choices),
        " or ".join(words) + f" ({because})" * bool(because),
        f"write {words[0]}",
    )


def broken_relations(settings: Settings) -> Iterator[Problem]:
    """Every relation between the values of `settings` that does not hold."""
    for relations in (_divisions, _bounds, _switches, _recomputation):
        yield from relations(settings)


def _divisions(s: Settings) -> Iterator[Problem]:
    tp, batch = s.tensor_model_parallel_size, s.micro_batch_size * s.data_parallel_size
    tp_name, pp_name = "tensor_model_parallel_size", "pipeline_model_parallel_size"
    checks = (
        ("num_attention_heads", s.num_attention_heads, "num_query_groups", s.num_query_groups),
        ("num_query_groups", s.num_query_groups, tp_name, tp),
        ("ffn_hidden_size", s.ffn_hidden_size, tp_name, tp),
        ("padded_vocab_size", s.padded_vocab_size, tp_name, tp),
        ("num_layers", s.num_layers, pp_name, s.pipeline_model_parallel_size),
        ("global_batch_size", s.global_batch_size, "micro_batch_size x data_parallel_size", batch),
        ("seq_length", s.seq_length, f"{tp_name} (sequence_parallel)", tp if s.sequence_parallel else 1),
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
    product = s.tensor_model_parallel_size * s.pipeline_model_parallel_size * s.data_parallel_size
    if s.world_size != product:
        allowed = f"{product} = tensor x pipeline x data parallel size"
        yield Problem("world_size", str(s.world_size), allowed, f"{product}, or another layout")


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
    stage = s.num_layers // s.pipeline_model_parallel_size
    if (s.recompute_num_layers or 0) > stage:
        allowed = f"not above {stage}, the layers of one pipeline stage"
        yield Problem("recompute_num_layers", str(s.recompute_num_layers), allowed, str(stage))
