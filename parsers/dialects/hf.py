"""The dialect of Hugging Face's Trainer (transformers/trainer.py, trainer_callback.py), and of ms-swift on top of it.

`{'loss': 2.9859, 'grad_norm': 0.97, 'learning_rate': 4.17e-05, 'epoch': 0.16}` and bars `16/97 [01:44<08:41, 6.39s/it]`
No step number (see `parsers/hf_steps.py`; ms-swift prints 'global_step/max_steps'). loss is the mean since the line
before. learning_rate is the next step's in older transformers and this step's in newer ones: lr_used stays unknown.
train_tokens_per_second and ms-swift's train_speed are means since the start. memory(GiB) is the most reserved.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from parsers.events import Event, Fact, NewRun, Reader, Setting
from parsers.fields import Column, gibibytes, number, step_fields, whole
from parsers.hf_steps import StepFinder
from parsers.record import Stall, Step, Validation
from parsers.wrapped import WrappedReader

FRAMEWORK = "hf"
LOOKS_FOR = "Hugging Face Trainer: lines {'loss': …, 'learning_rate': …, 'epoch': …} or {'train_runtime': …}"
SIGNS = (b"'learning_rate': ", b'"learning_rate": ', b"'train_runtime': ", b'"train_runtime": ', b"Total optimization")
MARKS = (b"loss", b"it/s]", b"s/it]", b"Saving model checkpoint to")
STARTUP = (
    *(b"** Running training **", b"train_runtime", b"Num examples = ", b"Num Epochs = ", b"batch size per device"),
    *(b" train batch size (w. ", b"Gradient Accumulation steps", b"Total optimization steps"),
    b"Number of trainable parameters",
)
COMPANION = False

_PAIR = re.compile(r"[\"']([\w/() .-]{1,60})[\"']: [\"']?([^,\"'{}]{1,60})")
_DICT = re.compile(r"\{[\"'](?:eval_|train_)?[a-z_]{2,40}[\"']: ")
_BAR = re.compile(r"\| {0,12}(\d{1,12})/(\d{1,12}) \[[\d:]{4,12}<")
_COUNTED = re.compile(r"(\d{1,12})/(\d{1,12})")
_COUNTERS = ("global_step/max_steps", "iteration")  # ms-swift, and its Megatron
_COLUMNS: Mapping[str, Column] = {
    "loss": ("loss", number),
    "grad_norm": ("grad_norm", number),
    "learning_rate": ("lr", number),
    "memory(GiB)": ("memory_bytes", gibibytes),
    "epoch": ("epoch", number),
    "num_input_tokens_seen": ("consumed_tokens", number),
    "num_tokens": ("consumed_tokens", number),
    "train_tokens_per_second": ("tokens_per_s_running_mean", number),
    "train_speed(iter/s)": ("steps_per_s_running_mean", number),
    "train_speed(s/it)": ("step_time_s_running_mean", number),
    "token_acc": ("token_accuracy", number),
    "mean_token_accuracy": ("token_accuracy", number),
    "entropy": ("entropy", number),
    "reward": ("reward", number),
    "throughput(TFLOP/s/GPU)": ("tflops_per_gpu_running_mean", number),
    "MFU": ("mfu_running_mean", number),
    "kl": ("kl", number),
}
_HEADER: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"batch size per device = ([\d,]{1,16})"), "micro_batch_size"),
    (re.compile(r"train batch size \(w\. parallel, distributed & accumulation\) = ([\d,]{1,16})"), "global_batch_size"),
    (re.compile(r"Gradient Accumulation steps = ([\d,]{1,16})"), "num_micro_batches"),
    (re.compile(r"Total optimization steps = ([\d,]{1,16})"), "train_iters"),
    (re.compile(r"Num examples = ([\d,]{1,20})"), "num_examples"),
    (re.compile(r"Num Epochs = ([\d,]{1,16})"), "num_epochs"),
    (re.compile(r"Number of trainable parameters = ([\d,]{1,20})"), "trainable_parameters"),
)
_SETTINGS = ("micro_batch_size", "global_batch_size", "num_micro_batches")
_HEADER_LINES = 16
"""The header has eight; other ranks may print theirs in between."""
_SUMMARY: Mapping[str, str] = {
    "train_runtime": "train_runtime_s",
    "train_samples_per_second": "train_samples_per_s",
    "train_steps_per_second": "train_steps_per_s",
    "train_tokens_per_second": "train_tokens_per_s",
    "train_loss": "train_loss_mean",
}
_CHECKPOINT = re.compile(r"Saving model checkpoint to .{0,300}checkpoint-(\d{1,12})\b")


def read_step(line: int, text: str) -> Step | None:
    """The step that this one line tells; None where its number follows from other lines."""
    found = _pairs(text)
    counted = _counted(found) if "loss" in found else None
    return None if counted is None else Step(line=line, **_values(found, int(counted[1]), None, ()))


def reader() -> Reader:
    """A reader for one log."""
    return _Reader()


class _Reader(WrappedReader):
    def __init__(self) -> None:
        super().__init__(_DICT, _is_whole)
        self._finder = StepFinder()
        self._header: dict[str, int] = {}
        self._held: tuple[int, dict[str, str], int] | None = None  # line, pairs, the bar before
        self._epoch = 0.0
        self._last: dict[str, str] = {}
        self._started = False

    def finish(self) -> Iterable[Event]:
        return self._release(None)

    def read(self, number: int, text: str) -> Iterable[Event]:
        bar = _BAR.search(text)
        before: Iterable[Event] = ()
        if bar is not None and self._is_training(bar):
            before = tuple(self._release(int(bar[1])))
            self._finder.bar(int(bar[1]))
        found = _pairs(text) if "{" in text else {}
        if "loss" in found and not found.keys().isdisjoint(("learning_rate", "epoch", *_COUNTERS)):
            return (*before, *self._told(number, found))
        if "eval_loss" in found:
            return (*before, *self._release(None), *self._validated(number, found))
        if "train_runtime" in found:
            return (*before, *self._release(None), *_summary(number, found))
        return (*before, *self._other(number, text))

    def _is_training(self, bar: re.Match[str]) -> bool:
        # Evaluation, tokenising and downloads draw bars too: only the one that ends at the last step counts.
        return int(bar[2]) == self._header.get("train_iters", int(bar[2])) and int(bar[1]) <= int(bar[2])

    def _told(self, line: int, found: dict[str, str]) -> Iterator[Event]:
        if found == self._last:
            return  # printed twice, or by another rank
        self._last = found
        yield from self._release(None)
        epoch, counted = number(found.get("epoch", "")), _counted(found)
        if epoch is not None:
            if epoch < self._epoch and counted is None:  # with step numbers the core sees what goes back, and where to
                yield self._new_run(line)
            self._epoch = epoch
        if counted is not None:
            iteration, total = int(counted[1]), int(counted[2])
            interval = iteration - self._finder.last
            self._finder.last = iteration
            if self._header.get("train_iters") != total:
                self._header["train_iters"] = total
                yield Fact("train_iters", total, line)
            yield self._step(line, found, iteration, interval, ())
        else:
            self._held = line, found, self._finder.seen

    def _release(self, bar_after: int | None) -> Iterator[Event]:
        if self._held is None:
            return
        line, found, bar_before = self._held
        self._held = None
        epoch, tokens = (number(found.get(name, "")) for name in ("epoch", "num_input_tokens_seen"))
        last = self._finder.last
        iteration, by_order = self._finder.find(epoch, tokens, bar_before, bar_after)
        flags = ("step:by_order",) if by_order else ()
        yield self._step(line, found, iteration, None if by_order else iteration - last, flags)

    def _step(
        self, line: int, found: dict[str, str], iteration: int, since: int | None, flags: tuple[str, ...]
    ) -> Step:
        # Where a log begins in the middle, what its first line covers is not known.
        interval = since if since == 1 or (self._started and since is not None and since > 0) else None
        self._started = True
        return Step(line=line, **_values(found, iteration, interval, flags))

    def _new_run(self, line: int) -> NewRun:
        self._finder, self._started, self._header = StepFinder(), False, {}
        self._epoch = 0.0
        return NewRun(line)

    def _other(self, line: int, text: str) -> Iterator[Event]:
        if "** Running training **" in text:
            self.wants = _HEADER_LINES
            if self._epoch:
                yield from self._release(None)
                yield self._new_run(line)
        saved = _CHECKPOINT.search(text)
        if saved is not None:
            yield Stall(line=line, kind="checkpoint", iteration=int(saved[1]))
        for pattern, name in _HEADER:
            found = pattern.search(text)
            value = None if found is None else whole(found[1])
            if value is None:
                continue
            self._header[name] = value
            yield Setting(name, value, line) if name in _SETTINGS else Fact(name, value, line)
            examples, batch = self._header.get("num_examples"), self._header.get("global_batch_size")
            self._finder.per_epoch = examples / batch if examples and batch else None

    def _validated(self, line: int, found: dict[str, str]) -> Iterator[Event]:
        seconds = number(found.get("eval_runtime", ""))
        metrics = {name: number(found[name]) for name in ("epoch", "eval_accuracy") if name in found}
        counted = _counted(found)
        last = self._finder.last if counted is None else int(counted[1])
        yield Validation(
            line=line,
            step=last - 1 if last else None,
            iteration=None if counted is None else last,
            loss=number(found["eval_loss"]),
            seconds=seconds,
            metrics={name: value for name, value in metrics.items() if value is not None},
        )
        if seconds is not None:
            yield Stall(line=line, kind="evaluation", seconds=seconds)


def _values(found: dict[str, str], iteration: int, interval: int | None, flags: tuple[str, ...]) -> dict[str, Any]:
    values = step_fields(found.items(), _COLUMNS)
    values["step"] = iteration - 1
    values["iteration"] = None if _counted(found) is None else iteration
    values["interval_steps"] = interval
    values["flags"] = flags if interval == 1 else (*flags, "loss:interval_mean")
    if values.get("memory_bytes") is not None:
        values["memory_kind"] = "reserved"
    return values


def _is_whole(text: str) -> bool:
    return "}" in text.partition("{")[2]


def _counted(found: dict[str, str]) -> re.Match[str] | None:
    return next((match for name in _COUNTERS if (match := _COUNTED.match(found.get(name, "")))), None)


def _pairs(text: str) -> dict[str, str]:
    _, brace, rest = text.partition("{")
    return {name: printed.strip() for name, printed in _PAIR.findall(rest[:20_000])} if brace else {}


def _summary(line: int, found: dict[str, str]) -> Iterator[Event]:
    for name, ours in _SUMMARY.items():
        value = number(found.get(name, ""))
        if value is not None:
            yield Fact(ours, value, line)
    yield Fact("completed", True, line)
