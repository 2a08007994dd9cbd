"""One log in whatever dialect it turns out to be: runs, steps, facts, settings, faults. No bytes make it raise."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import replace

from msgspec.structs import astuple

from parsers import marks
from parsers.dialects import DIALECTS, load
from parsers.driver import Argument, Driver, Event, Fact, NewRun, Resumed, Setting
from parsers.record import Step
from parsers.scan import Scanner, Span
from parsers.segment import Parsed, Segment, ends_a_run
from parsers.text import body, colourless
from parsers.unwrap import Unwrapper, mixed_line

FIRST_WINDOW, WINDOW = 1 << 18, 8 << 20
"""So much of a log is looked at at once to find its dialect, until one makes steps."""
_BLOCK = _QUIET = 1 << 20
_MANY_RUNS = 1000
_CUT = "line {} has no end: the log may be cut there, and a last word was left out"
_BROKEN = "lines are broken at {} characters, as a terminal does it: what stood at a break may be missing"
_MIXED = "line {} holds the beginning of another line: what stood there, and in others like it, may be missing"
_MOST_WAITING = 10_000


class LogReader:
    """Reads a log whose dialects are known, or become known. names: the dialect, and companions read beside it."""

    def __init__(self, names: Sequence[str] = (), lines: int = 0) -> None:
        self.names: tuple[str, ...] = ()
        self.dialect: str | None = None
        self._readers: dict[str, Driver] = {}
        self._scanner = Scanner((), [marks.MARK])
        self._scanner.lines = self._last_line = lines
        self._done: list[Parsed] = []
        self._segment = Segment(lines + 1)
        self._waiting: list[tuple[Event, str]] = []
        self._dump_waits = False
        self._changed = False
        self._steps_end: deque[int] = deque(maxlen=2)  # of the last two steps, in what the trail has not
        self._taken = 0
        self._wants = self._ended = False
        self._number = lines
        self.notes: tuple[str, ...] = ()
        self.adopt(names)

    def adopt(self, names: Sequence[str]) -> None:
        """Read what comes in these dialects."""
        if not names or tuple(names) == self.names:
            return
        self.names = tuple(names)
        self.dialect = next((name for name in names if not load(name).companion), names[0])
        self._readers = {name: self._readers.get(name) or load(name).reader() for name in names}
        seen = [marks.MARK] if marks.MARK in self._scanner.marks else []
        self._scanner.marks = tuple(dict.fromkeys((*(m for name in names for m in load(name).marks), *seen)))
        self._scanner.startup = tuple(dict.fromkeys((*(m for name in names for m in load(name).startup), marks.MARK)))

    def feed(self, data: bytes) -> bool:
        """Read the next bytes. Return whether they add a step, or change one."""
        self._changed = False
        self._read(self._scanner.feed(data))
        return self._changed

    def finish(self) -> None:
        """Read the last line, and what still waits: the log has ended."""
        self._read(self._scanner.finish())
        if self._scanner.cut:
            self.notes += (_CUT.format(self._scanner.lines),)
        self._ended = True
        for name, reader in self._readers.items():
            self._take(name, reader.end())

    def results(self, alone: bool = True) -> tuple[Parsed, ...]:
        """Return the runs read so far, in the log's order; the last may go on. alone: no other program follows."""
        self._release()
        last = self._parsed()
        return (*self._done, last if alone and not self._done else attributed(last, self._segment.head()))

    def since_last_step(self) -> tuple[bytes, int]:
        """Return what came after the last step, where it is not too long, and how many lines of the log precede it."""
        return self._segment.trail.newer, self._last_line

    def made(self, name: str) -> bool:
        """Return whether this dialect, too, makes steps of what the run began with."""
        return makes(name, self._segment.head())[1] > 0

    def _read(self, spans: Iterable[Span]) -> None:
        self._taken = 0
        scanner, alone = self._scanner, len(self._readers) == 1 and next(iter(self._readers.values()))
        for number, start, end in spans:
            text, self._number = scanner.raw(start, end), number
            if alone and (events := alone.quick(number, text)) is not None:
                self._take(self.dialect, events)
                scanner.wants, self._wants = alone.wants, alone.wants > 0
                continue
            if "[" in text:
                text = colourless(text) if scanner.plain else text
                if "[tprimat] " in text:
                    self._marked(number, text)
                    continue
            for piece in text.split("^M") if "^M" in text else (text,):
                self._dispatch(number, piece)
        if scanner.block:
            self._trail(scanner.block[self._taken :])
            scanner.block = b""

    def _marked(self, number: int, text: str) -> None:
        """Read a line with marks of ours: another process may have written its own line before or behind one, for
        Python's unbuffered `print` writes a line and its end apart."""
        before, *ours = text.split("[tprimat] ")
        if body(before).strip():
            self._dispatch(number, before)
        for mark in ours:
            self._mark(number, f"[tprimat] {mark}")
            behind = mark.rpartition("}")[2]
            if behind.strip():
                self._dispatch(number, behind)

    def _mark(self, number: int, text: str) -> None:
        if marks.MARK not in self._scanner.marks:  # where there is one, more follow
            self._scanner.marks = (*self._scanner.marks, marks.MARK)
        if self._wants:
            self._dispatch(number, "")  # a line of ours ends what a reader keeps for the next line
        self._release()
        if "[tprimat] resumed " in text:
            self._forget_faults()
        step, new = self._segment.mark(text, number)
        if step is not None:
            self._stepped(step, new)

    def _dispatch(self, number: int, text: str) -> None:
        wants = 0
        for name, reader in self._readers.items():
            if reader.wants:
                reader.wants -= 1
            events = reader.feed(number, text)
            if events:
                self._take(name, events)
            if reader.wants > wants:
                wants = reader.wants
        self._scanner.wants = wants
        self._wants = wants > 0

    def _take(self, name: str | None, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, Step):
                if name == self.dialect and event.step >= 0:  # a damaged line may print a negative one
                    self._add(event)
            elif isinstance(event, NewRun):
                self._release()  # what came before it is the old run's
                self._split(event.line)
            elif len(self._waiting) < _MOST_WAITING:
                if isinstance(event, Resumed):
                    self._resumed(event)
                self._waiting.append((event, load(name or "").framework or ""))
                # Bridge's dump is complete only with the first step line: it stands before a mark of the same step
                self._dump_waits = self._dump_waits or (
                    isinstance(event, (Argument, Setting)) and event.line > self._last_line
                )

    def _add(self, step: Step) -> None:
        segment = self._segment
        if step.step > segment.last_step and not self._waiting and not self._ended:
            segment.steps.append(step)
            segment.last_step, self._changed, self._last_line = step.step, True, self._number
            self._steps_end.append(max(0, self._scanner.end - self._taken))
            return
        if step.step <= self._segment.last_step:
            dump = self._dump_waits and any(event.line < step.line for event, _ in self._waiting)  # not its own line's
            twin = None if dump else self._segment.twin(step)
            if twin is not None:
                self._release()
                self._stepped(self._segment.merge(twin, step), new=False)
                return
            if step.step <= self._segment.steps[0].step:
                self._split(step.line)
        if self._waiting:
            self._release()
        self._segment.add(step)
        self._stepped(step, new=True)

    def _stepped(self, step: Step, new: bool) -> None:
        self._changed = True
        if new and self._ended:  # late: other lines came after it, perhaps another run
            self._segment.trail.stepped(step.line - self._last_line)
            self._last_line = max(self._last_line, step.line)
        elif new:
            self._last_line = self._number
            self._steps_end.append(max(0, self._scanner.end - self._taken))

    def _release(self) -> None:
        """Give what came since the last step to the run that goes on."""
        for event, framework in self._waiting:
            self._segment.take(event, framework)
        self._waiting.clear()
        self._dump_waits = False

    def _split(self, line: int) -> None:
        """Begin another run; what came since the last step belongs to it, except what ends a run."""
        if not self._segment.began:
            return
        self._cut()
        waiting, self._waiting = self._waiting, []
        begun = next((event.line for event, _ in waiting if isinstance(event, Argument)), line)
        ends = (event.line for event, _ in waiting if isinstance(event, Fact) and event.name == "completed")
        ended = max((at for at in ends if at < begun), default=0)
        for event, framework in waiting:
            if event.line <= ended or (event.line < begun and ends_a_run(event)):
                self._segment.take(event, framework)
            else:
                self._waiting.append((event, framework))
        if len(self._done) < _MANY_RUNS:
            self._done.append(attributed(self._parsed(line - 1), self._segment.head()))
        self._segment = Segment(line, self._segment.trail.newer)

    def _resumed(self, event: Resumed) -> None:
        """Take note of a loaded checkpoint: of this run, or of one that begins if no step lies before it."""
        steps = self._segment.steps
        if steps and event.done <= steps[0].step:
            self._split(event.line)
        else:
            self._forget_faults()

    def _cut(self) -> None:
        """Close what stands before the line in hand."""
        start = max(self._scanner.block.rfind(b"\n", 0, max(0, self._scanner.end - 1)) + 1, self._taken)
        self._trail(self._scanner.block[self._taken : start])
        self._taken = start

    def _forget_faults(self) -> None:
        """Forget the faults so far: the run goes on all the same."""
        self._cut()
        self._segment.trail.forget_faults()

    def _trail(self, block: bytes) -> None:
        self._segment.pass_by(block, [min(end, len(block)) for end in self._steps_end])
        self._steps_end.clear()

    def _parsed(self, lines: int | None = None) -> Parsed:
        framework = load(self.dialect).framework if self.dialect else None
        lines = self._scanner.lines if lines is None else lines
        run = self._segment.parsed(self.dialect, framework, self.names, lines)
        return replace(run, notes=(*self.notes, *run.notes)) if self.notes else run


