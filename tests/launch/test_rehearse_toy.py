"""rehearse=train shrinks any experiment of conf/ to a valid toy that keeps what decides a comparison."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from functools import cache
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from conf.check import tensor_sizes
from conf.compose import choices, compose, entry
from conf.errors import ConfigError
from conf.facts import layout_rows
from conf.freeze import freeze
from conf.resolve import Experiment, resolve
from conf.schema import Common, Hardware, LayoutChoice, Request
from launchers.rehearse import PROCESSES, in_layout, toy

pytestmark = pytest.mark.long

SIZES = ("tensor_model", "pipeline_model", "virtual_pipeline_model", "context", "expert_model", "data")
KEPT_OF_MODEL = (
    *("name", "rotary_base", "use_rope_scaling", "rope_scaling_factor", "yarn", "normalization", "norm_epsilon"),
    *("qk_layernorm", "swiglu", "quick_geglu", "add_bias_linear", "add_qkv_bias", "softmax_type"),
    *("untie_embeddings_and_output_weights", "init_method_std", "hidden_dropout", "attention_dropout"),
    *("make_vocab_size_divisible_by", "max_position_embeddings", "window_attn_skip_freq"),
)
KEPT_OF_OPTIMIZER = (
    *("optimizer", "lr", "min_lr", "lr_decay_style", "weight_decay"),
    *("adam_beta1", "adam_beta2", "adam_eps", "clip_grad"),
)
KEPT_OF_TRAINING = (
    *("seed", "recompute_granularity", "recompute_method", "use_distributed_optimizer", "overlap_grad_reduce"),
    "overlap_param_gather",
)
KEPT = {"model": KEPT_OF_MODEL, "optimizer": KEPT_OF_OPTIMIZER, "training": KEPT_OF_TRAINING}


@cache
def request(model: str) -> Request:
    """Return what the model's file requests, by GPU; composing takes a quarter of a second."""
    config = compose(["platform=nvidia", "framework=megatron_bridge", "rehearse=train", f"model={model}"])
    problems: list[Any] = []
    frozen: Request = freeze(Request, config, "", problems)
    assert not problems
    return frozen


@cache
def hardware(name: str) -> Hardware:
    frozen: Hardware = freeze(Hardware, entry("hardware", name), "hardware", [])
    return frozen


def sizes(e: Experiment) -> dict[str, int]:
    return {name: getattr(e.layout, f"{name}_parallel_size") or 1 for name in SIZES}


def valid(e: Experiment) -> Experiment:
    """Return the settled `e` after all its rules were applied anew."""
    requested = request("llama31_8b")
    layout = LayoutChoice(
        table=None, **{name: getattr(e.layout, name) for name in LayoutChoice.__slots__ if name != "table"}
    )
    kept = {field.name: getattr(e, field.name) for field in fields(Common)}
    return resolve(replace(requested, **kept, layout=layout, gpus_per_node=e.gpus_per_node), ())


