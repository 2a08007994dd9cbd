"""Hugging Face's Trainer (transformers/trainer.py, trainer_callback.py), and ms-swift on top of it.

`{'loss': 2.9859, 'grad_norm': 0.97, 'learning_rate': 4.17e-05, 'epoch': 0.16}` and bars `16/97 [01:44<08:41, 6.39s/it]`
No step number (see `_StepFinder`; ms-swift prints 'global_step/max_steps'). loss is the mean since the line before.
learning_rate is the next step's in older transformers and this step's in newer ones: lr_used stays unknown.
train_tokens_per_second and ms-swift's train_speed are means since the start. memory(GiB) is the most reserved.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping

from parsers.driver import Dialect, Driver, Values
from parsers.events import Event, Fact, NewRun, Setting
from parsers.record import Stall, Step, Validation
from parsers.values import count, gibibytes, number, step_fields

_PAIR = re.compile(r"[\"']([\w/() .-]{1,60})[\"']: [\"']?([^,\"'{}]{1,60})")
_BAR = re.compile(r"\| {0,12}(\d{1,12})/(\d{1,12}) \[[\d:]{4,12}<")
_COUNTED = re.compile(r"(\d{1,12})/(\d{1,12})")
_COUNTERS = ("global_step/max_steps", "iteration")  # ms-swift, and its Megatron
_HEADER_LINES = 16
"""The header has eight; other ranks may print theirs in between."""
_SUMMARY: Mapping[str, str] = {
    "train_runtime": "train_runtime_s",
    "train_samples_per_second": "train_samples_per_s",
    "train_steps_per_second": "train_steps_per_s",
    "train_tokens_per_second": "train_tokens_per_s",
    "train_loss": "train_loss_mean",
}
_HALF = 0.005
"""The trainer rounds the epoch to two digits (Trainer.log); newer ones print more, which this allows for."""


class _StepFinder:
    """Which step a line belongs to, as its dictionary does not say.

    By, in this order: the epoch, where the steps of one are known and its two digits leave one step; the progress bars
    before and after (a bar drawn before has at most this step, one drawn after at least this); the tokens seen, once a
    step is known; else the order of the lines. last: the last step, from 1. bar: what the last training bar showed.
    """

    def __init__(self) -> None:
        self.last = 0
        self.bar = 0
        self.steps_per_epoch: float | None = None
        self._tokens_per_step: float | None = None

    def find(
        self, epoch: float | None, tokens: float | None, bar_before: int, bar_after: int | None
    ) -> tuple[int, bool]:
        """Return the step, from 1, and whether it is by order alone."""
        low = max(self.last + 1, bar_before)
        step = self._by_epoch(epoch, low)
        if step is None and bar_after == low:
            step = low
        if step is None and tokens is not None and self._tokens_per_step:
            ratio = tokens / self._tokens_per_step
            step = int(ratio) if ratio == int(ratio) and ratio >= low else None
        by_order = step is None
        self.last = step if step is not None else self.last + 1
        if not by_order and tokens:
            self._tokens_per_step = tokens / self.last
        return self.last, by_order

    def _by_epoch(self, epoch: float | None, low: int) -> int | None:
        if epoch is None or self.steps_per_epoch is None:
            return None
        first = math.ceil((epoch - _HALF) * self.steps_per_epoch)
        last = math.floor((epoch + _HALF) * self.steps_per_epoch)
        return first if first == last and first >= low else None


class _Driver(Driver):
    """Holds a line without a step number until the next bar or line."""

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect)
        self._finder = _StepFinder()
        self._header: dict[str, int] = {}
        self._waiting: tuple[int, dict[str, str], int] | None = None  # line, pairs, the bar before
        self._epoch = 0.0
        self._last: dict[str, str] = {}
        self._started = False

    def end(self) -> Iterable[Event]:
        return (*super().end(), *self._release(None))

    def read(self, line: int, text: str, match: re.Match[str] | None = None) -> Iterable[Event]:
        bar = _BAR.search(text)
        before: Iterable[Event] = ()
        if bar is not None and self._is_training(bar):
            before = tuple(self._release(int(bar[1])))
            self._finder.bar = max(self._finder.bar, int(bar[1]))
        pairs = _pairs(text) if "{" in text else {}
        if "loss" in pairs and not pairs.keys().isdisjoint(("learning_rate", "epoch", *_COUNTERS)):
            return (*before, *self._entry(line, pairs))
        if "eval_loss" in pairs:
            return (*before, *self._release(None), *self._validation(line, pairs))
        if "train_runtime" in pairs:
            return (*before, *self._release(None), *_summary(line, pairs))
        return (*before, *self.other(line, text))

    def other(self, line: int, text: str) -> Iterator[Event]:
        if "** Running training **" in text:
            self.wants = _HEADER_LINES
            if self._epoch:
                yield from self._release(None)
                yield self._new_run(line)
        for event in super().other(line, text):
            yield event
            if isinstance(event, (Setting, Fact)):
                self._header[event.name] = event.value
                examples, batch = self._header.get("num_examples"), self._header.get("global_batch_size")
                self._finder.steps_per_epoch = examples / batch if examples and batch else None

    def _is_training(self, bar: re.Match[str]) -> bool:
        # Evaluation, tokenising and downloads draw bars too: only the one that ends at the last step counts.
        return int(bar[2]) == self._header.get("train_iters", int(bar[2])) and int(bar[1]) <= int(bar[2])

    def _entry(self, line: int, pairs: dict[str, str]) -> Iterator[Event]:
        if pairs == self._last:
            return  # printed twice, or by another rank
        self._last = pairs
        yield from self._release(None)
        epoch, counted = number(pairs.get("epoch", "")), _counted(pairs)
        if epoch is not None:
            if epoch < self._epoch and counted is None:  # with step numbers the core sees what goes back, and where to
                yield self._new_run(line)
            self._epoch = epoch
        if counted is None:
            self._waiting = line, pairs, self._finder.bar
            return
        iteration, total = int(counted[1]), int(counted[2])
        interval = iteration - self._finder.last
        self._finder.last = iteration
        if self._header.get("train_iters") != total:
            self._header["train_iters"] = total
            yield Fact("train_iters", total, line)
        yield self._step(line, pairs, iteration, interval)

    def _release(self, bar_after: int | None) -> Iterator[Event]:
        if self._waiting is None:
            return
        line, pairs, bar_before = self._waiting
        self._waiting = None
        epoch, tokens = (number(pairs.get(name, "")) for name in ("epoch", "num_input_tokens_seen"))
        last = self._finder.last
        iteration, by_order = self._finder.find(epoch, tokens, bar_before, bar_after)
        yield self._step(line, pairs, iteration, None if by_order else iteration - last, by_order)

    def _step(
        self, line: int, pairs: dict[str, str], iteration: int, since: int | None, by_order: bool = False
    ) -> Step:
        # Where a log begins in the middle, what its first line covers is not known.
        interval = since if since == 1 or (self._started and since is not None and since > 0) else None
        self._started = True
        return Step(line=line, **_values(pairs, iteration, interval, by_order))

    def _new_run(self, line: int) -> NewRun:
        self._finder, self._started, self._header, self._epoch = _StepFinder(), False, {}, 0.0
        return NewRun(line)

    def _validation(self, line: int, pairs: dict[str, str]) -> Iterator[Event]:
        seconds = number(pairs.get("eval_runtime", ""))
        metrics = {name: number(pairs[name]) for name in ("epoch", "eval_accuracy") if name in pairs}
        counted = _counted(pairs)
        last = self._finder.last if counted is None else int(counted[1])
        yield Validation(
            line=line,
            step=last - 1 if last else None,
            iteration=None if counted is None else last,
            loss=number(pairs["eval_loss"]),
            seconds=seconds,
            metrics={name: value for name, value in metrics.items() if value is not None},
        )
        if seconds is not None:
            yield Stall(line=line, kind="evaluation", seconds=seconds)


def _parse(text: str) -> Values | None:
    """Return the values of a line that prints its step."""
    pairs = _pairs(text)
    counted = _counted(pairs) if "loss" in pairs else None
    return None if counted is None else _values(pairs, int(counted[1]), None)


def _values(pairs: dict[str, str], iteration: int, interval: int | None, by_order: bool = False) -> Values:
    values = step_fields(pairs.items(), DIALECT.columns)
    values["step"] = iteration - 1
    values["iteration"] = None if _counted(pairs) is None else iteration
    values["interval_steps"] = interval
    by = ("step:by_order",) if by_order else ()
    values["flags"] = by if interval == 1 else (*by, "loss:interval_mean")
    if values.get("memory_bytes") is not None:
        values["memory_kind"] = "reserved"
    return values


def _counted(pairs: dict[str, str]) -> re.Match[str] | None:
    return next((match for name in _COUNTERS if (match := _COUNTED.match(pairs.get(name, "")))), None)


def _pairs(text: str) -> dict[str, str]:
    _, brace, rest = text.partition("{")
    return {name: printed.strip() for name, printed in _PAIR.findall(rest[:20_000])} if brace else {}


def _summary(line: int, pairs: dict[str, str]) -> Iterator[Event]:
    for name, fact in _SUMMARY.items():
        value = number(pairs.get(name, ""))
        if value is not None:
            yield Fact(fact, value, line)
    yield Fact("completed", True, line)


_COUNTS = r"[\d,]{1,20}"
DIALECT = Dialect(
    framework="hf",
    looks_for="Hugging Face Trainer: lines {'loss': …, 'learning_rate': …, 'epoch': …} or {'train_runtime': …}",
    signs=(
        b"'learning_rate': ",
        b'"learning_rate": ',
        b"'train_runtime': ",
        b'"train_runtime": ',
        b"Total optimization",
    ),
    marks=(b"loss", b"it/s]", b"s/it]", b"Saving model checkpoint to"),
    startup=(
        *(b"** Running training **", b"train_runtime", b"Num examples = ", b"Num Epochs = ", b"batch size per device"),
        *(b" train batch size (w. ", b"Gradient Accumulation steps", b"Total optimization steps"),
        b"Number of trainable parameters",
    ),
    head=r"\{[\"'](?:eval_|train_)?[a-z_]{2,40}[\"']: ",
    complete=r"^[^{]{0,65536}\{[^}]{0,65536}\}",
    columns={
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
    },
    settings=(
        rf"batch size per device = (?P<micro_batch_size>{_COUNTS})",
        rf"train batch size \(w\. parallel, distributed & accumulation\) = (?P<global_batch_size>{_COUNTS})",
        rf"Gradient Accumulation steps = (?P<num_micro_batches>{_COUNTS})",
    ),
    facts=(
        rf"Total optimization steps = (?P<train_iters>{_COUNTS})",
        rf"Num examples = (?P<num_examples>{_COUNTS})",
        rf"Num Epochs = (?P<num_epochs>{_COUNTS})",
        rf"Number of trainable parameters = (?P<trainable_parameters>{_COUNTS})",
    ),
    conversions=dict.fromkeys(
        (
            *("micro_batch_size", "global_batch_size", "num_micro_batches", "train_iters"),
            *("num_examples", "num_epochs", "trainable_parameters"),
        ),
        count,
    ),
    stalls={"checkpoint": r"Saving model checkpoint to .{0,300}checkpoint-(?P<iteration>\d{1,12})\b"},
    driver=_Driver,
    parse=_parse,
)
