"""GPT-NeoX: "samples/sec: R | iteration N/ TOTAL | … | lm_loss: …", and NeoX's own names in its argument dump.

A second line a step ("steps: N loss: …", DeepSpeed's) repeats it with fewer digits and is not read. Which step's rate
is printed is not settled, so lr_used stays unknown.
"""

from __future__ import annotations

from collections.abc import Iterator

from parsers import megatron_reader
from parsers.dialects.megatron import read_step
from parsers.events import Argument, Event, Reader, Setting
from parsers.megatron_reader import MegatronReader
from parsers.values import integer, literal

FRAMEWORK = "gpt_neox"
LOOKS_FOR = "GPT-NeoX: 'samples/sec: ' before Megatron's iteration line, 'NeoXArgs'"
SIGNS = (b"NeoXArgs", b"| approx flops per GPU: ", b"| lm_loss: ")
MARKS = (*megatron_reader.MARKS, b"save-checkpoint ")
STARTUP = (*(mark for mark in megatron_reader.STARTUP if mark != b"using world size"), b"  world_size .")
COMPANION = False
FAMILY = "megatron"


__all__ = ["COMPANION", "FRAMEWORK", "LOOKS_FOR", "MARKS", "SIGNS", "STARTUP", "read_step", "reader"]


def reader() -> Reader:
    """A reader for one log."""
    return _NeoxReader(prints_next_rate=False)


class _NeoxReader(MegatronReader):
    def feed(self, number: int, text: str) -> Iterator[Event]:
        for event in super().feed(number, text):
            if not isinstance(event, Argument):
                yield event
                continue
            yield Argument(event.name, _without_origin(event.value), event.line)

    def _others(self, number: int, text: str) -> Iterator[Event]:
        # DeepSpeed's own dump: the launcher's says None, and "using world size: 1" is said by the launcher too.
        name, dots, value = text.partition(" ..")
        if dots and name.rstrip().endswith("  world_size"):
            size = integer(value.lstrip(". ").strip())
            if size is not None:
                yield Setting("world_size", size, number)
        else:
            yield from super()._others(number, text)


def _without_origin(value: object) -> object:
    """ "512.........................updated" is 512: dots fill up to where the value came from."""
    if not isinstance(value, str):
        return value
    for origin in ("updated", "default"):
        if value.endswith(origin):
            return literal(value.removesuffix(origin).rstrip("."))
    return value
