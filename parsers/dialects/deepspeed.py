"""DeepSpeed itself (deepspeed/utils/timer.py, runtime/engine.py, runtime/pipe/engine.py, config.py).

`step=10, skipped=2, lr=[5e-05, 5e-05], mom=[…]` and `epoch=0/micro_step=10/global_step=10, RunningAvgSamplesPerSec=…,
CurrSamplesPerSec=265.4, MemAllocated=4.34GB, MaxMemAllocated=12.81GB` (GB is 1024**3; CurrSamplesPerSec is the last
step's), or of the pipeline engine `steps: 10 loss: 2.3 iter time (s): 1.2 samples/sec: 30.4` (a mean since the line
before). Counts from 1. Only the pipeline engine knows a loss; skipped is a total. lr is printed after the scheduler.

Up to 0.7 (2022) the timer's line is `0/4, RunningAvgSamplesPerSec=…`, up to 0.6 `0/4, SamplesPerSec=…` (the same mean):
epoch and micro-step. `step=2, skipped=0, …` just before it says which step that ends; from one such pair the others
follow. 0.7.7 prints the timer's line of every step, whatever steps_per_print says.

DeepSpeed-Chat trains two engines, whose steps have the same numbers: the second's come as a run of their own."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from parsers.driver import Dialect, Driver, Event, NewRun, Values
from parsers.record import Step
from parsers.values import gibibytes, number

SIGNS = ("SamplesPerSec=", ", skipped=", " iter time (s): ")
_SIGNS = tuple(sign.encode() for sign in SIGNS)
_MOST = 20_000  # lines kept of each kind
_SURE = 1000  # so many of the timer's lines without a report: there is none

_Line = tuple[int, Values]
"""The values of a line, behind its number."""


class _Driver(Driver):
    """Adds reports to the steps that they are of, numbers the timer's lines of old, and separates two engines."""

    _report: Values | None = None
    _second = False  # whether it is the second engine's
    _micro: int | None = None  # micro-steps in a step, where the timer counts those
    _last = 0  # step

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect)
        self._reports: list[_Line] = []  # that no step followed yet
        self._timed: list[_Line] = []  # the timer's lines, until a report says how many micro-steps a step has
        self._others: dict[int, _Line] = {}  # the second engine's steps

    def step(self, line: int, values: Values, text: str) -> Iterable[Step]:
        if values["metrics"].keys() == {"skipped_total"} and "loss" not in values:
            return self._reported(line, values)
        if "SamplesPerSec=" in text and "global_step=" not in text:
            return self._of_micro_steps(line, values, f" 0/{values['iteration']}," in text)
        if "loss" in values and values.get("interval_steps") is None:
            values["flags"] = ("step_time_s:interval_mean",)  # over how many is not known
        return self._made(line, values)

    def _reported(self, line: int, values: Values) -> tuple[Step, ...]:
        """Keep rate and skipped steps: where nothing else is printed they are no step, a trainer reports those."""
        before, self._report = self._report, values
        again = before is not None and before["iteration"] == values["iteration"]
        self._second = again and (self._second or values != before)
        if self._second:
            return self._other(line, values)
        if not again and before is not None and before["iteration"] > values["iteration"]:  # a restart
            self._reports, self._timed, self._last = [], [], min(self._last, values["step"])
        if not again and len(self._reports) < _MOST:
            self._reports.append((line, values))
        return ()

    def _of_micro_steps(self, line: int, values: Values, first_epoch: bool) -> Iterable[Step]:
        """Return the step that a line of the timer ends, if any: the one of the report just before it, or by count.

        first_epoch: the count goes back to 0 with each."""
        number, done = values["iteration"], 0
        reported = self._reports[-1][1]["iteration"] if self._reports else 0
        unsure = reported == 1 and number == 3  # the first two micro-steps have no line: it may be the second step's
        if reported and not unsure:
            done, self._micro = reported, number // reported if first_epoch and number % reported == 0 else None
        elif self._micro and first_epoch:
            done = number // self._micro if number % self._micro == 0 else 0
        elif first_epoch and (self._report is None or unsure) and len(self._timed) < _MOST:
            self._timed.append((line, values))
            return self._settled() if len(self._timed) > _SURE else ()
        return () if done <= self._last else (*self._settled(), *self._made(line, _of_step(values, done)))

    def _settled(self) -> list[Step]:
        """Return the steps of the timer's lines before the first report, or without one where each follows the last."""
        timed, self._timed = self._timed, []
        numbers = [*dict.fromkeys(values["iteration"] for _, values in timed)]
        if self._report is None and len(numbers) > 1 and all(b == a + 1 for a, b in pairwise(numbers)):
            self._micro = 1
        micro = self._micro
        ends = [(line, values) for line, values in timed if micro and values["iteration"] % micro == 0]
        return [
            step
            for line, values in ends
            for step in self._made(line, _of_step(values, values["iteration"] // (micro or 1)))
        ]

    def _made(self, line: int, values: Values) -> Iterable[Step]:
        """Return a step, and before it the reports that are steps too: the timer leaves out the first two."""
        done, before = values["iteration"], self._report
        if not self._reports and (before is None or before["iteration"] != done):
            self._last = done
            return (Step(line=line, **values),)
        own: Values | None = before
        if before is None or before["iteration"] != done:
            own = next((report for _, report in self._reports if report["iteration"] == done), None)
        if own is not None:
            values = {**own, **values, "metrics": {**own["metrics"], **values["metrics"]}}
        if self._second and own is not None and own is before:
            return self._other(line, values)
        earlier = [Step(line=at, **report) for at, report in self._reports if report["iteration"] < done]
        self._reports = [at for at in self._reports if at[1]["iteration"] > done]
        self._last = done
        return (*earlier, Step(line=line, **values))

    def _other(self, line: int, values: Values) -> tuple[Step, ...]:
        """Keep a step of the second engine."""
        if len(self._others) < _MOST:
            self._others[values["step"]] = line, values
        return ()

    def end(self) -> Iterable[Event]:
        """Return what still waits, and the second engine's steps, where there are several: one report may stand twice
        after a restart."""
        events: list[Event] = [*super().end(), *self._settled()]
        if self._last or self._others:
            events += [Step(line=line, **report) for line, report in self._reports]
            self._reports = []
        others, self._others = sorted(self._others.items()), {}
        if len(others) > 1:
            events += [NewRun(others[0][1][0]), *(Step(line=line, **values) for _, (line, values) in others)]
        return events


def _of_step(values: Values, done: int) -> Values:
    """Return the values of a timer's line as those of a step: the rate of one micro-step is not the step's."""
    alone = values["iteration"] == done
    metrics = {name: x for name, x in values["metrics"].items() if alone or name != "samples_per_s"}
    return {**values, "iteration": done, "step": done - 1, "metrics": metrics}


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
    # A timer's line may end with each field; since it prints the memory, only with that.
    complete=(
        r"epoch=.{1,400}, MaxMemAllocated=[\d.]{1,20}GB\s*$|skipped=.{1,4000}\]\s*$"
        r"|^(?!.{0,400}(?:epoch|skipped)=)"
    ),
    means={" iter time (s): ": ("step_time_s",)},
    facts=(r"DeepSpeed info: version=(?P<framework_version>[^,\s]{1,40})",),
    # DeepSpeedConfig: world_size is the data-parallel size where the model is cut (config.py, __init__).
    entry=r"\[config\.py:\d{1,6}:print\] {1,6}(\w{1,60}) \.* ?(\S{1,200})\s*$",
    printed_facts={name: name for name in ("zero_optimization_stage", "bfloat16_enabled", "fp16_enabled")},
    driver=_Driver,
)