class Parser:
    """Reads a log that is fed in pieces; `result` is what was read so far. dialect: None recognises it by content."""

    def __init__(self, dialect: str | None = None) -> None:
        companions = [name for name in DIALECTS if load(name).companion and name != dialect]
        self._reader = LogReader([dialect, *companions] if dialect else ())
        self._forced, self._settled = dialect is not None, False
        self._unwrapper: Unwrapper | None = None  # known by the first window
        self._done: list[Parsed] = []
        self._quiet = 0
        self._signed: set[str] = set()
        self._window: list[bytes] = []
        self._size, self._enough = 0, FIRST_WINDOW

    def feed(self, line: str | bytes) -> None:
        """Read the next line."""
        data = line if isinstance(line, bytes) else line.encode("utf-8", "replace")
        self.feed_bytes(data.rstrip(b"\r\n").replace(b"\n", b" ") + b"\n")

    def feed_bytes(self, data: bytes) -> None:
        """Read the next bytes, cut anywhere."""
        while data and not self._settled:
            room = self._enough - self._size
            self._window.append(data[:room])
            self._size, data = self._size + len(data[:room]), data[room:]
            if self._size >= self._enough:
                self._look()
        if data and self._unwrapper is not None:
            data = self._unwrapper.feed(data)
            self._quiet = 0 if self._reader.feed(data) else self._quiet + len(data)
            if self._quiet > _QUIET and not self._quiet > _QUIET + len(data):
                self._look_again()

    def finish(self) -> tuple[Parsed, ...]:
        """Return the runs of the log, which has ended: at least one."""
        self._look(ended=True)
        if self._unwrapper is not None and self._unwrapper.broken_at:
            self._reader.notes += (_BROKEN.format(self._unwrapper.broken_at),)
        self._reader.finish()
        while self._look_again():
            self._reader.finish()
        return (*self._done, *self._reader.results())

    def result(self) -> Parsed:
        """Return the last run so far. Until a dialect is settled, what is left is read for this answer only."""
        if self._settled or (self._reader.dialect is not None and not self._forced):
            return self._reader.results()[-1]
        window = b"".join(self._window)
        window = (deepcopy(self._unwrapper) or Unwrapper(window, _values_in)).feed(window)
        reader = LogReader(self._reader.names or detect(window, set(self._signed))[0])
        reader.feed(window)
        return reader.results()[-1]

    def _look_again(self) -> bool:
        """Begin the run of another program after the last step of this one. Return whether there is one."""
        rest, lines = self._reader.since_last_step()
        dialect = self._reader.dialect
        if not self._settled or self._forced or dialect is None or makes(dialect, rest)[1]:
            return False
        names, sure = detect(rest, set())
        if not sure or len(self._done) >= _MANY_RUNS or self._reader.made(names[0]):
            return False  # nothing, or what stood beside the steps all the time
        self._done += self._reader.results(alone=False)
        self._reader = LogReader(names, lines)
        self._reader.feed(rest)
        return True

    def _look(self, ended: bool = False) -> None:
        """Find the dialect in what was not looked at yet, until one makes steps there; then read on in it."""
        window = b"".join(self._window)
        self._window.clear()
        self._size, self._enough = 0, WINDOW
        first = self._unwrapper is None
        self._unwrapper = self._unwrapper or Unwrapper(window, _values_in)
        window = self._unwrapper.feed(window) + (self._unwrapper.finish() if ended else b"")
        if first and (line := mixed_line(window)):
            self._reader.notes += (_MIXED.format(line),)
        if self._forced:
            self._settled = True
        elif not self._settled:
            names, self._settled = detect(window, self._signed)
            if self._settled or self._reader.dialect is None:
                self._reader.adopt(names)
        changed = [self._reader.feed(window[at : at + _BLOCK]) for at in range(0, len(window), _BLOCK)]
        if any(changed) and all(load(name).companion for name in self._signed):
            self._settled = True  # a companion's steps, and in all this no sign of another program: later, another run


