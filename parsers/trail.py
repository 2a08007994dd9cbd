"""What a log said last: its last lines, and the faults after which training did not go on.

Faults before the last but one step were overcome (parsers/faults.py forgets them too), so the lines between steps need
no search at all until the log ends: only what came after that step is kept, and read when it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator

from parsers.faults import FaultFinder, Faults
from parsers.text import colourless

_KEPT = 4 << 20
_TAIL_BYTES, _TAIL_LINES, _TAIL_WIDTH = 32 << 10, 20, 500
_LINE = 4096


class Trail:
    """Give it all bytes of a run in order, with where steps end in them. newer: what came after the last."""

    def __init__(self) -> None:
        self._finder = FaultFinder()
        self._older, self.newer = b"", b""  # since the last but one step, and since the last
        self._tail = b""

    def take(self, block: bytes, steps_end: list[int]) -> None:
        """steps_end: offsets in `block`, ascending; of many the last two."""
        for _ in steps_end[-2:]:
            self._finder.stepped()
        if len(steps_end) == 1:
            self._older, self.newer = self.newer + block[: steps_end[0]], block[steps_end[0] :]
        elif steps_end:
            self._older, self.newer = block[steps_end[-2] : steps_end[-1]], block[steps_end[-1] :]
        else:
            self.newer += block
        if len(self._older) + len(self.newer) > _KEPT:
            self._read(self._finder)
            self._older, self.newer = b"", b""
        self._tail = block[-_TAIL_BYTES:] if len(block) >= _TAIL_BYTES else (self._tail + block)[-_TAIL_BYTES:]

    def stepped(self, lines: int) -> None:
        """A step that was told late: it stands in the first `lines` lines of `newer`."""
        end = 0
        for _ in range(lines):
            end = self.newer.find(b"\n", end) + 1
            if not end:
                end = len(self.newer)
                break
        self._finder.stepped()
        self._older, self.newer = self.newer[:end], self.newer[end:]

    def forget_faults(self) -> None:
        """The run goes on all the same."""
        self._finder, self._older, self.newer = FaultFinder(), b"", b""

    def faults(self) -> Faults:
        finder = self._finder.copy()
        self._read(finder)
        return finder.found()

    def lines(self) -> tuple[str, ...]:
        """The last lines that are not empty."""
        lines = [line.rstrip()[:_TAIL_WIDTH] for line in _lines(self._tail) if line.strip()]
        return tuple(lines[-_TAIL_LINES:])

    def _read(self, finder: FaultFinder) -> None:
        for line in _lines(self._older):
            finder.feed(line)
        if self._older:
            finder.stepped()
        for line in _lines(self.newer):
            finder.feed(line)


def _lines(text: bytes) -> Iterator[str]:
    for line in text.replace(b"\r", b"\n").split(b"\n"):
        yield colourless(line[:_LINE].decode("utf-8", "replace"))
