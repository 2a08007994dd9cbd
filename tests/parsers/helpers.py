"""Help the tests of the dialects."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from parsers import Parsed, Parser, Step, parse_all
from parsers.dialects import load
from parsers.driver import Event

FIXTURES = Path(__file__).parent / "fixtures"


def read(dialect: str, text: str) -> list[Event]:
    """Return all events that a dialect's reader makes of a text whose every line it gets to see."""
    reader = load(dialect).reader()
    events: list[Event] = []
    for number, line in enumerate(text.splitlines(), start=1):
        reader.wants = max(0, reader.wants - 1)
        events += reader.feed(number, line)
    return [*events, *reader.end()]


def steps_of(dialect: str, text: str) -> list[Step]:
    """Return the steps among them."""
    return [event for event in read(dialect, text) if isinstance(event, Step)]


def parse_text(text: str | bytes, dialect: str | None = None) -> tuple[Parsed, ...]:
    """Return the runs in a text, as if it stood in a file."""
    return parse_all(text.split("\n") if isinstance(text, str) else text.split(b"\n"), dialect)


def all_runs(data: bytes) -> tuple[Parsed, ...]:
    """Return the same, fed a megabyte at a time."""
    parser = Parser()
    for at in range(0, len(data), 1 << 20):
        parser.feed_bytes(data[at : at + (1 << 20)])
    return parser.finish()


def unplaced(data: bytes) -> list[Step]:
    """Return the steps of the one run in a text, whatever their lines."""
    (run,) = parse_text(data)
    return [replace(step, line=0) for step in run.steps]
