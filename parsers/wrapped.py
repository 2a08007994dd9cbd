"""Step lines that a terminal has broken over several lines, anywhere, also inside a number."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from parsers.events import Event
from parsers.text import body

_MOST_PIECES = 6
_CUT = re.compile(r"\S{0,64}\s*$")


def glued(starts: re.Pattern[str], text: str) -> list[str]:
    """`text` cut before every step line but the first: two processes may have written into one line."""
    cuts = [found.start() for found in starts.finditer(text)][1:]
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


class WrappedLines:
    """Feed it lines; it gives them back, the pieces of a wrapped step line as one. starts: how a step line begins.
    is_whole: whether nothing is missing at the end of a step line.

    Where a line stays incomplete (the log was cut there) it comes without its last word, which may be half a number,
    and what followed comes as it was. `wants`: see `parsers.events.Reader`.
    """

    def __init__(self, starts: re.Pattern[str], is_whole: Callable[[str], bool]) -> None:
        self.wants = 0
        self._starts = starts
        self._is_whole = is_whole
        self._pieces: list[tuple[int, str]] = []

    @property
    def holds(self) -> bool:
        """Whether the beginning of a step line waits for the rest."""
        return bool(self._pieces)

    def feed(self, number: int, text: str) -> Iterable[tuple[int, str]]:
        """The lines that are ready, each with the number of its first piece."""
        parts = glued(self._starts, text)
        return (
            self._line(number, text)
            if len(parts) < 2
            else [line for part in parts for line in self._line(number, part)]
        )

    def _line(self, number: int, text: str) -> Iterable[tuple[int, str]]:
        begins = self._starts.search(text) is not None
        if not self._pieces:
            if not begins or self._is_whole(text):
                return ((number, text),)
            self._hold(number, text)
            return ()
        if begins:
            return (*self.end(), *self._line(number, text))
        self._hold(number, text)
        joined = "".join([self._pieces[0][1], *(body(piece) for _, piece in self._pieces[1:])])
        if self._is_whole(joined):
            first, self._pieces = self._pieces[0][0], []
            self.wants = 0
            return ((first, joined),)
        return self.end() if len(self._pieces) >= _MOST_PIECES else ()

    def end(self) -> Iterable[tuple[int, str]]:
        """What was held back, as it is."""
        pieces, self._pieces = self._pieces, []
        self.wants = 0
        if not pieces:
            return ()
        (number, text), *others = pieces
        return ((number, _CUT.sub("", text)), *others)

    def _hold(self, number: int, text: str) -> None:
        self._pieces.append((number, text))
        self.wants = 1


class WrappedReader:
    """A dialect's reader (`parsers.events.Reader`) that gets its step lines whole, in `read`."""

    def __init__(self, starts: re.Pattern[str], is_whole: Callable[[str], bool]) -> None:
        self._lines = WrappedLines(starts, is_whole)

    @property
    def wants(self) -> int:
        """See `parsers.events.Reader`."""
        return self._lines.wants

    @wants.setter
    def wants(self, count: int) -> None:
        self._lines.wants = count

    def feed(self, number: int, text: str) -> Iterable[Event]:
        """See `parsers.events.Reader`."""
        return [event for line in self._lines.feed(number, text) for event in self.read(*line)]

    def end(self) -> Iterable[Event]:
        """See `parsers.events.Reader`."""
        told = [event for line in self._lines.end() for event in self.read(*line)]
        return [*told, *self.finish()]

    def read(self, number: int, text: str) -> Iterable[Event]:
        """The events of one whole line."""
        raise NotImplementedError

    def finish(self) -> Iterable[Event]:
        """What the dialect itself has held back."""
        return ()
