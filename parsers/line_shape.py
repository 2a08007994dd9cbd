"""The step lines of one log differ in their numbers only: one that was read gives a pattern for those that follow.

A line that matches is known without being taken apart: what a reader needs of it at once (its step) stands in groups,
the rest is read when somebody looks at the step (`parsers.steps.Sealed`). A line that does not match is read in full.
A pattern takes some microseconds, so lines that have matched are remembered with all their digits alike: no pattern
here tells one digit from another, and where the groups stand is then known without it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from operator import itemgetter

_NUMBER = re.compile(rb"\d+(?:[.,]\d+)*(?:[eE][+-]?\d+)?(?:[KMBTPE](?![A-Za-z]))?")
_ANY_NUMBER = rb"\d{1,20}(?:[.,]\d{1,20}){0,6}(?:[eE][+-]?\d{1,4})?[KMBTPE]?"
_ANY_WHOLE, _IN_DATES = rb"\d{1,20}", (b":", b"/", b"-")  # 2026-11-21, 12:10:29: whole in the next line, too
_WHOLE, _DECIMAL = rb"\d{1,12}", rb"\d{1,15}(?:\.\d{1,20})?(?:[eE][+-]?\d{1,3})?"
_MOST_NUMBERS = 120
_MOST_LEARNT, _MOST_SHAPES, _MOST_REMEMBERED = 500, 6, 4000
_CONTEXT = 60

ALIKE = bytes.maketrans(b"0123456789", b"0000000000")
Wanted = Callable[[bytes], tuple[bytes, ...]]


def cut_out(spans: Collection[tuple[int, int]]) -> Wanted:
    """What stands at these places of a line; (0, 0) is nothing, b""."""
    slices = [slice(*span) for span in spans]
    if len(slices) > 1:
        return itemgetter(*slices)
    return lambda line: (line[slices[0]],)


class LineShape:
    """told: name to a pattern of what stands right before a number that is wanted at once; the step's comes first.
    whole: which of them are whole numbers, or the line is no ordinary one. maybe: which of them it may lack."""

    def __init__(self, told: Mapping[str, bytes], whole: Collection[str] = (), maybe: Collection[str] = ()) -> None:
        self._told = {name: re.compile(rb"(?:" + before + rb")$") for name, before in told.items()}
        self._step = re.compile(next(iter(told.values())) + rb"\d")
        self._whole, self._maybe = frozenset(whole), frozenset(maybe)
        self._patterns: list[re.Pattern[bytes]] = []
        self._remembered: dict[bytes, Wanted] = {}
        self._learnt = 0
        self._unread: tuple[int, bytes] = (0, b"")

    def match(self, line: bytes, number: int) -> tuple[bytes, ...] | None:
        """The wanted numbers in this line, in the order of `told` (b"" where it has none), if it has a known shape. The
        line is kept, for `learn`."""
        self._unread = number, line
        alike = line.translate(ALIKE)
        known = self._remembered.get(alike) or self._matched(line, alike)
        return None if known is None else known(line)

    def learn(self, number: int) -> tuple[bytes, ...] | None:
        """The line of this number was an ordinary step: take its shape. The wanted numbers in it; None where it lacks
        one, or has a fraction where a whole number is due."""
        seen, line = self._unread
        if seen != number or self._learnt >= _MOST_LEARNT or len(self._step.findall(line)) > 1:
            return None  # not the line, too many kinds of lines, or two steps glued into one line
        known = self._matched(line, line.translate(ALIKE))
        if known is not None:
            return known(line)
        self._learnt += 1
        pieces = list(self._pieces(line)) if len(_NUMBER.findall(line)) <= _MOST_NUMBERS else []
        named = {name for name, _ in pieces}
        if not named >= self._told.keys() - self._maybe:
            return None
        self._patterns = [re.compile(b"".join(piece for _, piece in pieces)), *self._patterns][:_MOST_SHAPES]
        known = self._matched(line, line.translate(ALIKE))
        return None if known is None else known(line)

    def _matched(self, line: bytes, alike: bytes) -> Wanted | None:
        for pattern in self._patterns:
            found = pattern.fullmatch(line)
            if found is None:
                continue
            if len(self._remembered) >= _MOST_REMEMBERED:
                self._remembered.clear()
            named = pattern.groupindex
            known = cut_out([found.span(name) if name in named else (0, 0) for name in self._told])
            self._remembered[alike] = known
            return known
        return None

    def _pieces(self, line: bytes) -> Iterator[tuple[str, bytes]]:
        """The parts of the pattern, each with the name of the wanted number that it is, or ""."""
        at = 0
        wanted = dict(self._told)
        for found in _NUMBER.finditer(line):
            yield "", _between(line[at : found.start()], before_number=True)
            before = line[max(0, found.start() - _CONTEXT) : found.start()]
            name = next((name for name, pattern in wanted.items() if pattern.search(before)), "")
            whole = found[0].isdigit()
            if name and (whole or name not in self._whole):
                yield name, b"(?P<%s>%s)" % (name.encode(), _WHOLE if whole else _DECIMAL)
            else:
                yield "", _ANY_WHOLE if whole and line[found.end() : found.end() + 1] in _IN_DATES else _ANY_NUMBER
            wanted.pop(name, None)
            at = found.end()
        yield "", _between(line[at:], before_number=False)


def _between(text: bytes, before_number: bool) -> bytes:
    # Numbers are padded: the spaces before one may be more or fewer, all others are those of the line.
    fixed = text.rstrip(b" ") if before_number else text
    return re.escape(fixed) + (b" {1,12}" if len(fixed) < len(text) else b"")
