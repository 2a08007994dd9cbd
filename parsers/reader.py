"""One log, line by line, in whatever dialect it turns out to be: steps, facts, arguments, faults.

Total: no bytes make it raise. Memory grows with the steps only.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from conf.vocabulary import vocabulary
from parsers import marks
from parsers.dialects import DIALECTS, load
from parsers.events import Argument, Event, Fact
from parsers.faults import FaultFinder, Faults
from parsers.record import Reading, Step

LINE_LIMIT = 64 * 1024
_TAIL_LINES, _TAIL_WIDTH = 20, 500
_MANY = 10_000
_ANSI = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """What a log says. dialect is None where nothing in it was recognised. arguments: the framework's names;
    effective: canonical ones. completed: the framework's own end marker was seen. tail: the last lines."""

    dialect: str | None
    framework: str | None
    steps: tuple[Step, ...]
    facts: Mapping[str, Any]
    arguments: Mapping[str, Reading]
    effective: Mapping[str, Reading]
    train_iters: int | None
    completed: bool
    faults: Faults
    notes: tuple[str, ...]
    tail: tuple[str, ...]
    lines: int

    @property
    def reached(self) -> int:
        """The highest iteration that the log tells of; 0 if none."""
        return max((step.iteration for step in self.steps), default=0)


class Parser:
    """Feed it a log; `result` is what was read so far, at any time. dialect: None finds out from the content."""

    def __init__(self, dialect: str | None = None) -> None:
        self._readers = {name: load(name).reader() for name in ([dialect] if dialect else DIALECTS)}
        self.dialect = dialect
        self._steps: list[Step] = []
        self._mark_only = False
        self._resumed: list[str] = []
        self._joint_s: float | None = None
        self._shift_s = 0.0
        self._facts: dict[str, Any] = {}
        self._arguments: dict[str, Reading] = {}
        self._contradicted: set[str] = set()
        self._total: int | None = None
        self._completed = False
        self._faults = FaultFinder()
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._lines = 0

    def feed(self, line: str | bytes) -> Step | None:
        """Take the next line; the step that it tells or refines."""
        text = clean(line)
        self._lines += 1
        if text.strip():
            self._tail.append(text.rstrip()[:_TAIL_WIDTH])
        self._faults.feed(text)
        if "[tprimat]" in text:
            return self._mark(text)
        told = None
        for name, reader in tuple(self._readers.items()):
            for event in reader.feed(self._lines, text):
                self._settle(name)
                told = self._take(event) or told
        return told

    def result(self) -> Parsed:
        """All that was read."""
        framework = load(self.dialect).FRAMEWORK if self.dialect else None
        known = {name: at for name, at in self._arguments.items() if name not in self._contradicted}
        return Parsed(
            dialect=self.dialect,
            framework=framework,
            steps=tuple(self._steps),
            facts=dict(self._facts),
            arguments=known,
            effective=canonical(known, framework) if framework else {},
            train_iters=self._total,
            completed=self._completed,
            faults=self._faults.found(),
            notes=tuple(self._notes()),
            tail=tuple(self._tail),
            lines=self._lines,
        )

    def _settle(self, name: str) -> None:
        if self.dialect is None:
            self.dialect = name
            self._readers = {name: self._readers[name]}

    def _take(self, event: Event) -> Step | None:
        if isinstance(event, Step):
            return self._add(event)
        if isinstance(event, Argument):
            self._argue(event)
        elif event.name == "train_iters":
            self._total = event.value
        elif event.name == "completed":
            self._completed = True
        else:
            self._learn(event)
        return None

    def _add(self, step: Step) -> Step:
        self._faults.stepped()
        if self._mark_only and self._steps[-1].iteration == step.iteration:
            step = _over(step, self._steps.pop())
        self._mark_only = False
        self._steps.append(step)
        return step

    def _argue(self, event: Argument) -> None:
        before = self._arguments.setdefault(event.name, Reading(event.value, event.line))
        if repr(before.value) != repr(event.value):
            self._contradicted.add(event.name)

    def _learn(self, fact: Fact) -> None:
        known = self._facts.get(fact.name)
        if isinstance(known, dict) and isinstance(fact.value, dict):
            known.update(fact.value)
        elif len(self._facts) < _MANY:
            self._facts[fact.name] = fact.value

    def _mark(self, text: str) -> Step | None:
        facts, step, resumed = marks.read_facts(text), marks.read_step(text), marks.read_resumed(text)
        if resumed is not None:
            self._resume(resumed)
        for name, value in (facts or {}).items():
            self._learn(Fact(name, value, self._lines))
        if step is None:
            return None
        if self._steps and self._steps[-1].iteration == step["iteration"]:
            self._steps[-1] = self._clocked(marks.refine(self._steps[-1], step))
        else:
            self._faults.stepped()
            self._steps.append(self._clocked(marks.step_of(step, self._lines)))
            self._mark_only = True
        return self._steps[-1]

    def _resume(self, done: int) -> None:
        """The run goes on in the same log: what came after its checkpoint is done again, and no fault ended it."""
        self._steps = [step for step in self._steps if step.iteration <= done]
        self._mark_only, self._completed, self._faults = False, False, FaultFinder()
        self._joint_s, self._shift_s = self._steps[-1].end_monotonic_s if self._steps else None, 0.0
        self._resumed.append(f"resumed after iteration {done} (line {self._lines})")

    def _clocked(self, step: Step) -> Step:
        """`step` on the clock of the log's first part: what lies between two parts is no training."""
        if step.end_monotonic_s is None:
            return step
        if self._joint_s is not None:
            self._shift_s = self._joint_s + (step.step_time_s or 0.0) - step.end_monotonic_s
            self._joint_s = None
        return replace(step, end_monotonic_s=step.end_monotonic_s + self._shift_s) if self._shift_s else step

    def _notes(self) -> Iterator[str]:
        if not self._steps:
            yield "the log has no step lines"
        yield from self._resumed
        if self._contradicted:
            names = ", ".join(sorted(self._contradicted)[:8])
            yield f"the log dumps its arguments more than once, with other values; unknown therefore: {names}"


def canonical(arguments: Mapping[str, Reading], framework: str) -> dict[str, Reading]:
    """What a framework's argument dump says of the settings of our vocabulary."""
    named = ((setting.name, setting.key(framework)) for setting in vocabulary().values() if setting.dump)
    return {name: arguments[key] for name, key in named if key in arguments}


def clean(line: str | bytes) -> str:
    """One line as text, without its end and without terminal colours, cut at LINE_LIMIT."""
    text = line[:LINE_LIMIT].decode("utf-8", "replace") if isinstance(line, bytes) else line[:LINE_LIMIT]
    text = text.rstrip("\r\n")
    return _ANSI.sub("", text) if "\x1b" in text else text


def lines_of(stream: BinaryIO) -> Iterator[bytes]:
    """The lines of a stream, each cut at LINE_LIMIT: a line of any length takes constant memory."""
    while line := stream.readline(LINE_LIMIT):
        yield line
        while line and not line.endswith(b"\n"):
            line = stream.readline(LINE_LIMIT)


def _over(step: Step, mark: Step) -> Step:
    fields = ("lr_used", "loss", "grad_norm", "end_monotonic_s", "memory_bytes", "memory_kind")
    said = {name: getattr(mark, name) for name in fields if getattr(mark, name) is not None}
    return replace(step, **said)
