"""Hugging Face's Trainer (transformers/trainer.py, trainer_callback.py) and what is built on it: TRL, axolotl,
LLaMA-Factory, ms-swift, Liger's callback; and the files trainer_state.json, trainer_log.jsonl and logging.jsonl.

`{'loss': 2.9859, 'grad_norm': 0.97, 'learning_rate': 4.17e-05, 'epoch': 0.16}` and bars `16/97 [01:44<08:41, 6.39s/it]`
The Trainer's lines have no step number (see `_Run`); files, ms-swift's and Liger's do. loss is the mean since the line
before. learning_rate is the next step's in older transformers and this step's in newer ones: lr_used stays unknown.
train_tokens_per_second, throughput and train_speed are means since the start. Memory is the most that was reserved:
since the line before (axolotl), in the step (Liger, whose MB has 2**20 bytes), since the start (the others)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from conf.vocabulary import vocabulary
from parsers.driver import Cut, Dialect, Driver, Event, Fact, NewRun, Resumed, Setting, Values
from parsers.record import Stall, Step, Validation
from parsers.text import body
from parsers.values import UNREAD, Place, count, gibibytes, literal, number, whole

_PAIR = re.compile(r"[\"']([\w/() .-]{1,60})[\"']: (?!null|None)[\"']?([^,\"'{}]{1,60})")
_BAR = re.compile(r"\| {0,12}(\d{1,12})/(\d{1,12}) \[[\d:]{4,12}<")
_COUNTED = re.compile(r"(\d{1,12})(?:/(\d{1,12}))?(?![\d.eE])")
# ms-swift, its Megatron, LLaMA-Factory, older ms-swift, and trainer_state.json, Liger, TFTrainer.
_COUNTERS = ("global_step/max_steps", "iteration", "current_steps", "global_step", "step")
_HEADER_LINES = 16  # the header has eight; other ranks may print theirs in between
_STATE = '"log_history": ['
_STATE_LINES, _ENTRY_LINES = 8, 1000  # behind log_history stand logging_steps and max_steps; of an entry at most
_SUMMARY: Mapping[str, str] = {
    "train_runtime": "train_runtime_s",
    **{f"train_{what}_per_second": f"train_{what}_per_s" for what in ("samples", "steps", "tokens")},
    "train_loss": "train_loss_mean",
}
# A dump of what the trainer was given, not its source; and a setting in it: key=value or "key": value.
_DUMP = re.compile(r"(?<!=)(?<!= )\b(?:\w{0,40}TrainingArguments|[A-Z]{3,5}Config)\(|\[axolotl\..{1,200} config:\s*$")
_GIVEN = re.compile(r"(?<![\w.'-])\"?(\w{2,40})\"?(?:=|: )[\"<]?(-?[\w.+-]{1,40})\"?(?=,|\)|: |\s*$)")
_DUMP_LINES = 400
_OF_AXOLOTL = ("micro_batch_size", "world_size")  # called as ours are
_TOO_MANY = 10**12  # steps
_TOTALS = 16
_NEARLY = 1e-6
# Stated before the header of a run.
_OF_PROGRAM = ("logging_steps", "logging_first_step", "logging_strategy", "resumed_from", "trainer")
_FIRST_COUNTS = (
    "trainer",
    "num_examples",
)  # a traceback goes through several trainers; an evaluation has examples, too
_Span = tuple[float, float]


class _Bar(NamedTuple):
    """A bar, and how often it was drawn at this step."""

    step: int
    total: int
    times: int = 1


@dataclass
class _Run:
    """One run, as its lines show it. last: the last step, from 1, or where that is not known one more than before.
    sure: it is known; 0 at the start is. begun: the log has the run's start. at: the last step's epoch. epoch: of the
    last line. bar: the last one. redrawn: by total, where bars were first drawn twice; once: how many were drawn once.
    bunched: lines came without bars between them: they were kept back. span: the least and the most steps of an epoch,
    as known steps show. every: how many steps lie between lines, by the same. lines: how many were read."""

    header: dict[str, Any] = field(default_factory=dict)
    last: int = 0
    sure: bool = False
    begun: bool = False
    at: float | None = None
    epoch: float = 0.0
    bar: _Bar | None = None
    bunched: bool = False
    redrawn: dict[int, list[int]] = field(default_factory=dict)
    once: int = 0
    span: _Span | None = None
    every: int | None = None
    lines: int = 0
    tokens_per_step: float | None = None
    counts_padding: bool = False  # the tokens seen are those of whole batches: TRL's num_tokens are not

    def step_of(
        self, metrics: Mapping[str, float], before: _Bar | None, after: _Bar | None, then: float | None
    ) -> int | None:
        """Return which step a line belongs to, from 1, as its dictionary does not say; None: nothing shows it.

        before, after: the bars around it; then: the epoch of the next line. Of the steps that these and its epoch
        leave, it is the next that lines are printed for, or the only such one; or the only one; or tokens show it."""
        epoch, every = metrics.get("epoch"), self.header.get("logging_steps") or self.every
        if self.header.get("logging_strategy", "steps") != "steps":
            every = None
        low, high = self._between(before, after)
        drawn = low == high
        if epoch is not None:
            least, most = self._by_epoch(epoch, then)
            low, high = max(low, least), min(high, most)
        if low == high and not every:
            return int(low)
        if every:
            first = 1 if self.header.get("logging_first_step") and not self.last else -(-low // every) * every
            following = first if first == 1 else (self.last // every + 1) * every
            if self.sure and following < low and not self._stated() and not self.span:
                return None  # the bars are ahead, and no epoch shows whether lines were lost or kept back
            if low == high and drawn:
                return int(low)
            # Between two bars it must be the only one: another line may have been lost.
            if self.sure and low <= following <= high and (after is None or self.bunched or following + every > high):
                return following
            if first <= high < first + every:
                return first
        tokens = metrics.get("consumed_tokens") if self.counts_padding else None
        ratio = tokens / self.tokens_per_step if tokens is not None and self.tokens_per_step else 0.0
        return int(ratio) if low <= ratio <= min(high, _TOO_MANY) and ratio.is_integer() else None

    def _between(self, before: _Bar | None, after: _Bar | None) -> tuple[int, float]:
        """Return the least and the most that the step can be: a bar drawn before has at most this step, one drawn after
        at least this; one that was drawn again was so for the line before."""
        low, high = self.last + 1, math.inf if after is None or self.bunched else after.step
        if before is None or self.bunched or (after is not None and before.total != after.total):
            return low, high  # of a download, of tokenizing
        low = max(low, before.step)
        return low + 1 if before.times > 1 and before.step == low < high else low, high

    def _by_epoch(self, epoch: float, then: float | None) -> tuple[int, float]:
        """Return the same by the epoch, and by how much it is after that of the last known step."""
        span, off = self._stated() or self.span or self._first_two(epoch, then), _half(epoch)
        if span is None or not 0 <= epoch * span[0] < _TOO_MANY:
            return 0, math.inf
        # What is left of an epoch's batches is a step of its own, or dropped, or the next epoch's, by version.
        least, most = span if epoch + off < 1 else (math.floor(span[0]), math.ceil(span[1]))
        low, high = _round(epoch - off, least, math.ceil), _round(epoch + off, most, math.floor)
        if self.sure and self.last and self.at is not None:
            crossed, since = int(epoch) - int(self.at), epoch - self.at
            low = max(low, self.last + _round(since - 2 * off, span[0], math.ceil) - crossed)
            high = min(high, self.last + _round(since + 2 * off, span[1], math.floor) + crossed)
        return int(low), high

    def _stated(self) -> _Span | None:
        """Return the least and the most steps of an epoch, as the header has them."""
        names = ("num_examples", "global_batch_size", "num_micro_batches", "train_iters", "num_epochs")
        examples, batch, micro, planned, epochs = (self.header.get(name, 0) for name in names)
        if not examples or not batch or not micro:
            return None
        batches = examples * micro / batch
        least, most = (max(1.0, each / micro) for each in (math.floor(batches), math.ceil(batches)))
        # GRPO's batch counts completions, and its examples are prompts: then this does not hold.
        fits = math.ceil(planned / math.ceil(most)) <= epochs <= math.ceil(planned / math.floor(least))
        return (least, most) if fits else None

    def _first_two(self, epoch: float, then: float | None) -> _Span | None:
        """Return the same by the first two lines and the steps between them: a log may begin after a checkpoint."""
        every = self.header.get("logging_steps")
        if not every or then is None or self.last:
            return None
        shortest, longest = (then - epoch + off * 2 * _half(epoch) for off in (-1, 1))
        return every / longest if longest > 0 else 0.0, every / shortest if shortest > 0 else _TOO_MANY

    def learn(self, step: int, epoch: float | None) -> None:
        """Take note of a step whose line does not number it."""
        self.at = epoch
        if epoch is not None and epoch <= 1:
            off = _half(epoch)
            least, most = step / (epoch + off), step / (epoch - off) if epoch > off else _TOO_MANY
            if self.span is not None:
                least, most = max(least, self.span[0]), min(most, self.span[1])
            self.span = (least, most) if least <= most else None


def _round(epochs: float, span: float, to: Callable[[float], int]) -> float:
    """Return so many epochs as steps, but for what a float cannot tell."""
    steps = epochs * span if epochs else 0.0
    return to(steps - _NEARLY if to is math.ceil else steps + _NEARLY) if abs(steps) < _TOO_MANY else steps


def _half(epoch: float) -> float:
    """Return by how much a printed epoch may be off: it has two digits (Trainer.log), four significant ones since
    transformers 5, or all of them."""
    printed = repr(epoch)
    digits = 2 if "e" in printed else len(printed.partition(".")[2])
    if digits < 2 and epoch >= 100:
        return 0.05 if epoch < 1000 else 0.5
    return 0.5 * 0.1 ** max(digits, 2)


class _Driver(Driver):
    """Holds a line without a step number until the next bar or line, and an entry of log_history until its end."""

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect)
        self._run = _Run()
        self._waiting: tuple[int, Values, _Bar | None] | None = None  # line, values, the bar before
        self._last = ""  # the last dictionary
        self._in_state, self._dump_left = False, 0
        self._entry: tuple[int, int, list[str]] | None = None  # its line, how far it is indented, its lines

    def feed(self, number: int, text: str) -> Iterable[Event]:
        if self._in_state or _STATE in text:
            return self._state_line(number, text)
        return super().feed(number, text)

    def end(self) -> Iterable[Event]:
        return (*super().end(), *self._release())

    def _state_line(self, line: int, text: str) -> Iterable[Event]:
        """Read a line of trainer_state.json. ms-swift ends logging.jsonl with all of log_history in one line."""
        bare = text.strip()
        if not self._in_state:
            self._in_state = self._run.sure = self._run.begun = bare.endswith("[")
            self.wants = int(self._in_state)
            return ()
        self.wants = 1
        indent = len(text) - len(text.lstrip())
        if self._entry is None:
            if bare == "{":
                self._entry = line, indent, []
            elif bare.startswith("]"):
                self._in_state, self.wants = False, _STATE_LINES
                return ()
        if self._entry is None or len(self._entry[2]) > _ENTRY_LINES:
            return ()
        first, begins, lines = self._entry
        lines.append(bare)
        if indent > begins or bare[:1] != "}":
            return ()
        self._entry = None
        return self.read(first, "".join(lines))

    def read(self, line: int, text: str, match: re.Match[str] | None = None) -> Iterator[Event]:
        bar, pairs = _BAR.search(text), _pairs(text)
        before = text.partition("{")[0] if pairs else ""
        if " = " in before or "Saving model" in before:  # its line's end came late: its number may go on
            events = super().other(line, before)
            yield from (Cut(getattr(event, "name", "checkpoint"), None, line) for event in events)
        if bar is not None and (not pairs or _entry(text) != self._last):
            yield from self._drawn(line, _Bar(int(bar[1]), int(bar[2])))
        values = self.dialect.values(text)
        if values is not None:
            planned = _counted(pairs)[1]
            if planned is not None:
                self._planned = self._run.header["train_iters"] = planned
            yield from self._read_step(line, text, values)
            if bar is None and not self._in_state:
                self._remember(text)
        elif "eval_loss" in pairs:
            yield from self._release()
            yield from self._validation(line, pairs)
        elif "train_runtime" in pairs or ("current_steps" in pairs and "epoch" in pairs and "loss" not in pairs):
            yield from self._release()
            yield from self._summary(line, pairs)
        else:
            yield from self.other(line, text)

    def _drawn(self, line: int, bar: _Bar) -> Iterator[Event]:
        """Take note of a bar. Evaluation, tokenizing and downloads draw some, too: only those that end at the last step
        count, and until it is known those around a line."""
        run = self._run
        known = run.bar if run.bar is not None and run.bar.total == bar.total else None
        if not bar.step <= bar.total == run.header.get("train_iters", bar.total):
            return
        before = self._waiting[2] if self._waiting else None
        if before is not None and before.total == bar.total and bar.step < before.step:
            run.bar = bar  # of another node, or the same text twice
            return
        yield from self._release(bar)
        if before is not None and before.total == bar.total and not run.bunched and "train_iters" not in run.header:
            run.header["train_iters"] = bar.total
            yield Fact("train_iters", bar.total, line)
        if known is not None and known.step == bar.step:
            bar = known._replace(times=known.times + 1)
            yield from self._redrawn(line, bar)
        elif known is not None and known.times == 1:
            run.once += 1
        run.bar, run.sure = bar, run.sure or bar.step == run.last == 0

    def _redrawn(self, line: int, bar: _Bar) -> Iterator[Event]:
        """Learn logging_steps from a bar: it is drawn again where a line is printed, even where that is kept back; of
        several nodes each is drawn again."""
        run = self._run
        if "logging_steps" in run.header or not bar.step or len(run.redrawn) > _TOTALS:
            return
        steps = run.redrawn.setdefault(bar.total, [])
        if len(steps) < 3 and bar.step not in steps:
            steps.append(bar.step)
            if steps == [steps[0], 2 * steps[0], 3 * steps[0]] and steps[0] > 1 and run.once > 3:
                run.header |= {"logging_steps": steps[0], "train_iters": bar.total}
                yield Fact("train_iters", bar.total, line)

    def other(self, line: int, text: str) -> Iterator[Event]:
        if "** Running training **" in text:
            self.wants = _HEADER_LINES
            if self._run.epoch:
                yield from self._release()
                self._begin()
                yield NewRun(line)
                self._last = ""
            self._run.sure = self._run.begun = True
            self._run.header.pop("num_examples", None)
        for event in (*self._resumed(line, text), *self._given(line, text), *super().other(line, text)):
            if isinstance(event, Resumed):
                self._run.last = event.done
            if isinstance(event, (Setting, Fact)):
                yield from self._noted(event)
            else:
                yield event

    def _given(self, line: int, text: str) -> Iterator[Event]:
        """Yield what a line of a dump states. Behind a step a dump is of what comes next."""
        if _DUMP.search(text):
            self._dump_left = 0 if self._run.last else _DUMP_LINES
        if not self._dump_left:
            return
        for name, printed in _GIVEN.findall(text):
            setting = self.dialect.known.get(name) or (vocabulary()[name] if name in _OF_AXOLOTL else None)
            word = printed.rpartition(".")[2].lower().removesuffix("_with_warmup")
            if setting is not None and setting.name != "train_iters" and setting.accepts(value := literal(printed)):
                yield Setting(setting.name, value, line)
            elif name in ("bf16", "fp16") and word == "true":
                yield Fact("precision", name, line)
            elif name in ("lr_scheduler_type", "lr_scheduler") and word in ("linear", "cosine", "constant"):
                yield Setting("lr_decay_style", word, line)
        ends = text.rstrip().endswith(")") or body(text).rstrip() == "}"
        self._dump_left = 0 if ends else self._dump_left - 1
        self.wants = max(self.wants, int(self._dump_left > 0))

    def _noted(self, event: Setting | Fact) -> Iterator[Event]:
        """Keep what is stated of the run; the first counts of what later lines state of something else."""
        header = self._run.header
        if event.name in _FIRST_COUNTS and header.get(event.name) not in (None, "trl", "transformers"):
            return
        header[event.name] = event.value
        if event.name == "train_iters" and event.value == header.get("global_step"):
            yield Fact("completed", "all", event.line)
        if event.name in ("logging_steps", "resumed_from") and not self._run.last:
            self._run.sure = "resumed_from" not in header
        yield event

    def step(self, line: int, values: Values, text: str) -> Iterable[Event]:
        entry = _entry(text)
        if entry == self._last:
            return ()  # printed twice, or by another rank
        self._last = entry
        epoch, iteration, run = values["metrics"].get("epoch"), values["iteration"], self._run
        if iteration is not None and iteration == run.last and run.sure:
            return ()  # two processes write one file
        events: list[Event] = []
        if self._waiting is not None:
            first, before, bar = self._waiting
            if _rounded(before, values):
                self._waiting = first, values, bar
                return ()
            run.bunched = run.bunched or run.bar is not None
            events += self._release(then=epoch)
        if epoch is not None:
            if epoch < run.epoch and iteration is None:  # with numbers the core sees what goes back
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
        kept = {name: value for name, value in self._run.header.items() if name in _OF_PROGRAM}
        self._run, self._planned, self._total, self._layout = _Run(kept), None, None, None

    def _release(self, after: _Bar | None = None, then: float | None = None) -> tuple[Step, ...]:
        if self._waiting is None:
            return ()
        (line, values, before), self._waiting = self._waiting, None
        iteration = self._run.step_of(values["metrics"], before, after, then)
        tokens = values["metrics"].get("consumed_tokens")
        if iteration is not None:
            self._run.learn(iteration, values["metrics"].get("epoch"))
            if tokens and self._run.counts_padding:
                self._run.tokens_per_step = tokens / iteration
        return (self._step(line, values, iteration),)

    def _step(self, line: int, values: Values, known: int | None) -> Step:
        run = self._run
        # Where a log begins in the middle, or after a checkpoint, what its first line covers is not known.
        if known is None:
            values["flags"] = ("step:by_order", *values["flags"])
            run.last, run.sure = run.last + 1, False
        else:
            begun = run.sure if run.last else run.begun or known in (1, run.header.get("logging_steps"))
            since, first = known - run.last if begun else 0, run.last <= 1 or not run.lines
            run.every = since if since > 0 and run.last and known % since == 0 else None
            run.last, run.sure = known, True
            if since > 0 and (first or known % since == 0):  # else a line was lost
                values["interval_steps"] = since
            if since == 1:
                values["flags"] = ()
        run.lines += 1
        values["line"], values["step"] = line, run.last - 1
        return Step(**values)

    def _validation(self, line: int, pairs: dict[str, str]) -> Iterator[Event]:
        loss, seconds = (number(pairs.get(name, "")) for name in ("eval_loss", "eval_runtime"))
        values = {name: number(pairs.get(name, "")) for name in ("epoch", "eval_accuracy")}
        metrics = {name: value for name, value in values.items() if value is not None}
        iteration, _ = _counted(pairs)
        shown = metrics.get("epoch") in (None, self._run.epoch)  # else steps without a line came before it
        last = iteration or (self._run.last if self._run.sure and shown else 0)
        step = last - 1 if last else None
        yield Validation(line=line, step=step, iteration=iteration, loss=loss, seconds=seconds, metrics=metrics)
        if seconds is not None:
            yield Stall(line=line, kind="evaluation", seconds=seconds)

    def _summary(self, line: int, pairs: dict[str, str]) -> Iterator[Event]:
        """Yield what the Trainer says at its end. It may have been stopped before the last step."""
        figures = ((fact, number(pairs.get(name, ""))) for name, fact in _SUMMARY.items())
        yield from (Fact(fact, value, line) for fact, value in figures if value is not None)
        run, (iteration, planned) = self._run, _counted(pairs)
        if planned is not None:
            yield Fact("train_iters", planned, line)
        reached = iteration or max(run.last if run.sure else 0, run.bar.step if run.bar else 0)
        every, planned = run.header.get("logging_steps") or run.every or 1, planned or run.header.get("train_iters", 0)
        short = 0 < reached <= planned - (1 if iteration else every)
        yield Fact("completed", True if short else "all", line)


def _entry(text: str) -> str:
    return text.partition("{")[2].partition("}")[0].replace(" ", "")  # a terminal breaks it at blanks


def _places(text: str) -> list[Place] | None:
    begin = text.find("{") + 1
    fields = list(_PAIR.finditer(text, begin, begin + 20_000)) if begin else []
    names = {field[1] for field in fields}
    if "loss" not in names or names.isdisjoint(("learning_rate", "epoch", *_COUNTERS)):
        return None
    loss = next(field[2] for field in fields if field[1] == "loss")
    if loss[:1].isalpha() and loss[:3].lower() not in ("nan", "inf"):
        return None  # a configuration: its loss is a function's name
    places: list[Place] = [(*DIALECT.columns.get(field[1], UNREAD), *field.span(2)) for field in fields]
    for name in _COUNTERS:
        if name in names:
            at = next(index for index, field in enumerate(fields) if field[1] == name)
            counted = _COUNTED.match(fields[at][2])
            if counted is not None:
                start = fields[at].start(2)
                places[at] = "iteration", int, start, start + counted.end(1)
                break
    return places


def _rounded(values: Values, others: Values) -> bool:
    """Return whether these are LLaMA Board's few rounded values of a line, and the others the Trainer's own."""
    pairs = ((values["loss"], others["loss"]), *((one["metrics"].get("epoch") for one in (values, others)),))
    near = all(one is not None and other is not None and abs(one - other) < 0.0051 for one, other in pairs)
    return near and values.get("grad_norm") is None and others.get("grad_norm") is not None


def _describe(values: Values, text: str) -> Values:
    """Say what the loss and the memory are; the step where it is printed."""
    iteration = values.setdefault("iteration", None)
    values["step"] = None if iteration is None else iteration - 1
    values["flags"] = ("loss:interval_mean",)
    if values.get("memory_bytes") is not None:
        values["memory_kind"] = "reserved"
    return values


def _counted(pairs: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Return the step of a dictionary, and how many there will be, as far as it says so."""
    match = next((match for name in _COUNTERS if (match := _COUNTED.match(pairs.get(name, "")))), None)
    if match is None:
        return None, None
    return int(match[1]), int(match[2]) if match[2] else count(pairs.get("total_steps", ""))


