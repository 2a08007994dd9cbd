"""The table that a dialect is, what it makes of a line, and the one reader that reads any log by such a table.

A step line begins with `head`, and behind it each `fields` match is a name and a printed value, which `columns` turns
into a field of the Step. Everything else that a log says is a pattern with named groups: the group's name is the
setting, the fact or the field. Only what depends on the lines before needs code: a subclass of `Driver`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from typing import Any

from conf import vocabulary
from conf.vendors import maker_of
from parsers.layout import Layout
from parsers.record import Stall, Step, Validation
from parsers.text import body
from parsers.values import UNREAD, Column, Place, commas, count, gibibytes, literal, number, real, step_fields


@dataclass(frozen=True, slots=True)
class _Stated:
    name: str
    value: Any
    line: int


class Cut(_Stated):
    """A setting or fact into whose number another process wrote: its value is unknown."""


class Argument(_Stated):
    """A setting as the framework's own dump prints it, under the framework's name (its column of the vocabulary)."""


class Setting(_Stated):
    """A setting that the log states otherwise than by a dump, under its canonical name and in its canonical unit."""


class Fact(_Stated):
    """Something else the log states. Names that the core knows: train_iters (iterations planned), completed (the
    framework's end marker; "all": which says that all was done, whatever was planned; False: that it was not),
    dump_complete (its argument dump came to its end), framework_version, vendor (nvidia, amd, intel, google), hardware
    (of conf/hardware), device_name, device_count, device_memory_bytes, parameters, parameters_by_rank, and of a batch
    that is stated in tokens global_batch_tokens and micro_batch_tokens. All others go to the record's environment."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """The log says that the run goes on where `done` iterations were done (a loaded checkpoint)."""

    done: int
    line: int


@dataclass(frozen=True, slots=True)
class NewRun:
    """The log says that another run begins here. The core finds by itself that a first iteration comes again."""

    line: int


Event = Step | Argument | Setting | Fact | Cut | Validation | Stall | Resumed | NewRun

Values = dict[str, Any]
"""Keyword arguments of a Step but `line`."""
_Make = Callable[["re.Match[str]", int, "int | None"], Iterable[Event]]

# How the facts that several dialects state are read; all others, and settings, are Python literals.
_CONVERSIONS: Mapping[str, Callable[[str], Any]] = {
    "completed": bool,
    "framework_version": str,
    "device_name": str,
    "device_memory_bytes": gibibytes,
    "model": str,
    "parameters": count,
}

_MOST_PIECES = 12
_compiled = cache(re.compile)
_LAYOUT_COSTS = 100  # step lines read without one
_GOES_ON = re.compile(r"[\w([{<:]|[.,]\w", re.ASCII)  # no number ends before that
_LAST_WORD = re.compile(r"[^\s|]{0,64}\s*$")  # a bar closes what stands before it


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """How one framework writes a log. All patterns are regular expressions whose repetitions are bounded."""

    framework: str | None
    """Its column of the vocabulary; None of a format that programs of any framework write."""
    looks_for: str
    """The signs of such a log, in words."""
    signs: tuple[bytes, ...]
    """Literals, at least one of which is in every log of this dialect, and in no other: then it is tried."""
    marks: tuple[bytes, ...]
    """Literals, at least one of which is in every line that matters. Other lines are never decoded."""
    startup: tuple[bytes, ...] = ()
    """More marks, of lines that come only where a run begins or ends, far from any line with one of `marks`."""
    companion: bool = False
    """Its lines stand inside logs of other dialects, and are read beside them."""
    family: str = ""
    """Dialects of one family have step lines alike, and the first of them reads those of all."""

    includes: tuple[str, ...] = ()
    """Dialects whose step lines stand beside its own: they are no other program's."""

    head: str = ""
    """How a step line begins. Its first group is the step's number as printed; the second, if there is one, how many
    steps there will be, where the line says so."""
    first: int = 1
    """The number of the first step."""
    fields: str = ""
    """A field behind the head: two groups, its name and its printed value."""
    columns: Mapping[str, Column] = field(default_factory=dict)
    """Printed name to (field of Step, conversion); a name that Step lacks goes to its metrics."""
    memory_kind: str | None = None
    """The kind of memory whose maximum memory_bytes is: "reserved", "allocated"."""
    means: Mapping[str, tuple[str, ...]] | None = None
    """Fields that are means over the steps since the line before, in lines that hold this literal. None: each line
    covers its own step only."""
    prints_next_rate: bool = False
    """The printed learning rate is the next step's: the one that a step used stands in the line before."""
    rate_of: tuple[int, ...] = (0, 1)
    """Which step's rate a line prints, from its own on; several where that is not known. It is the audit's."""
    clock: str = ""
    """Whose timer the printed step times come from, where it is another framework's."""
    adjust: Callable[[Values, str], Values | None] | None = None
    """A function that gives the meaning of a line's values together (its text follows); None where it is no step."""
    complete: str = ""
    """A pattern that only a complete step line has: where a terminal has broken one, its pieces are put together. "":
    never."""
    complete_by_length: bool = False
    """A step line with as many words as the one before is complete, too."""

    settings: tuple[str, ...] = ()
    """Lines that state settings: each named group is a canonical name, its text a Python literal."""
    facts: tuple[str, ...] = ()
    """The same of facts, see `Fact`."""
    conversions: Mapping[str, Callable[[str], Any]] = field(default_factory=dict)
    """Such a setting's or fact's name to how its text is read instead; None as a result: not stated."""
    entry: str = ""
    """An entry of a printed configuration: two groups, key and value. A key that the `print` column of
    conf/vocabulary.yaml has is that setting, where its value is a number from 0 on; anything else is not set."""
    printed_by: str = ""
    """The framework of that column, where it is not `framework`."""
    printed_facts: Mapping[str, str] = field(default_factory=dict)
    """Key of such an entry to a fact, whatever its value."""
    zero_is_unset: bool = False
    """An entry of 0 is not set, too."""
    resumed: str = ""
    """The run goes on from a checkpoint: the group `done` counts the iterations before, `next` is the one to come."""
    stalls: Mapping[str, str] = field(default_factory=dict)
    """Each thing that training waits for, such as "checkpoint", to the line that says so; groups, of which each may be
    missing: `iteration`, `seconds`."""
    validations: tuple[str, ...] = ()
    """A validation point: groups `iteration` (else it is of the step before), `loss` and `seconds`, which may all be
    missing; any other is one of its metrics."""
    validates_before: bool = False
    """A validation is made before the step of its number."""

    driver: type[Driver] | None = None
    """Reads a log where the table does not suffice."""
    places: Callable[[str], Sequence[Place] | None] | None = None
    """Returns where a step line prints its values, where head and fields do not suffice; None for any other line."""
    strict: bool = False
    """See `values.step_fields`."""

    def __post_init__(self) -> None:
        """Compile every pattern. ValueError: one is broken, or an entry has another form, and which."""
        wrong = [
            name for name in ("signs", "marks", "startup") if {type(text) for text in getattr(self, name)} - {bytes}
        ]
        wrong += [name for name in ("settings", "facts", "validations") if isinstance(getattr(self, name), str)]
        wrong += [f"columns: {name}" for name, to in self.columns.items() if len(to) != 2 or not callable(to[1])]
        if wrong:
            raise ValueError(f"not of the form that parsers/driver.py says: {', '.join(wrong)}")
        for name in ("head", "fields", "complete", "entry", "resumed", "settings", "facts", "validations", "stalls"):
            entry = getattr(self, name)
            for text in [entry] if isinstance(entry, str) else entry.values() if isinstance(entry, Mapping) else entry:
                try:
                    re.compile(text)
                except re.error as error:
                    raise ValueError(f"`{name}` is no regular expression: {error}: {text}") from error
        if self.fields and (re.compile(self.head).groups < 1 or re.compile(self.fields).groups != 2):
            raise ValueError("`head` needs a group, the step's number; `fields` needs two, name and value")

    def reader(self) -> Driver:
        """Return a reader for one log."""
        return (self.driver or Driver)(self)

    def read_step(self, line: int, text: str) -> Step | None:
        """Return the step of this one line, without what only its neighbours say: for live progress."""
        values = self.values(text)
        return None if values is None or values["step"] is None else Step(line=line, **values)

    def values(self, text: str, match: re.Match[str] | None = None) -> Values | None:
        """Return the values of a step line, None for any other line. match: of its head, where that is known."""
        places = self.placed(text, match)
        if places is None:
            return None
        return self.meaning(step_fields(((to, read, text[a:b]) for to, read, a, b in places), self.strict), text)

    def placed(self, text: str, match: re.Match[str] | None = None) -> Sequence[Place] | None:
        """Return where a step line prints its values; None for any other line."""
        if self.places is not None:
            return self.places(text)
        match = match or (_compiled(self.head).search(text) if self.head else None)
        if match is None:
            return None
        fields = _compiled(self.fields, re.ASCII).finditer(text, match.end())
        columns = ((*self.columns.get(field[1], UNREAD), *field.span(2)) for field in fields)
        return [("iteration", int, *match.span(1)), *columns]

    def meaning(self, values: Values, text: str) -> Values | None:
        """Return the values of a line with all that follows from them."""
        if self.places is None:
            values["step"] = values["iteration"] - self.first
            if values["step"] < 0:
                return None
            if self.means is None:
                values["interval_steps"] = 1
            if self.memory_kind is not None and values.get("memory_bytes") is not None:
                values["memory_kind"] = self.memory_kind
        return values if self.adjust is None else self.adjust(values, text)

    @cached_property
    def known(self) -> Mapping[str, vocabulary.Setting]:
        """Return the settings of the vocabulary by the key under which they are printed."""
        return vocabulary.printed(self.printed_by or self.framework or "")

    @cached_property
    def _statements(self) -> Sequence[tuple[re.Pattern[str], _Make]]:
        """Return every pattern of a line that is no step, with what makes events of a match, a line and the last
        iteration."""
        kinds: list[tuple[tuple[str, ...], _Make]] = [
            ((self.entry,) if self.entry else (), self._entries),
            (self.settings, partial(self._stated, Setting)),
            (self.facts, partial(self._stated, Fact)),
            (self.validations, self._validation),
            *(((text,), partial(self._stall, kind)) for kind, text in self.stalls.items()),
        ]
        return [(re.compile(text), make) for texts, make in kinds for text in texts]

    def statements(self, line: int, text: str, last: int | None = None) -> Iterator[Event]:
        """Yield what a line that is no step states. last: the iteration of the step line before."""
        for pattern, make in self._statements:
            match = pattern.search(text)
            if match is not None:
                yield from make(match, line, last)

    def _entries(self, match: re.Match[str], line: int, last: int | None) -> Iterator[Event]:
        for key, printed in match.re.findall(match.string, match.start()):
            value = literal(printed)
            known, amount = self.known.get(key), real(value)
            if known and amount is not None and amount >= 0 and (amount or not self.zero_is_unset):
                yield Setting(known.name, value, line)
            if key in self.printed_facts:
                yield Fact(self.printed_facts[key], value, line)

    def _stated(self, kind: type[Setting | Fact], match: re.Match[str], line: int, last: int | None) -> Iterator[Event]:
        for name, printed in match.groupdict().items():
            convert = self.conversions.get(name) or _CONVERSIONS.get(name, literal)
            value = None if printed is None else convert(printed)
            if value is not None:
                yield Cut(name, None, line) if _is_cut(match, name, value) else kind(name, value, line)
            if name == "device_name" and value and (vendor := maker_of(value)):
                yield Fact("vendor", vendor, line)

    def _stall(self, kind: str, match: re.Match[str], line: int, last: int | None) -> Iterator[Event]:
        printed = match.groupdict()
        iteration = last if printed.get("iteration") is None else int(printed["iteration"])
        yield Stall(line=line, kind=kind, iteration=iteration, seconds=number(printed.get("seconds") or ""))

    def _validation(self, match: re.Match[str], line: int, last: int | None) -> Iterator[Event]:
        printed = match.groupdict()
        at, loss = printed.pop("iteration", None), number(printed.pop("loss", None) or "")
        seconds = self.conversions.get("seconds", number)(printed.pop("seconds", None) or "")
        metrics = {name: value for name, text in printed.items() if (value := commas(text or "")) is not None}
        iteration = None if at is None else int(at)
        step = None if iteration is None else iteration - self.first - self.validates_before
        yield Validation(line=line, step=step, iteration=iteration, loss=loss, seconds=seconds, metrics=metrics)


def _is_cut(match: re.Match[str], name: str, value: Any) -> bool:
    """Return whether the number that ends a match goes on behind it, or stops as no number does."""
    ends = match.end(name) == match.end() and isinstance(value, int | float) and not isinstance(value, bool)
    return ends and _GOES_ON.match(match.string, match.end()) is not None


class Driver:
    """Reads one log by its dialect's table. Total: no text makes it raise; its memory does not grow with the log.

    wants: how many of the next lines it must see whatever they hold (a section without marks, a wrapped line); the core
    reads it after every feed. 0 for the lines with marks only.

    A line that only its numbers distinguish from the step line before goes to `step` at once, past `feed` and `read`.
    A dialect whose steps depend on the lines before overrides `step`, `other` or `end`; one whose steps are no lines
    with a number, `feed` or `read`."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.wants = 0
        self.iteration: int | None = None  # of the last step line
        self._before: int | None = None  # the iteration of the last line with means, or where training starts
        self._interval: int | None = None
        self._rate: float | None = None
        self._planned: int | None = None  # how many steps there will be, as the last step line says
        self._total: int | None = None  # the same, as it was stated
        self._line_before = ""  # the last step line
        self._head = _compiled(dialect.head)
        self._layout: Layout | None = None  # of the last step line
        self._spare = 4 * _LAYOUT_COSTS
        self._wrapped = WrappedLines(self._head, self._is_complete)

    def feed(self, number: int, text: str) -> Iterable[Event]:
        """Return the events of one line, or of one piece of a line between carriage returns, without terminal colours
        and NULs, prefixes (rank, time, pod) left in: search, do not match; `parsers.text.body` takes prefixes away."""
        match = self._head.search(text)
        if not self._wrapped.pieces and (match is None or self._stands_alone(text, match)):
            return self.read(number, text, match)
        events = [event for line in self._wrapped.feed(number, text) for event in self.read(*line)]
        if self._wrapped.pieces:
            self.wants = max(self.wants, 1)
        return events

    def end(self) -> Iterable[Event]:
        """Return what still waits. The log ends, or its events so far are wanted: it may go on."""
        return [event for line in self._wrapped.end() for event in self.read(*line)]

    def step(self, line: int, values: Values, text: str) -> Iterable[Event]:
        """Return the events of a step line. A hook: where it is not the step's only line, or not settled yet."""
        values["line"] = line
        return (Step(**values),)

    def other(self, line: int, text: str) -> Iterable[Event]:
        """Return the events of a line that is no step. A hook: what the table's patterns do not reach."""
        return self.dialect.statements(line, text, self.iteration)

    def read(self, line: int, text: str, match: re.Match[str] | None = None) -> Iterable[Event]:
        """Return the events of one line, put together where it was broken. match: of its head, where that is known."""
        match = match or self._head.search(text)
        if match is None:
            return (*self._resumed(line, text), *self.other(line, text))
        values = self.dialect.values(text, match)
        if values is None:
            return ()
        self._planned = int(match[2]) if self._head.groups > 1 and match[2] else None
        events = self._read_step(line, text, values)
        self._remember(text, match)
        return events

    def quick(self, line: int, text: str) -> Iterable[Event] | None:
        """Return the events of a line that only its numbers distinguish from the step line before; None for others:
        `feed` reads those."""
        layout = self._layout
        values = None if layout is None or self.wants else layout.values(text)
        if layout is None or values is None:
            return None
        if layout.ends_in_integer and self.dialect.complete and not self._is_complete(text):
            return None  # the last one was cut
        values = self.dialect.meaning(values, text)
        return None if values is None else self._read_step(line, text, values)

    def _remember(self, text: str, match: re.Match[str] | None = None) -> None:
        """Keep the layout of a step line; not of each where each is another, for to make one takes long."""
        self._layout = None
        if self._spare >= _LAYOUT_COSTS:
            self._spare -= _LAYOUT_COSTS
            with suppress(ValueError):
                self._layout = Layout(text, self.dialect.placed(text, match) or ())

    def _read_step(self, line: int, text: str, values: Values) -> Iterable[Event]:
        """Return the events of a step line with these values."""
        self._line_before = text
        self._spare += 1
        if self.dialect.means is not None:
            self._cover(values, text, self.dialect.means)
        if self.dialect.prints_next_rate:
            self._use_rate(values)
        before, self.iteration = self.iteration, values["iteration"]
        events = self.step(line, values, text)
        if self._planned is None or (self._planned == self._total and (before or 0) <= (self.iteration or 0)):
            return events  # where it goes back another run begins, perhaps as long
        self._total = self._planned
        return (Fact("train_iters", self._total, line), *events)

    def _cover(self, values: Values, text: str, means: Mapping[str, tuple[str, ...]]) -> None:
        """Settle over how many steps a line's means go."""
        sign = next(filter(text.__contains__, means), None)
        if sign is None:
            return
        iteration = values["iteration"]
        if iteration != self._before:  # every rank may print it
            # The first step has a line of its own, however seldom lines come.
            before = 0 if iteration == 1 else self._before
            self._interval = iteration - before if before is not None and before < iteration else None
            self._before = iteration
        values["interval_steps"] = self._interval
        if self._interval is not None and self._interval > 1:
            values["flags"] = tuple(f"{name}:interval_mean" for name in means[sign] if values.get(name) is not None)

    def _use_rate(self, values: Values) -> None:
        if self.iteration == values["iteration"] - 1:
            values["lr_used"] = self._rate
        if self.iteration != values["iteration"]:
            self._rate = values.get("lr")

    def _resumed(self, line: int, text: str) -> tuple[Event, ...]:
        match = _compiled(self.dialect.resumed).search(text) if self.dialect.resumed else None
        if match is None:
            return ()
        printed = match.groupdict()
        self._before = int(printed["done"]) if "done" in printed else int(printed["next"]) - 1
        return (Resumed(self._before, line),) if self._before > 0 else ()

    def _stands_alone(self, text: str, match: re.Match[str]) -> bool:
        """Return whether a line is one complete step line, not the beginning of one, nor two in one."""
        if not self.dialect.complete:
            return True
        return self._is_complete(text) and self._head.search(text, match.end()) is None

    def _is_complete(self, text: str) -> bool:
        complete = _compiled(self.dialect.complete).search(text) is not None
        return complete or (self.dialect.complete_by_length and len(text.split()) == len(self._line_before.split()) > 0)


def glued(head: re.Pattern[str], text: str) -> list[str]:
    """Return `text` cut before every step line but the first: two processes may have written into one line."""
    cuts = [match.start() for match in head.finditer(text)][1:]
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


class WrappedLines:
    """Puts the pieces of a broken step line together. head: how one begins. is_complete: whether it lacks nothing.

    Where a line stays incomplete (the log was cut there) it comes without its last word, which may be half a number,
    and what followed comes as it was."""

    def __init__(self, head: re.Pattern[str], is_complete: Callable[[str], bool]) -> None:
        self._head = head
        self._is_complete = is_complete
        self.pieces: list[tuple[int, str]] = []
        """The beginning of a step line that waits for the rest, each piece with its line number."""

    def feed(self, number: int, text: str) -> list[tuple[int, str]]:
        """Return the lines that are ready, each with the number of its first piece."""
        return [line for part in glued(self._head, text) for line in self._feed(number, part)]

    def end(self) -> list[tuple[int, str]]:
        """Return the pieces that wait, as they are."""
        pieces, self.pieces = self.pieces, []
        return [(number, text if at else _LAST_WORD.sub("", text)) for at, (number, text) in enumerate(pieces)]

    def _feed(self, number: int, text: str) -> Iterable[tuple[int, str]]:
        if self._head.search(text) is not None:
            before = self.end()
            if self._is_complete(text):
                return (*before, (number, text))
            self.pieces = [(number, text)]
            return before
        if not self.pieces:
            return ((number, text),)
        self.pieces.append((number, text))
        joined = "".join([self.pieces[0][1], *(body(piece) for _, piece in self.pieces[1:])])
        if self._is_complete(joined):
            first, self.pieces = self.pieces[0][0], []
            return ((first, joined),)
        return self.end() if len(self.pieces) >= _MOST_PIECES else ()
