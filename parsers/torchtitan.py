"""The dialect of TorchTitan (torchtitan/components/metrics.py, MetricsProcessor.log), also under Primus and Aurora.

`step: 10  loss:  3.12459  grad_norm:  0.0441  memory: 26.01GiB(82.96%)  tps: 2,528  tflops: 15.68  mfu: 5.03%`
Counts from 1. tps (wps before 2025) and tflops are per device, and means over the steps since the line before
(log_freq); the loss is the step's own since January 2025 (pull request 779). Memory is the highest reserved since the
line before. No time a step is printed, and no learning rate. mfu is against a peak that falls back to the A100's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from conf.vocabulary import printed
from parsers.devices import vendor_of
from parsers.events import Event, Fact, Reader, Resumed, Setting
from parsers.fields import Column, commas, gibibytes, number, step_fields, whole
from parsers.record import Stall, Step, Validation
from parsers.values import literal
from parsers.wrapped import WrappedReader

FRAMEWORK = "torchtitan"
LOOKS_FOR = "TorchTitan: lines 'step: 10  loss: …  memory: …GiB(…%)  tps: …'"
SIGNS = (b"tps: ", b"wps: ")
MARKS = (b"step: ", b"Finished saving the checkpoint")
STARTUP = (
    *(b"raining starts at step", b"Training completed"),
    *(b"torchtitan version", b"arguments ", b"device mesh with", b" capacity: ", b"total parameters"),
    *(b"Peak flops undefined", b"computing MFU", b"Trainer is initialized with"),
)
COMPANION = False

_STEP = re.compile(r"step: {1,12}(\d{1,12}) {2}(?=loss:)")
_LAST = re.compile(r"mfu: {1,12}(?:[\d.]{1,12}%|N/A)")
_COLUMNS: Mapping[str, Column] = {
    "loss:": ("loss", number),
    "grad_norm:": ("grad_norm", number),
    "lr:": ("lr", number),
    "tps:": ("tokens_per_s_per_gpu", commas),
    "wps:": ("tokens_per_s_per_gpu", commas),
    "tflops:": ("tflops_per_gpu", commas),
    "mfu:": ("mfu_percent", lambda text: number(text.rstrip("%"))),
}
_TRAINER = re.compile(
    r"local batch size (\d{1,9}), global batch size (\d{1,9}), gradient accumulation steps (\d{1,9}),"
    r" sequence length (\d{1,9}), total steps (\d{1,12}) \(warmup (\d{1,12})\)"
)
_TRAINER_SETTINGS = ("micro_batch_size", "global_batch_size", "num_micro_batches", "seq_length")
_TOTAL = re.compile(r"total steps (\d{1,12}) \(warmup (\d{1,12})\)")
_MESH = re.compile(r"device mesh with parallelism: ([a-z_]{1,20}=-?\d{1,7}(?:, [a-z_]{1,20}=-?\d{1,7}){0,15})")
_OLD_MESH = re.compile(r"\d-D device mesh with \[([a-z_', ]{1,200})\], \[([\d, ]{1,100})\]")
_CAPACITY = re.compile(r"\b[A-Z]{2,8} capacity: (.{1,80}) with ([\d.]{1,20})GiB memory")
_SIZE = re.compile(r"Model (.{1,120}) size: ([\d,]{1,24}) total parameters")
_VERSION = re.compile(r"torchtitan version: (\S{1,40})")
_PEAK = re.compile(r"Peak FLOPS used for computing MFU: (\S{1,24})")
_STARTS = re.compile(r"raining starts at step (\d{1,12})")
_SAVED = re.compile(r"Finished saving the checkpoint.{0,80}in ([\d.]{1,16}) seconds")
_ARGUMENT = re.compile(r"\barguments ([a-z_]{1,40}\.[a-z0-9_]{1,60})\.* (\S{1,200})\s*$")


def read_step(line: int, text: str) -> Step | None:
    """The step that this one line tells, without what only its neighbours tell."""
    found = _STEP.search(text)
    return None if found is None or _validates(text, found) else Step(line=line, **_values(text, found))


def reader() -> Reader:
    """A reader for one log."""
    return _Reader()


class _Reader(WrappedReader):
    def __init__(self) -> None:
        super().__init__(_STEP, self._is_whole)
        self._words = 0  # of the step line before
        self._before: int | None = None  # the iteration of the line before, or where training starts
        self._interval: int | None = None
        self._last: int | None = None

    def _is_whole(self, text: str) -> bool:
        # mfu comes last; a fork that prints none is known by its length.
        return bool(_LAST.search(text)) or len(text.split()) == self._words or "validate step: " in text

    def read(self, number: int, text: str) -> Iterable[Event]:
        found = _STEP.search(text)
        if found is None:
            return self._other(number, text)
        values = _values(text, found)
        if _validates(text, found):
            return (_validation(number, values),)
        self._words = len(text.split())
        self._settle_interval(values)
        return (Step(line=number, **{**values, "flags": _flags(values, text)}),)

    def _settle_interval(self, values: dict[str, Any]) -> None:
        iteration = values["iteration"]
        if iteration != self._last:  # every rank may print it
            # Rates cover what lies since the line before; the first step has a line of its own, whatever log_freq.
            before = 0 if iteration == 1 else self._before
            self._interval = iteration - before if before is not None and before < iteration else None
            self._before = self._last = iteration
        values["interval_steps"] = self._interval

    def _other(self, line: int, text: str) -> Iterator[Event]:
        starts = _STARTS.search(text)
        if starts is not None:
            self._before = int(starts[1]) - 1
            if self._before > 0:
                yield Resumed(self._before, line)
        saved = _SAVED.search(text)
        if saved is not None:
            yield Stall(line=line, kind="checkpoint", seconds=number(saved[1]), iteration=self._last)
        if "Training completed" in text:
            yield Fact("completed", True, line)
        yield from _settings(line, text)
        yield from _facts(line, text)


def _flags(values: Mapping[str, Any], text: str) -> tuple[str, ...]:
    if (values.get("interval_steps") or 1) == 1:
        return ()
    means = ("tokens_per_s_per_gpu", "tflops_per_gpu", *(("loss",) if "wps: " in text else ()))
    return tuple(f"{name}:interval_mean" for name in means if values.get(name) is not None)


def _validates(text: str, found: re.Match[str]) -> bool:
    return text.endswith("validate ", 0, found.start())


def _values(text: str, found: re.Match[str]) -> dict[str, Any]:
    words = text[found.end() :].split()
    pairs = dict(zip(words[::2], words[1::2], strict=False))
    values = step_fields(pairs.items(), _COLUMNS)
    iteration = int(found[1])
    values["step"], values["iteration"] = iteration - 1, iteration
    size, _, percent = pairs.get("memory:", "").partition("GiB")
    memory = gibibytes(size)
    if memory is not None and percent:
        values["memory_bytes"], values["memory_kind"] = memory, "reserved"
        share = number(percent.strip("()%"))
        if share is not None:
            values["metrics"]["memory_percent"] = share
    return values


def _validation(line: int, values: Mapping[str, Any]) -> Validation:
    rate = values.get("tokens_per_s_per_gpu")
    metrics = {} if rate is None else {"tokens_per_s_per_gpu": rate}
    return Validation(
        line=line, step=values["step"], iteration=values["iteration"], loss=values.get("loss"), metrics=metrics
    )


def _settings(line: int, text: str) -> Iterator[Event]:
    trainer, total = _TRAINER.search(text), _TOTAL.search(text)
    if trainer is not None:
        found = zip(_TRAINER_SETTINGS, trainer.groups(), strict=False)
        yield from (Setting(name, int(size), line) for name, size in found)
    if total is not None:
        yield Fact("train_iters", int(total[1]), line)
        yield Setting("lr_warmup_iters", int(total[2]), line)
    sizes = _mesh(text) if "device mesh with" in text else {}
    known = printed(FRAMEWORK)
    axes = ((known.get(f"mesh.{axis}"), size) for axis, size in sizes.items())
    yield from (Setting(setting.name, size, line) for setting, size in axes if setting is not None)
    yield from (Fact(axis, sizes[axis], line) for axis in ("dp_replicate", "dp_shard") if axis in sizes)
    if sizes:
        replicas = sizes.get("dp_replicate", 1) * sizes.get("dp_shard", 1) * sizes.get("dp", 1)
        yield Setting("data_parallel_size", replicas, line)
        # ParallelDims holds it: dp_replicate * dp_shard * cp * tp * pp = WORLD_SIZE (parallel_dims.py, _validate).
        yield Setting("world_size", replicas * sizes.get("cp", 1) * sizes.get("tp", 1) * sizes.get("pp", 1), line)
    argument = _ARGUMENT.search(text) if "arguments " in text else None
    setting = known.get(argument[1].rstrip(".")) if argument is not None else None
    if argument is not None and setting is not None:
        value = literal(argument[2])
        if value not in (None, -1):  # -1 stands for "to be derived"
            yield Setting(setting.name, value, line)


def _mesh(text: str) -> dict[str, int]:
    """The size of every axis; an axis that the older form leaves out has size 1."""
    found, old = _MESH.search(text), _OLD_MESH.search(text)
    if found is not None:
        return {axis: int(size) for axis, _, size in (part.partition("=") for part in found[1].split(", "))}
    if old is None:
        return {}
    named = zip(old[1].replace("'", "").split(", "), old[2].split(", "), strict=False)
    return {"tp": 1, "pp": 1, "cp": 1, **{axis: int(size) for axis, size in named if size.isdecimal()}}


def _facts(line: int, text: str) -> Iterator[Fact]:
    device, size = _CAPACITY.search(text), _SIZE.search(text)
    version, peak = _VERSION.search(text), _PEAK.search(text)
    if device is not None:
        yield Fact("device_name", device[1], line)
        yield Fact("device_memory_bytes", gibibytes(device[2]), line)
        if vendor_of(device[1]) is not None:
            yield Fact("vendor", vendor_of(device[1]), line)
    if size is not None:
        yield Fact("model", size[1], line)
        yield Fact("parameters", whole(size[2]), line)
    if version is not None and version[1] != "0.0.0":
        yield Fact("framework_version", version[1], line)
    if peak is not None:
        yield Fact("peak_flops_of_printed_mfu", number(peak[1]), line)
    if "Peak flops undefined for" in text and "fallback to A100" in text:
        yield Fact("printed_mfu_against", "A100 (the device was not known)", line)