def check(e: Experiment) -> Experiment:
    """Return the toy of `e`, after all that must hold of any."""
    small = toy(e)
    data_parallel_size = valid(small).layout.data_parallel_size
    assert data_parallel_size == small.layout.data_parallel_size
    assert small.layout.world_size == small.gpus_per_node <= PROCESSES
    micro_batch, accumulated = small.training.micro_batch_size, small.layout.num_micro_batches
    assert micro_batch is not None and data_parallel_size is not None and accumulated is not None
    per_step = micro_batch * data_parallel_size * accumulated
    assert per_step == small.training.global_batch_size <= 8
    full, ran = sizes(e), sizes(small)
    assert all((ran[name] > 1) <= (full[name] > 1) and ran[name] <= 2 for name in SIZES)
    if sum(full[name] > 1 for name in ("tensor_model", "pipeline_model", "context", "data")) <= 2 and not (
        full["tensor_model"] > 1 and full["expert_model"] > 1
    ):
        assert {n for n in SIZES if full[n] > 1} == {n for n in SIZES if ran[n] > 1}, "four processes hold them"
    assert (ran["virtual_pipeline_model"] > 1) == (ran["pipeline_model"] > 1 and full["virtual_pipeline_model"] > 1)
    assert (small.layout.num_micro_batches == 1) == (e.layout.num_micro_batches == 1)
    for group, names in KEPT.items():
        part, full = getattr(small, group), getattr(e, group)
        assert [getattr(part, name) for name in names] == [getattr(full, name) for name in names]
    heads = small.model.num_attention_heads * e.model.num_query_groups
    assert heads == e.model.num_attention_heads * small.model.num_query_groups, "the ratio of heads to groups"
    for name in ("mla", "moe", "mtp_num_layers", "window_size"):
        assert (getattr(small.model, name) is None) == (getattr(e.model, name) is None)
    assert all(a <= b for a, b in zip(numbers(small), numbers(e), strict=True)), "nothing grows"
    assert (small.model.padded_vocab_size > small.model.vocab_size) == (e.model.padded_vocab_size > e.model.vocab_size)
    share, ran_share = (o.optimizer.lr_warmup_iters / o.training.train_iters for o in (e, small))
    assert (share > 0) == (ran_share > 0) and abs(share - ran_share) <= 0.06
    return small


def numbers(e: Experiment) -> list[int]:
    flat = [asdict(e.model), asdict(e.model)["moe"] or {}, asdict(e.model)["mla"] or {}]
    return [value for part in flat for value in part.values() if type(value) is int]


GPUS = [name for name in choices("hardware") if name not in ("cpu", "unknown")]
ROWS = [(row, name) for row in layout_rows() for name in ("h100", "mi300x")]


