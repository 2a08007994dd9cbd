"""Where unpacking ends: a small file that says it holds terabytes takes no more than a stated amount of time."""

from __future__ import annotations

from pathlib import Path

from conf.errors import InputError, Problem

FREE_BYTES = 2**28
MOST_TIMES = 200
"""No file unpacks to more than FREE_BYTES that are so many times its own: logs come to 10 to 100 times, text to 5, what
deflate can at most is 1032."""


def limit_unpacked(path: str | Path, packed_bytes: int, unpacked_bytes: int) -> None:
    """Raise InputError where `unpacked_bytes`, out of `packed_bytes` of a file, are no log or text any more."""
    if unpacked_bytes <= max(FREE_BYTES, MOST_TIMES * packed_bytes):
        return
    found = f"{unpacked_bytes:,} bytes out of {packed_bytes:,} so far"
    allowed = f"{FREE_BYTES:,} bytes, or {MOST_TIMES} times its size"
    hint = "an archive bomb is left alone; what is known to be good can be unpacked first, with gunzip or zstd -d"
    raise InputError(Problem(str(path), "unpacks to too much to be a log or a text", found, allowed, hint))