def _values_in(text: bytes) -> int:
    """Return how many values are read of a text."""
    reader = LogReader(detect(text, set())[0])
    reader.feed(text)
    reader.finish()
    runs = reader.results()
    fields = sum(value is not None for run in runs for step in run.steps for value in (*astuple(step), *step.metrics))
    return fields + sum(len(entries) for run in runs for entries in (run.effective, run.facts, run.validations))


def detect(window: bytes, signed: set[str]) -> tuple[tuple[str, ...], bool]:
    """Return the dialect of this part of a log with its companions, or nothing, and whether it makes steps.

    signed: the dialects whose signs stood in the parts before; this part's are added.

    Tried are the dialects with a sign in it. Of those that make a step the special ones come first, but where one makes
    all its steps before the first step of another, two programs ran, and it is the first one's."""
    signed |= {name for name in DIALECTS if _signed(name, window)}
    companions = [name for name in DIALECTS if name in signed and load(name).companion]
    second, chosen, begins, before = [], "", 0, b""
    for name in [*(name for name in DIALECTS if name in signed and name not in companions), *companions]:
        if not chosen and name in companions:
            break
        something, first = makes(name, before if chosen else window)
        if not chosen and first:
            chosen, begins = name, first
            before = _until(window, first)
        elif chosen and name in load(chosen).includes:
            continue
        elif first and first < begins and not makes(name, window[len(_until(window, begins)) :])[1]:
            chosen, begins = name, first
        second += [name] if something else []
    if chosen:
        return (chosen, *(name for name in companions if name != chosen)), True
    return (*second[:1], *(name for name in companions if any(makes(name, window)))), False


