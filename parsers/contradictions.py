"""Checks of what a user states of a log against the log: a number that rests on a wrong statement is worse than none.

A limit here is one that no run can pass: other devices, more parameters, more TFLOP/s or memory than there is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import inf, prod
from statistics import median
from typing import Any

from conf.compose import choices
from conf.errors import Problem, listed
from conf.facts import hardware, named_by_driver, peak_of, precision_of
from conf.schema import Hardware
from parsers.assemble import same
from parsers.find import model_name
from parsers.record import Record, columns, rows
from parsers.values import compute_dtype, real

_SIZES = ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "num_experts")
_SWITCHES = ("fp8", "fp4")  # settings, and the choices of precision= that name no recipe
_RECIPES = ("fp8_recipe", "fp4_recipe")
_SORT = re.compile(r"[a-z]{1,8}\d{2,6}[a-z]{0,4}")
_DEVICE_KINDS = ("hip", "device", "reserved", "allocated")
_TOTAL = "_memory_total_bytes"  # behind hip and rocm, of the device
_GIB = 2**30  # data sheets say GB
_CAPACITY = (0.8, 1.02)  # of the data sheet, by a driver
_COUNTED_APART = 1.25  # a padded vocabulary, tied embeddings
_RATES_APART = 1.5  # rounding, steps without their evaluation
_OPERATIONS = (3.0, 8.0)  # for a token and parameter: few weights trained; all recomputed


def contradictions(record: Record, given: Mapping[str, Any], settings: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what the log contradicts, with both values. settings: what `given` comes to, by canonical name."""
    known = {**settings, **{name: reading.value for name, reading in record.effective.items()}}
    yield from _settings(record, given, settings)
    device = hardware(given.get("hardware"))
    limit = _limit(record, device, known)
    if device is not None and device.name == given["hardware"]:  # `unknown` stands for any
        yield from _device(record, device)
        for field, mine in (("platform", device.vendor or device.name), ("vendor", device.vendor)):
            if mine and given.get(field, mine) != mine:
                yield Problem(field, f"is not that of hardware={device.name}", given[field], mine)
    for field in ("platform", "vendor"):
        if field in given and getattr(record, field) not in (None, given[field]):
            yield _problem(record, field, given[field], getattr(record, field))
    if "model" in given:
        yield from _model(record, given, known, limit)
    if "world_size" in given and "world_size" not in record.effective:
        yield from _ranks(record, _size(given, "world_size"), known)
    if limit and given.keys() & {"hardware", "precision"} and (above := _above(record, limit)):
        yield _problem(record, "hardware" if device else "precision", limit[0], above)


def _problem(record: Record, key: str, mine: object, logs: object) -> Problem:
    hint = f"another {key}=, or none: what a log states needs no giving"
    return Problem(key, f"the log of {record.name} says otherwise", str(mine), str(logs), hint)


