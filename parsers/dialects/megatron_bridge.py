"""NVIDIA Megatron-Bridge 0.2 to 0.7: Megatron's iteration line by the last rank, "Step Time" by the first, YAML dump.

Until October 2025 it wrote "58.2TFLOP/s/GPU", without "MODEL_".
A log of the first rank alone has only "Step Time" lines: steps without a number, counted in their order. Memory is in
1e9 bytes (keys "…-gigabytes"). The dump keeps what was requested, so three settings are not
read from it: see vocab_size and weight_decay in conf/vocabulary.yaml."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from itertools import takewhile
from typing import Any

from msgspec.structs import replace

from parsers.dialects import megatron
from parsers.dialects.megatron import MegatronDriver
from parsers.driver import Argument, Dialect, Event, Setting, Values
from parsers.record import Step
from parsers.text import body
from parsers.values import number, yaml_literal

_STEP_TIME = re.compile(r"Step Time : ([\d.]{1,12})s GPU utilization: ([\d.]{1,12}) ?(?:MODEL_)?TFLOP/s/GPU")
_ENTRY = re.compile(r"( {0,40})([a-zA-Z_]\w{0,80}):(?: (.*))?$")
# 0.3: "[model] Non-default values (vs Mcore TransformerConfig):", "[train]:"; what is default is not printed.
_SECTION = re.compile(r"\[([a-z_]{2,30})\](?: Non-default values \(|:\s*$)")
_GAP = 60
_UNNUMBERED = 16  # so many "Step Time" lines without an iteration line: the log has none
_DEEPEST = 12
_DTYPES = ("params_dtype", "params_dtype._target_")


class _Driver(MegatronDriver):
    """Gives the time of "Step Time" to the iteration line that follows; gathers the dump until the first step."""

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect)
        self._timed: list[Step] = []  # since the last iteration line
        self._counted = 0
        self._numbered = False
        self._left = 0
        self._complete = False  # the dump is of all that there is, once
        self._path: list[tuple[int, str]] = []
        self._entries: dict[str, tuple[Any, int]] = {}

    def feed(self, number: int, text: str) -> Iterator[Event]:
        match = _STEP_TIME.search(text)
        if match is not None:
            # Where one rank wrote before another one's newline, an iteration line stands before it or behind.
            if " iteration " in text[: match.start()]:
                yield from self.feed(number, text[: match.start()])
            yield from self._time(number, match)
            if " iteration " not in (text := text[match.end() :]):
                return
        if "training.config.ConfigContainer" in text or "Configuration Summary (Non-Default" in text:
            self._left, self._path = _GAP, []
            self._complete = "ConfigContainer" in text
            if self._complete:
                self._entries.clear()
        elif self._left:
            self._dump_line(number, text)
        yield from super().feed(number, text)
        self.wants = max(self.wants, self._left)

    def step(self, line: int, values: Values, text: str) -> Iterator[Event]:
        yield from self._settled()
        for event in super().step(line, values, text):
            yield self._with_time(event) if isinstance(event, Step) else event

    def lost(self) -> None:
        super().lost()
        self._timed.clear()

    def end(self) -> Iterator[Event]:
        yield from super().end()
        yield from self._settled()
        yield from self._alone()

    def _time(self, line: int, match: re.Match[str]) -> Iterator[Event]:
        yield from super().end()
        if len(self._timed) > _UNNUMBERED:
            yield from self._alone()
        own, tflops = number(match[1]), number(match[2])
        flags = ("step:by_order",)
        self._timed.append(Step(step=0, line=line, iteration=None, step_time_s=own, tflops_per_gpu=tflops, flags=flags))

    def _alone(self) -> Iterator[Event]:
        """Yield the "Step Time" lines that no iteration line followed: in a log without such lines, they are steps."""
        waiting, self._timed = self._timed, []
        for timed in () if self._numbered else waiting:
            yield replace(timed, step=self._counted)
            self._counted += 1

    def _with_time(self, step: Step) -> Step:
        timed = self._timed[-1] if self._timed else None
        self._timed, self._numbered = [], True
        if timed is None or step.tflops_per_gpu is not None or not step.step_time_s or not timed.step_time_s:
            return step
        agree = abs(timed.step_time_s - step.step_time_s) <= max(0.01 * step.step_time_s, 0.006)
        return replace(step, tflops_per_gpu=timed.tflops_per_gpu) if agree else step

    def _dump_line(self, line: int, text: str) -> None:
        section = _SECTION.search(text)
        entry = _ENTRY.fullmatch(body(text).partition("  (Mcore default: ")[0].rstrip())
        if section is not None:
            self._left, self._path = _GAP, [(0, section[1])]
        elif entry is None:
            self._left -= 1
        else:
            self._left, indent = _GAP, len(entry[1])
            self._path = [*takewhile(lambda outer: outer[0] < indent, self._path)]
            if self._complete and not self._path and any(name.startswith(f"{entry[2]}.") for name in self._entries):
                self._entries.clear()  # printed anew, and its first line was lost
            if entry[3] is None:
                self._path = [*self._path, (indent, entry[2])][:_DEEPEST]
            elif self._path and len(self._entries) < 10_000:
                name = ".".join([*(key for _, key in self._path), entry[2]])
                self._entries[name] = (yaml_literal(entry[3]), line)

    def _settled(self) -> Iterator[Event]:
        """Yield the dump that was printed last: an earlier one is of the config before it was finished."""
        entries, self._entries = self._entries, {}
        for name, (value, line) in entries.items():
            yield Argument(name, value, line)
            section, _, rest = name.partition(".")
            key = f"model.{rest.rpartition('.')[2]}" if section == "model" else name  # of a part of the model, too
            setting = self.dialect.known.get(key)
            if setting is not None and rest.count(".") <= 1:
                yield Setting(setting.name, value, line)
            elif name.removeprefix("model.transformer.").removeprefix("model.") in _DTYPES and isinstance(value, str):
                yield Setting("params_dtype", value, line)


DIALECT = dataclasses.replace(
    megatron.DIALECT,
    framework="megatron_bridge",
    looks_for="Megatron-Bridge: 'Step Time : 1.23s GPU utilization: 512.3MODEL_TFLOP/s/GPU'",
    signs=(b"Step Time : ", b"megatron.bridge", b"-gigabytes: "),
    marks=(*megatron.DIALECT.marks, b"Step Time : "),
    startup=(*megatron.DIALECT.startup, b"training.config.ConfigContainer", b"Configuration Summary (Non-Default"),
    driver=_Driver,
)
