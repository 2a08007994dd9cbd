"""Read and check the engine's settings file: one flat JSON object in canonical (Megatron) names.

All problems are collected before the refusal, and nothing has a default: a run must be what its file says.
Does not import torch, so that a refusal takes no time.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

from engine_rules import Problem, Rule, broken_relations, flag, one_of, real, text, whole

Count = Annotated[int, whole(1)]
Steps = Annotated[int, whole(0)]
Probability = Annotated[float, real(0, below=1)]
Positive = Annotated[float, real(0, open_start=True)]
NotNegative = Annotated[float, real(0)]
Flag = Annotated[bool, flag()]
_NO_MLA = "the engine has no multi-head latent attention"


class SettingsError(Exception):
    """The settings cannot be run; the message has one line for each problem."""

    def __init__(self, path: str, problems: list[Problem]) -> None:
        """`path` is the settings file as it was given."""
        noun = "problem" if len(problems) == 1 else "problems"
        lines = [f"engine: settings refused, {len(problems)} {noun}", *(problem.line(path) for problem in problems)]
        super().__init__("\n".join(lines))


@dataclass(frozen=True, slots=True)
class Settings:
    """One run of the engine. Sizes are global (not per rank); rates are per step; `None` means "not used"."""

    num_layers: Count
    hidden_size: Count
    ffn_hidden_size: Count
    num_attention_heads: Count
    num_query_groups: Count
    kv_channels: Count
    vocab_size: Count
    padded_vocab_size: Count
    max_position_embeddings: Count
    rotary_base: Positive
    use_rope_scaling: Flag
    rope_scaling_factor: Annotated[float | None, real(0, open_start=True, or_null=True)]
    normalization: Annotated[Literal["RMSNorm"], one_of("RMSNorm", because="the engine brings its own RMSNorm only")]
    norm_epsilon: Positive
    swiglu: Annotated[Literal[True], one_of(True, because="the engine's MLP is gated SiLU")]
    add_bias_linear: Flag
    add_qkv_bias: Flag
    untie_embeddings_and_output_weights: Flag
    qk_layernorm: Flag
    num_experts: Annotated[int | None, whole(2, or_null=True)]
    moe_router_topk: Annotated[int | None, whole(1, or_null=True)]
    moe_ffn_hidden_size: Annotated[int | None, whole(1, or_null=True)]
    moe_shared_expert_intermediate_size: Annotated[int | None, whole(1, or_null=True)]
    moe_router_load_balancing_type: Annotated[
        Literal["none", "aux_loss", "seq_aux_loss"] | None,
        one_of(None, "none", "aux_loss", "seq_aux_loss", because="others know the order of micro-batches"),
    ]
    moe_aux_loss_coeff: Annotated[float | None, real(0, or_null=True)]
    moe_first_dense_layers: Annotated[int | None, whole(0, or_null=True)]
    multi_latent_attention: Annotated[Literal[False] | None, one_of(False, None, because=_NO_MLA)]
    q_lora_rank: Annotated[None, one_of(None, because=_NO_MLA)]
    kv_lora_rank: Annotated[None, one_of(None, because=_NO_MLA)]
    qk_head_dim: Annotated[None, one_of(None, because=_NO_MLA)]
    qk_pos_emb_head_dim: Annotated[None, one_of(None, because=_NO_MLA)]
    v_head_dim: Annotated[None, one_of(None, because=_NO_MLA)]
    mtp_num_layers: Annotated[None, one_of(None, because="the engine has no multi-token prediction")]
    init_method_std: Positive
    hidden_dropout: Probability
    attention_dropout: Probability
    seq_length: Count
    micro_batch_size: Count
    global_batch_size: Count
    train_iters: Count
    seed: Steps
    recompute_granularity: Annotated[Literal["full", "selective"] | None, one_of(None, "full", "selective")]
    recompute_method: Annotated[Literal["uniform", "block"] | None, one_of(None, "uniform", "block")]
    recompute_num_layers: Annotated[int | None, whole(1, or_null=True)]
    use_distributed_optimizer: Flag
    overlap_grad_reduce: Flag
    overlap_param_gather: Flag
    save_interval: Annotated[int | None, whole(1, or_null=True)]
    accumulate_allreduce_grads_in_fp32: Flag
    optimizer: Annotated[Literal["adam"], one_of("adam")]
    lr: Positive
    min_lr: NotNegative
    lr_warmup_iters: Steps
    lr_warmup_init: NotNegative
    lr_decay_iters: Count
    lr_decay_style: Annotated[Literal["cosine"], one_of("cosine")]
    weight_decay: NotNegative
    adam_beta1: Probability
    adam_beta2: Probability
    adam_eps: Positive
    clip_grad: NotNegative
    tensor_model_parallel_size: Count
    pipeline_model_parallel_size: Count
    virtual_pipeline_model_parallel_size: Annotated[int | None, whole(2, or_null=True)]
    context_parallel_size: Count
    expert_model_parallel_size: Count
    sequence_parallel: Flag
    data_parallel_size: Count
    world_size: Count
    num_micro_batches: Count
    params_dtype: Annotated[Literal["float32", "bfloat16"], one_of("float32", "bfloat16")]
    fp8: Annotated[None, one_of(None, because="fp8 needs TransformerEngine")]
    fp8_recipe: Annotated[None, one_of(None, because="fp8 needs TransformerEngine")]
    attention_backend: Annotated[Literal["sdpa", "unfused"], one_of("sdpa", "unfused")]
    device: Annotated[Literal["cpu", "cuda", "rocm"], one_of("cpu", "cuda", "rocm")]
    data: Annotated[Literal["synthetic", "mock", "prefix"], one_of("synthetic", "mock", "prefix")]
    data_path: Annotated[str | None, text(or_null=True)]
    split: Annotated[Literal["100,0,0", "1,1,1"], one_of("100,0,0", "1,1,1")]


def read_settings(path: str) -> Settings:
    """Return the settings in the JSON file at `path`.

    Raises:
        SettingsError: the file cannot be read, or anything in it cannot be run as this process was started.
    """
    found = _read_object(path)
    rules = _rules()
    problems = [*_key_problems(found, rules), *_value_problems(found, rules)]
    if not problems:
        settings = Settings(**found)
        problems = [*broken_relations(settings), *_world_problems(settings)] or [*_data_problems(settings)]
    if problems:
        raise SettingsError(path, problems)
    return settings


class _Duplicates(NamedTuple):
    """What the JSON object held, and the keys it held more than once (json would keep the last silently)."""

    values: dict[str, Any]
    keys: list[str]


def _read_object(path: str) -> dict[str, Any]:
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"), object_pairs_hook=_pairs)
    except (OSError, ValueError) as error:
        raise SettingsError(path, [Problem("(file)", str(error), "one JSON object", "check the path")]) from error
    if not isinstance(found, _Duplicates):
        kind = type(found).__name__
        raise SettingsError(path, [Problem("(file)", f"a {kind}", "one JSON object", "write {...}")])
    if found.keys:
        twice = [Problem(key, "given twice", "each key once", "remove one") for key in found.keys]
        raise SettingsError(path, twice)
    return found.values


def _pairs(pairs: list[tuple[str, Any]]) -> _Duplicates:
    names = [name for name, _ in pairs]
    return _Duplicates(dict(pairs), sorted({name for name in names if names.count(name) > 1}))


def _rules() -> dict[str, Rule]:
    hints = get_type_hints(Settings, include_extras=True)
    return {name: hints[name].__metadata__[0] for name in Settings.__dataclass_fields__}


def _key_problems(found: dict[str, Any], rules: dict[str, Rule]) -> Iterator[Problem]:
    for key in found.keys() - rules.keys():
        near = difflib.get_close_matches(key, rules, n=1)
        yield Problem(key, "an unknown key", "canonical names", f"use {near[0]}" if near else "remove it")
    for key in [key for key in rules if key not in found]:
        yield Problem(key, "nothing", rules[key].allowed, "add it: every key is required")


def _value_problems(found: dict[str, Any], rules: dict[str, Rule]) -> Iterator[Problem]:
    for key in [key for key in rules if key in found]:
        if not rules[key].accepts(found[key]):
            yield Problem(key, json.dumps(found[key], default=repr), rules[key].allowed, rules[key].attempt)


def _data_problems(s: Settings) -> Iterator[Problem]:
    """The corpus fits the run. Its ids are not looked at: corpus.py does that once, before the ranks start."""
    if s.data == "mock":
        return
    from corpus_order import Reading, check_length, open_corpus
    from rank_program import Refused

    try:
        corpus = open_corpus(s.data_path or "")
        reading = Reading(s.seq_length, s.global_batch_size, s.train_iters * s.global_batch_size, s.seed)
        check_length(corpus, reading)
    except Refused as error:
        for where, what, found, allowed, attempt in error.problems:
            yield Problem(f"data_path: {where} {what}", found, allowed, attempt)


def _world_problems(settings: Settings) -> Iterator[Problem]:
    started = os.environ.get("WORLD_SIZE")
    if started is None:
        yield Problem("world_size", "no WORLD_SIZE in the environment", "a process of torchrun", "start with torchrun")
    elif started != str(settings.world_size):
        found = f"{settings.world_size}, and torchrun started {started}"
        yield Problem("world_size", found, "the same number", "change --nproc-per-node, --nnodes or the layout")
