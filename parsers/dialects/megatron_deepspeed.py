"""Megatron-DeepSpeed: Microsoft's, BigScience's, Argonne's key=value form, Juelich's seconds.

"TFLOPs" is per GPU. Argonne prints the learning rate with six decimals, so small rates read as 0. In 2021 the loss was
"lm-loss", and the sizes stood in DeepSpeed's own configuration. The last rank prints the iteration lines: where each
node has a log of its own, the first one's has the arguments, and of the steps only what DeepSpeed prints."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from parsers.dialects import deepspeed, megatron
from parsers.dialects.megatron import MegatronDriver
from parsers.driver import Dialect, Event, Values
from parsers.record import Step

_SURE = 1000  # so many steps of DeepSpeed's without an iteration line: the log has none


class NodeDriver(MegatronDriver):
    """Keeps DeepSpeed's steps until an iteration line shows that they are not needed."""

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect)
        self._beside = deepspeed.DIALECT.reader()
        self._steps: list[Step] = []
        self._has_lines = False

    def feed(self, number: int, text: str) -> Iterable[Event]:
        if self._has_lines:
            return super().feed(number, text)
        if any(sign in text for sign in deepspeed.SIGNS):
            self._steps += [event for event in self._beside.feed(number, text) if isinstance(event, Step)]
        begins = "- arguments --" in text  # of another run, whose dump is not this one's
        return (*(self._released() if begins or len(self._steps) > _SURE else ()), *super().feed(number, text))

    def step(self, line: int, values: Values, text: str) -> Iterable[Event]:
        self._has_lines = True
        self._steps.clear()
        return super().step(line, values, text)

    def end(self) -> Iterable[Event]:
        return (*super().end(), *self._released())

    def _released(self) -> list[Step]:
        steps, self._steps = self._steps, []
        return steps


DIALECT = replace(
    megatron.DIALECT,
    framework="megatron_deepspeed",
    clock="",
    includes=("deepspeed",),
    looks_for="Megatron-DeepSpeed: 'samples per second: ' or 'samples_per_second=' in Megatron's iteration line",
    signs=(
        *(b"samples per second: ", b"samples_per_second=", b"| consumed_tokens=", b"DeepSpeed is enabled."),
        *(b"| lm-loss: ", b"  deepspeed %b True" % (b"." * 39)),
        b"| consumed tokens:  ",  # to twelve places; swiss-ai's Megatron prints "| consumed tokens: 1.258B"
    ),
    marks=(*megatron.DIALECT.marks, *deepspeed.DIALECT.marks),
    startup=(*megatron.DIALECT.startup, *deepspeed.DIALECT.startup),
    facts=(*megatron.DIALECT.facts, r"DeepSpeed info: version=(?P<deepspeed_version>[^,\s]{1,40})"),
    conversions={"deepspeed_version": str},
    entry=deepspeed.DIALECT.entry,
    printed_by="deepspeed",
    driver=NodeDriver,
)