def _settings(record: Record, given: Mapping[str, Any], settings: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield each key whose settings are others in the log."""
    stated = {name: record.effective[name] for name in settings if name in record.effective}
    for key in given:
        apart = [name for name in stated if _decides(key, given, name) and _differs(record, key, name, settings[name])]
        if apart:
            mine = listed([f"{name} {settings[name]}" for name in apart])
            logs = listed([f"{name} {stated[name].value} (line {stated[name].line})" for name in apart])
            yield _problem(record, key, mine if key in apart else f"{given[key]}: {mine}", logs)
    dtype = compute_dtype(record.environment)
    if "precision" in given and dtype and precision_of(settings) != precision_of({**settings, "params_dtype": dtype}):
        yield _problem(record, "precision", given["precision"], f"{record.environment['precision']} by the trainer")


def _decides(key: str, given: Mapping[str, Any], name: str) -> bool:
    """Return whether another value of the setting `name` in the log says that `key` was stated wrongly."""
    of_precision = (*_SWITCHES, "params_dtype", *(() if given[key] in _SWITCHES else _RECIPES))
    return name == key or (name not in given and name in {"model": _SIZES, "precision": of_precision}.get(key, ()))


def _differs(record: Record, key: str, name: str, mine: Any) -> bool:
    value, experts = record.effective[name].value, record.setting("num_experts")
    if name == key:
        return not same(mine, value)
    if name in (*_SWITCHES, "num_experts"):  # of a precision's formats none decides; no experts are None or 0
        return (mine or 0) != (value or 0) if name == "num_experts" else bool(mine) != bool(value)
    # The trainer's type comes before that of the parameters. Megatron prints 1 group also without groups. With experts
    # nothing may be as wide as the MLP.
    idle = {
        "params_dtype": compute_dtype(record.environment),
        "num_query_groups": value == 1,
        "ffn_hidden_size": experts,
    }
    return None not in (mine, value) and not idle.get(name) and not same(mine, value)


def _device(record: Record, device: Hardware) -> Iterator[Problem]:
    """Yield where the log names another device, or uses more memory than this one has."""
    name = record.environment.get("device_name")
    if isinstance(name, str) and _another(name, device):
        yield _problem(record, "hardware", f"{device.name} ({listed(device.device_names)})", name)
    elif record.hardware not in (None, device.name):
        yield _problem(record, "hardware", device.name, record.hardware)
    elif record.vendor and record.vendor != device.vendor:
        mine = f"{device.name} of {device.vendor}" if device.vendor else device.name
        yield _problem(record, "hardware", mine, f"a device of {record.vendor}")
    elif device.memory_gb is not None and device.vendor:
        has = device.memory_gb * _GIB / device.devices_per_package
        mine, total = f"{device.name} with {has / 1e9:,.0f} GB", real(record.environment.get("device_memory_bytes"))
        others = (one for _, one in rows(record.steps, "step", "metrics"))
        total = total or next((one[name] for one in others for name in one if name.endswith(_TOTAL)), None)
        sizes = rows(record.steps, "memory_bytes", "memory_kind")
        used = max((size for size, kind in sizes if size and kind in _DEVICE_KINDS), default=0)
        if total and not _CAPACITY[0] * has <= total <= _CAPACITY[1] * has:
            yield _problem(record, "hardware", mine, f"a device with {total / 1e9:,.0f} GB")
        elif used > _CAPACITY[1] * has:
            yield _problem(record, "hardware", mine, f"{used / 1e9:,.0f} GB used of one device")


def _another(name: str, device: Hardware) -> bool:
    """Return whether a driver's name is of another device; not of a processor, nor of one that says its maker alone."""
    if (known := named_by_driver(name)) is not None:
        return known.name != device.name
    sort = device.name.partition("_")[0]
    return bool(device.vendor) and any(map(str.isdigit, name)) and sort not in _SORT.findall(name.lower())


def _model(
    record: Record, given: Mapping[str, Any], known: Mapping[str, Any], limit: tuple[str, float] | None
) -> Iterator[Problem]:
    """Yield where the log names another model, counts other parameters, or where its tokens would take other TFLOP/s
    than it prints, or more than its device can do."""
    from conf.load import model_named
    from conf.shapes import count

    mine, named = model_name(given["model"]), record.environment.get("model")
    if named in choices("model") and model_name(named) != mine:
        yield _problem(record, "model", mine, named)
    if (model := model_named(mine)) is None or given.keys() & {*_SIZES}:
        return
    parts, (counted, least, most) = count(model), _parameters(record, known)
    if not least / _COUNTED_APART <= parts.total <= most * _COUNTED_APART:
        yield _problem(record, "model", f"{model.name} with {parts.total:,} parameters", counted)
    rate, printed = _tokens_rate(record, known) or 0, _middle(record, "tflops_per_gpu")
    needs = f"{model.name}, {6 * parts.active * rate / 1e12:,.0f} TFLOP/s/GPU at {rate:,.0f} tokens/s/GPU"
    (fewest, most), length = _OPERATIONS, _size(known, "seq_length") or model.max_position_embeddings
    scores = 16 * model.num_layers * model.num_attention_heads * model.kv_channels * length  # all, and recomputed
    if limit and fewest * parts.active * rate / 1e12 > limit[1]:
        yield _problem(record, "model", needs, limit[0])
    if rate and printed and least != most:
        each = printed * 1e12 / rate
        if not fewest * parts.active <= each <= most * _COUNTED_APART * parts.active + scores:
            yield _problem(record, "model", needs, f"{printed:,.1f} TFLOP/s/GPU printed")


def _parameters(record: Record, known: Mapping[str, Any]) -> tuple[str, float, float]:
    """Return what the log says of the number of parameters, empty where it says nothing, and the fewest and the most
    that the model then has: of some ranks as if all others were like the largest, and each had its own experts."""
    of_log, by_rank = record.environment, record.environment.get("parameters_by_rank")
    if total := real(of_log.get("parameters")) or (real(of_log.get("parameters_billion")) or 0) * 1e9:
        return f"{total:,.0f} parameters", total, total
    ranks = prod(_size(known, f"{name}_model_parallel_size") for name in ("tensor", "pipeline"))
    counts = [one for one in by_rank.values() if type(one) is int] if isinstance(by_rank, Mapping) else []
    if counts and len(counts) == ranks:
        return f"{sum(counts):,} parameters", sum(counts), sum(counts) * (_size(known, "num_experts") or 1)
    ranks = _size(known, "world_size")
    said = f"{max(counts):,} parameters on the largest rank seen of {ranks or 'unknown'}" if counts else ""
    return said, max(counts, default=0), (max(counts) * ranks if counts and ranks else inf)


def _ranks(record: Record, ranks: int, known: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield where the layout, the batch or the speed that the log states need another number of ranks."""
    each = prod(_size(known, f"{name}_parallel_size") or 1 for name in ("tensor_model", "pipeline_model", "context"))
    batch, micro = (_size(known, name) for name in ("global_batch_size", "micro_batch_size"))
    if not ranks or ranks % each:
        yield _problem(record, "world_size", ranks, f"a layout of {each} ranks, or a multiple")
        return
    if batch and micro and batch % (micro * (ranks // each)):
        yield _problem(record, "world_size", ranks, f"global batch {batch} of micro batches {micro}, {each} ranks each")
    rate, all_ranks = _middle(record, "tokens_per_s_per_gpu"), _rate_of_all(record, known)
    if rate and all_ranks and not 1 / _RATES_APART <= ranks * rate / all_ranks <= _RATES_APART:
        logs = f"{rate:,.0f} tokens/s/GPU printed, which {all_ranks / rate:.1f} ranks make"
        yield _problem(record, "world_size", ranks, logs)


def _tokens_rate(record: Record, known: Mapping[str, Any]) -> float | None:
    """Return tokens/s of one GPU as printed, else of the step times."""
    ranks, all_ranks = _size(known, "world_size"), _rate_of_all(record, known)
    return _middle(record, "tokens_per_s_per_gpu") or (all_ranks / ranks if all_ranks and ranks else None)


def _rate_of_all(record: Record, known: Mapping[str, Any]) -> float | None:
    batch, length = (_size(known, name) for name in ("global_batch_size", "seq_length"))
    seconds = _middle(record, "step_time_s")
    return batch * length / seconds if batch and length and seconds else None


def _size(known: Mapping[str, Any], name: str) -> int:
    """Return a setting that is a positive integer, else 0."""
    value = known.get(name)
    return value if type(value) is int and value > 0 else 0


def _middle(record: Record, name: str) -> float | None:
    """Return the median of a field of the steps, without what was only dispatched."""
    values, flags = columns(record.steps, name, "flags")
    known = [value for value, of in zip(values, flags, strict=True) if value and f"{name}:asynchronous" not in of]
    return median(known) if known else None


def _limit(record: Record, device: Hardware | None, known: Mapping[str, Any]) -> tuple[str, float] | None:
    """Return a device's peak, in words and in TFLOP/s; None where it is not known. device: else the log's. An unknown
    precision counts as the one with the highest peak."""
    name, dtype = record.environment.get("device_name"), compute_dtype(record.environment)
    device = device or (named_by_driver(name) if isinstance(name, str) else None) or hardware(record.hardware)
    peak = peak_of(device, precision_of({**known, "params_dtype": dtype} if dtype else known))
    return peak and (f"{device and device.name} in {peak[0]}, at most {peak[1]:,.0f} TFLOP/s", peak[1])


def _above(record: Record, limit: tuple[str, float] | None) -> str:
    """Return the TFLOP/s printed above a peak, in words; empty where they are not."""
    printed = (_middle(record, "tflops_per_gpu") or 0) if limit else 0
    return f"{printed:,.0f} TFLOP/s/GPU printed" if limit and printed > limit[1] else ""
