"""Text to value, strictly: what is not entirely a number is none. No evaluation of any kind."""

from __future__ import annotations

import math
import re
from typing import Any

# Bounded lengths: int() refuses 4,300 digits with an exception, and a printed number has never more than these.
_INTEGER = re.compile(r"[+-]?\d{1,18}")
_DECIMAL = re.compile(r"[+-]?(?:\d{1,18}(?:\.\d{0,40})?|\.\d{1,40})(?:[eE][+-]?\d{1,4})?")
_NONFINITE = re.compile(r"[+-]?(?:nan|inf|infinity)", re.IGNORECASE)
_WORDS: dict[str, Any] = {"None": None, "True": True, "False": False}


def integer(text: str) -> int | None:
    """The whole number that `text` is."""
    return int(text) if _INTEGER.fullmatch(text) and text.isascii() else None


def number(text: str) -> float | None:
    """The finite number that `text` is."""
    if not (_DECIMAL.fullmatch(text) and text.isascii()):
        return None
    value = float(text)
    return value if math.isfinite(value) else None


def is_nonfinite(text: str) -> bool:
    """Whether `text` is nan or an infinity."""
    return bool(_NONFINITE.fullmatch(text))


def literal(text: str) -> Any:
    """A Python value as `print` shows it: None, bool, int, float, else the text; torch.bfloat16 is "bfloat16"."""
    if text in _WORDS:
        return _WORDS[text]
    whole = integer(text)
    if whole is not None:
        return whole
    decimal = number(text)
    return decimal if decimal is not None else text.removeprefix("torch.")
