"""Log text to one Record, whatever framework wrote the log.

Not here: numbers made from steps (metrics/), judgements between runs (compare/).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from conf.errors import InputError, Problem
from parsers import marks
from parsers.assemble import assemble, differences
from parsers.dialects import DIALECTS, load
from parsers.find import Run, find_runs
from parsers.outcome import Ending, Outcome, judge
from parsers.reader import Parsed, Parser, lines_of
from parsers.record import SCHEMA_VERSION, Declaration, Difference, Reading, Record, Step
from parsers.storage import read, write

__all__ = [
    "DIALECTS",
    "SCHEMA_VERSION",
    "Declaration",
    "Difference",
    "Ending",
    "Outcome",
    "Parsed",
    "Parser",
    "Reading",
    "Record",
    "Run",
    "Step",
    "assemble",
    "detect",
    "differences",
    "find_runs",
    "judge",
    "live",
    "looked_for",
    "parse",
    "read",
    "write",
]


def parse(source: Path | Iterable[str | bytes], dialect: str | None = None) -> Parsed:
    """Read a whole log. dialect: forced, or None to find out. InputError: the file cannot be read."""
    parser = Parser(dialect)
    if not isinstance(source, Path):
        for line in source:
            parser.feed(line)
        return parser.result()
    try:
        with source.open("rb") as stream:
            for line in lines_of(stream):
                parser.feed(line)
    except OSError as error:
        raise InputError(Problem(str(source), "cannot be read", error.strerror or str(error))) from error
    return parser.result()


def detect(lines: Iterable[str | bytes]) -> str | None:
    """The dialect of the first line that betrays one."""
    parser = Parser()
    for line in lines:
        parser.feed(line)
        if parser.dialect is not None:
            break
    return parser.dialect


def live(line: str) -> Step | None:
    """The step that this one line tells, in any dialect: for progress while a run goes on."""
    for name in DIALECTS:
        step = load(name).read_step(1, line)
        if step is not None:
            return step
    return None


def looked_for() -> tuple[str, ...]:
    """What betrays a training log, a phrase a dialect."""
    return (*(load(name).LOOKS_FOR for name in DIALECTS), marks.LOOKS_FOR)
