"""What a dialect makes of a line: a Step, an Argument of the framework's own dump, or a Fact; and what a dialect is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from parsers.record import Step


@dataclass(frozen=True, slots=True)
class Argument:
    """A setting as the framework printed it, under the framework's name."""

    name: str
    value: Any
    line: int


@dataclass(frozen=True, slots=True)
class Fact:
    """Something else the log states. Known names: train_iters, completed, parameters_by_rank, and those of marks."""

    name: str
    value: Any
    line: int


Event = Step | Argument | Fact


class Reader(Protocol):
    """Reads one log in one dialect, line by line. Total: no text makes it raise."""

    def feed(self, number: int, text: str) -> Iterator[Event]: ...


class Dialect(Protocol):
    """A module of this folder. FRAMEWORK names its column of the vocabulary, LOOKS_FOR says what betrays it."""

    FRAMEWORK: str
    LOOKS_FOR: str

    @staticmethod
    def reader() -> Reader: ...

    @staticmethod
    def read_step(number: int, text: str) -> Step | None: ...
