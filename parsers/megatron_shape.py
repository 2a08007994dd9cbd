"""The iteration lines of one log differ in their numbers only: one that was read gives a pattern for those that follow.

Field by field a line takes thirty microseconds, matched whole two, and where its like was matched before, half of one.
A line that does not match is read field by field.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from parsers.line_shape import Wanted, cut_out
from parsers.megatron_line import ZERO_IS_UNKNOWN, Line, Number, memory_totals, read_line, step_of
from parsers.record import Step
from parsers.text import colourless
from parsers.values import finite, integer, number

_HEAD = r"iteration[ =] {0,20}(\d{1,12})/ {0,20}(\d{1,12}) {1,3}"
_DECIMAL = r"(\d{1,15}(?:\.\d{0,15})?(?:E[+-]\d{1,3})?)"
_INTEGER = r"(\d{1,15})"
_DIGIT = re.compile(r"\d")
_MANY_PARTS = 60
INTERVAL_FLAGS = ("step_time_s:interval_mean", "loss:interval_mean")


@dataclass(frozen=True, slots=True)
class Shape:
    """search: matches a line of this shape, with a group for the iteration, the total and each of `numbers`; first:
    which group the iteration is (numbers may stand before it); rate: that of the learning rate, 0 if there is none.
    totals: a GPU's whole memory as printed, which tells the unit of the other sizes.
    digits_alike: whether lines that differ in their digits only all match, or none."""

    search: Callable[[bytes], re.Match[bytes] | None]
    numbers: tuple[tuple[str, bool, Callable[[bytes], Any]], ...]  # target, whether that is a metric, conversion
    memory: bool
    totals: tuple[bytes, ...]
    first: int
    rate: int
    tells_flops: bool
    digits_alike: bool

    def wanted(self, found: re.Match[bytes]) -> Wanted:
        """What tells the iteration, the total and the rate of such a line."""
        rate = found.span(self.rate) if self.rate else (0, 0)
        return cut_out([found.span(self.first), found.span(self.first + 1), rate])

    def step(self, raw: tuple[Any, ...]) -> Step:
        """raw: line number, iteration, iterations covered, the rate in the line before or b"", and the line, which was
        found to match."""
        number, iteration, covered, rate, text = raw
        if any(text.count(total) < self.totals.count(total) for total in self.totals):
            return self._anew(raw)
        found = self.search(text)
        groups = found.groups() if found is not None else ()
        printed = (*groups[: self.first - 1], *groups[self.first + 1 :])
        values: dict[str, Any] = {"interval_steps": covered}
        metrics: dict[str, float] = {}
        for (target, metric, convert), shown in zip(self.numbers, printed, strict=True):
            value = convert(shown)
            if not metric:
                values[target] = value
            elif value or target not in ZERO_IS_UNKNOWN:
                metrics[target] = value
        if self.memory:
            values.update(memory_bytes=metrics["hip_memory_used_bytes"], memory_kind="hip")
        if rate:
            values["lr_used"] = float(rate)
        if covered > 1:
            values["flags"] = INTERVAL_FLAGS
        return Step(step=iteration - 1, line=number, iteration=iteration, metrics=metrics, **values)

    def _anew(self, raw: tuple[Any, ...]) -> Step:
        """The same, field by field."""
        number, _, covered, rate, text = raw
        line = read_line(number, colourless(text.decode("utf-8", "replace")))
        more: dict[str, Any] = {"lr_used": float(rate)} if rate else {}
        more |= {"flags": INTERVAL_FLAGS} if covered > 1 else {}
        return step_of(line or Line(number, "", raw[1], 0, 0), interval_steps=covered, **more)


def shape_of(line: Line) -> Shape | None:
    """The shape of a line that was read field by field; None where something in it is not plain numbers."""
    numbers = tuple(number for _, read in line.parts for number in read)
    odd = line.nonfinite or any(number.convert(number.text) is None for number in numbers)
    if odd or not line.parts or len(line.parts) > _MANY_PARTS:
        return None
    pattern = r"\|".join([_HEAD, *("".join(_pattern(part, read)) for part, read in line.parts)])
    pattern += r"\|\s*$" if line.text.rstrip().endswith("|") else r"\s*$"
    if line.before:
        pattern = r"samples/sec: {0,9}([\d.]{1,20}) {1,4}\| {0,4}" + pattern
    if "learning_rate=" in line.text:
        return None  # rounded to six decimals: no rate to hand on
    first = 1 + len(line.before)
    rates = [place for place, number in enumerate(numbers, start=first + 2) if number.target == "lr"]
    return Shape(
        search=re.compile(pattern.encode()).search,
        numbers=tuple((n.target, n.metric, _quickly(n.convert)) for n in (*line.before, *numbers)),
        memory=line.values.get("memory_kind") == "hip",
        totals=tuple(f"/{total}GB/".encode() for part, _ in line.parts for total in memory_totals(part)),
        first=first,
        rate=rates[0] if rates else 0,
        tells_flops=any(number.target == "tflops_per_gpu" for number in numbers),
        digits_alike=not any(_DIGIT.search(re.split("[:=]", part, maxsplit=1)[0]) for part, _ in line.parts),
    )


def _quickly(convert: Callable[[str], Any]) -> Callable[[bytes], Any]:
    """The same of what the pattern has found to be plain digits."""
    if convert is integer:
        return int
    return finite if convert is number else lambda text: convert(text.decode())


def _pattern(part: str, read: tuple[Number, ...]) -> Iterator[str]:
    if not read:
        yield _between(part)
        return
    at = part.index(":") if ":" in part else part.index("=")
    yield re.escape(part[: at + 1])
    for entry in read:
        start = part.index(entry.text, at + 1)
        yield _between(part[at + 1 : start])
        yield _INTEGER if entry.convert is integer else _DECIMAL
        at = start + len(entry.text) - 1
    yield _between(part[at + 1 :])


def _between(text: str) -> str:
    """What stands between numbers: other numbers and spaces may differ."""
    pieces = re.split(r"([\d.]+|\s+)", text)
    kinds = {True: r"\s{0,20}", False: r"[\d.]{1,20}"}
    return "".join(re.escape(p) if i % 2 == 0 else kinds[p.isspace()] for i, p in enumerate(pieces))
