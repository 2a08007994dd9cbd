"""Log text to one Record, whatever framework wrote the log.

Not here: numbers made from steps (metrics/), judgements between runs (compare/)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from parsers.assemble import assemble, differences
from parsers.dialects import DIALECTS, load
from parsers.find import find_runs
from parsers.marks import read_validation
from parsers.outcome import Ending, Outcome, judge
from parsers.reader import Parser
from parsers.record import Declaration, Power, Reading, Record, Restart, Run, Stall, Step, Validation
from parsers.scan import read_blocks
from parsers.segment import Parsed
from parsers.storage import read, write

__all__ = ["DIALECTS", "Declaration", "Ending", "Outcome", "Parsed", "Parser", "Power", "Reading", "Record", "Restart"]
__all__ += ["Run", "Stall", "Step", "Validation"]
__all__ += ["assemble", "differences", "find_runs", "judge", "live", "parse", "parse_all", "read", "write"]


def parse(source: Path | Iterable[str | bytes], dialect: str | None = None) -> Parsed:
    """Return the last run in a log. dialect: forced, or None to recognise it by content. InputError: the file cannot be
    read."""
    return parse_all(source, dialect)[-1]


def parse_all(source: Path | Iterable[str | bytes], dialect: str | None = None) -> tuple[Parsed, ...]:
    """Return all runs in a log, in its order; at least one, which may be empty. source: a file (also .gz), "-"
    (standard input), or lines. InputError: the file cannot be read."""
    parser = Parser(dialect)
    if isinstance(source, Path):
        for block in read_blocks(source):
            parser.feed_bytes(block)
    else:
        for line in source:
            parser.feed(line)
    return parser.finish()


def live(line: str) -> Step | None:
    """Return the step that this one line reports, in any dialect: for progress while a run goes on."""
    if read_validation(line, 1) is not None:
        return None
    steps = (load(name).read_step(1, line) for name in DIALECTS)
    return next((step for step in steps if step is not None), None)
