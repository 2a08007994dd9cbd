"""Step lines that a terminal has broken over several lines, anywhere, also inside a number."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from parsers.text import body

_MOST_PIECES = 6
_LAST_WORD = re.compile(r"\S{0,64}\s*$")


def glued(head: re.Pattern[str], text: str) -> list[str]:
    """Return `text` cut before every step line but the first: two processes may have written into one line."""
    cuts = [match.start() for match in head.finditer(text)][1:]
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


class WrappedLines:
    """Puts the pieces of a broken step line together. head: how one begins. is_complete: whether it lacks nothing.

    Where a line stays incomplete (the log was cut there) it comes without its last word, which may be half a number,
    and what followed comes as it was.
    """

    def __init__(self, head: re.Pattern[str], is_complete: Callable[[str], bool]) -> None:
        self._head = head
        self._is_complete = is_complete
        self.pieces: list[tuple[int, str]] = []
        """The beginning of a step line that waits for the rest, each piece with its line number."""

    def feed(self, number: int, text: str) -> list[tuple[int, str]]:
        """Return the lines that are ready, each with the number of its first piece."""
        return [line for part in glued(self._head, text) for line in self._feed(number, part)]

    def end(self) -> list[tuple[int, str]]:
        """Return what is held, as it is."""
        pieces, self.pieces = self.pieces, []
        return [(number, text if at else _LAST_WORD.sub("", text)) for at, (number, text) in enumerate(pieces)]

    def _feed(self, number: int, text: str) -> Iterable[tuple[int, str]]:
        if self._head.search(text) is not None:
            before = self.end()
            if self._is_complete(text):
                return (*before, (number, text))
            self.pieces = [(number, text)]
            return before
        if not self.pieces:
            return ((number, text),)
        self.pieces.append((number, text))
        joined = "".join([self.pieces[0][1], *(body(piece) for _, piece in self.pieces[1:])])
        if self._is_complete(joined):
            first, self.pieces = self.pieces[0][0], []
            return ((first, joined),)
        return self.end() if len(self.pieces) >= _MOST_PIECES else ()