def _pairs(text: str) -> dict[str, str]:
    _, brace, rest = text.partition("{")
    return {name: printed.strip() for name, printed in _PAIR.findall(rest[:20_000])} if brace else {}


def _mebibytes(text: str) -> int | None:
    return whole(number(text), 2**20)


def _used(text: str) -> int | None:
    return gibibytes(text) or None  # 0: not measured on this device


# What stands before " = 1,024" in the header, Unsloth's too.
_SETTINGS = {
    "micro_batch_size": "[Bb]atch size per device",
    "global_batch_size": r"Total (?:train )?batch size(?: \([^()]{1,60}\))?",
    "num_micro_batches": "Gradient [Aa]ccumulation steps",
    "data_parallel_size": "Data Parallel GPUs",
}
_FACTS = {
    "train_iters": "Total (?:optimization )?steps",
    "num_examples": "Num examples",
    "num_epochs": "Num Epochs",
    "trainable_parameters": "[Tt]rainable parameters",
}
_DUMPED = (  # in a dump of TrainingArguments, a YAML file that is printed, a command line
    r"^ {1,8}\"global_step\": (?P<global_step>\d{1,12}),\s{0,4}$",  # trainer_state.json: so many were done
    r"(?<![\w/])max_steps[\"']?[=:] ?(?P<train_iters>[1-9]\d{0,11})\b",
    r"\blogging_steps[\"']?(?: ?[=:] ?| )[\"']?(?P<logging_steps>[1-9]\d{0,6})(?:\.0)?(?![\d.])",
    r"\blogging_first_step[\"']?[=: ] ?(?P<logging_first_step>[Tt]rue)",
    r"(?P<logging_first_step>--logging_first_step)(?![= ] {0,4}[Ff]alse)",
    r"\blogging_strategy[\"']?[=: ] ?[\"']?<?(?:IntervalStrategy\.)?(?P<logging_strategy>\w{2,5})",
    r"resume_from_checkpoints?[\"']?[=: ] ?[\"']?(?!None|null|[Ff]alse|[\w.]{0,80}(?:checkpoint|ckpt)\w{0,9}[,)])"
    r"(?P<resumed_from>[^\s,\"'()]{1,200})(?![^\s,\"'])",  # a traceback shows the call
)
_TRAINERS = (
    r"/(?P<trainer>axolotl|llamafactory|llmtuner|swift|trl|transformers)/[^\":]{0,99}?train[^\":]{0,80}(?:\",|:\d)",
    r"\[(?P<trainer>axolotl)\.[\w.]{1,60}",
    r"\[INFO:(?P<trainer>swift)\]",
)
_TOKEN_RATES = ("avg_tokens_per_second", "throughput", "train_tokens_per_second")
_TOKEN_COUNTS = ("total_tokens", "tokens/total", "num_input_tokens_seen", "num_tokens")
DIALECT = Dialect(
    framework="hf",
    looks_for="Hugging Face Trainer: lines {'loss': …, 'learning_rate': …, 'epoch': …} or {'train_runtime': …}",
    signs=(
        *(b"'learning_rate': ", b'"learning_rate": ', b"'train_runtime': ", b'"train_runtime": '),
        *(b"Total optimization", b'"current_steps": ', _STATE.encode(), b"/transformers/trainer", b"[axolotl."),
        *(b"/axolotl/", b"/llamafactory/", b"/llmtuner/", b"/swift/", b"/trl/", b"** Running training **"),
        *(b"Unsloth - ", b"[INFO:swift]"),
    ),
    marks=(b"loss", b"it/s]", b"s/it]", b"Saving model checkpoint to"),
    startup=(
        *(b"** Running training **", b"train_runtime", b"Num examples = ", b"Num Epochs = ", b"batch size per device"),
        *(b" train batch size (w. ", b"Gradient Accumulation steps", b"Total optimization steps"),
        *(
            b"TrainingArguments(",
            b"Config(",
            b"Num processes: ",
            b". Max memory: ",
            b"Batch size per device",
            b"Total batch size",
            b"[INFO:swift]",
            b"dist_world_size=",
            b'"global_step": ',
        ),
        *(b"Number of trainable parameters", b"Continuing training from global step", _STATE.encode(), b"[axolotl."),
        *(b"logging_s", b"logging_first_step", b"resume_from_checkpoint", b'"current_steps": ', b".py:"),
        *(b"max_steps=", b"max_steps: ", b'"max_steps": ', b"'max_steps': ", b'.py", line '),
    ),
    head=r"\{[\"'](?:eval_|train_)?[a-z_]{2,40}[\"']: ",
    complete=r"^[^{]{0,65536}\{[^}]{0,65536}\}",
    columns={
        **{name: (name, number) for name in ("loss", "grad_norm", "lr", "epoch", "entropy", "reward", "kl")},
        "learning_rate": ("lr", number),
        **dict.fromkeys(("memory(GiB)", "vram_reserved"), ("memory_bytes", gibibytes)),
        **dict.fromkeys(("memory/device_reserved (GiB)", "memory/device_mem_reserved(gib)"), ("memory_bytes", _used)),
        **dict.fromkeys(("memory/max_allocated (GiB)", "memory/max_mem_allocated(gib)"), ("allocated_bytes", _used)),
        **dict.fromkeys(("memory/max_active (GiB)", "memory/max_mem_active(gib)"), ("active_bytes", _used)),
        "vram_allocated": ("allocated_bytes", gibibytes),
        "step_peak_memory_reserved_MB": ("memory_bytes", _mebibytes),
        "step_peak_memory_allocated_MB": ("allocated_bytes", _mebibytes),
        "step_time_sec": ("step_time_s", number),
        "avg_step_time_sec": ("step_time_s_running_mean", number),
        "step_tokens_per_second": ("tokens_per_s", number),
        **dict.fromkeys(_TOKEN_RATES, ("tokens_per_s_running_mean", number)),
        **dict.fromkeys(_TOKEN_COUNTS, ("consumed_tokens", number)),
        "tokens/trainable": ("trainable_tokens", number),
        "tokens/train_per_sec_per_gpu": ("trainable_tokens_per_s_per_gpu", number),
        "ppl": ("perplexity", number),
        "train_speed(iter/s)": ("steps_per_s_running_mean", number),
        "train_speed(s/it)": ("step_time_s_running_mean", number),
        **dict.fromkeys(("token_acc", "mean_token_accuracy"), ("token_accuracy", number)),
        "throughput(TFLOP/s/GPU)": ("tflops_per_gpu_running_mean", number),
        "MFU": ("mfu_running_mean", number),
    },
    settings=(
        *(rf"{text} = (?P<{name}>[\d,]{{1,20}})" for name, text in _SETTINGS.items()),
        r"dist_world_size=(?P<world_size>\d{1,6})",
        r"\[INFO:swift\] rank: \d{1,6}, local_rank: \d{1,6}, world_size: (?P<world_size>\d{1,6}),",
        r"^Num processes: (?P<world_size>\d{1,6})\s*$",  # accelerate/state.py
    ),
    facts=(
        *(rf"{text} = (?P<{name}>[\d,]{{1,40}})" for name, text in _FACTS.items()),
        r"/\|    (?:GPU: )?(?P<device_name>[^.|]{2,60})\. (?:Num GPUs = \d{1,4}\. )?"
        r"Max memory: (?P<device_memory_bytes>[\d.]{1,12}) GB\. Platform",  # Unsloth's, in GiB
        *(*_DUMPED, *_TRAINERS),
    ),
    conversions={
        **dict.fromkeys((*_SETTINGS, *_FACTS, "world_size", "logging_steps", "global_step"), count),
        "logging_first_step": bool,
        "logging_strategy": str.lower,
        "resumed_from": str,
    },
    resumed=r"Continuing training from global step (?P<done>\d{1,12})",
    stalls={"checkpoint": r"Saving model checkpoint to .{0,300}checkpoint-(?P<iteration>\d{1,12})\b"},
    driver=_Driver,
    places=_places,
    adjust=_describe,
)
