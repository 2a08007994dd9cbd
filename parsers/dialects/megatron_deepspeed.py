"""Megatron-DeepSpeed: Microsoft's, BigScience's, Argonne's key=value form, Juelich's seconds.

"TFLOPs" is per GPU. Argonne prints the learning rate with six decimals, so small rates read as 0.
"""

from __future__ import annotations

from collections.abc import Iterator

from parsers import megatron_reader
from parsers.dialects.megatron import read_step
from parsers.events import Argument, Event, Reader
from parsers.megatron_reader import MegatronReader

FRAMEWORK = "megatron_deepspeed"
LOOKS_FOR = "Megatron-DeepSpeed: 'samples per second: ' or 'samples_per_second=' in Megatron's iteration line"
SIGNS = (b"samples per second: ", b"samples_per_second=", b"| consumed tokens: ", b"| consumed_tokens=")
MARKS = (*megatron_reader.MARKS, b"save-checkpoint ")
STARTUP = megatron_reader.STARTUP
COMPANION = False
FAMILY = "megatron"

__all__ = ["COMPANION", "FRAMEWORK", "LOOKS_FOR", "MARKS", "SIGNS", "STARTUP", "read_step", "reader"]


def reader() -> Reader:
    """A reader for one log."""
    return _DeepSpeedReader()


class _DeepSpeedReader(MegatronReader):
    def feed(self, number: int, text: str) -> Iterator[Event]:
        for event in super().feed(number, text):
            # --num-experts takes a list, [1] by default: a dense model (megatron/arguments.py).
            dense = isinstance(event, Argument) and (event.name, event.value) == ("num_experts", "[1]")
            yield Argument("num_experts", None, number) if dense else event
