"""A measured run as a job with its step time: what a calibration learns from."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from typing import NamedTuple

from conf import frameworks
from conf.errors import InputError, Problem, listed
from conf.facts import precision_of
from conf.schema import Hardware
from conf.shapes import ENDS
from conf.threads import useful_threads
from estimate.host import columns_of_host
from estimate.jobs import PEAK_OF, RECOMPUTED, Jobs, adam_bytes, columns_of_hardware, columns_of_shape
from estimate.rows import Column, jobs_of
from estimate.switches import UNKNOWN
from metrics.flops import recompute_of
from metrics.peak import device_of
from metrics.shape import Facts, Shape, facts_of, shape_from
from metrics.summary import summarise
from parsers import Run
from parsers.record import Record

_SIZES = ("tensor_model", "pipeline_model", "virtual_pipeline_model", "context", "expert_model")
_WORK = ("seq_length", "micro_batch_size", "global_batch_size")


class Measured(NamedTuple):
    """Runs as jobs, with their mean step times, s, shape (n,)."""

    jobs: Jobs
    step_time_s: tuple[float, ...]
    names: tuple[str, ...]


def measured(runs: Sequence[Run]) -> Measured:
    """Return runs that completed, as jobs. InputError: of every run that is none, why."""
    problems, columns, times = list[Problem](), list[dict[str, Column]](), list[float]()
    for run in runs:
        try:
            columns.append(columns_of_record(run.record))
            times.append(_step_time(run.record))
        except ValueError as error:
            problems.append(Problem(run.path, "nothing can be learned from it", str(error)))
    if problems or not columns:
        raise InputError(*(problems or [Problem("estimate calibrate", "no runs")]))
    return Measured(jobs_of(columns), tuple(times), tuple(run.path for run in runs))


def _step_time(record: Record) -> float:
    seconds = summarise(record)["step_time_mean_s"]
    if seconds.value is None:
        raise ValueError(f"no step time is known{f': {seconds.note}' if seconds.note else ''}")
    return float(seconds.value)


def columns_of_record(record: Record) -> dict[str, Column]:
    """Return the columns of Jobs of what ran. ValueError: it did not complete, or what is not known of it."""
    if record.provenance not in ("measured", "imported") or record.status != "completed":
        raise ValueError(f"it is {record.provenance} and {record.status}, not measured and completed")
    facts = facts_of(record)
    shape, device, precision, world = _known(record, facts)
    sizes = {name: facts.size(f"{name}_parallel_size") or 1 for name in _SIZES}
    ranks = sizes["tensor_model"] * sizes["pipeline_model"] * sizes["context"]
    of_node = _ranks_of_node(record, device, world)
    spelled = precision if precision in PEAK_OF else "nvfp4"
    work = {name: facts.size(name) or 1 for name in _WORK}
    tokens = work["micro_batch_size"] * work["seq_length"] / sizes["context"]
    useful = useful_threads(tokens, shape.hidden_size)
    machine = columns_of_host(of_node, useful) if device.vendor is None else columns_of_hardware(device, spelled)
    fp32 = precision == "fp32"
    return {
        **columns_of_shape(shape),
        **machine,
        **{f"{name}_parallel_size": size for name, size in sizes.items()},
        **work,
        **_recomputed(facts),
        **UNKNOWN,
        "overlapped_tensor": float(bool(facts.settings.get("tp_comm_overlap"))),
        "cp_a2a": float(facts.settings.get("cp_comm_type") in ("a2a", ["a2a"])),
        "expert_tensor_parallel_size": facts.size("expert_tensor_parallel_size") or sizes["tensor_model"],
        "data_parallel_size": world // ranks,
        "sequence_parallel": float(bool(facts.settings.get("sequence_parallel"))),
        "embedding_counts": nan if (first := facts.settings.get(ENDS[0])) is None else float(bool(first)),
        "gpus_per_node": of_node,
        "trained": "pretraining",
        "precision": spelled,
        "gradient_bytes": 4 if facts.settings.get("accumulate_allreduce_grads_in_fp32") is not False or fp32 else 2,
        "optimizer_bytes": adam_bytes(fp32),
        "fp8_params": 0.0,
        "distributed_optimizer": float(bool(facts.settings.get("use_distributed_optimizer"))),
        "fsdp": 0.0,
        "offloaded_layers": 0,
        "stack": "-".join(filter(None, (record.framework, release_of(record)))),
    }


def _known(record: Record, facts: Facts) -> tuple[Shape, Hardware, str, int]:
    """Return shape, device, precision and number of ranks of what ran. ValueError: what of them is not known."""
    known, device = shape_from(facts), device_of(record)
    precision, world = precision_of(facts.settings), facts.size("world_size")
    missing = [*known.missing, *(name for name in _WORK if not facts.size(name))]
    missing += [] if device else ["the GPU"]
    missing += [name for name, value in {"precision": precision, "world_size": world}.items() if value is None]
    if missing or known.shape is None or device is None or precision is None or world is None:
        raise ValueError(f"not known: {listed([*dict.fromkeys(missing)])}")
    return known.shape, device, precision, world


def _ranks_of_node(record: Record, device: Hardware, world: int) -> int:
    """Return how many ranks a node had; where the run does not say, as many as fill one."""
    nodes = record.environment.get("num_nodes")
    most = world if device.vendor is None else min(world, device.gpus_per_node)
    return world // nodes if isinstance(nodes, int) and nodes > 0 else most


def release_of(record: Record) -> str | None:
    """Return the release as an experiment has it: none of the embedded engine and its like, whatever is installed."""
    known = frameworks.facts(record.framework)
    return None if known and not known.get("release") else record.framework_version


def _recomputed(facts: Facts) -> dict[str, Column]:
    """Return what is recomputed; ValueError: the run does not say."""
    again = recompute_of(facts)
    if again is None:
        hint = "recompute_granularity=null, behind the log of `parse`, says that nothing is"
        raise ValueError(f"not known: what is recomputed ({hint})")
    known = {f"again_{name}": float(name in again.modules) for name in RECOMPUTED}
    return {"recompute_layers": again.layers, **known}
