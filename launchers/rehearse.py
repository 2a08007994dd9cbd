"""rehearse=train|layout: what of an Experiment a CPU can run with the real stack, and what it cannot show. Pure. train
runs a toy by the ordinary plan. layout keeps every size, and starts one process for each of two ranks, which play them
in memory that nothing writes (launchers/ranks/rehearsal)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar

from conf.errors import ConfigError, Problem
from conf.resolve import Experiment, Layout
from conf.schema import MLA, Model, MoE, Optimizer, Training
from conf.shapes import ENDS, RankParameters, Sizes, per_stage
from conf.vocabulary import follow, leaves, read_yaml, requested, short_names, vocabulary
from launchers.attribute_settings import options
from launchers.frameworks import framework_of
from launchers.plan import Plan, Scope

FOLDER = Path(__file__).parent / "ranks" / "rehearsal"
TABLE = Path(__file__).parent / "settings" / "not_rehearsed.yaml"
PROBE = "probe"  # in the run's directory, where parsers/probe.py looks
_STILL_SO = ("platform ", "hardware ", "framework ")  # reasons of an experiment that hold of its toy
NOT_REQUESTED = (None, False, 1)
NO_OPTION = (None, False)
HALVINGS, PROCESSES = 2, 4  # two cores hold no more
STEPS = (8, 20)
BATCH, SEQ_LENGTH = 8, 64
LAYERS = 4  # two chunks on each of two stages; and the fourth layer, which some models have otherwise
CUT = 2  # every size of a toy's layout is 1 or 2: what it can cut is even in all of them, so that layouts share a toy
HIDDEN, FFN, HEAD, LOW_RANK, EXPERTS, TOPK = 128, 256, 16, 32, 4, 2
VOCABULARY = 1024
VALIDATED = 2  # batches of a toy's validation
MOCK_VOCABULARY = 4096  # Megatron-Core 0.15.3's mock data holds ids up to 4094, whatever the vocabulary
CORPUS_HIDDEN = 64  # beside the full vocabulary of a corpus of the user's own

_Part = TypeVar("_Part", Model, MLA, MoE, Training)


def prepared(e: Experiment) -> tuple[Experiment, Scope]:
    """Return what runs in place of `e`, and what is said of it; `e` itself where no rehearsal is requested.
    ConfigError: as in_layout."""
    if e.rehearse is None:
        return e, Scope()
    small = toy(e) if e.rehearse == "train" else in_layout(e)
    small, reasons = _on_a_cpu(framework_of(e.framework.name).rehearsed(small)), not_rehearsed(e)
    if e.rehearse == "train":  # how the full layout came about is no reason of the toy's
        small = replace(small, reasons=tuple(why for why in e.reasons if why.startswith(_STILL_SO)))
    return small, Scope(shrunk(e, small, reasons), reasons, tuple(_cautions(e, small)), e)


def shrunk(full: Experiment, ran: Experiment, but: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return every setting that `ran` has otherwise, by canonical name, or by its path where it has none. but: names
    that are reported elsewhere."""
    before, after = ({**requested(e), **_unnamed(e)} for e in (full, ran))
    names = (name for name in before if before[name] != after.get(name) and name not in but)
    return {name: {"asked": before[name], "ran": after.get(name)} for name in names}


def not_rehearsed(e: Experiment) -> dict[str, str]:
    """Return setting or topic → why a rehearsal of `e` shows nothing of it."""
    table, own, reasons = read_yaml(TABLE), framework_of(e.framework.name).not_rehearsed(), {}
    for row in (*table["settings"], *own.get("settings", ())):
        value = follow(e, row["of"])
        is_requested = value is True or value not in row.get("unless", NOT_REQUESTED)  # True == 1
        if is_requested and row.get("only", e.rehearse) == e.rehearse:
            reasons[row["name"]] = row["reason"]
    return {**table["topics"], **reasons, **{name: row["reason"] for name, row in _options(e).items()}}


def _options(e: Experiment) -> dict[str, dict[str, Any]]:
    """Return the options that a CPU or a toy does not have as requested → the first row of the tables that matches."""
    rows = (*framework_of(e.framework.name).not_rehearsed().get("options", ()), *read_yaml(TABLE)["options"])
    return {name: row for name, value in options(e).items() if (row := _row(rows, name, value))}


def _row(rows: Sequence[dict[str, Any]], name: str, value: Any) -> dict[str, Any] | None:
    names = (name, name.rpartition(".")[2])
    row = next((row for row in rows if any(fnmatchcase(one, row["pattern"]) for one in names)), None)
    return row if row and (value is True or value not in row.get("unless", NO_OPTION)) else None


