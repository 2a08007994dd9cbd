"""From what was read to a Record: requested against effective, the outcome, the facts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec.structs import fields, replace

from conf.errors import closest
from conf.vocabulary import switched_off, vocabulary
from parsers.megatron_dump import other_layers
from parsers.outcome import Outcome
from parsers.record import Declaration, Difference, Reading, Record
from parsers.segment import Parsed
from parsers.values import real

# What the launcher finds out as well as the log, and who reports it.
_REPORTED_TWICE: Mapping[str, str] = {
    **dict.fromkeys(("host", "os", "kernel", "cpu_model"), "the launcher"),
    **dict.fromkeys(("device_name", "device_count", "driver", "device_memory_bytes"), "the driver"),
}
_FIELDS = (
    *("platform", "hardware", "image", "image_digest", "image_source", "image_started", "exit_code", "declared"),
    *("not_rehearsed", "shrunk", "cautions", "started_at"),
)
"""Facts that have a field of their own in a record."""
_EITHER = ("platform", "hardware", "vendor", "declared", "not_rehearsed", "shrunk")
"""Fields that the launcher fills, else the log, where a rendered bundle or a program of ours states them."""
_TYPES = {field.name: field.type for field in fields(Record)}
_AS_PARSED = ("dumped", "configured", "dialects", "validations", "stalls", "restarts", "steps")
_SPEEDS: dict[str, Any] = dict.fromkeys(
    ("step_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "memory_bytes", "memory_kind", "end_monotonic_s")
)
_SPEED = re.compile("mfu|tflops|tokens_per|memory|elapsed|throughput|samples_per|_(?:s|ms|mb|gb|bytes|w)$")
MOST_FINDINGS = 20
"""Findings of a look at the nodes that become notes; all of them stand in environment.preflight."""
_MEMORY_FACTS = ("max_allocated_bytes", "max_reserved_bytes")
_USABLE_OF_TOTAL = 0.03
# What a Megatron dump alone states and no setting of ours covers: recipes set it on one side only.
_PRINTED: Mapping[str, type | tuple[type, ...]] = {"mock_data": bool, "recompute_modules": (str, list)}


def assemble(parsed: Parsed, outcome: Outcome, about: Record) -> Record:
    """Return `about` (what was known beforehand: id, request, platform, times, exit code) with what the log reports."""
    facts = parsed.facts
    requested = about.requested or parsed.requested
    effective = uncut({**parsed.effective, **_corpus(requested, parsed.effective)}, facts)
    either = {name: getattr(about, name) or _stated(facts, name) or getattr(about, name) for name in _EITHER}
    version = facts.get("framework_version", facts.get("megatron_core"))
    record = replace(
        about,
        **either,
        **_image(about, facts),
        exit_code=_stated(facts, "exit_code") if about.exit_code is None else about.exit_code,
        requested=requested,
        status=outcome.status,
        cause=outcome.cause,
        notes=(
            *about.notes,
            *(_stated(facts, "cautions", "notes") or ()),
            *_spoken_against(facts),
            *_contradictions(about.environment, facts),
            *ignored(either["declared"], parsed.arguments),
            *unreported(requested, effective),
            *parsed.notes,
            *outcome.notes,
        ),
        last_lines=parsed.tail,
        framework=about.framework or parsed.framework,
        framework_version=about.framework_version or (None if version is None else str(version)),
        effective=effective,
        differences=differences(requested, effective),
        # The log's own: it is what really ran.
        environment={**about.environment, **_environment(parsed)},
        **{name: getattr(parsed, name) for name in _AS_PARSED},
    )
    return without_speeds(record) if record.provenance == "rehearsed" else record


def uncut(effective: Mapping[str, Reading], facts: Mapping[str, Any]) -> dict[str, Reading]:
    """Return settings with the data path and the split of which corpus.py has cut the parts that the stack was given,
    where it says so and these very parts were read."""
    at, told = effective.get("data_path"), facts.get("data_cut")
    if at is None or not isinstance(told, dict) or told.get("parts") != at.value:
        return dict(effective)
    return {
        **effective,
        **{to: Reading(told.get(name), at.line) for name, to in (("path", "data_path"), ("split", "split"))},
    }


def _image(about: Record, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the image that the run itself names, from inside or in the line of the program that starts it, ahead of
    the given one; nothing where the runtime that started it has said it."""
    if about.image_source == "runtime":
        return {}
    started, stated = _stated(facts, "image_started", "image"), _stated(facts, "image")
    named = started or (stated if facts.get("image_source") == "environment" else None)
    name = named or about.image or stated
    source = "environment" if named else about.image_source or ("given" if name else None)
    return {"image": name, "image_source": source}


