"""Hugging Face's Trainer (transformers/trainer.py, trainer_callback.py), and ms-swift on top of it.

`{'loss': 2.9859, 'grad_norm': 0.97, 'learning_rate': 4.17e-05, 'epoch': 0.16}` and bars `16/97 [01:44<08:41, 6.39s/it]`
No step number (see `_Run`; ms-swift prints 'global_step/max_steps'). loss is the mean since the line before.
learning_rate is the next step's in older transformers and this step's in newer ones: lr_used stays unknown.
train_tokens_per_second and ms-swift's train_speed are means since the start. memory(GiB) is the most reserved."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from parsers.driver import Dialect, Driver, Event, Fact, NewRun, Setting, Values
from parsers.record import Stall, Step, Validation
from parsers.values import UNREAD, Place, count, gibibytes, number

_PAIR = re.compile(r"[\"']([\w/() .-]{1,60})[\"']: [\"']?([^,\"'{}]{1,60})")
_BAR = re.compile(r"\| {0,12}(\d{1,12})/(\d{1,12}) \[[\d:]{4,12}<")
_COUNTED = re.compile(r"(\d{1,12})/(\d{1,12})")
_COUNTERS = ("global_step/max_steps", "iteration")  # ms-swift, and its Megatron
_HEADER_LINES = 16  # the header has eight; other ranks may print theirs in between
_SUMMARY: Mapping[str, str] = {
    "train_runtime": "train_runtime_s",
    **{f"train_{what}_per_second": f"train_{what}_per_s" for what in ("samples", "steps", "tokens")},
    "train_loss": "train_loss_mean",
}
_TOO_MANY = 10**12  # steps
_HALF = 0.005  # the trainer rounds the epoch to two digits (Trainer.log); newer ones print more, which this allows for


@dataclass
class _Run:
    """One run, as its lines show it. last: the last step, from 1. bar: what the last training bar showed."""

    header: dict[str, int] = field(default_factory=dict)
    last: int = 0
    bar: int = 0
    epoch: float = 0.0
    started: bool = False
    tokens_per_step: float | None = None
    counts_padding: bool = False  # the tokens seen are those of whole batches: TRL's num_tokens are not

    def step_of(self, metrics: Mapping[str, float], bar_before: int, bar_after: int | None) -> int | None:
        """Return which step a line belongs to, from 1, as its dictionary does not say; None: its place in their order.

        By, in this order: the epoch, where the steps of one are known and its two digits leave one step; the progress
        bars before and after (a bar drawn before has at most this step, one drawn after at least this); the tokens
        seen, once a step is known."""
        epoch, tokens = metrics.get("epoch"), metrics.get("consumed_tokens") if self.counts_padding else None
        low = max(self.last + 1, bar_before)
        examples, batch = self.header.get("num_examples"), self.header.get("global_batch_size")
        if epoch is not None and examples and batch:
            first, last = ((epoch + off) * (examples / batch) for off in (-_HALF, _HALF))
            if low <= math.ceil(first) == math.floor(last) < _TOO_MANY:
                return math.ceil(first)
        ratio = tokens / self.tokens_per_step if tokens is not None and self.tokens_per_step else 0.0
        return low if bar_after == low else int(ratio) if ratio == int(ratio) and low <= ratio < _TOO_MANY else None


class _Driver(Driver):
    """Holds a line without a step number until the next bar or line."""

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect)
        self._run = _Run()
        self._waiting: tuple[int, Values, int] | None = None  # line, values, the bar before
        self._last = ""  # the last dictionary

    def end(self) -> Iterable[Event]:
        return (*super().end(), *self._release(None))

    def read(self, line: int, text: str, match: re.Match[str] | None = None) -> Iterator[Event]:
        bar, pairs = _BAR.search(text), _pairs(text)
        # Evaluation, tokenising and downloads draw bars too: only the one that ends at the last step counts.
        if bar is not None and int(bar[1]) <= int(bar[2]) == self._run.header.get("train_iters", int(bar[2])):
            yield from self._release(int(bar[1]))
            self._run.bar = max(self._run.bar, int(bar[1]))
        values = self.dialect.values(text)
        if values is not None:
            counted = _counted(pairs)
            if counted is not None:
                self._planned = self._run.header["train_iters"] = int(counted[2])
            yield from self._read_step(line, text, values)
            if bar is None:
                self._remember(text)
        elif "eval_loss" in pairs:
            yield from self._release(None)
            yield from self._validation(line, pairs)
        elif "train_runtime" in pairs:
            yield from self._release(None)
            figures = ((fact, number(pairs.get(name, ""))) for name, fact in _SUMMARY.items())
            yield from (Fact(fact, value, line) for fact, value in figures if value is not None)
            yield Fact("completed", True, line)
        else:
            yield from self.other(line, text)

    def other(self, line: int, text: str) -> Iterator[Event]:
        if "** Running training **" in text:
            self.wants = _HEADER_LINES
            if self._run.epoch:
                yield from self._release(None)
                self._begin()
                yield NewRun(line)
        for event in super().other(line, text):
            yield event
            if isinstance(event, (Setting, Fact)):
                self._run.header[event.name] = event.value

    def step(self, line: int, values: Values, text: str) -> Iterable[Event]:
        entry = text.partition("{")[2].partition("}")[0].replace(" ", "")  # a terminal breaks it at blanks
        if entry == self._last:
            return ()  # printed twice, or by another rank
        self._last = entry
        events: list[Event] = [*self._release(None)]
        epoch, iteration = values["metrics"].get("epoch"), values["iteration"]
        if epoch is not None:
            if epoch < self._run.epoch and iteration is None:  # with numbers the core sees what goes back
                self._begin()
                events.append(NewRun(line))
            self._run.epoch = epoch
        if iteration is None:
            self._waiting = line, values, self._run.bar
            self._run.counts_padding = "num_input_tokens_seen" in entry
        else:
            events.append(self._step(line, values, iteration))
        return events

    def _begin(self) -> None:
        self._run, self._planned, self._total, self._layout = _Run(), None, None, None

    def _release(self, bar_after: int | None) -> tuple[Step, ...]:
        if self._waiting is None:
            return ()
        (line, values, bar_before), self._waiting = self._waiting, None
        iteration = self._run.step_of(values["metrics"], bar_before, bar_after)
        tokens = values["metrics"].get("consumed_tokens")
        if iteration is not None and tokens and self._run.counts_padding:
            self._run.tokens_per_step = tokens / iteration
        return (self._step(line, values, iteration),)

    def _step(self, line: int, values: Values, known: int | None) -> Step:
        run, since = self._run, None if known is None else known - self._run.last
        run.last = run.last + 1 if known is None else known
        # Where a log begins in the middle, what its first line covers is not known.
        if since == 1 or (run.started and since is not None and since > 0):
            values["interval_steps"] = since
        if since == 1:
            values["flags"] = ()
        if known is None:
            values["flags"] = ("step:by_order", *values["flags"])
        run.started, values["line"], values["step"] = True, line, run.last - 1
        return Step(**values)

    def _validation(self, line: int, pairs: dict[str, str]) -> Iterator[Event]:
        loss, seconds = (number(pairs.get(name, "")) for name in ("eval_loss", "eval_runtime"))
        values = {name: number(pairs.get(name, "")) for name in ("epoch", "eval_accuracy")}
        metrics = {name: value for name, value in values.items() if value is not None}
        counted = _counted(pairs)
        last = self._run.last if counted is None else int(counted[1])
        step, iteration = last - 1 if last else None, None if counted is None else last
        yield Validation(line=line, step=step, iteration=iteration, loss=loss, seconds=seconds, metrics=metrics)
        if seconds is not None:
            yield Stall(line=line, kind="evaluation", seconds=seconds)


def _places(text: str) -> list[Place] | None:
    begin = text.find("{") + 1
    fields = list(_PAIR.finditer(text, begin, begin + 20_000)) if begin else []
    names = {field[1] for field in fields}
    if "loss" not in names or names.isdisjoint(("learning_rate", "epoch", *_COUNTERS)):
        return None
    places: list[Place] = [(*DIALECT.columns.get(field[1], UNREAD), *field.span(2)) for field in fields]
    counted = next((field for field in fields if field[1] in _COUNTERS and _COUNTED.match(field[2])), None)
    if counted is not None:
        at = counted.start(2)
        places[fields.index(counted)] = "iteration", int, at, at + counted[2].index("/")
    return places


def _describe(values: Values, text: str) -> Values:
    """Say what the loss and the memory are; the step where it is printed."""
    iteration = values.setdefault("iteration", None)
    values["step"] = None if iteration is None else iteration - 1
    values["flags"] = ("loss:interval_mean",)
    if values.get("memory_bytes") is not None:
        values["memory_kind"] = "reserved"
    return values


def _counted(pairs: dict[str, str]) -> re.Match[str] | None:
    return next((match for name in _COUNTERS if (match := _COUNTED.match(pairs.get(name, "")))), None)


def _pairs(text: str) -> dict[str, str]:
    _, brace, rest = text.partition("{")
    return {name: printed.strip() for name, printed in _PAIR.findall(rest[:20_000])} if brace else {}


# What stands before " = 1,024" in the header.
_SETTINGS = {
    "micro_batch_size": "batch size per device",
    "global_batch_size": r"train batch size \(w\. parallel, distributed & accumulation\)",
    "num_micro_batches": "Gradient Accumulation steps",
}
_FACTS = {
    "train_iters": "Total optimization steps",
    "num_examples": "Num examples",
    "num_epochs": "Num Epochs",
    "trainable_parameters": "Number of trainable parameters",
}
DIALECT = Dialect(
    framework="hf",
    looks_for="Hugging Face Trainer: lines {'loss': …, 'learning_rate': …, 'epoch': …} or {'train_runtime': …}",
    signs=(
        *(b"'learning_rate': ", b'"learning_rate": ', b"'train_runtime': ", b'"train_runtime": '),
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
    settings=tuple(rf"{text} = (?P<{name}>[\d,]{{1,20}})" for name, text in _SETTINGS.items()),
    facts=tuple(rf"{text} = (?P<{name}>[\d,]{{1,20}})" for name, text in _FACTS.items()),
    conversions=dict.fromkeys((*_SETTINGS, *_FACTS), count),
    stalls={"checkpoint": r"Saving model checkpoint to .{0,300}checkpoint-(?P<iteration>\d{1,12})\b"},
    driver=_Driver,
    places=_places,
    adjust=_describe,
)
