"""A measured run as a job with its step time: what a calibration learns from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import isnan, nan, prod
from typing import NamedTuple

from conf import frameworks
from conf.arguments import program
from conf.errors import ConfigError, InputError, Problem, listed
from conf.facts import precision_of
from conf.recipes import Recipe, recipes
from conf.schema import Hardware
from conf.shapes import ENDS
from conf.threads import useful_threads
from estimate.cells import Again, named
from estimate.experiment import SHARDED, unstated
from estimate.host import columns_of_host
from estimate.jobs import (
    PEAK_OF,
    RECOMPUTED,
    Column,
    Jobs,
    adam_bytes,
    columns_of_hardware,
    columns_of_shape,
    on_smaller_nodes,
    unknown_rates,
)
from estimate.rows import jobs_of
from estimate.switches import SWITCHED_OFF, columns_of_recipe, read_back, recomputed_by
from metrics.flops import Recompute, recompute_of
from metrics.peak import device_of
from metrics.shape import Facts, Shape, facts_of, shape_from
from metrics.summary import summarise
from parsers import Run
from parsers.record import Record

_SIZES = ("tensor_model", "pipeline_model", "virtual_pipeline_model", "context", "expert_model")
_WORK = ("seq_length", "micro_batch_size", "global_batch_size")


class Unfit(ValueError):
    """A run of which no job can be made. allowed and hint: as of a Problem."""

    def __init__(self, found: str, allowed: str = "", hint: str = "") -> None:
        super().__init__(found)
        self.allowed, self.hint = allowed, hint


class Measured(NamedTuple):
    """Runs as jobs, with their mean step times, s, shape (n,)."""

    jobs: Jobs
    step_time_s: tuple[float, ...]
    names: tuple[str, ...]


def measured(runs: Sequence[Run]) -> Measured:
    """Return runs that completed, as jobs. InputError: of every run that is none, why; or they are on CPUs and GPUs."""
    problems, columns, times = list[Problem](), list[dict[str, Column]](), list[float]()
    for run in runs:
        try:
            columns.append(columns_of_record(run.record))
            times.append(_step_time(run.record))
        except Unfit as error:
            problems.append(Problem(run.path, "nothing can be learned from it", str(error), error.allowed, error.hint))
        except ConfigError as error:  # of its GPU too little is known
            problems += [replace(one, where=f"{run.path}: {one.where}") for one in error.problems]
    if problems or not columns:
        raise InputError(*(problems or [Problem("estimate calibrate", "no runs", hint="a folder of runs: runs/")]))
    if "cpu" in (hardware := {str(column["hardware"]) for column in columns}) and len(hardware) > 1:
        what, hint = "learns from runs on CPUs or on GPUs, a file of each", "platform=cpu, or another platform"
        raise InputError(Problem("estimate calibrate", what, listed(sorted(hardware)), hint=hint))
    return Measured(jobs_of(columns), tuple(times), tuple(run.path for run in runs))


def _step_time(record: Record) -> float:
    seconds = summarise(record)["step_time_mean_s"]
    if seconds.value is None:
        found = f"no step time is known{f': {seconds.note}' if seconds.note else ''}"
        raise Unfit(found, "a run whose steps have times", "a longer run")
    return float(seconds.value)


def columns_of_record(record: Record) -> dict[str, Column]:
    """Return the columns of Jobs of what ran. Unfit: it did not complete, or what is not known of it."""
    _check_completed(record)
    facts, recipe = facts_of(record), _recipe(record)
    shape, device, precision, world, again = _known(record, facts, recipe)
    sizes = {name: facts.size(f"{name}_parallel_size") or 1 for name in _SIZES}
    work = {name: facts.size(name) or 1 for name in _WORK}
    _check_layout(sizes, work, world)
    ranks = sizes["tensor_model"] * sizes["pipeline_model"] * sizes["context"]
    sharded = _is_sharded(record, facts) or bool(recipe and any(recipe.stated(name) for name in SHARDED))
    of_node, of_experts = _ranks_of_node(record, device, world), facts.size("expert_tensor_parallel_size")
    of_experts = of_experts or (recipe and recipe.stated("expert_tensor_parallel_size")) or sizes["tensor_model"]
    tokens = work["micro_batch_size"] * work["seq_length"] / sizes["context"]
    fp32 = precision == "fp32"
    return {
        **columns_of_shape(shape),
        **_machine(device, precision, world, of_node, useful_threads(tokens, shape.hidden_size)),
        **{f"{name}_parallel_size": size for name, size in sizes.items()},
        **work,
        "recompute_layers": again.layers,
        **{f"again_{name}": float(name in again.modules) for name in RECOMPUTED},
        "stops_early": float(named(record.framework or "", "recomputation_stops_early")),
        "expert_tensor_parallel_size": of_experts,
        "data_parallel_size": world // ranks,
        "sequence_parallel": float(bool(facts.settings.get("sequence_parallel"))),
        "embedding_counts": nan if recipe or (first := facts.settings.get(ENDS[0])) is None else float(bool(first)),
        "trained": "pretraining",
        "precision": precision,
        "gradient_bytes": 4 if facts.settings.get("accumulate_allreduce_grads_in_fp32") is not False or fp32 else 2,
        "optimizer_bytes": adam_bytes(fp32),
        "fp8_params": 0.0,
        **dict.fromkeys(SWITCHED_OFF, 0.0),
        "overlapped_data": 1.0,
        **unstated(record.method, record.framework or "", device.name),
        **(columns_of_recipe(recipe) if recipe else {}),
        **read_back(facts.settings),
        **({"overlapped_data": 1.0} if named(record.framework or "", "always_overlapped") else {}),
        "distributed_optimizer": float(sharded or bool(facts.settings.get("use_distributed_optimizer"))),
        "fsdp": float(sharded),
        "offloaded_layers": 0,
        "stack": "-".join(filter(None, (record.framework, release_of(record)))),
    }


def _recipe(record: Record) -> Recipe | None:
    """Return the recipe that a run followed; None where it followed none, or none of conf/recipes."""
    if (known := record.recipe) is None:
        return None
    folder = f"{known.framework}-{known.release}"
    return next((one for one in recipes(folder) if one.name == known.name), None)


def _check_layout(sizes: Mapping[str, int], work: Mapping[str, int], world: int) -> None:
    """Raise Unfit of sizes that do not divide what they share out."""
    tp, pp, cp, ep = (sizes[name] for name in ("tensor_model", "pipeline_model", "context", "expert_model"))
    dp, batch, micro = world // (tp * pp * cp), work["global_batch_size"], work["micro_batch_size"]
    if not dp or world % (tp * pp * cp):
        raise Unfit(f"TP {tp} × PP {pp} × CP {cp} does not divide {world} ranks", "sizes of what ran")
    if batch % (micro * dp):
        raise Unfit(f"micro-batch {micro} × DP {dp} does not divide the batch of {batch}", "sizes of what ran")
    if world // pp % ep:
        raise Unfit(f"EP {ep} does not divide the {world // pp} ranks of a stage", "sizes of what ran")


def _again(facts: Facts, recipe: Recipe | None) -> Again | Recompute | None:
    """Return what was recomputed: as the run says, in its recipe's modules where it follows it in this."""
    names, layers = ("granularity", "method", "num_layers"), facts.size("num_layers")
    requested = {name: recipe.experiment.get(f"training.recompute_{name}") for name in names} if recipe else {}
    if recipe and layers and all(facts.settings.get(f"recompute_{name}") == own for name, own in requested.items()):
        parts = (facts.size(f"{name}_parallel_size") or 1 for name in ("pipeline_model", "virtual_pipeline_model"))
        return recomputed_by(recipe, prod(parts), layers)
    return recompute_of(facts)


