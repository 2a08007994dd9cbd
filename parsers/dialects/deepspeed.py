"""DeepSpeed itself (deepspeed/utils/timer.py, runtime/engine.py, runtime/pipe/engine.py, config.py).

`step=10, skipped=2, lr=[5e-05, 5e-05], mom=[…]` and `epoch=0/micro_step=10/global_step=10, RunningAvgSamplesPerSec=…,
CurrSamplesPerSec=265.4, MemAllocated=4.34GB, MaxMemAllocated=12.81GB` (GB is 1024**3; CurrSamplesPerSec is the last
step's), or of the pipeline engine `steps: 10 loss: 2.3 iter time (s): 1.2 samples/sec: 30.4` (a mean since the line
before). Counts from 1. Only the pipeline engine knows a loss; skipped is a total. lr is printed after the scheduler."""

from __future__ import annotations

from collections.abc import Iterable

from parsers.driver import Dialect, Driver, Event, Values
from parsers.values import gibibytes, number

_SIGNS = (b"RunningAvgSamplesPerSec=", b", skipped=", b" iter time (s): ")


class _Driver(Driver):
    _report: Values | None = None

    def step(self, line: int, values: Values, text: str) -> Iterable[Event]:
        if values["metrics"].keys() == {"skipped_total"} and "loss" not in values:
            # Rate and skipped steps alone are no step: a trainer above DeepSpeed reports those. They add to one.
            self._report = values
            return ()
        if "loss" in values and values["interval_steps"] is None:
            values["flags"] = ("step_time_s:interval_mean",)  # over how many is not known
        before = self._report
        if before is not None and before["iteration"] == values["iteration"]:
            values = {**before, **values, "metrics": {**before["metrics"], **values["metrics"]}}
        return super().step(line, values, text)


DIALECT = Dialect(
    framework="deepspeed",
    looks_for="DeepSpeed: lines 'step=10, skipped=0, lr=[…]' or 'global_step=10, RunningAvgSamplesPerSec=…'",
    signs=_SIGNS,
    marks=_SIGNS,
    startup=(b"[config.py:", b"DeepSpeed info: version="),
    head=(
        r"\b(?:(?:global_)?step=|steps?: {1,8})(\d{1,12})"
        r"(?=, skipped=\d{1,12}, lr=\[|, RunningAvgSamplesPerSec=[^,\s]{1,30}, CurrSamplesPerSec="
        r"|(?: / {1,8}\d{1,12})? loss: .{1,200}? iter time \(s\): \S{1,24} samples/sec: )"
    ),
    fields=r"((?:[a-z_]{1,24} )?loss|iter time \(s\)|[\w/]{1,40})(?:=|: )\[?([^,\s\]]{1,30})",
    columns={
        "skipped": ("skipped_total", number),
        "lr": ("lr", number),
        "RunningAvgSamplesPerSec": ("samples_per_s_running_mean", number),
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
