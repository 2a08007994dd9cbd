"""The dialect of MaxText (MaxText/metric_logger.py), on TPUs and GPUs.

`completed step: 3, seconds: 10.344, TFLOP/s/device: 346.932, Tokens/s/device: 19006.461, total_weights: …, loss: …`
Counts from 0. The time is between two dispatches: JAX runs ahead of the device, and after compilation, a profile or a
stall a step is dispatched in a hundredth of its time (8,638 TFLOP/s per device). Such figures are kept and flagged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from conf.vocabulary import printed
from parsers.events import Event, Fact, Reader, Setting
from parsers.fields import Column, number, step_fields
from parsers.record import Step, Validation
from parsers.values import literal
from parsers.wrapped import WrappedReader

FRAMEWORK = "maxtext"
LOOKS_FOR = "MaxText: lines 'completed step: 3, seconds: …, TFLOP/s/device: …, loss: …'"
SIGNS = (b"completed step: ",)
MARKS = (b"completed step: ", b"eval metrics after step: ")
STARTUP = (b"Config param ", b"Num_devices: ", b"TpuDevice(", b"number parameters: ", b"otal TFLOPs")
COMPANION = False

_STEP = re.compile(r"completed step: {1,12}(\d{1,12}), ")
_COLUMNS: Mapping[str, Column] = {
    "seconds": ("step_time_s", number),
    "TFLOP/s/device": ("tflops_per_gpu", number),
    "Tokens/s/device": ("tokens_per_s_per_gpu", number),
    "loss": ("loss", number),
    "lr": ("lr", number),
    "grad_norm": ("grad_norm", number),
    "total_weights": ("total_weights", number),
    "lm_loss": ("lm_loss", number),
    "perplexity": ("perplexity", number),
    "moe_lb_loss": ("load_balancing_loss", number),
    "mtp_loss": ("mtp_loss", number),
}
_LOSS = re.compile(r", loss: (?:-?\d{1,12}\.\d{3}|nan|-?inf)\b")  # always three digits after the point
_SPEEDS = ("step_time_s", "tflops_per_gpu", "tokens_per_s_per_gpu")
_RAN_AHEAD = 0.25
"""A step that took less than this share of both its neighbours was dispatched, not run, in that time."""
_NO_DEVICE_TFLOPS = 5000.0
"""Above the dense FP8 peak of every device to date (B300 4,500 to 5,000; TPU 7x 4,614: conf/hardware, Google Cloud)."""

_PARAMETERS = re.compile(r"number parameters: ([\d.]{1,16}) billion")
_WORK = re.compile(r"(?:Per train step, total TFLOPs will be|Total TFLOPs:) ([\d.]{1,20})")
_DEVICES = re.compile(r"Num_devices: (\d{1,7})\b")
_EVAL = re.compile(r"eval metrics after step: (\d{1,12}), loss=([^,\s]{1,24})")
_CONFIG = re.compile(r"Config param (\w{1,80}): (\S{1,200})\s*$")


def read_step(line: int, text: str) -> Step | None:
    """The step that this one line tells, without what only its neighbours tell."""
    found = _STEP.search(text)
    return None if found is None else Step(line=line, **_values(text, found))


def reader() -> Reader:
    """A reader for one log."""
    return _Reader()


class _Reader(WrappedReader):
    """Holds each step until the next: only both neighbours show that one was merely dispatched."""

    def __init__(self) -> None:
        super().__init__(_STEP, _is_whole)
        self._held: dict[str, Any] | None = None
        self._before: float | None = None
        self._vendor = False

    def finish(self) -> Iterable[Event]:
        return self._release(None)

    def read(self, number: int, text: str) -> Iterable[Event]:
        found = _STEP.search(text)
        if found is None:
            return self._other(number, text)
        values = _values(text, found)
        if self._held is not None and self._held["step"] == values["step"]:
            return ()  # another process prints it too
        told = self._release(values.get("step_time_s"))
        self._held = {"line": number, **values}
        return told

    def _release(self, after: float | None) -> tuple[Step, ...]:
        if self._held is None:
            return ()
        held, self._held = self._held, None
        if self._ran_ahead(held, after):
            held["flags"] = tuple(f"{name}:asynchronous" for name in _SPEEDS if held.get(name) is not None)
        self._before = held.get("step_time_s")
        return (Step(**held),)

    def _ran_ahead(self, held: Mapping[str, Any], after: float | None) -> bool:
        before, seconds = self._before, held.get("step_time_s")
        if before is None or (after is not None and after < before):
            before = after
        quick = seconds is not None and before is not None and seconds < _RAN_AHEAD * before
        return quick or (held.get("tflops_per_gpu") or 0.0) > _NO_DEVICE_TFLOPS

    def _other(self, line: int, text: str) -> Iterator[Event]:
        parameters, work, devices = _PARAMETERS.search(text), _WORK.search(text), _DEVICES.search(text)
        evaluated, config = _EVAL.search(text), _CONFIG.search(text)
        if parameters is not None:
            yield Fact("parameters_billion", number(parameters[1]), line)
        if work is not None:
            yield Fact("tflops_per_step_per_device", number(work[1]), line)
        if devices is not None:
            yield Setting("world_size", int(devices[1]), line)
        if evaluated is not None:
            step = int(evaluated[1])
            yield Validation(line=line, step=step, iteration=step, loss=number(evaluated[2]))
        if not self._vendor and "TpuDevice(" in text:
            self._vendor = True
            yield Fact("vendor", "google", line)
        if config is not None and config[1] in printed(FRAMEWORK):
            value = literal(config[2])
            if isinstance(value, (int, float)) and value > 0:
                yield Setting(printed(FRAMEWORK)[config[1]].name, value, line)
        elif config is not None and config[1] == "steps" and config[2].isdecimal():
            yield Fact("train_iters", int(config[2][:18]), line)


def _is_whole(text: str) -> bool:
    return bool(_LOSS.search(text))


def _values(text: str, found: re.Match[str]) -> dict[str, Any]:
    pairs = [part.partition(": ") for part in text[found.end() :].split(", ")]
    values = step_fields([(name.strip(), printed.strip()) for name, _, printed in pairs], _COLUMNS)
    values["step"] = values["iteration"] = int(found[1])
    values["interval_steps"] = 1
    return values
