"""What the dialects of the Megatron family share: iteration lines, argument dump, validation, checkpoints, memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from parsers.events import Argument, Event, Fact, Resumed
from parsers.megatron_facts import argument, memory, parameters, prose, second_iteration, seconds_of, validation
from parsers.megatron_line import Line, read_line, step_of
from parsers.record import Stall, Step
from parsers.text import body
from parsers.values import literal
from parsers.values import number as number_of

MARKS = (b"iteration",)
STARTUP = (
    b") memory (",
    b" training is done]",
    b" at the end of training for ",
    b"- arguments ---",
    b"number of parameters on",
    b"using world size",
    b" for parameters ...",
    b" padded vocab (size",
)
_TIMERS = 12
"""Lines after a saved checkpoint in which its timer may stand."""
_DUMP_GAP = 60
"""Lines of others that may stand between two lines of a dump."""
_WRAPPED = 4
_INTERVAL_FLAGS = ("step_time_s:interval_mean", "loss:interval_mean")

_SAVING = re.compile(r"(?<!un)saving checkpoint at iteration {1,12}(\d{1,12}) to ")
_SAVED = re.compile(r"successfully saved checkpoint from iteration {1,12}(\d{1,12}) to ")
_LOADED = re.compile(r"successfully loaded checkpoint from .{1,1000} at iteration (\d{1,12})$")
_SAVE_TIMER = re.compile(r"save-checkpoint \.{2,60}: \(([\d.]{1,20}), ([\d.]{1,20})\)")


class MegatronReader:
    """One log. prints_next_rate: the printed rate is the next step's (training_log comes after scheduler.step)."""

    def __init__(self, prints_next_rate: bool = True) -> None:
        self.wants = 0
        self._prints_next_rate = prints_next_rate
        self._dump = 0
        self._train_iters: int | None = None
        self._previous: Step | None = None
        self._previous_rate: float | None = None
        self._previous_time_s: float | None = None
        self._held: Line | None = None
        self._held_lines = 0
        self._saving: tuple[int, float | None] | None = None
        self._saved: Stall | None = None

    def feed(self, number: int, text: str) -> Iterator[Event]:
        if self._held is not None and self._continue(text):
            yield from self._flush(only_if_whole=True)
            return
        yield from self._flush()
        line = read_line(number, text) if "iteration" in text else None
        if line is not None:
            self._dump = 0
            self._held, self._held_lines = line, 0
            yield from self._flush(only_if_whole=True)
            if self._held is not None:
                self.wants = max(self.wants, 1)
        elif self._dump and "end of arguments" not in text:
            yield from self._argument(number, text)
        else:
            yield from self._others(number, text)

    def end(self) -> Iterator[Event]:
        yield from self._flush()
        yield from self._stalled()

    def _stalled(self) -> Iterator[Event]:
        """A checkpoint that no timer followed."""
        saved, self._saved = self._saved, None
        if saved is not None:
            yield saved

    def _others(self, number: int, text: str) -> Iterator[Event]:
        if "arguments --" in text:
            ended = "end of arguments" in text
            if ended and self._dump:
                yield Fact("dump_complete", True, number)
            self._dump = 0 if ended else _DUMP_GAP
            self.wants = self._dump
        elif "training is done]" in text:
            yield Fact("completed", True, number)
        elif "number of parameters on" in text:
            yield from parameters(number, text)
        elif " loss at " in text or " results at iteration" in text:
            yield from validation(number, text)
        elif "checkpoint" in text:
            yield from self._checkpoint(number, text)
        elif "memory (" in text:
            yield from memory(number, text)
        elif "using " in text or "padded vocab" in text:
            yield from prose(number, text)

    def _flush(self, only_if_whole: bool = False) -> Iterator[Event]:
        line = self._held
        if line is not None and (line.whole or not only_if_whole):
            self._held = None
            yield from self._told(line)

    def _told(self, line: Line) -> Iterator[Event]:
        yield from self._stalled()
        if line.train_iters != self._train_iters or line.iteration == 1:
            self._train_iters = line.train_iters
            yield Fact("train_iters", line.train_iters, line.number)
        yield self._placed(line)

    def _continue(self, text: str) -> bool:
        """A terminal wrapped the held line, perhaps inside a number: whether `text` goes on in it."""
        held, self._held_lines = self._held, self._held_lines + 1
        rest = body(text)
        if held is None or self._held_lines > _WRAPPED or read_line(1, text) is not None:
            return False
        joined = read_line(held.number, held.text + rest)
        if joined is None or len(joined.values) <= len(held.values) or "|" not in rest:
            return False
        self._held = joined
        self.wants = 0 if joined.whole else 1
        return True

    def _placed(self, line: Line) -> Step:
        """With what the lines before tell of it."""
        before = self._previous
        more: dict[str, Any] = {}
        if before is not None and (covered := line.iteration - 1 - before.step) >= 1:
            more["interval_steps"] = covered
            if covered > 1:
                more["flags"] = _INTERVAL_FLAGS
            elif self._prints_next_rate and self._previous_rate is not None:
                # What this step used stands in the line before: train_step ends with opt_param_scheduler.step and
                # training_log comes after it (megatron/training/training.py).
                more["lr_used"] = self._previous_rate
        step = step_of(line, **more)
        if line.iteration <= 2:
            time_s, before_s = line.time_s, self._previous_time_s
            if line.iteration == 2 and before is not None and time_s is not None and before_s is not None:
                step = second_iteration(step, before, time_s - before_s)
            self._previous_time_s = time_s
        rounded = "learning_rate=" in line.text  # to six decimals
        self._previous, self._previous_rate = step, None if rounded else step.lr
        return step

    def _argument(self, number: int, text: str) -> Iterator[Event]:
        self._dump -= 1
        self.wants = self._dump
        found = argument(text)
        if found is not None:
            self._dump = self.wants = _DUMP_GAP
            yield Argument(found[0], literal(found[1]), number)

    def _checkpoint(self, number: int, text: str) -> Iterator[Event]:
        saving, saved, loaded = _SAVING.search(text), _SAVED.search(text), _LOADED.search(text.rstrip())
        timer = _SAVE_TIMER.search(text)
        if loaded is not None:
            yield Resumed(int(loaded[1]), number)
        elif saving is not None:
            self._saving = int(saving[1]), seconds_of(text)
        elif saved is not None:
            begun, self._saving = self._saving, None
            ended = seconds_of(text)
            known = begun is not None and begun[0] == int(saved[1]) and None not in (begun[1], ended)
            seconds = (ended or 0) - (begun[1] or 0) if known and begun else None
            self.wants = max(self.wants, _TIMERS)
            self._saved = Stall(line=number, kind="checkpoint", seconds=seconds, iteration=int(saved[1]))
        elif timer is not None and (longest := number_of(timer[2])) is not None:
            saved_at, self._saved = self._saved or Stall(line=number, kind="checkpoint"), None
            yield saved_at if saved_at.seconds is not None else replace(saved_at, seconds=longest / 1000)
