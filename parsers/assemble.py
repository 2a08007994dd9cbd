"""From what was read to a Record: requested held against effective, the outcome, the facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from parsers.outcome import Outcome
from parsers.reader import Parsed
from parsers.record import Difference, Reading, Record


def assemble(parsed: Parsed, outcome: Outcome, about: Record) -> Record:
    """`about` (what was known beforehand: id, request, platform, times, exit code) with what the log tells."""
    return replace(
        about,
        status=outcome.status,
        cause=outcome.cause,
        notes=(*about.notes, *parsed.notes, *outcome.notes),
        last_lines=parsed.tail,
        framework=about.framework or parsed.framework,
        framework_version=about.framework_version or parsed.facts.get("megatron_core"),
        effective=parsed.effective,
        differences=differences(about.requested, parsed.effective),
        environment={**about.environment, **parsed.facts},
        steps=parsed.steps,
    )


def differences(requested: Mapping[str, Any], effective: Mapping[str, Reading]) -> tuple[Difference, ...]:
    """The settings that both sides state, and state otherwise."""
    both = (name for name in requested if name in effective)
    held = ((name, requested[name], effective[name].value) for name in both)
    return tuple(Difference(name, asked, ran) for name, asked, ran in held if not same(asked, ran))


def same(asked: Any, ran: Any) -> bool:
    """Equality without Python's True == 1; numbers as numbers (500000 is 500000.0), exactly."""
    if isinstance(asked, bool) or isinstance(ran, bool):
        return asked is ran
    return bool(asked == ran)
