"""DeepSpeed itself (deepspeed/utils/timer.py, runtime/engine.py, runtime/pipe/engine.py, config.py).

`step=10, skipped=2, lr=[5e-05, 5e-05], mom=[…]` and `epoch=0/micro_step=10/global_step=10, RunningAvgSamplesPerSec=…,
CurrSamplesPerSec=265.4, MemAllocated=4.34GB, MaxMemAllocated=12.81GB` (GB is 1024**3; CurrSamplesPerSec is the last
step's), or of the pipeline engine `steps: 10 loss: 2.3 iter time (s): 1.2 samples/sec: 30.4` (a mean since the line
before). Counts from 1. Only the pipeline engine knows a loss; skipped is a total. lr is printed after the scheduler.

Up to 0.7 (2022) the timer's line is `0/4, RunningAvgSamplesPerSec=…`, up to 0.6 `0/4, SamplesPerSec=…` (the same mean):
epoch and micro-step. Only `step=2, skipped=0, …` just before it says of which step that is the last one.

DeepSpeed-Chat trains two engines, whose steps have the same numbers: the second's come as a run of their own."""

from __future__ import annotations

from collections.abc import Iterable

from parsers.driver import Dialect, Driver, Event, NewRun, Values
from parsers.record import Step
from parsers.values import gibibytes, number

SIGNS = ("SamplesPerSec=", ", skipped=", " iter time (s): ")
_SIGNS = tuple(sign.encode() for sign in SIGNS)
_MOST = 100_000  # steps of a second engine


class _Driver(Driver):
    _report: Values | None = None
    _reports = False  # whether no step followed it yet
    _second = False  # whether it is the second engine's

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect)
        self._others: dict[int, tuple[int, Values]] = {}  # the second engine's steps, each with its line

    def step(self, line: int, values: Values, text: str) -> Iterable[Event]:
        before = self._report
        same = before is not None and before["iteration"] == values["iteration"]
        if values["metrics"].keys() == {"skipped_total"} and "loss" not in values:
            # Rate and skipped steps alone are no step: a trainer above DeepSpeed reports those. They add to one.
            self._second = same and (self._second or values != before)
            self._report, self._reports = values, True
            return self._other(line, values)
        if "SamplesPerSec=" in text and "global_step=" not in text:
            if before is None or not self._reports:
                return ()  # a micro-step that ends no step
            if not same:
                values["metrics"].pop("samples_per_s", None)  # of one micro-step
            values.update({name: before[name] for name in ("iteration", "step")})
            same = True
        self._reports = False
        if "loss" in values and values["interval_steps"] is None:
            values["flags"] = ("step_time_s:interval_mean",)  # over how many is not known
        if before is not None and same:
            values = {**before, **values, "metrics": {**before["metrics"], **values["metrics"]}}
            if self._second:
                return self._other(line, values)
        return super().step(line, values, text)

    def _other(self, line: int, values: Values) -> tuple[Step, ...]:
        """Keep a step of the second engine."""
        if self._second and len(self._others) < _MOST:
            self._others[values["step"]] = line, values
        return ()

    def end(self) -> Iterable[Event]:
        """Return the second engine's steps, where there are several: one report may stand twice after a restart."""
        others, self._others = sorted(self._others.items()), {}
        steps: list[Event] = [Step(line=line, **values) for _, (line, values) in others]
        return (*super().end(), *([NewRun(others[0][1][0]), *steps] if len(steps) > 1 else []))


DIALECT = Dialect(
    framework="deepspeed",
    looks_for="DeepSpeed: lines 'step=10, skipped=0, lr=[…]' or 'global_step=10, RunningAvgSamplesPerSec=…'",
    signs=_SIGNS,
    marks=_SIGNS,
    startup=(b"[config.py:", b"DeepSpeed info: version="),
    head=(
        r"\b(?:(?:global_)?step=|steps?: {1,8}|(?<![/\d])\d{1,6}/)(\d{1,12})"
        r"(?=, skipped=\d{1,12}, lr=\[|, (?:RunningAvg)?SamplesPerSec=[^,\s]{1,30}"
        r"|(?: / {1,8}\d{1,12})? loss: .{1,200}? iter time \(s\): \S{1,24} samples/sec: )"
    ),
    fields=r"((?:[a-z_]{1,24} )?loss|iter time \(s\)|[\w/]{1,40})(?:=|: )\[?([^,\s\]]{1,30})",
    columns={
        "skipped": ("skipped_total", number),
        "lr": ("lr", number),
        "RunningAvgSamplesPerSec": ("samples_per_s_running_mean", number),
        "SamplesPerSec": ("samples_per_s_running_mean", number),
        "CurrSamplesPerSec": ("samples_per_s", number),
        "MemAllocated": ("allocated_bytes", lambda text: gibibytes(text.removesuffix("GB"))),
        "MaxMemAllocated": ("memory_bytes", lambda text: gibibytes(text.removesuffix("GB"))),
        "loss": ("loss", number),
        "iter time (s)": ("step_time_s", number),
        "samples/sec": ("samples_per_s_interval_mean", number),
    },
    memory_kind="allocated",
    means={" iter time (s): ": ("step_time_s",)},
    facts=(r"DeepSpeed info: version=(?P<framework_version>[^,\s]{1,40})",),
    # DeepSpeedConfig: world_size is the data-parallel size where the model is cut (config.py, __init__).
    entry=r"\[config\.py:\d{1,6}:print\] {1,6}(\w{1,60}) \.* ?(\S{1,200})\s*$",
    printed_facts={name: name for name in ("zero_optimization_stage", "bfloat16_enabled", "fp16_enabled")},
    driver=_Driver,
)