def test_every_row_of_the_layouts_has_a_toy() -> None:
    for row, gpu in ROWS:
        requested, nodes = request(row.model), max(1, row.gpus // 8)
        batch = 128 * (row.micro_batch_size or 1)
        requested = replace(requested, hardware=hardware(gpu), nodes=nodes, gpus_per_node=row.gpus // nodes)
        table: Any = row.table  # one that no request may name, too
        layout = replace(requested.layout, name=row.table, table=table)
        precision = replace(requested.precision, name="bf16")
        training = replace(requested.training, global_batch_size=batch)
        e = resolve(replace(requested, layout=layout, precision=precision, training=training), ())
        check(e)


@st.composite
def experiments(draw: st.DrawFn) -> Experiment:
    """Return any model by any layout that its rules allow, on any GPU. What plainly cannot divide is not drawn: a test
    that rejects nine of ten draws is ended by Hypothesis."""
    requested = request(draw(st.sampled_from(choices("model"))))
    gpu = hardware(draw(st.sampled_from(GPUS)))
    model = requested.model
    tp = draw(st.sampled_from([n for n in tensor_sizes(model) if n <= 8]))
    first, last = draw(st.sampled_from(((False, False), (True, True), (False, True), (True, False))))
    counted = model.num_layers + first + last
    pp = draw(st.sampled_from([n for n in (1, 2, 3, 4, 7, 11) if counted % n == 0]))
    vp = draw(st.sampled_from([n for n in (1, 2, 5) if n == 1 or (pp > 1 and counted % (pp * n) == 0)]))
    first, last = first and pp > 1, last and pp > 1
    cp, dp = draw(st.sampled_from((1, 2))), draw(st.sampled_from((1, 2, 3, 8)))
    ep = draw(st.sampled_from([n for n in (1, 2, 4, 8) if n == 1 or (model.moe and cp * dp % n == 0)]))
    world = tp * cp * pp * dp
    per_node = next(n for n in (8, 4, 2, 1) if world % n == 0)
    micro, steps = draw(st.integers(1, 4)), draw(st.integers(1, 5000))
    accumulation = draw(st.integers(1, 24)) * (pp if vp > 1 else 1)
    layout = replace(
        requested.layout,
        name="explicit",
        table=None,
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp,
        virtual_pipeline_model_parallel_size=vp if vp > 1 else None,
        context_parallel_size=cp,
        expert_model_parallel_size=ep,
        account_for_embedding_in_pipeline_split=first,
        account_for_loss_in_pipeline_split=last,
    )
    training = replace(
        requested.training,
        micro_batch_size=micro,
        global_batch_size=micro * dp * accumulation,
        train_iters=steps,
        recompute_granularity=draw(st.sampled_from(("full", "selective", None))),
    )
    if training.recompute_granularity == "full":
        training = replace(training, recompute_method="block", recompute_num_layers=draw(st.integers(1, 40)))
    optimizer = replace(requested.optimizer, lr_warmup_iters=draw(st.integers(0, steps - 1)), lr_decay_iters=None)
    data = replace(requested.data, name="mock", path=None, split="1,1,1") if draw(st.booleans()) else requested.data
    changed = replace(requested, layout=layout, training=training, optimizer=optimizer, data=data)
    try:
        return resolve(replace(changed, hardware=gpu, nodes=world // per_node, gpus_per_node=per_node), ())
    except ConfigError:
        assume(False)
        raise


@settings(max_examples=50, deadline=None)
@given(experiments())
def test_any_experiment_has_a_toy_and_a_layout_to_play(e: Experiment) -> None:
    check(e)
    played = in_layout(replace(e, rehearse="layout"))
    valid(played)
    assert (played.layout, played.model) == (e.layout, e.model), "at full size"


def test_what_a_toy_is() -> None:
    """The default experiment in numbers: a reader sees what is left of it."""
    small = check(resolve(request("llama31_8b"), ()))
    assert str(small.layout) == "TP2 DP2 SP"
    assert (small.training.train_iters, small.optimizer.lr_warmup_iters) == (10, 2)
    assert (small.training.global_batch_size, small.layout.num_micro_batches, small.training.seq_length) == (8, 4, 64)
    model = small.model
    assert (model.num_layers, model.hidden_size, model.num_attention_heads, model.num_query_groups) == (4, 128, 8, 2)
    assert (model.vocab_size, model.padded_vocab_size) == (1024, 1024)


def test_the_same_batch_whatever_the_layout() -> None:
    """Or two vendors' own layouts could not be compared step by step."""
    requested = request("llama31_8b")
    batches = set()
    for dp, micro in ((8, 1), (4, 4), (1, 2), (8, 16)):
        training = replace(requested.training, global_batch_size=128, micro_batch_size=micro)
        layout = replace(requested.layout, name="data_parallel", table=None)
        e = resolve(replace(requested, layout=layout, training=training, gpus_per_node=dp), ())
        batches.add(toy(e).training.global_batch_size)
    assert batches == {8}


def test_one_model_whatever_the_layout() -> None:
    """Or two layouts of one experiment part, and nothing is wrong."""
    for name in ("llama31_8b", "qwen25_0p5b", "mixtral_8x7b"):
        requested, models = request(name), []
        for tp, pp, vp, ep in ((1, 1, None, 1), (2, 1, None, 1), (1, 2, None, 1), (1, 4, 2, 1), (1, 1, None, 2)):
            layout = replace(
                requested.layout,
                name="explicit",
                table=None,
                tensor_model_parallel_size=tp,
                pipeline_model_parallel_size=pp,
                virtual_pipeline_model_parallel_size=vp,
                expert_model_parallel_size=ep if requested.model.moe else 1,
            )
            models.append(toy(resolve(replace(requested, layout=layout), ())).model)
        assert all(model == models[0] for model in models), name


def test_a_corpus_of_the_users_own_keeps_its_vocabulary() -> None:
    requested = request("llama31_8b")
    small = toy(resolve(replace(requested, data=replace(requested.data, name="prefix", path="/x/y")), ()))
    assert (small.model.vocab_size, small.data.path) == (128256, "/x/y")
