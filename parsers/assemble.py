"""From what was read to a Record: requested against effective, the outcome, the facts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from conf.vocabulary import vocabulary
from parsers.megatron_dump import other_layers
from parsers.outcome import Outcome
from parsers.record import Declaration, Difference, Reading, Record
from parsers.segment import Parsed

# What the launcher finds out as well as the log, and who reports it.
_REPORTED_TWICE: Mapping[str, str] = {
    **dict.fromkeys(("host", "os", "kernel", "cpu_model"), "the launcher"),
    **dict.fromkeys(("device_name", "device_count", "driver", "device_memory_bytes"), "the driver"),
}
_FIELDS = ("platform", "hardware", "image", "exit_code", "declared", "not_rehearsed", "shrunk", "cautions")
"""Facts that have a field of their own in a record."""
_SPEEDS: dict[str, Any] = dict.fromkeys(
    ("step_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "memory_bytes", "memory_kind", "end_monotonic_s")
)
_SPEED_WORDS = ("mfu", "tflops", "tokens_per", "memory", "elapsed", "throughput", "samples_per")
_SPEED_UNITS = ("_s", "_ms", "_mb", "_gb", "_bytes", "_w")
_MEMORY_FACTS = ("max_allocated_bytes", "max_reserved_bytes")
_USABLE_OF_TOTAL = 0.03
"""A framework reports the memory that it can use, a driver all of it."""


_PRINTED: Mapping[str, type | tuple[type, ...]] = {
    "mock_data": bool,
    "recompute_modules": (str, list),
}


def assemble(parsed: Parsed, outcome: Outcome, about: Record) -> Record:
    """Return `about` (what was known beforehand: id, request, platform, times, exit code) with what the log reports."""
    facts = parsed.facts
    requested = about.requested or parsed.requested
    declared = about.declared or _declared(facts.get("declared"))
    effective = {**parsed.effective, **_corpus(requested, parsed.effective)}
    record = replace(
        about,
        platform=about.platform or facts.get("platform"),
        hardware=about.hardware or facts.get("hardware"),
        image=about.image or facts.get("image"),
        exit_code=facts.get("exit_code") if about.exit_code is None else about.exit_code,
        requested=requested,
        declared=declared,
        not_rehearsed=about.not_rehearsed or _reasons(facts.get("not_rehearsed")),
        shrunk=about.shrunk or _shrunk(facts.get("shrunk")),
        status=outcome.status,
        cause=outcome.cause,
        notes=(
            *about.notes,
            *_cautions(facts.get("cautions")),
            *_contradictions(about.environment, facts),
            *ignored(declared, parsed.arguments),
            *unreported(requested, effective),
            *parsed.notes,
            *outcome.notes,
        ),
        last_lines=parsed.tail,
        framework=about.framework or parsed.framework,
        framework_version=about.framework_version or _version(facts),
        vendor=about.vendor or facts.get("vendor"),
        effective=effective,
        dumped=parsed.dumped,
        configured=parsed.configured,
        differences=differences(requested, effective),
        # The log's own: it is what really ran.
        environment={**about.environment, **_environment(facts), **_of_arguments(parsed)},
        dialects=parsed.dialects,
        validations=parsed.validations,
        stalls=parsed.stalls,
        restarts=parsed.restarts,
        steps=parsed.steps,
    )
    return without_speeds(record) if record.provenance == "rehearsed" else record


def _environment(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts that have no field of their own in a record."""
    return {name: value for name, value in facts.items() if name not in _FIELDS}


def _of_arguments(parsed: Parsed) -> dict[str, Any]:
    """Return what a Megatron dump alone states and no setting of ours covers: recipes set it on one side only."""
    values: dict[str, Any] = {}
    for name, reading in parsed.arguments.items():
        wanted = _PRINTED.get(name.rpartition(".")[2])
        if wanted is not None and isinstance(reading.value, wanted):
            values[name.rpartition(".")[2]] = reading.value
    other = other_layers(parsed.arguments)
    return values if other is None else {**values, "other_layers": other}


