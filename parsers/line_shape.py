"""The step lines of one log differ in their numbers only: one that was read gives a pattern for those that follow.

A line that matches is known without being taken apart: what a reader needs of it at once (its step) stands in groups,
the rest is read when somebody looks at the step (`parsers.steps.Sealed`). A line that does not match is read in full.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_NUMBER = re.compile(rb"\d+(?:[.,]\d+)*(?:[eE][+-]?\d+)?(?:[KMBTPE](?![A-Za-z]))?")
_ANY_NUMBER = rb"\d{1,20}(?:[.,]\d{1,20}){0,6}(?:[eE][+-]?\d{1,4})?[KMBTPE]?"
_ANY_WHOLE, _IN_DATES = rb"\d{1,20}", (b":", b"/", b"-")  # 2026-11-21, 12:10:29: whole in the next line, too
_WHOLE, _DECIMAL = rb"\d{1,12}", rb"\d{1,15}(?:\.\d{1,20})?(?:[eE][+-]?\d{1,3})?"
_MOST_NUMBERS = 120
_MOST_SHAPES = 500
_CONTEXT = 60


class LineShape:
    """told: name to a pattern of what stands right before a number that is wanted at once; the step's comes first."""

    def __init__(self, told: Mapping[str, bytes]) -> None:
        self._told = {name: re.compile(rb"(?:" + before + rb")$") for name, before in told.items()}
        self._step = re.compile(next(iter(told.values())) + rb"\d")
        self._pattern: re.Pattern[bytes] | None = None
        self._places: tuple[int, ...] = ()
        self._shapes = 0
        self._unread: tuple[int, bytes] = (0, b"")

    def match(self, block: bytes, start: int, end: int, number: int) -> tuple[bytes, ...] | None:
        """The wanted numbers in these bytes, in the order of `told` (b"" where the line has none), if they have the
        shape; else the bytes are kept, for `learn`."""
        found = self._pattern.fullmatch(block, start, end) if self._pattern is not None else None
        if found is None:
            self._unread = number, block[start:end]
            return None
        places = self._places
        return found.group(*places) if len(places) > 1 else (found[places[0]],)

    def learn(self, number: int) -> tuple[bytes, ...] | None:
        """The line of this number was an ordinary step: take its shape. The wanted numbers in it."""
        seen, line = self._unread
        self._pattern = None
        if seen != number or self._shapes >= _MOST_SHAPES or len(self._step.findall(line)) > 1:
            return None  # not the line, too many kinds of lines, or two steps glued into one line
        self._shapes += 1
        if len(_NUMBER.findall(line)) > _MOST_NUMBERS:
            return None
        self._pattern = re.compile(b"".join([*self._pieces(line), b"()"]))
        # What the line lacks is the empty group at the end.
        self._places = tuple(self._pattern.groupindex.get(name, self._pattern.groups) for name in self._told)
        return self.match(line, 0, len(line), number)

    def forget(self) -> None:
        """No shape, until the next line is learnt."""
        self._pattern = None

    def _pieces(self, line: bytes) -> Iterator[bytes]:
        at = 0
        wanted = dict(self._told)
        for found in _NUMBER.finditer(line):
            yield from _between(line[at : found.start()], before_number=True)
            before = line[max(0, found.start() - _CONTEXT) : found.start()]
            name = next((name for name, pattern in wanted.items() if pattern.search(before)), None)
            if name is not None:
                del wanted[name]
            whole = found[0].isdigit()
            if name is not None:
                yield b"(?P<%s>%s)" % (name.encode(), _WHOLE if whole else _DECIMAL)
            else:
                yield _ANY_WHOLE if whole and line[found.end() : found.end() + 1] in _IN_DATES else _ANY_NUMBER
            at = found.end()
        yield from _between(line[at:], before_number=False)


def _between(text: bytes, before_number: bool) -> Iterator[bytes]:
    # Numbers are padded: the spaces before one may be more or fewer, all others are those of the line.
    fixed = text.rstrip(b" ") if before_number else text
    yield re.escape(fixed)
    if len(fixed) < len(text):
        yield b" {1,12}"