def _on_a_cpu(e: Experiment) -> Experiment:
    """Return `e` as one run of what is installed here now, in bf16 for fp8, which no CPU has, and without the options
    that a stack refuses where it has no GPU."""
    without = _left_out(e)
    kept = (
        {name: value for name, value in options(e).items() if name not in without} if without else e.framework.options
    )
    return replace(
        e,
        framework=replace(e.framework, options=kept),
        precision=replace(e.precision, fp8=None, fp8_recipe=None),
        cluster=replace(e.cluster, container="none"),
        image=None,
        repeat=1,
        resume=False,
        rerun=True,
        probe=True,
    )


def _left_out(e: Experiment) -> dict[str, str]:
    """Return each option that a rehearsal runs without → why."""
    return {name: row["reason"] for name, row in _options(e).items() if not row.get("runs")}


def in_layout(e: Experiment) -> Experiment:
    """Return `e` at full size, without a corpus. ConfigError: nobody says which layers a rank of it holds."""
    try:
        parameters(e)
    except ValueError as error:
        what = f"the parameters of a rank cannot be checked: {error}"
        raise ConfigError(Problem("rehearse", what, "layout", "null, train", "rehearse=train")) from error
    training = replace(e.training, save_interval=None, eval_interval=None, eval_iters=0)
    mock = replace(e.data, name="mock", path=None, split="1,1,1", tokenizer=None, tokenizer_sha256=None)
    return replace(e, training=training, data=mock)


def played(e: Experiment) -> tuple[int, ...]:
    """Return the ranks of rehearse=layout: the first, and the first tensor rank of the last stage. A rank with another
    tensor rank waits for one with 0 to start it."""
    last = e.layout.world_size - e.layout.tensor_model_parallel_size
    return (0,) if e.layout.pipeline_model_parallel_size == 1 else (0, last)


def parameters(e: Experiment) -> dict[int, RankParameters]:
    """Return the parameters that each played rank must have, by our own count."""
    stages = per_stage(e.model, e.sizes())
    return dict(zip(played(e), (stages[0], stages[-1]), strict=False))


def attached(plan: Plan, e: Experiment) -> Plan:
    """Return `plan` with what e.rehearse, e.probe and e.equal_init put in front of the stack. Of rehearse=layout,
    `plan` starts one process: here it is started once for each rank."""
    added = {name: (value, why) for name, value, why in _variables(e)}
    if not added:
        return plan
    if e.rehearse == "layout":
        *before, last = (("env", f"TPRIMAT_PLAY_RANK={rank}", *plan.argv) for rank in played(e))
        plan = replace(plan, setup=(*plan.setup, *before), argv=last)
    if framework_of(e.framework.name).own_probe:
        return plan.with_env(added)
    path = (str(FOLDER), "whose sitecustomize puts the stand-in, the probe and equal weights in front")
    return plan.with_env({**added, "PYTHONPATH": path})


def _variables(e: Experiment) -> Iterator[tuple[str, str, str]]:
    if e.rehearse and not framework_of(e.framework.name).own_stand_in:
        yield "TPRIMAT_REHEARSE", e.rehearse, "rehearse: a stand-in for torch.cuda"
        if e.hardware.architecture:
            yield "TPRIMAT_ARCH", e.hardware.architecture, "hardware: what a GPU's capability is said to be"
    elif e.rehearse:
        yield "TPRIMAT_REHEARSED", e.rehearse, "rehearse: what every rank says of itself"
    if e.rehearse == "layout":
        yield "TPRIMAT_PLAY_WORLD", str(e.layout.world_size), "the world in which one process plays a rank"
        yield "LOCAL_WORLD_SIZE", str(e.gpus_per_node), "gpus_per_node"
    if e.probe:
        yield "TPRIMAT_PROBE", PROBE, "probe: where it is read back what runs"
    if e.equal_init:
        yield "TPRIMAT_EQUAL_INIT", str(e.training.seed), "equal_init: weights from their names and the seed"


def _unnamed(e: Experiment) -> dict[str, Any]:
    """Return the parts of the model that the vocabulary has no name for, by their path, and the numbers of runs."""
    named = {setting.request for setting in vocabulary().values()}
    model = {path: value for path, value in leaves({"model": asdict(e.model)}) if path not in named}
    return model | {"nodes": e.nodes, "gpus_per_node": e.gpus_per_node, "repeat": e.repeat}


