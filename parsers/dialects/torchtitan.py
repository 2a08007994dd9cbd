"""TorchTitan (torchtitan/components/metrics.py, MetricsProcessor.log), also under Primus and Aurora.

`step: 10  loss:  3.12459  grad_norm:  0.0441  memory: 26.01GiB(82.96%)  tps: 2,528  tflops: 15.68  mfu: 5.03%`
Counts from 1. tps (wps before 2025) and tflops are per device, and means over the steps since the line before
(log_freq); the loss is the step's own since January 2025 (pull request 779). Memory is the highest reserved since the
line before. No time a step is printed, and no learning rate. mfu is against a peak that falls back to the A100's.
With job.print_config (0.3: debug.print_config) its configuration is printed as JSON behind "Running with configs: "."""

from __future__ import annotations

import re
from collections.abc import Iterator

from parsers.driver import Dialect, Driver, Event, Fact, Setting, Values
from parsers.values import commas, gibibytes, number

_MESH = re.compile(r"device mesh with parallelism: ([a-z_]{1,20}=-?\d{1,7}(?:, [a-z_]{1,20}=-?\d{1,7}){0,15})")
_CUT = re.compile(r"[\w([]")  # another text, which may stand inside the last number
_SCHEDULE = re.compile(r"Using pipeline schedule \w{1,60} with (\d{1,9}) microbatches")
_CONFIGURATION, _CONFIGURATION_LINES = re.compile(r"Running with (?:configs|args): \{\s*$"), 1000
_ENTRY = re.compile(r"^(?:\[\w{1,20}\]:)?( {2}| {4})\"(\w{1,60})\": (.{1,200}?),?\s*$")
_OF_THE_TRAINER = "training.local_batch_size"  # which states it again, when it knows of pipelines
_BATCH = ("micro_batch_size", "num_micro_batches")
_OLD_MESH = re.compile(r"\d-D device mesh with \[([a-z_', ]{1,200})\], \[([\d, ]{1,100})\]")


def _share_last(values: Values, text: str) -> Values | None:
    """Put the share of the memory last: a record's id follows from its text, and there it has always stood. A loss of
    -1 is that of a rank without the pipeline's last stage (torchtitan/train.py). None for the rest of a validation's
    line, with which a log begins."""
    before = text.partition("step: ")[0]
    if before and "validate ".endswith(before):
        return None
    if values.get("loss") == -1:
        del values["loss"]
    share = values["metrics"].pop("memory_percent", None)
    if share is not None:
        values["metrics"]["memory_percent"] = share
    return values