def _until(window: bytes, line: int) -> bytes:
    """Return what stands before a line (from 1)."""
    return window[: sum(len(text) + 1 for text in window.split(b"\n", line - 1)[: line - 1])]


def attributed(run: Parsed, text: bytes) -> Parsed:
    """Return one of several runs in a log under the dialect of its program: the one that the log is read in, or the
    first of its family that left a sign in `text`, this run's part, where that one left none."""
    if run.dialect is None or _signed(run.dialect, text):
        return run
    family = load(run.dialect).family
    relatives = (name for name in DIALECTS if family and load(name).family == family)
    name = next((name for name in relatives if _signed(name, text)), run.dialect)
    return replace(run, dialect=name, framework=load(name).framework, dialects=(name, *run.dialects[1:]))


def _signed(name: str, text: bytes) -> bool:
    return any(sign in text for sign in load(name).signs)


def makes(name: str, window: bytes) -> tuple[bool, int]:
    """Return whether the dialect makes anything of this, and the line of the first step that it makes, 0 if none."""
    reader, scanner, something = load(name).reader(), Scanner(load(name).marks, load(name).startup), False
    for number, start, end in scanner.feed(window + b"\n"):
        if reader.wants:
            reader.wants -= 1
        for event in reader.feed(number, scanner.text(start, end)):
            if isinstance(event, Step):
                return True, event.line
            something = True
        scanner.wants = reader.wants
    lines = [event.line for event in reader.end() if isinstance(event, Step)]
    return something or bool(lines), min(lines, default=0)
