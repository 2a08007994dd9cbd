"""The dialect of nanotron (src/nanotron/trainer.py, train_step_logs).

`iteration: 211364 / 1500000 | consumed_tokens: 480B | time_per_iteration_ms: 8.79K | tokens_per_sec_per_gpu: 699 | …`
Counts from 1. Numbers have 3 significant digits and a letter (human_format: K M B T, powers of 1,000); the time is the
iteration's own, after a barrier. global_batch_size is in tokens since 2024, in samples before. lr is the next step's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from conf.vocabulary import printed
from parsers.events import Event, Fact, Reader, Resumed, Setting
from parsers.fields import Column, number, step_fields
from parsers.record import Stall, Step
from parsers.wrapped import WrappedReader

FRAMEWORK = "nanotron"
LOOKS_FOR = "nanotron: lines 'iteration: 10 / 100 | consumed_tokens: … | time_per_iteration_ms: …'"
SIGNS = (b" | consumed_tokens: ",)
MARKS = (b"consumed_tokens: ", b"Saving checkpoint at ")
STARTUP = (b" | grad_accum: ",)
COMPANION = False

_HEAD = re.compile(r"iteration: {1,12}(\d{1,12}) / {1,12}(\d{1,12}) \|")
_WORK = re.compile(r"tflops_per_gpu: \S")
_UNITS: Mapping[str, float] = {letter: 1000.0**power for power, letter in enumerate("KMBTPE", 1)}
_PLAN = re.compile(r"\bmbs: \d{1,9} \| grad_accum: .{1,300}")
_SAVING = re.compile(r"Saving checkpoint at .{0,300}?/?(\d{1,12})\s*$")


def human(text: str) -> float | None:
    """The number behind 8.79K, 480B, 0.0001."""
    unit = _UNITS.get(text[-1:])
    value = number(text[:-1] if unit else text)
    # 8.79 * 1000.0 is 8789.999…: what was printed has three digits.
    return None if value is None else float(f"{value * unit:.6g}") if unit else value


def _human_ms(text: str) -> float | None:
    value = human(text)
    return None if value is None else value / 1000


def _human_bytes(text: str) -> int | None:
    value = human(text)
    return None if value is None else round(value)


_COLUMNS: Mapping[str, Column] = {
    "lm_loss": ("loss", human),
    "lr": ("lr", human),
    "grad_norm": ("grad_norm", human),
    "time_per_iteration_ms": ("step_time_s", _human_ms),
    "elapsed_time_per_iteration_ms": ("step_time_s", _human_ms),
    "tokens_per_sec_per_gpu": ("tokens_per_s_per_gpu", human),
    "model_tflops_per_gpu": ("tflops_per_gpu", human),
    "hardware_tflops_per_gpu": ("hardware_tflops_per_gpu", human),
    "tokens_per_sec": ("tokens_per_s", human),
    "consumed_tokens": ("consumed_tokens", human),
    "global_batch_size": ("printed_batch_size", human),
    "z_loss": ("z_loss", human),
    "cuda_max_memory_reserved": ("memory_bytes", _human_bytes),
    "cuda_memory_allocated": ("allocated_bytes", human),
}


def read_step(line: int, text: str) -> Step | None:
    """The step that this one line tells, without what only its neighbours tell."""
    found = _HEAD.search(text)
    values = None if found is None else _values(text, found)
    return None if values is None else Step(line=line, **values)


def reader() -> Reader:
    """A reader for one log."""
    return _Reader()


class _Reader(WrappedReader):
    def __init__(self) -> None:
        super().__init__(_HEAD, _is_whole)
        self._iteration: int | None = None
        self._lr: float | None = None
        self._total: int | None = None

    def read(self, number: int, text: str) -> Iterable[Event]:
        found = _HEAD.search(text)
        if found is None:
            return _other(number, text)
        values = _values(text, found)
        return () if values is None else self._told(number, values, int(found[2]))

    def _told(self, line: int, values: dict[str, Any], total: int) -> Iterator[Event]:
        if total != self._total:
            self._total = total
            yield Fact("train_iters", total, line)
        # training_step ends with lr_scheduler.step(), the line comes after: what was used stands in the line before.
        if self._iteration == values["iteration"] - 1:
            values["lr_used"] = self._lr
        if self._iteration != values["iteration"]:
            self._iteration, self._lr = values["iteration"], values.get("lr")
        yield Step(line=line, **values)


def _is_whole(text: str) -> bool:
    return bool(_WORK.search(text)) and "lm_loss: " in text


def _values(text: str, found: re.Match[str]) -> dict[str, Any] | None:
    pairs = [part.strip().partition(": ") for part in text[found.end() :].split("|")]
    values = step_fields([(name, shown) for name, _, shown in pairs], _COLUMNS)
    if values.get("loss") is None and "loss" not in values["nonfinite"]:
        return None  # cut before the loss
    values["iteration"] = int(found[1])
    values["step"] = values["iteration"] - 1
    values["interval_steps"] = 1
    values["memory_kind"] = "reserved" if values.get("memory_bytes") is not None else None
    metrics = values["metrics"]
    shown = metrics.pop("printed_batch_size", None)
    tokens_a_step = metrics.get("tokens_per_s", 0.0) * (values.get("step_time_s") or 0.0)
    if shown is not None and tokens_a_step:
        # Rate times time is the tokens of a step, to three digits: that tells which unit the batch is in.
        if abs(shown - tokens_a_step) < 0.03 * tokens_a_step:
            metrics["tokens_per_step"] = shown
        elif shown < 1000:  # above, human_format has rounded it
            values["global_batch_size"] = int(shown)
    return values


def _other(line: int, text: str) -> Iterator[Event]:
    plan, saving = _PLAN.search(text), _SAVING.search(text)
    if saving is not None:
        yield Stall(line=line, kind="checkpoint", iteration=int(saving[1]))
    for part in plan[0].split("|") if plan is not None else ():
        name, _, shown = part.strip().partition(": ")
        value = number(shown.split()[0]) if shown.split() else None
        if value is None or not value.is_integer():
            continue
        if name in printed(FRAMEWORK):
            yield Setting(printed(FRAMEWORK)[name].name, int(value), line)
        elif name == "train_steps":
            yield Fact("train_iters", int(value), line)
        elif name == "start_iteration_step" and value > 0:
            yield Resumed(int(value), line)