def _check_completed(record: Record) -> None:
    """Raise Unfit of what is no run that completed."""
    if record.provenance not in ("measured", "imported") or record.status != "completed":
        allowed = "a run that was measured here, or imported by `parse`, and completed"
        left_out = "status=completed" if record.status != "completed" else "provenance=measured"
        raise Unfit(f"it is {record.provenance} and {record.status}", allowed, f"leave it out: {left_out}")


def _is_sharded(record: Record, facts: Facts) -> bool:
    """Return whether parameters and gradients were sharded: by a setting, or as the framework's distributed optimizer
    does."""
    by_framework = record.framework in frameworks.facts(record.framework).get("fsdp", ())
    named_so = any(facts.settings.get(name) for name in SHARDED)
    return named_so or (by_framework and bool(facts.settings.get("use_distributed_optimizer")))


def _machine(device: Hardware, precision: str, world: int, of_node: int, useful: int) -> dict[str, Column]:
    """Return the machine's columns of Jobs. useful: the most threads that pay for a process on a CPU. Unfit: too little
    is known of the GPU."""
    if device.vendor is None:
        return {**columns_of_host(of_node, useful), "gpus_per_node": of_node}
    columns = columns_of_hardware(device, precision)
    if isnan(float(columns["peak_flops"])):
        hint = "`tprimat gpus` has those that are known"
        raise Unfit(f"no peak of {PEAK_OF[precision]} is known of {device.name}", "a GPU of conf/hardware", hint)
    if missing := unknown_rates(columns):
        raise Unfit(
            f"{listed(missing)} of {device.name} are not known", hint=f"add them to conf/hardware/{device.name}.yaml"
        )
    return on_smaller_nodes(columns, of_node) if world > of_node else {**columns, "gpus_per_node": of_node}


