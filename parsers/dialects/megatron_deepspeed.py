"""Megatron-DeepSpeed: Microsoft's, BigScience's, Argonne's key=value form, Juelich's seconds.

"TFLOPs" is per GPU. Argonne prints the learning rate with six decimals, so small rates read as 0."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from parsers.dialects import megatron
from parsers.dialects.megatron import MegatronDriver


class _Driver(MegatronDriver):
    def value(self, name: str, printed: str) -> Any:
        # --num-experts takes a list, [1] by default: a dense model (megatron/arguments.py).
        return None if (name, printed) == ("num_experts", "[1]") else super().value(name, printed)


DIALECT = replace(
    megatron.DIALECT,
    framework="megatron_deepspeed",
    clock="",
    looks_for="Megatron-DeepSpeed: 'samples per second: ' or 'samples_per_second=' in Megatron's iteration line",
    signs=(b"samples per second: ", b"samples_per_second=", b"| consumed tokens: ", b"| consumed_tokens="),
    marks=(*megatron.DIALECT.marks, b"save-checkpoint "),
    driver=_Driver,
)
