"""GPT-NeoX: "samples/sec: R | iteration N/ TOTAL | … | lm_loss: …", and NeoX's own names in its argument dump.

A second line a step ("steps: N loss: …", DeepSpeed's) repeats it with fewer digits and is not read. Which step's rate
is printed is not settled, so lr_used stays unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from parsers.dialects import megatron
from parsers.dialects.megatron import MegatronDriver
from parsers.events import Event, Setting
from parsers.values import integer


class _Driver(MegatronDriver):
    def value(self, name: str, printed: str) -> Any:
        """Return 512 for "512.........................updated": dots fill up to where the value came from."""
        for origin in ("updated", "default"):
            if printed.endswith(origin):
                printed = printed.removesuffix(origin).rstrip(".")
        return super().value(name, printed)

    def other(self, line: int, text: str) -> Iterator[Event]:
        # DeepSpeed's own dump: the launcher's says None, and "using world size: 1" is said by the launcher too.
        name, dots, value = text.partition(" ..")
        if dots and name.rstrip().endswith("  world_size"):
            size = integer(value.lstrip(". ").strip())
            if size is not None:
                yield Setting("world_size", size, line)
        else:
            yield from super().other(line, text)


DIALECT = replace(
    megatron.DIALECT,
    framework="gpt_neox",
    clock="",
    rate_of=(0, 1),
    looks_for="GPT-NeoX: 'samples/sec: ' before Megatron's iteration line, 'NeoXArgs'",
    signs=(b"NeoXArgs", b"| approx flops per GPU: ", b"| lm_loss: "),
    marks=(*megatron.DIALECT.marks, b"save-checkpoint "),
    startup=(*(mark for mark in megatron.DIALECT.startup if mark != b"using world size"), b"  world_size ."),
    prints_next_rate=False,
    driver=_Driver,
)
