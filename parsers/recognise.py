"""Which dialect a log is in, by its content."""

from __future__ import annotations

from parsers.dialects import DIALECTS, load
from parsers.record import Step
from parsers.scan import Scanner


def detect(window: bytes, signed: set[str]) -> tuple[tuple[str, ...], bool]:
    """The dialect of this part of a log, with its companions, and whether it makes steps; empty if there is none.
    signed: the dialects whose signs stood in the parts before; this part's are added.

    Tried are the dialects with a sign in it, the special ones first: one that makes a step comes before one that
    makes only something.
    """
    signed |= {name for name in DIALECTS if any(sign in window for sign in load(name).SIGNS)}
    companions = [name for name in DIALECTS if name in signed and load(name).COMPANION]
    second: list[str] = []
    for name in (name for name in DIALECTS if name in signed):
        made = "" if name in companions else makes(name, window)
        if made == "step":
            return (name, *companions), True
        second += [name] if made else []
    return (*second[:1], *(name for name in companions if makes(name, window))), False


def startup_marks(name: str) -> tuple[bytes, ...]:
    """STARTUP of a dialect, which it may lack."""
    return getattr(load(name), "STARTUP", ())


def makes(name: str, window: bytes) -> str:
    """Whether the dialect's reader makes a "step" of this, "something", or nothing ("")."""
    reader, scanner, made = load(name).reader(), Scanner(load(name).MARKS, startup_marks(name)), ""
    for number, start, end in scanner.feed(window + b"\n"):
        if reader.wants:
            reader.wants -= 1
        for event in reader.feed(number, scanner.text(start, end)):
            if isinstance(event, Step):
                return "step"
            made = "something"
        scanner.wants = reader.wants
    return "step" if any(isinstance(event, Step) for event in reader.end()) else made
