"""rehearse=train|layout: what of an Experiment a CPU can run with the real stack, and what it cannot show. Pure. train
runs the toy (launchers/toy.py) by the ordinary plan. layout keeps width, layout and world, cuts layers to the memory
that is there, and starts one process for each of two ranks, which play them (launchers/ranks/rehearsal)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from conf.errors import ConfigError, Problem
from conf.resolve import Experiment
from conf.schema import Data
from conf.shapes import RankParameters, Sizes, per_stage
from conf.vocabulary import follow, leaves, read_yaml, requested, short_names, vocabulary
from launchers.frameworks import framework_of
from launchers.plan import Plan, Scope
from launchers.toy import toy

FOLDER = Path(__file__).parent / "ranks" / "rehearsal"
TABLE = Path(__file__).parent / "settings" / "not_rehearsed.yaml"
PROBE = "probe"  # in the run's directory, where parsers/probe.py looks
# Measured in NeMo, Bridge and Primus, ranks of 175 and 393 million parameters: 10.2 to 10.3 bytes of each (weights in
# bf16, gradients and main weights in fp32; no step, so no moments), 0.9 to 1.1 GB for the process. In fp32 it is 4 + 4.
BYTES_PER_PARAMETER = 10.5
PROCESS_BYTES = 1_200_000_000
GB = 1e9
_STILL_SO = ("platform ", "hardware ", "framework ")  # reasons of an experiment that hold of its toy
NOT_REQUESTED = (None, False, 1)


def prepared(e: Experiment, memory_bytes: float) -> tuple[Experiment, Scope]:
    """Return what runs in place of `e`, and what is said of it; `e` itself where no rehearsal is requested.
    memory_bytes: that a process may use, for rehearse=layout. ConfigError: a rank of rehearse=layout does not fit, even
    with the fewest layers."""
    if e.rehearse is None:
        return e, Scope()
    small = toy(e) if e.rehearse == "train" else in_layout(e, memory_bytes)
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
    reasons |= {name: row["reason"] for name in e.framework.options if (row := _option(e, name))}
    return {**table["topics"], **reasons}


def _option(e: Experiment, name: str) -> dict[str, Any] | None:
    rows = framework_of(e.framework.name).not_rehearsed().get("options", ())
    return next((row for row in rows if fnmatchcase(name, row["pattern"])), None)


def _on_a_cpu(e: Experiment) -> Experiment:
    """Return `e` as one run of what is installed here now, in bf16 for fp8, which no CPU has, and without the options
    that a stack refuses where it has no GPU."""
    kept = {name: v for name, v in e.framework.options.items() if (_option(e, name) or {"runs": True}).get("runs")}
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


def in_layout(e: Experiment, memory_bytes: float) -> Experiment:
    """Return `e` at full width, layout and world, with as many layers as fit into `memory_bytes`, and no corpus.
    ConfigError: not even one layer for each stage fits."""
    unit = Sizes.of(e.layout).pp * Sizes.of(e.layout).vp
    counts = range(e.model.num_layers, 0, -unit)
    fitting = (_with_layers(e, n) for n in counts if rank_bytes(_with_layers(e, n)) <= memory_bytes)
    kept = next(fitting, None)
    if kept is None:
        raise ConfigError(_too_large(e, _with_layers(e, unit), memory_bytes))
    limit, training = kept.model.num_layers // unit, kept.training
    recomputed = None if training.recompute_num_layers is None else min(training.recompute_num_layers, limit)
    training = replace(training, recompute_num_layers=recomputed, save_interval=None)
    return replace(kept, training=training, data=Data(name="mock", path=None, split="1,1,1"))


def rank_bytes(e: Experiment) -> int:
    """Return the host memory in bytes that the larger of the two played ranks of `e` takes before its first step."""
    return PROCESS_BYTES + round(BYTES_PER_PARAMETER * max(rank.total for rank in parameters(e).values()))


def played(e: Experiment) -> tuple[int, ...]:
    """Return the ranks of rehearse=layout: the first, and the first tensor rank of the last stage. A rank with another
    tensor rank waits for one with 0 to start it."""
    last = e.layout.world_size - e.layout.tensor_model_parallel_size
    return (0,) if e.layout.pipeline_model_parallel_size == 1 else (0, last)


def parameters(e: Experiment) -> dict[int, RankParameters]:
    """Return the parameters that each played rank must have, by our own count."""
    stages = per_stage(e.model, Sizes.of(e.layout))
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


def _with_layers(e: Experiment, layers: int) -> Experiment:
    moe = e.model.moe
    if moe is not None:
        moe = replace(moe, moe_first_dense_layers=min(moe.moe_first_dense_layers, layers - 1))
    return replace(e, model=replace(e.model, num_layers=layers, moe=moe))


def _too_large(e: Experiment, least: Experiment, memory_bytes: float) -> Problem:
    size = max(parameters(least).values(), key=lambda one: one.total).total
    what = (
        f"a rank of {e.layout} holds {size:,} parameters with {least.model.num_layers} of {e.model.num_layers} layers: "
        f"{rank_bytes(least) / GB:,.1f} GB, and it may take {memory_bytes / GB:,.1f} GB of what is free here"
    )
    hint = "a machine with that much memory, more TP or EP, fewer virtual stages; or rehearse=train"
    return Problem("rehearse", what, "layout", hint=hint)


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
        yield "each stack draws its own first weights: without equal_init=true two losses may differ (with experts, do)"
    if e.cluster.container != "none" or e.image is not None:
        yield f"the stack installed on this machine is rehearsed, not that of image {e.image}"
    if e.precision.fp8:
        yield "fp8 is not rehearsed: bf16 runs in its place"
    for name, short in short_names().items():
        full, ran = getattr(e.layout, name), getattr(small.layout, name)
        if (full or 1) > 1 and (ran or 1) == 1:
            why = "gloo refuses TP with EP" if short == "TP" and small.layout.expert_model_parallel_size > 1 else _ROOM
            yield f"{short} {full} is not rehearsed: {why}"
    if small.model.num_layers < e.model.num_layers and e.rehearse == "layout":
        yield f"{small.model.num_layers} of {e.model.num_layers} layers are built: more do not fit into this memory"


_ROOM = "four processes hold no more; rehearse=layout shows all of it"