def _cautions(e: Experiment, small: Experiment) -> Iterator[str]:
    """Yield how the rehearsal differs from the run: substitutes, parts left out, failures that a GPU would not have."""
    if small.layout.context_parallel_size > 1 and e.rehearse == "train":
        yield "context parallelism: each rank attends to its own part of the sequence alone: its losses are not CP's"
    if e.rehearse == "layout":
        yield "layout: one process plays a rank, nothing is sent: it ends before the first step and has no loss"
    if e.rehearse == "train" and not e.equal_init:
        yield "each stack draws its own first weights: with equal_init=false losses differ, and nobody can tell why"
    if e.cluster.container != "none" or e.image is not None:
        yield f"the stack installed on this machine is rehearsed, not that of image {e.image}"
    for name, why in _left_out(e).items():
        yield f"{name} is not rehearsed, and left out: {why}"
    if e.precision.fp8:
        yield "fp8 is not rehearsed: bf16 runs in its place"
    for name, short in short_names().items():
        full, ran = getattr(e.layout, name), getattr(small.layout, name)
        if (full or 1) > 1 and (ran or 1) == 1:
            why = "gloo refuses TP with EP" if short == "TP" and small.layout.expert_model_parallel_size > 1 else _ROOM
            yield f"{short} {full} is not rehearsed: {why}"


_ROOM = "four processes hold no more; rehearse=layout shows all of it"


