"""What a dialect makes of a line. Steps, validation points and stalls are the record's own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from parsers.record import Stall, Step, Validation


@dataclass(frozen=True, slots=True)
class Argument:
    """A setting as the framework's own dump prints it, under the framework's name (its column of the vocabulary)."""

    name: str
    value: Any
    line: int


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting that the log states otherwise than by a dump, under its canonical name and in its canonical unit."""

    name: str
    value: Any
    line: int


@dataclass(frozen=True, slots=True)
class Fact:
    """Something else the log states. Names that the core knows: train_iters (iterations planned), completed (the
    framework's end marker), dump_complete (its argument dump came to its end), framework_version, vendor (nvidia, amd,
    intel, google), device_name, device_count, device_memory_bytes, parameters, parameters_by_rank. All others go to the
    record's environment as they are."""

    name: str
    value: Any
    line: int


@dataclass(frozen=True, slots=True)
class Resumed:
    """The log says that the run goes on where `done` iterations were done (a loaded checkpoint)."""

    done: int
    line: int


@dataclass(frozen=True, slots=True)
class NewRun:
    """The log says that another run begins here. The core finds by itself that a first iteration comes again."""

    line: int


Event = Step | Argument | Setting | Fact | Validation | Stall | Resumed | NewRun


class Reader(Protocol):
    """Reads one log in one dialect. Total: no text makes it raise; its memory does not grow with the log.

    `wants`: how many of the next lines it must see whatever they hold (a section without marks, a wrapped line);
    the core reads it after every feed. 0 for the lines with marks only.
    """

    wants: int

    def feed(self, number: int, text: str) -> Iterable[Event]:
        """`text` is one line, or one piece of a line between carriage returns, without terminal colours and NULs,
        prefixes (rank, time, pod) left in: search, do not match; `parsers.text.body` takes prefixes away."""
        ...

    def end(self) -> Iterable[Event]:
        """Return what still waits. The log ends, or its events so far are wanted: it may go on."""
        ...
