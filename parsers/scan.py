"""A log's bytes, and in them the lines that matter.

Most lines of a log hold no figure. Testing each of them costs a microsecond in Python; `bytes.find` passes over
gigabytes a second: so literal marks are looked for in blocks, and only the lines that hold one are decoded. Memory: a
block and a line, whatever the log's length and its lines'."""

from __future__ import annotations

import gzip
import io
import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from operator import sub
from pathlib import Path
from typing import TYPE_CHECKING

from conf.archives import limit_unpacked
from conf.errors import InputError, Problem
from parsers.text import colourless

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

STDIN = Path("-")
_BLOCK = 1 << 20
_GZIP = b"\x1f\x8b"
_LONGER = 3
_WHOLE_WORD = re.compile(rb"(?:Interrupt|Error|Exception|Killed|Terminated|Aborted|\dms?)$")
LINE_LIMIT = 64 * 1024
"""Longer lines are cut: no framework prints one that is longer and means something."""


Span = tuple[int, int, int]
"""Line number from 1, and where in `Scanner.block` the piece begins and ends."""


class Scanner:
    """Yields the pieces of lines that hold a mark, or that are wanted, as spans of `block`.

    A carriage return ends a piece of a line: the pieces are yielded one by one under the line's number.
    startup: marks that are looked for in the first block and in gaps between the others that are longer than usual:
    while training runs they do not come.
    wants: set by the consumer between two yields, how many of the next pieces it must get unmarked.
    end: where in `block` the line of the piece that was yielded last ends."""

    def __init__(self, marks: Sequence[bytes], startup: Sequence[bytes] = ()) -> None:
        self.marks = tuple(dict.fromkeys(marks))
        self.startup = tuple(dict.fromkeys(startup))
        self.wants = 0
        self.lines = 0
        self.block = b""
        self.end = 0
        self._rest = b""
        self._too_long = False
        self._starting = True
        self.cut = False  # the last line has no end
        self.plain = True  # no ESC, NUL or carriage return stands in the block

    def feed(self, data: bytes) -> Iterator[Span]:
        """Yield the pieces in what is complete by now."""
        return self._scan(self._complete(data))

    def finish(self) -> Iterator[Span]:
        """Yield the last line, where no line end closes it."""
        rest, self._rest, self._too_long = self._rest, b"", False
        if rest:
            yield from self._scan(_without_cut_word(rest))
            self.lines, closed = self.lines + 1, rest.rstrip()[-1:] in (b"", b"}", b"]", b")", b"|", b"%")
            self.cut = not closed and _WHOLE_WORD.search(rest[-20:]) is None

    def raw(self, start: int, end: int) -> str:
        """Return a piece as text. Where `plain`, colours that lost their ESC byte may be left in it."""
        if self.plain:
            return self.block[start:end].decode("utf-8", "replace")
        return colourless(self.block[start:end].decode("utf-8", "replace")).rstrip("\r")

    def text(self, start: int, end: int) -> str:
        """Return a piece as text, without colours and NULs."""
        return colourless(self.raw(start, end)) if self.plain else self.raw(start, end)

    def _complete(self, data: bytes) -> bytes:
        """Return all up to the last line end; the rest waits, its first LINE_LIMIT bytes at most."""
        size = len(data) - data.endswith(b"\r")  # half of "\r\n", perhaps
        cut = max(data.rfind(b"\n", 0, size), data.rfind(b"\r", 0, size))
        if cut < 0:
            if not self._too_long:
                self._rest += data
                self._too_long = len(self._rest) > LINE_LIMIT
                self._rest = self._rest[:LINE_LIMIT]
            return b""
        if self._too_long:
            first = min(at for at in (data.find(b"\n"), data.find(b"\r")) if at >= 0)
            data, cut, self._too_long = data[first:], cut - first, False
        block = b"".join((self._rest, memoryview(data)[: cut + 1]))
        self._rest = data[cut + 1 :]
        return block

    def _scan(self, block: bytes) -> Iterator[Span]:
        if not block:
            return
        self.block, self.plain = block, not (b"\x1b" in block or b"\0" in block or b"\r" in block)
        cuts = block.replace(b"\r\n", b" \n").replace(b"\r", b"\n") if b"\r" in block else block
        marked = _marked(cuts, self.marks)
        if self.startup and (more := self._startup_lines(cuts, marked)):
            marked = sorted({*marked, *more})
        number, counted, position, count = self.lines + 1, 0, 0, block.count
        for start, end in (*marked, (len(cuts), -1)):
            while self.wants > 0 and position < start:  # of the lines between the marked ones
                self.wants -= 1
                wanted, position = position, cuts.find(b"\n", position) + 1 or len(cuts) + 1
                number += count(b"\n", counted, wanted)
                counted, self.end = wanted, position
                yield number, wanted, min(position - 1, wanted + LINE_LIMIT)
            if end >= 0:
                if self.wants:
                    self.wants -= 1
                number += count(b"\n", counted, start)
                counted, self.end = start, end + 1
                position = end + 1
                yield number, start, end if end - start <= LINE_LIMIT else start + LINE_LIMIT
        self.lines = number - 1 + count(b"\n", counted)

    def _startup_lines(self, block: bytes, known: list[tuple[int, int]]) -> list[tuple[int, int]]:
        if not self._starting:
            self._starting = any(_marked(block, self.startup, start, stop) for start, stop in _gaps(known, len(block)))
            if not self._starting:
                return []
        lines = _marked(block, self.startup)
        self._starting = bool(lines)
        return lines


