"""The events that a dialect makes of a line. Steps, validation points and stalls are the record's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from parsers.record import Stall, Step, Validation


@dataclass(frozen=True, slots=True)
class _Stated:
    name: str
    value: Any
    line: int


class Argument(_Stated):
    """A setting as the framework's own dump prints it, under the framework's name (its column of the vocabulary)."""


class Setting(_Stated):
    """A setting that the log states otherwise than by a dump, under its canonical name and in its canonical unit."""


class Fact(_Stated):
    """Something else the log states. Names that the core knows: train_iters (iterations planned), completed (the
    framework's end marker), dump_complete (its argument dump came to its end), framework_version, vendor (nvidia, amd,
    intel, google), device_name, device_count, device_memory_bytes, parameters, parameters_by_rank. All others go to the
    record's environment as they are."""


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
