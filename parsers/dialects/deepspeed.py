"""The dialect of DeepSpeed itself (deepspeed/utils/timer.py, runtime/engine.py, runtime/pipe/engine.py, config.py).

`step=10, skipped=2, lr=[5e-05, 5e-05], mom=[…]` and `epoch=0/micro_step=10/global_step=10, RunningAvgSamplesPerSec=…,
CurrSamplesPerSec=265.4, MemAllocated=4.34GB, MaxMemAllocated=12.81GB` (GB is 1024**3; CurrSamplesPerSec is the last
step's), or of the pipeline engine `steps: 10 loss: 2.3 iter time (s): 1.2 samples/sec: 30.4` (a mean since the line
before). Counts from 1. Only the pipeline engine knows a loss; skipped is a total. lr is printed after the scheduler.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from conf.vocabulary import printed
from parsers.events import Event, Fact, Reader, Setting
from parsers.fields import gibibytes, number
from parsers.record import Step
from parsers.values import is_nonfinite, literal

FRAMEWORK = "deepspeed"
LOOKS_FOR = "DeepSpeed: lines 'step=10, skipped=0, lr=[…]' or 'global_step=10, RunningAvgSamplesPerSec=…'"
SIGNS = (b"RunningAvgSamplesPerSec=", b", skipped=", b" iter time (s): ")
MARKS = SIGNS
STARTUP = (b"[config.py:", b"DeepSpeed info: version=")
COMPANION = False

_REPORT = re.compile(r"\bstep=(\d{1,12}), skipped=(\d{1,12}), lr=\[([^\],]{1,30})")
_THROUGHPUT = re.compile(
    r"global_step=(\d{1,12}), RunningAvgSamplesPerSec=([^,\s]{1,30}), CurrSamplesPerSec=([^,\s]{1,30})"
    r"(?:, MemAllocated=([\d.]{1,16})GB, MaxMemAllocated=([\d.]{1,16})GB)?"
)
_PIPELINE = re.compile(
    r"\bsteps?: {1,8}(\d{1,12})(?: / {1,8}\d{1,12})? loss: (\S{1,24}) (?:[a-z_ ]{1,24}loss: \S{1,24} ){0,4}"
    r"iter time \(s\): (\S{1,24}) samples/sec: ([^,\s]{1,24})"
)
_CONFIG = re.compile(r"\[config\.py:\d{1,6}:print\] {1,6}(\w{1,60}) \.* ?(\S{1,200})\s*$")
_VERSION = re.compile(r"DeepSpeed info: version=([^,\s]{1,40})")
_REPORTED = ("iteration", "step", "lr", "metrics")


def read_step(line: int, text: str) -> Step | None:
    """The step that this one line tells, without what only its neighbours tell."""
    values = _values(text)
    return None if values is None else Step(line=line, **values)


def reader() -> Reader:
    """A reader for one log."""
    return _Reader()


class _Reader:
    def __init__(self) -> None:
        self.wants = 0
        self._before: int | None = None
        self._report: dict[str, Any] = {}

    def feed(self, number: int, text: str) -> Iterable[Event]:
        values = _values(text)
        if values is None:
            return _other(number, text)
        if set(values) == set(_REPORTED):
            # Rate and skipped steps alone are no step: a trainer above DeepSpeed tells those. They add to one.
            self._report = values
            return ()
        if "loss" in values:
            before, self._before = self._before, values["iteration"]
            values.update(_interval(values["iteration"] - before if before is not None else None))
        if self._report.get("iteration") == values["iteration"]:
            values = {**self._report, **values, "metrics": {**self._report["metrics"], **values["metrics"]}}
        return (Step(line=number, **values),)

    def end(self) -> Iterable[Event]:
        return ()


def _interval(gap: int | None) -> dict[str, Any]:
    """The pipeline engine's time is a mean over the steps since the line before."""
    flags = () if gap == 1 else ("step_time_s:interval_mean",)
    return {"interval_steps": gap if gap is not None and gap > 0 else None, "flags": flags}


def _values(text: str) -> dict[str, Any] | None:
    report, throughput, pipeline = _REPORT.search(text), _THROUGHPUT.search(text), _PIPELINE.search(text)
    found = report or throughput or pipeline
    if found is None:
        return None
    values: dict[str, Any] = {"iteration": int(found[1]), "step": max(0, int(found[1]) - 1)}
    metrics: dict[str, float | None] = {}
    if report is not None:
        values["lr"] = number(report[3].strip())
        metrics["skipped_total"] = float(report[2])
    if throughput is not None:
        metrics["samples_per_s_running_mean"] = number(throughput[2])
        metrics["samples_per_s"] = number(throughput[3])
        if throughput[5] is not None:
            values["memory_bytes"], values["memory_kind"] = gibibytes(throughput[5]), "allocated"
            metrics["allocated_bytes"] = gibibytes(throughput[4])
    if pipeline is not None:
        values["loss"], values["step_time_s"] = number(pipeline[2]), number(pipeline[3])
        values["nonfinite"] = ("loss",) if is_nonfinite(pipeline[2]) else ()
        metrics["samples_per_s_interval_mean"] = number(pipeline[4])
    return {**values, "metrics": {name: value for name, value in metrics.items() if value is not None}}


def _other(line: int, text: str) -> Iterator[Event]:
    config, version = _CONFIG.search(text), _VERSION.search(text)
    if version is not None:
        yield Fact("framework_version", version[1], line)
    if config is None:
        return
    value = literal(config[2])
    if config[1] in printed(FRAMEWORK) and isinstance(value, (int, float)) and not isinstance(value, bool):
        yield Setting(printed(FRAMEWORK)[config[1]].name, value, line)
    elif config[1] in ("zero_optimization_stage", "bfloat16_enabled", "fp16_enabled"):
        yield Fact(config[1], value, line)
