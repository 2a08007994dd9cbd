"""From what was read to a Record: requested held against effective, the outcome, the facts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from parsers.outcome import Outcome
from parsers.reader import Parsed
from parsers.record import Difference, Reading, Record

# What the launcher finds out as well as the log, and who told it.
_TOLD_TWICE: Mapping[str, str] = {
    **dict.fromkeys(("host", "os", "kernel", "cpu_model"), "the launcher"),
    **dict.fromkeys(("device_name", "device_count", "driver", "device_memory_bytes"), "the driver"),
}
_USABLE_OF_TOTAL = 0.03
"""A framework tells the memory that it can use, a driver all of it."""


def assemble(parsed: Parsed, outcome: Outcome, about: Record) -> Record:
    """`about` (what was known beforehand: id, request, platform, times, exit code) with what the log tells."""
    return replace(
        about,
        status=outcome.status,
        cause=outcome.cause,
        notes=(*about.notes, *_contradictions(about.environment, parsed.facts), *parsed.notes, *outcome.notes),
        last_lines=parsed.tail,
        framework=about.framework or parsed.framework,
        framework_version=about.framework_version or parsed.facts.get("megatron_core"),
        effective=parsed.effective,
        differences=differences(about.requested, parsed.effective),
        environment={**about.environment, **parsed.facts},  # the log's own: it is what really ran
        steps=parsed.steps,
    )


def differences(requested: Mapping[str, Any], effective: Mapping[str, Reading]) -> tuple[Difference, ...]:
    """The settings that both sides state, and state otherwise."""
    both = (name for name in requested if name in effective)
    held = ((name, requested[name], effective[name].value) for name in both)
    return tuple(Difference(name, asked, ran) for name, asked, ran in held if not same(asked, ran))


def _contradictions(before: Mapping[str, Any], log: Mapping[str, Any]) -> Iterator[str]:
    for name, who in _TOLD_TWICE.items():
        known, told = before.get(name), log.get(name)
        if known is None or told is None or same(known, told):
            continue
        if name == "device_memory_bytes" and _nearly(known, told):
            continue
        yield f"{name}: {who} says {known}, the log {told}"


def _nearly(a: Any, b: Any) -> bool:
    numbers = all(isinstance(size, (int, float)) and not isinstance(size, bool) for size in (a, b))
    return numbers and bool(abs(a - b) < _USABLE_OF_TOTAL * max(a, b))


def same(asked: Any, ran: Any) -> bool:
    """Equality without Python's True == 1; numbers as numbers (500000 is 500000.0), exactly."""
    if isinstance(asked, bool) or isinstance(ran, bool):
        return asked is ran
    return bool(asked == ran)
