"""Text to value, strictly: what is not entirely a number is none. No evaluation of any kind."""

from __future__ import annotations

import math
import re
from typing import Any

# Bounded: int() refuses 4,300 digits with an exception, and a printed number has never more than these.
_LONGEST, _LONGEST_INTEGER = 80, 19
_NONFINITE = re.compile(r"[+-]?(?:nan|inf|infinity)", re.IGNORECASE)
_WORDS: dict[str, Any] = {"None": None, "True": True, "False": False}


def integer(text: str) -> int | None:
    """Return the whole number that `text` is, None where it is none."""
    digits = text[1:] if text[:1] in ("-", "+") else text
    return int(text) if digits.isdigit() and digits.isascii() and len(text) <= _LONGEST_INTEGER else None


def number(text: str) -> float | None:
    """Return the finite number that `text` is, None where it is none."""
    # float() reads all that a number is and a little more: digits of other scripts, 1_000, spaces around it, nan.
    if len(text) > _LONGEST or not text.isascii() or "_" in text or text != text.strip():
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def is_nonfinite(text: str) -> bool:
    """Return whether `text` is nan or an infinity."""
    return bool(_NONFINITE.fullmatch(text))


def literal(text: str) -> Any:
    """Return the value that `print` shows: None, bool, int, float, else the text; torch.bfloat16 is "bfloat16"."""
    if text in _WORDS:
        return _WORDS[text]
    whole = integer(text)
    if whole is not None:
        return whole
    decimal = number(text)
    return decimal if decimal is not None else text.removeprefix("torch.")


def yaml_literal(text: str) -> Any:
    """Return a value as YAML writes it on one line: null, true, 3, 0.1, a word with or without quotation marks."""
    words: dict[str, Any] = {"null": None, "~": None, "": None, "true": True, "false": False}
    bare = text.strip()
    if bare.lower() in words:
        return words[bare.lower()]
    quoted = len(bare) >= 2 and bare[0] == bare[-1] and bare[0] in "'\""
    return bare[1:-1] if quoted else literal(bare)
