"""Where a log's bytes come from: a file, gzip or not, or standard input."""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

from conf.errors import InputError, Problem

STDIN = Path("-")
_BLOCK = 1 << 20
_GZIP = b"\x1f\x8b"


def size_of(path: Path) -> int:
    """Bytes on disk; 0 where that is not known."""
    try:
        return path.stat().st_size if path != STDIN else 0
    except OSError:
        return 0


def read_blocks(path: Path) -> Iterator[bytes]:
    """The bytes of a log in blocks. A compressed file that ends early (it is still written) gives what it holds.

    InputError: it cannot be read.
    """
    try:
        brought = path != STDIN
        raw = io.FileIO(path if brought else sys.stdin.fileno(), closefd=brought)
        with io.BufferedReader(raw, _BLOCK) as stream:
            if stream.peek(2)[:2] == _GZIP:
                yield from _unpacked(gzip.GzipFile(fileobj=stream, mode="rb"))
                return
            while block := stream.read1(_BLOCK):  # from a pipe what there is, not a whole block
                yield block
    except OSError as error:
        raise InputError(Problem(str(path), "cannot be read", error.strerror or str(error))) from error


def _unpacked(stream: gzip.GzipFile) -> Iterator[bytes]:
    try:
        while block := stream.read1(_BLOCK):
            yield block
    except (EOFError, zlib.error):
        return
