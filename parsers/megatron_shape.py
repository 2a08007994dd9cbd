"""The iteration lines of one log differ in their numbers only: one that was read gives a pattern for those that follow.

Field by field a line takes some ten microseconds, matched whole two. A line that does not match is read field by field.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from parsers.megatron_line import Line, Number, step_of
from parsers.record import Step
from parsers.values import integer

_HEAD = r"iteration[ =] {0,20}(\d{1,12})/ {0,20}(\d{1,12}) {1,3}"
_DECIMAL = r"(\d{1,15}(?:\.\d{0,15})?(?:E[+-]\d{1,3})?)"
_INTEGER = r"(\d{1,15})"
_MANY_PARTS = 60
INTERVAL_FLAGS = ("step_time_s:interval_mean", "loss:interval_mean")


@dataclass(frozen=True, slots=True)
class Shape:
    """search(block, start, end): matches a line of this shape, with a group for the iteration, the total and each of
    `numbers`; rotated: the last of these stands first. rate: which of them holds the learning rate, if any."""

    search: Callable[[bytes, int, int], re.Match[bytes] | None]
    numbers: tuple[Number, ...]
    memory: bool
    rate: int | None
    rotated: bool
    tells_flops: bool

    def ordered(self, found: re.Match[bytes]) -> tuple[bytes, ...]:
        """Iteration, total, then the numbers in their order."""
        first, *others = found.groups()
        return (*others, first)

    def step(self, raw: tuple[Any, ...]) -> Step:
        """raw: line number, iterations covered, the rate in the line before or b"", then the match's groups."""
        number, covered, rate, iteration, _, *printed = raw
        line = Line(number, "", int(iteration), 0, 0)
        for entry, text in zip(self.numbers, printed, strict=True):
            into: dict[str, Any] = line.metrics if entry.metric else line.values
            into[entry.target] = entry.convert(text.decode())
        if self.memory:
            line.values.update(memory_bytes=line.metrics["hip_memory_used_bytes"], memory_kind="hip")
        more: dict[str, Any] = {"lr_used": float(rate)} if rate else {}
        if covered > 1:
            more["flags"] = INTERVAL_FLAGS
        return step_of(line, interval_steps=covered, **more)


def shape_of(line: Line) -> Shape | None:
    """The shape of a line that was read field by field; None where something in it is not plain numbers."""
    numbers = tuple(number for _, read in line.parts for number in read)
    samples = tuple(line.before)
    odd = line.nonfinite or any(number.convert(number.text) is None for number in numbers)
    if odd or not line.parts or len(line.parts) > _MANY_PARTS:
        return None
    pattern = r"\|".join([_HEAD, *("".join(_pattern(part, read)) for part, read in line.parts)])
    pattern += r"\|\s*$" if line.text.rstrip().endswith("|") else r"\s*$"
    if samples:
        pattern = r"samples/sec: {0,9}([\d.]{1,20}) {1,4}\| {0,4}" + pattern
    if "learning_rate=" in line.text:
        return None  # rounded to six decimals: no rate to hand on
    rates = [place for place, number in enumerate(numbers, start=2) if number.target == "lr"]
    memory = line.values.get("memory_kind") == "hip"
    rate = rates[0] if rates else None
    flops = any(number.target == "tflops_per_gpu" for number in numbers)
    return Shape(re.compile(pattern.encode()).search, (*numbers, *samples), memory, rate, bool(samples), flops)


def _pattern(part: str, read: tuple[Number, ...]) -> Iterator[str]:
    if not read:
        yield r"[^|]{0,200}"
        return
    at = part.index(":") if ":" in part else part.index("=")
    yield re.escape(part[: at + 1])
    for number in read:
        start = part.index(number.text, at + 1)
        yield _between(part[at + 1 : start])
        yield _INTEGER if number.convert is integer else _DECIMAL
        at = start + len(number.text) - 1
    yield _between(part[at + 1 :])


def _between(text: str) -> str:
    """What stands between numbers: other numbers and spaces may differ."""
    pieces = re.split(r"([\d.]+|\s+)", text)
    kinds = {True: r"\s{0,20}", False: r"[\d.]{1,20}"}
    return "".join(re.escape(p) if i % 2 == 0 else kinds[p.isspace()] for i, p in enumerate(pieces))