class TorchTitanDriver(Driver):
    """Beside the mesh, what pipeline stages make of a batch: torchtitan/distributed/pipeline_parallel.py cuts the local
    batch into microbatches."""

    _stages, _pieces, _out_of_data = 1, 0, False
    _left, _section = 0, ""  # lines of the configuration that may come, and the part of it that is being read

    def _configured(self, line: int, text: str) -> Iterator[Event]:
        """Yield what a line of the printed configuration states, as if it were a line of Primus' dump."""
        self._left -= 1
        if match := _ENTRY.match(text):
            indent, key, value = match.groups()
            if len(indent) == 2:
                self._section = key if value == "{" else ""
            elif self._section and (name := f"{self._section}.{key}") != _OF_THE_TRAINER:
                yield from super().other(line, f"arguments {name} {value}")
        elif text.rstrip().endswith("}") and not text.rstrip().endswith(" }"):
            self._left = 0
        self.wants = max(self.wants, int(self._left > 0))

    def other(self, line: int, text: str) -> Iterator[Event]:
        if self._left:
            yield from self._configured(line, text)
        elif _CONFIGURATION.search(text):
            self._left = _CONFIGURATION_LINES
            self.wants = max(self.wants, 1)
        self._out_of_data |= "Ran out of data" in text
        if "step: " in text and "validate" not in text:
            self._before = None  # a broken step line: what the next one covers is not known
        if match := _SCHEDULE.search(text):
            self._pieces = int(match[1])
        for event in super().other(line, text):
            if isinstance(event, Setting) and event.name in _BATCH and self._stages > 1:
                yield from self._per_stage(event)
            elif isinstance(event, Fact) and event.name == "completed" and not self._out_of_data:
                yield Fact("completed", "all", line)
            else:
                yield event
        sizes, known = _sizes(text) if "device mesh with" in text else {}, self.dialect.known
        axes = ((known.get(f"mesh.{axis}"), size) for axis, size in sizes.items())
        yield from (Setting(setting.name, size, line) for setting, size in axes if setting is not None)
        yield from (Fact(axis, sizes[axis], line) for axis in ("dp_replicate", "dp_shard") if axis in sizes)
        if sizes:
            self._stages, self._pieces = sizes.get("pp", 1), 0
            replicas = sizes.get("dp_replicate", 1) * sizes.get("dp_shard", 1) * sizes.get("dp", 1)
            yield Setting("data_parallel_size", replicas, line)
            # ParallelDims holds it: dp_replicate * dp_shard * cp * tp * pp = WORLD_SIZE (parallel_dims.py, _validate).
            yield Setting("world_size", replicas * sizes.get("cp", 1) * sizes.get("tp", 1) * sizes.get("pp", 1), line)

    def _per_stage(self, event: Setting) -> Iterator[Setting]:
        """Yield a size of the local batch as a stage sees it; nothing where the pieces are not said."""
        if self._pieces and event.name == "num_micro_batches":
            yield Setting(event.name, event.value * self._pieces, event.line)
        elif self._pieces and event.value % self._pieces == 0:
            yield Setting(event.name, event.value // self._pieces, event.line)


def _sizes(text: str) -> dict[str, int]:
    """Return the size of every axis of a device mesh; one that the older form leaves out has size 1."""
    match, old = _MESH.search(text), _OLD_MESH.search(text)
    if match is not None:
        sizes = {axis: int(size) for axis, _, size in (part.partition("=") for part in match[1].split(", "))}
        return sizes if {"pp", "tp"} <= sizes.keys() and not _CUT.match(text, match.end()) else {}
    if old is None:
        return {}
    named = zip(old[1].replace("'", "").split(", "), old[2].split(", "), strict=False)
    return {"tp": 1, "pp": 1, "cp": 1, **{axis: int(size) for axis, size in named if size.isdecimal()}}


DIALECT = Dialect(
    framework="torchtitan",
    looks_for="TorchTitan: lines 'step: 10  loss: …  memory: …GiB(…%)  tps: …'",
    signs=(b"tps: ", b"wps: ", b"Training starts at step ", b"torchtitan version: "),
    marks=(b"step: ", b"Finished saving the checkpoint"),
    startup=(
        *(b"raining starts at step", b"Training completed"),
        *(b"torchtitan version", b"arguments ", b"device mesh with", b" capacity: ", b"total parameters"),
        b"Running with ",
        *(b"Peak flops undefined", b"computing MFU", b"Trainer is initialized with"),
        *(b" microbatches and ", b"Ran out of data"),
    ),
    family="torchtitan",
    head=r"step: (?<!validate step: ) {0,11}(\d{1,12}) {2}(?=loss:)",
    fields=r"(\w{1,40})(?:: {1,12}|\()([^\sG()%]{1,40})",  # of "memory: 26.01GiB(82.96%)" two: memory and GiB
    columns={
        "loss": ("loss", number),
        "grad_norm": ("grad_norm", number),
        "lr": ("lr", number),
        "tps": ("tokens_per_s_per_gpu", commas),
        "wps": ("tokens_per_s_per_gpu", commas),
        "tflops": ("tflops_per_gpu", commas),
        "memory": ("memory_bytes", gibibytes),
        "GiB": ("memory_percent", number),
        "mfu": ("mfu_percent", number),
    },
    memory_kind="reserved",
    adjust=_share_last,
    means={
        "tps: ": ("tokens_per_s_per_gpu", "tflops_per_gpu"),
        "wps: ": ("tokens_per_s_per_gpu", "tflops_per_gpu", "loss"),
        "loss: ": (),  # cut before the rates
    },
    complete=r"mfu: {1,12}(?:[\d.]{1,12}%|N/A)",
    complete_by_length=True,  # a fork prints no mfu
    validations=(
        r"validate step: {1,12}(?P<iteration>\d{1,12}) {2}loss: {1,12}(?P<loss>\S{1,24})"
        r"(?:.{0,120}? [tw]ps: {1,12}(?P<tokens_per_s_per_gpu>[\d,]{1,16}))?",
    ),
    stalls={"checkpoint": r"Finished saving the checkpoint.{0,80}in (?P<seconds>[\d.]{1,16}) seconds"},
    resumed=r"raining starts at step (?P<next>\d{1,12})",
    settings=(
        r"local batch size (?P<micro_batch_size>\d{1,9}), global batch size (?P<global_batch_size>\d{1,9}),"
        r" gradient accumulation steps (?P<num_micro_batches>\d{1,9}), sequence length (?P<seq_length>\d{1,9}),"
        r" total steps \d{1,12} \(warmup \d{1,12}\)",
        r"global batch size (?P<global_batch_size>\d{1,9}), sequence length (?P<seq_length>\d{1,9}), total steps",
        r"total steps \d{1,12} \(warmup (?P<lr_warmup_iters>\d{1,12})\)",
    ),
    facts=(
        r"total steps (?P<train_iters>\d{1,12}) \(warmup",
        r"\b[A-Z]{2,8} capacity: (?P<device_name>.{1,80}) with (?P<device_memory_bytes>[\d.]{1,20})GiB memory",
        r"Model (?P<model>.{1,120}) size: (?P<parameters>[\d,]{1,24}) total parameters",
        r"torchtitan version: (?!0\.0\.0\s)(?P<framework_version>[\w.+-]{1,40})(?!\S)",
        r"Peak FLOPS used for computing MFU: (?P<peak_flops_of_printed_mfu>\S{1,24})",
        r"Peak flops undefined for.{1,200}(?P<printed_mfu_against>fallback to A100)",
        r"(?P<completed>Training completed)",
    ),
    conversions={
        "peak_flops_of_printed_mfu": number,
        "printed_mfu_against": lambda text: "A100 (the device was not known)",
    },
    # What Primus dumps of TorchTitan's own configuration; -1 stands for "to be derived".
    entry=r"\barguments ([a-z_]{1,40}\.[a-z0-9_]{1,60})\.* (\S{1,200})\s*$",
    driver=TorchTitanDriver,
)