def _marked(block: bytes, marks: Sequence[bytes], start: int = 0, stop: int | None = None) -> list[tuple[int, int]]:
    """Return where the lines that hold a mark begin and end, in order."""
    stop = len(block) if stop is None else stop
    lines: dict[int, int] = {}
    find, rfind = block.find, block.rfind
    for mark in marks:
        at = find(mark, start, stop)
        while at >= 0:
            end = find(b"\n", at, stop)
            if end < 0:
                end = stop
            lines[rfind(b"\n", start, at) + 1 or start] = end
            at = find(mark, end, stop)
    return sorted(lines.items())


def _gaps(known: list[tuple[int, int]], size: int) -> Iterator[tuple[int, int]]:
    """Yield stretches without a known line longer than usual here, and both ends: what follows is not known."""
    if not known:
        yield 0, size
        return
    starts, ends = zip(*known, strict=True)
    gaps = [*map(sub, starts[1:], ends)]
    # Lines that stand together, the record of one step, count as one.
    longer = _LONGER * size // (len(known) - gaps.count(1) + 1)
    yield 0, starts[0]
    if max(gaps, default=0) > longer:
        yield from [(end, end + gap) for end, gap in zip(ends, gaps, strict=False) if gap > longer]
    yield ends[-1], size


def _without_cut_word(line: bytes) -> bytes:
    """Return a line without its last word: no line end closes it, so it was cut, perhaps inside a number."""
    if not (line[-1:].isalnum() or line[-1:] in b".-+_") or _WHOLE_WORD.search(line[-20:]):
        return line
    cut = line.rfind(b" ") + 1
    return line[:cut] + b" " * (len(line) - cut)


def size_of(path: Path) -> int:
    """Return the bytes on disk; 0 where that is not known."""
    try:
        return path.stat().st_size if path != STDIN else 0
    except OSError:
        return 0


def read_blocks(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a log in blocks. A compressed file that ends early (it is still written) gives what it holds.

    InputError: it cannot be read, or unpacks to more than conf.archives allows."""
    try:
        brought = path != STDIN
        raw = _Counted(path if brought else sys.stdin.fileno(), closefd=brought)
        with io.BufferedReader(raw, _BLOCK) as stream:
            if stream.peek(2)[:2] == _GZIP:
                size = 0
                for block in _unpacked(gzip.GzipFile(fileobj=stream, mode="rb")):
                    size += len(block)
                    limit_unpacked(path, raw.bytes, size)
                    yield block
                return
            while block := stream.read1(_BLOCK):  # from a pipe what there is, not a full block
                yield block
    except OSError as error:
        raise InputError(Problem(str(path), "cannot be read", error.strerror or str(error))) from error


class _Counted(io.FileIO):
    """A file that counts the bytes that were read of it."""

    bytes = 0

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        count = super().readinto(buffer)
        self.bytes += count or 0
        return count


def _unpacked(stream: gzip.GzipFile) -> Iterator[bytes]:
    try:
        while block := stream.read1(_BLOCK):
            yield block
    except (EOFError, zlib.error):
        return
