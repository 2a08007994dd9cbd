"""A log that is still being written: its steps as they come."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from conf.errors import InputError, Problem
from parsers.reader import Parser
from parsers.record import Step
from parsers.segment import Parsed
from parsers.text import plain

_EVERY_S = 0.5
_BLOCK = 1 << 20


def follow(path: Path, dialect: str | None = None, until_done: bool = False) -> Parsed:
    """Print the steps of a growing log until Ctrl-C, or until the framework says that it is done; what it told then.

    A log that is replaced or cut short is read anew. InputError: it cannot be read.
    """
    parser, offset, shown = Parser(dialect), 0, 0
    try:
        while True:
            if path.stat().st_size < offset:
                parser, offset, shown = Parser(dialect), 0, 0
            grown = _read_on(path, offset, parser)
            if grown > offset:
                offset, shown = grown, _print(parser.result(), shown)
            if until_done and parser.result().completed:
                break
            time.sleep(_EVERY_S)
    except KeyboardInterrupt:
        print(file=sys.stderr)
    except OSError as error:
        raise InputError(Problem(str(path), "cannot be read", error.strerror or str(error))) from error
    return parser.finish()[-1]


def _read_on(path: Path, offset: int, parser: Parser) -> int:
    with path.open("rb") as stream:
        stream.seek(offset)
        while block := stream.read(_BLOCK):
            offset += len(block)
            parser.feed_bytes(block)
    return offset


def _print(parsed: Parsed, shown: int) -> int:
    """The steps after line `shown` of the log; the last of their lines."""
    for step in parsed.steps:
        if step.line > shown:
            print(_line(step), flush=True)
            shown = step.line
    return shown


def _line(step: Step) -> str:
    number = step.step + 1 if step.iteration is None else step.iteration
    seconds = "" if step.step_time_s is None else f", {step.step_time_s:g} s"
    loss = "unknown" if step.loss is None else f"{step.loss:g}"
    return plain(f"iteration {number}: loss {loss}{seconds}")
