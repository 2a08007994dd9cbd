"""Find out which dialect a log is in, by its content."""

from __future__ import annotations

from dataclasses import replace

from parsers.dialects import DIALECTS, load
from parsers.record import Step
from parsers.scan import Scanner
from parsers.segment import Parsed


def detect(window: bytes, signed: set[str]) -> tuple[tuple[str, ...], bool]:
    """Return the dialect of this part of a log with its companions, or nothing, and whether it makes steps.

    signed: the dialects whose signs stood in the parts before; this part's are added.

    Tried are the dialects with a sign in it. Of those that make a step the special ones come first, but where one makes
    all its steps before the first step of another, two programs ran, and it is the first one's.
    """
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