def toy(e: Experiment) -> Experiment:
    """Return `e` shrunk to 1 to 4 processes of one node, 8 to 20 steps: sizes as small as they can be, and as requested
    what decides a comparison: optimizer, the schedule's shape, which sizes of the layout are above 1, the order of
    batch sizes, kinds of layer, RoPE, epsilon, ties, biases, gates, the ratio of heads to KV groups, data, seeds,
    recompute, overlap. The model is one in every layout, so that layouts are compared; but where embedding or loss
    count as a layer it has as many as its stages then divide."""
    layout, steps = _layout(e), _steps(e)
    batch = min(BATCH, 1 << (e.training.global_batch_size.bit_length() - 1))
    micro = _micro_batch(e, batch // layout.data_parallel_size)
    layout = replace(layout, num_micro_batches=batch // (micro * layout.data_parallel_size))
    sizes = Sizes.of(layout)
    model = _model(e, _layers(e.model.num_layers, sizes))
    training = replace(
        _at_most(e.training, seq_length=SEQ_LENGTH, recompute_num_layers=model.num_layers // (sizes.pp * sizes.vp)),
        global_batch_size=batch,
        micro_batch_size=micro,
        train_iters=steps,
        save_interval=None,
        eval_interval=e.training.eval_interval and min(e.training.eval_interval, steps // 2),
        eval_iters=min(e.training.eval_iters, VALIDATED),
        attention=e.training.attention if sizes.cp > 1 else "unfused",
    )
    return replace(
        e,
        model=model,
        layout=layout,
        training=training,
        optimizer=_optimizer(e, steps),
        nodes=1,
        gpus_per_node=layout.world_size,
    )


def _layout(e: Experiment) -> Layout:
    """Set every size above 1 to 2, as long as there are processes: experts first, then TP, PP, CP, DP, and DP's shards
    and their replicas. TP with EP gathers pieces of unequal size, which gloo refuses: EP is kept. It lives on the ranks
    of DP and CP."""
    full = Sizes.of(e.layout)
    wanted = [name for name in ("tp", "pp", "cp") if getattr(full, name) > 1]
    wanted += ["dp"] if e.layout.data_parallel_size > 1 else []
    sharded, repeated = e.layout.data_parallel_shards > 1, e.layout.data_parallel_replicas > 1
    wanted += ["replicas"] if sharded and repeated else []
    if full.ep > 1:
        carrier = "dp" if "dp" in wanted else "cp"
        wanted = [carrier, *(name for name in wanted if name not in (carrier, "tp"))]
    sizes = dict.fromkeys(wanted[:HALVINGS], 2)
    stages, tp = sizes.get("pp", 1), sizes.get("tp", 1)
    shards, replicas = sizes.get("dp", 1), sizes.get("replicas", 1)
    ends: dict[str, Any] = {name: getattr(e.layout, name) and stages > 1 for name in ENDS}
    return replace(
        e.layout,
        data_parallel_shards=shards if sharded else 1,
        data_parallel_replicas=replicas if sharded else shards,
        data_parallel_size=shards * replicas,
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=stages,
        context_parallel_size=sizes.get("cp", 1),
        virtual_pipeline_model_parallel_size=2 if stages > 1 and full.vp > 1 else None,
        expert_model_parallel_size=min(full.ep, 2),
        sequence_parallel=e.layout.sequence_parallel and tp > 1,
        world_size=2 ** len(sizes),
        **ends,
    )


def _micro_batch(e: Experiment, per_replica: int) -> int:
    """Return the samples of a replica, cut so that micro-batch and accumulation are above 1 where they were."""
    if e.training.micro_batch_size == 1 and per_replica > 1 and e.layout.num_micro_batches > 1:
        return 1
    return per_replica if e.layout.num_micro_batches == 1 else max(1, min(2, per_replica // 2))


def _steps(e: Experiment) -> int:
    """Return 8 to 20 steps, as many as keep the share of the warm-up best."""
    total, share = e.training.train_iters, e.optimizer.lr_warmup_iters / e.training.train_iters
    most = min(total, STEPS[1])
    return min(range(min(total, STEPS[0]), most + 1), key=lambda n: (abs(_warmup(share, n) / n - share), n))


def _warmup(share: float, steps: int) -> int:
    return min(max(1, round(share * steps)), steps - 1) if share else 0


def _optimizer(e: Experiment, steps: int) -> Optimizer:
    o, total = e.optimizer, e.training.train_iters
    warmup = _warmup(o.lr_warmup_iters / total, steps)
    decay = o.lr_decay_iters or total
    return replace(
        o,
        lr_warmup_iters=warmup,
        lr_decay_iters=steps if decay == total else max(warmup + 1, round(decay * steps / total)),
    )


def _layers(full: int, sizes: Sizes) -> int:
    """Return how many layers of `full` a toy has; with embedding or loss among them, each chunk one and more."""
    counted, chunks = sizes.first + sizes.last, sizes.pp * sizes.vp
    if not counted:
        return _even(full, LAYERS)
    least = 2 * chunks - counted
    return least + chunks if least < LAYERS and least + chunks <= full else least


def _model(e: Experiment, layers: int) -> Model:
    m, corpus = e.model, e.data.given
    groups = _even(m.num_query_groups, 4 if m.num_query_groups == m.num_attention_heads else 2)
    low_rank = {"q_lora_rank": 2 * LOW_RANK, "kv_lora_rank": LOW_RANK}
    widths = {"qk_head_dim": 2 * HEAD, "qk_pos_emb_head_dim": HEAD, "v_head_dim": 2 * HEAD}
    m = replace(
        m,
        num_layers=layers,
        hidden_size=_even(m.hidden_size, CORPUS_HIDDEN if corpus else HIDDEN),
        ffn_hidden_size=_even(m.ffn_hidden_size, FFN),
        num_query_groups=groups,
        num_attention_heads=groups * (m.num_attention_heads // m.num_query_groups),
        vocab_size=m.vocab_size if corpus else _vocabulary(m, e.data.name == "mock"),
        mla=_at_most(m.mla, **low_rank, **widths) if m.mla else None,
        moe=_moe(m.moe, layers) if m.moe else None,
    )
    return _at_most(m, kv_channels=HEAD, window_size=SEQ_LENGTH // 4, mtp_num_layers=1)


def _vocabulary(m: Model, mock: bool) -> int:
    """Return a size, padded where requested: stacks go apart at a vocabulary's end. Padded it can be cut."""
    most, unit = MOCK_VOCABULARY if mock else VOCABULARY, m.make_vocab_size_divisible_by
    padding = m.padded_vocab_size - m.vocab_size
    size = m.vocab_size if m.vocab_size <= most else max(1, most // unit) * unit - min(padding, unit - 1, most // 8)
    while replace(m, vocab_size=size).padded_vocab_size % CUT:
        size += 1
    return size


def _moe(moe: MoE, layers: int) -> MoE:
    moe = _at_most(moe, moe_router_num_groups=2, moe_router_group_topk=1, moe_first_dense_layers=min(1, layers - 1))
    kept, shared = _even(moe.num_experts, EXPERTS), moe.moe_shared_expert_intermediate_size
    return replace(
        moe,
        num_experts=kept,
        moe_router_topk=min(moe.moe_router_topk, TOPK, kept),
        moe_ffn_hidden_size=_even(moe.moe_ffn_hidden_size, FFN // 2),
        moe_shared_expert_intermediate_size=_even(shared, FFN // 2) if shared else shared,
    )


def _even(size: int, most: int) -> int:
    size = min(size, most)
    return size - size % CUT or size


def _at_most(part: _Part, **limits: int) -> _Part:
    """Return `part` with none of these fields above its limit; None stays."""
    sizes = {name: getattr(part, name) for name in limits}
    return replace(part, **{name: min(size, limits[name]) for name, size in sizes.items() if size is not None})
