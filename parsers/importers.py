"""Records of our predecessor: train_*.json and benchmark_*.json, each the summary of one run with series of its steps.

Its series are separate lists: one that is not as long as the step times does not show to which step its values belong,
and is left out. "gb" is 1e9 bytes there: an MI300X has 206.1 of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from conf.errors import InputError, Problem
from conf.frameworks import framework_named
from conf.vendors import vendor_named
from parsers.record import Reading, Record, Status, Step
from parsers.text import writable
from parsers.values import real

LARGEST = 64 << 20
# By section: their name of a setting, and ours.
_SETTINGS: Mapping[str, Mapping[str, str]] = {
    "parallelism_config": {
        **{name: name for name in ("tensor_model_parallel_size", "pipeline_model_parallel_size")},
        **{name: name for name in ("context_parallel_size", "expert_model_parallel_size", "data_parallel_size")},
        "gradient_accumulation_steps": "num_micro_batches",
    },
    "training_config": {
        **{name: name for name in ("global_batch_size", "micro_batch_size")},
        "max_steps": "train_iters",
        "sequence_length": "seq_length",
        "num_gpus": "world_size",
    },
}
_SERIES = {"step_times": "step_time_s", "loss_values": "loss", "learning_rates": "lr"}


def is_record(head: bytes) -> bool:
    """Return whether a file that begins so is one of them."""
    return head.lstrip()[:1] == b"{" and b'"gpu_info"' in head and b'"platform"' in head


def read_record(path: Path) -> Record:
    """Return the record in a file. InputError: unreadable, or not of that shape."""
    try:
        if path.stat().st_size > LARGEST:
            raise InputError(Problem(str(path), "is too large for a record", allowed=f"{LARGEST >> 20} MB"))
        entry = writable(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(Problem(str(path), "cannot be read as JSON", str(error))) from error
    if not isinstance(entry, dict) or not isinstance(entry.get("gpu_info"), dict):
        what, allowed = "is not a train_*.json or benchmark_*.json", "an object with gpu_info"
        raise InputError(Problem(str(path), what, allowed=allowed))
    return _record(path, entry)


def _record(path: Path, entry: Mapping[str, Any]) -> Record:
    notes: list[str] = []
    steps = tuple(_steps(entry, notes))
    stated = ((_part(entry, section), names) for section, names in _SETTINGS.items())
    values = [(ours, part.get(name)) for part, names in stated for name, ours in names.items()]
    effective = {ours: Reading(value, 1) for ours, value in values if value is not None}
    gpu, vendor = _part(entry, "gpu_info"), vendor_named(str(entry.get("platform")))
    # Or the name that the predecessor gave its files: train_amd_prim_llama.json.
    words = [str(gpu.get("software_stack")), *path.stem.split("_")]
    wanted = effective.get("train_iters")
    status: Status = "completed" if steps and wanted is not None and len(steps) == wanted.value else "unknown"
    memory = real(gpu.get("total_memory_gb"))
    facts = {name: gpu.get(name) for name in ("device_name", "device_count")}
    facts["device_memory_bytes"] = None if memory is None or memory > 1e6 else round(memory * 1e9)
    facts |= {"torch": gpu.get("pytorch_version"), "written_at": entry.get("timestamp")}
    for section in ("performance_metrics", "memory_metrics"):
        facts |= {f"predecessor_{name}": value for name, value in _part(entry, section).items()}
    return Record(
        id=path.stem,
        name=path.stem,
        provenance="imported",
        status=status,
        notes=tuple(notes),
        platform=vendor,
        vendor=vendor,
        framework=next(filter(None, map(framework_named, words)), None),
        effective=effective,
        dumped=effective,
        environment={name: value for name, value in facts.items() if value is not None},
        log=path.name,
        steps=steps,
    )


def _steps(entry: Mapping[str, Any], notes: list[str]) -> Iterator[Step]:
    series = {ours: entry[name] for name, ours in _SERIES.items() if isinstance(entry.get(name), list)}
    count = len(series.get("step_time_s", series.get("loss", ())))
    for name in [name for name, values in series.items() if len(values) != count]:
        notes.append(f"{name}: {len(series.pop(name))} values for {count} steps; which is whose is not known")
    for index in range(count):
        values = {name: real(listed[index]) for name, listed in series.items()}
        yield Step(step=index, line=1, iteration=None, flags=("step:by_order",), **values)  # type: ignore[arg-type]


def _part(entry: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = entry.get(name)
    return part if isinstance(part, dict) else {}
