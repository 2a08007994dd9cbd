"""What a rehearsal's log says of times, rates and memory means nothing: no record has it, whoever reads the log."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from parsers.record import Record

_SPEEDS: dict[str, Any] = dict.fromkeys(
    ("step_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "memory_bytes", "memory_kind", "end_monotonic_s")
)
_WORDS = ("mfu", "tflops", "tokens_per", "memory", "elapsed", "throughput", "samples_per")
_UNITS = ("_s", "_ms", "_mb", "_gb", "_bytes", "_w")
_FACTS = ("max_allocated_bytes", "max_reserved_bytes")


def without_speeds(record: Record) -> Record:
    """`record` without them."""
    steps = tuple(
        replace(step, **_SPEEDS, metrics={k: v for k, v in step.metrics.items() if not _is_speed(k)})
        for step in record.steps
    )
    facts = {name: value for name, value in record.environment.items() if name not in _FACTS}
    return replace(record, steps=steps, environment=facts)


def _is_speed(name: str) -> bool:
    return name.endswith(_UNITS) or any(word in name for word in _WORDS)