def _known(record: Record, facts: Facts, recipe: Recipe | None) -> tuple[Shape, Hardware, str, int, Again | Recompute]:
    """Return shape, device, precision, number of ranks and recomputation of what ran. Unfit: what of them is not
    known."""
    known, device = shape_from(facts), device_of(record)
    precision, world, again = _precision(facts), facts.size("world_size"), _again(facts, recipe)
    of_work = [name for name in (*_WORK, "world_size") if not facts.size(name)]
    if known.shape and device and precision and world and again and not of_work:
        return known.shape, device, precision, world, again
    stated = {
        "model=llama31_8b": known.missing,
        "hardware=h100": () if device else ("the GPU",),
        "precision=bf16": () if precision else ("precision",),
        "recompute_granularity=null": () if again else ("recompute_granularity",),
        **{f"{name}=N": (name,) for name in of_work},
    }
    missing = listed([name for names in stated.values() for name in names])
    typed = " ".join(key for key, names in stated.items() if names)
    hint = f"state what ran, and learn from DIR: {program('parse')} {record.log or 'LOG'} {typed} -o DIR"
    raise Unfit(f"not known: {missing}", "all of this", "leave it out" if facts.other_layers else hint)


def _precision(facts: Facts) -> str | None:
    """Return the precision of the matrix products, as in Jobs; None where it is not known."""
    known = precision_of(facts.settings)
    if known == "fp8" and facts.settings.get("fp8_recipe") == "mxfp8":
        return "mxfp8"
    return "nvfp4" if known == "fp4" else known


def _ranks_of_node(record: Record, device: Hardware, world: int) -> int:
    """Return how many ranks a node had; where the run does not say, as many as fill one."""
    nodes = record.environment.get("num_nodes")
    most = world if device.vendor is None else min(world, device.gpus_per_node)
    return world // nodes if isinstance(nodes, int) and nodes > 0 else most


def without_release(stacks: Iterable[str]) -> list[str]:
    """Return the frameworks among stacks of which no release is known, though they have releases."""
    return sorted(name for name in {*stacks} if frameworks.facts(name or None).get("release"))


def release_of(record: Record) -> str | None:
    """Return the release as an experiment has it: none of the embedded engine and its like, whatever is installed."""
    known = frameworks.facts(record.framework)
    return None if known and not known.get("release") else record.framework_version
