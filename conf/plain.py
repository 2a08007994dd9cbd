"""Text for a terminal: whatever a log, a config or a file holds, nothing of it steers the terminal that shows it."""

from __future__ import annotations

import re
from typing import IO, TextIO, cast

_STEERING = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]|\r(?!\n)")


def plain(text: str, keep: str = "") -> str:
    """Return `text` that cannot steer the terminal and is valid UTF-8. keep: control characters that may stay."""
    if text.isprintable():
        return text
    kept = "".join(c if c.isprintable() or c in keep else "\ufffd" for c in text)
    return kept.encode("utf-8", "replace").decode()


def harmless(text: str) -> str:
    """Return `text` without what steers a terminal: control characters but tabs and ends of lines, and what turns the
    direction of writing. Spaces and letters of any script stay, as JSON for a program needs them."""
    return text if text.replace("\n", "").isprintable() else _STEERING.sub("\ufffd", text)


def terminal(stream: IO[str]) -> TextIO:
    """Return the stream behind one that takes away what steers a terminal, for a library that draws there."""
    return cast(TextIO, getattr(stream, "behind", stream))