def _environment(parsed: Parsed) -> dict[str, Any]:
    """Return the facts that have no field of their own in a record."""
    values = {name: value for name, value in parsed.facts.items() if name not in _FIELDS}
    for name, reading in parsed.arguments.items():
        last = name.rpartition(".")[2]
        if last in _PRINTED and isinstance(reading.value, _PRINTED[last]):
            values[last] = reading.value
    other = other_layers(parsed.arguments)
    return values if other is None else {**values, "other_layers": other}


def _spoken_against(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a look at the nodes before the run found (launchers/ranks/node_check.py), at most 20 of it."""
    looked = facts.get("preflight")
    found = looked.get("findings") if isinstance(looked, dict) else None
    for one in (found if isinstance(found, list) else [])[:MOST_FINDINGS]:
        if isinstance(one, dict) and isinstance(one.get("text"), str):
            yield f"preflight: {one['text']}"


def _stated(facts: Mapping[str, Any], name: str, field: str | None = None) -> Any:
    """Return a fact that has a field of the record, by the same or another name; None where it cannot be one."""
    try:
        return msgspec.convert(facts.get(name), _TYPES[field or name])
    except msgspec.ValidationError:
        return None


def _corpus(requested: Mapping[str, Any], effective: Mapping[str, Reading]) -> dict[str, Reading]:
    """Return the name of the corpus, which no log states: the request's, where the log states the requested path."""
    path, wanted = effective.get("data_path"), requested.get("data_path")
    if "data" in effective or path is None or wanted is None or "data" not in requested:
        return {}
    return {"data": replace(path, value=requested["data"])} if _agree("data_path", wanted, path.value) else {}


def differences(requested: Mapping[str, Any], effective: Mapping[str, Reading]) -> tuple[Difference, ...]:
    """Return the settings that request and run both state, and state differently; not those that have no effect."""
    off = {*switched_off({name: reading.value for name, reading in effective.items()})}
    stated = {name: wanted for name, wanted in requested.items() if name in effective and name not in off}
    both = ((name, wanted, effective[name].value) for name, wanted in stated.items())
    return tuple(Difference(*one) for one in both if one[1] is not one[2] and not _agree(*one))


def ignored(declared: Iterable[Declaration], arguments: Mapping[str, Reading]) -> Iterator[str]:
    """Yield a note of each key that a framework alone has, which was written and is dumped otherwise. What all stacks
    share is compared with the request (`differences`)."""
    for name, wanted in ((d.key, d.value) for d in declared if d.key not in vocabulary()):
        scalar = wanted is None or isinstance(wanted, bool | int | float | str)
        if scalar and name in arguments and not same(wanted, arguments[name].value):
            yield f"{name} = {wanted} was written and ignored: the arguments printed say {arguments[name].value}"


def unreported(requested: Mapping[str, Any], effective: Mapping[str, Reading]) -> Iterator[str]:
    """Yield a note of the settings that were requested and that a log which reports others does not report."""
    known = vocabulary()
    wanted = (name for name, value in requested.items() if value is not None and name in known and known[name].dump)
    missing = [name for name in wanted if name not in effective] if effective else []
    if missing:
        near = [f"; {key} is no setting, {hint}" for key in effective.keys() - known if (hint := closest(key, missing))]
        yield f"requested, and not reported by the log: {', '.join(missing)}{''.join(sorted(near))}"


def _agree(name: str, wanted: Any, ran: Any) -> bool:
    """Return whether a setting ran as requested; the log prints in full a path below the run's directory."""
    below = name == "data_path" and isinstance(wanted, str) and isinstance(ran, str) and ran.endswith(f"/{wanted}")
    return below or same(wanted, ran)


def _contradictions(before: Mapping[str, Any], log: Mapping[str, Any]) -> Iterator[str]:
    for name, who in _REPORTED_TWICE.items():
        known, printed = before.get(name), log.get(name)
        if known is None or printed is None or same(known, printed):
            continue
        # A framework reports the memory that it can use, a driver all of it.
        sizes = [real(known), real(printed)] if name == "device_memory_bytes" else [None]
        if None in sizes or abs(known - printed) >= _USABLE_OF_TOTAL * max(known, printed):
            yield f"{name}: {who} says {known}, the log {printed}"


def same(wanted: Any, ran: Any) -> bool:
    """Return whether two values are equal, without Python's True == 1; numbers as numbers (500000 is 500000.0)."""
    if isinstance(wanted, bool) or isinstance(ran, bool):
        return wanted is ran
    return bool(wanted == ran)


def without_speeds(record: Record) -> Record:
    """Return `record` without what a rehearsal's log says about times, rates and memory: it means nothing."""
    steps = []
    for step in record.steps:
        slow = {k: v for k, v in step.metrics.items() if not _SPEED.search(k)}
        steps.append(replace(step, **_SPEEDS, metrics=slow))
    facts = {name: value for name, value in record.environment.items() if name not in _MEMORY_FACTS}
    return replace(record, steps=tuple(steps), environment=facts)