def _declared(entries: Any) -> tuple[Declaration, ...]:
    """Return what a rendered bundle says of its declarations."""
    listed = entries if isinstance(entries, list) else []
    complete = [entry for entry in listed if isinstance(entry, dict) and {"key", "value", "reason"} <= entry.keys()]
    return tuple(Declaration(str(entry["key"]), entry["value"], str(entry["reason"])) for entry in complete)


def _reasons(entries: Any) -> dict[str, str]:
    """Return what a rendered bundle says that its rehearsal does not show."""
    return {str(name): str(why) for name, why in entries.items()} if isinstance(entries, dict) else {}


def _shrunk(entries: Any) -> dict[str, dict[str, Any]]:
    """Return what a rendered bundle says that its rehearsal has smaller."""
    rows = entries.items() if isinstance(entries, dict) else ()
    return {str(name): row for name, row in rows if isinstance(row, dict) and row.keys() == {"asked", "ran"}}


def _cautions(entries: Any) -> tuple[str, ...]:
    """Return what a rendered bundle says about its rehearsal beforehand."""
    return tuple(map(str, entries)) if isinstance(entries, list) else ()


def _corpus(requested: Mapping[str, Any], effective: Mapping[str, Reading]) -> dict[str, Reading]:
    """Return the name of the corpus, which no log states: the request's, where the log states the requested path."""
    path, wanted = effective.get("data_path"), requested.get("data_path")
    if "data" in effective or path is None or wanted is None or "data" not in requested:
        return {}
    alike = same(wanted, path.value) or _below("data_path", wanted, path.value)
    return {"data": replace(path, value=requested["data"])} if alike else {}


def _version(facts: Mapping[str, Any]) -> str | None:
    version = facts.get("framework_version", facts.get("megatron_core"))
    return None if version is None else str(version)


def differences(requested: Mapping[str, Any], effective: Mapping[str, Reading]) -> tuple[Difference, ...]:
    """Return the settings that request and run both state, and state differently."""
    both = (name for name in requested if name in effective)
    pairs = ((name, requested[name], effective[name].value) for name in both)
    return tuple(
        Difference(name, wanted, ran)
        for name, wanted, ran in pairs
        if not (same(wanted, ran) or _below(name, wanted, ran))
    )


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
        yield f"requested, and not reported by the log: {', '.join(missing)}"


def _below(name: str, wanted: Any, ran: Any) -> bool:
    """Return whether a path is the requested one, relative to the run's directory, which the log prints in full."""
    return name == "data_path" and isinstance(wanted, str) and isinstance(ran, str) and ran.endswith(f"/{wanted}")


def _contradictions(before: Mapping[str, Any], log: Mapping[str, Any]) -> Iterator[str]:
    for name, who in _REPORTED_TWICE.items():
        known, printed = before.get(name), log.get(name)
        if known is None or printed is None or same(known, printed):
            continue
        if name == "device_memory_bytes" and _nearly(known, printed):
            continue
        yield f"{name}: {who} says {known}, the log {printed}"


def _nearly(a: Any, b: Any) -> bool:
    numbers = all(isinstance(size, (int, float)) and not isinstance(size, bool) for size in (a, b))
    return numbers and bool(abs(a - b) < _USABLE_OF_TOTAL * max(a, b))


def same(wanted: Any, ran: Any) -> bool:
    """Return whether two values are equal, without Python's True == 1; numbers as numbers (500000 is 500000.0)."""
    if isinstance(wanted, bool) or isinstance(ran, bool):
        return wanted is ran
    return bool(wanted == ran)


def without_speeds(record: Record) -> Record:
    """Return `record` without what a rehearsal's log says about times, rates and memory: it means nothing."""
    steps = tuple(
        replace(step, **_SPEEDS, metrics={k: v for k, v in step.metrics.items() if not _is_speed(k)})
        for step in record.steps
    )
    facts = {name: value for name, value in record.environment.items() if name not in _MEMORY_FACTS}
    return replace(record, steps=steps, environment=facts)


def _is_speed(name: str) -> bool:
    return name.endswith(_SPEED_UNITS) or any(word in name for word in _SPEED_WORDS)
