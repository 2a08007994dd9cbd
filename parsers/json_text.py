"""A JSON object that stands in a line of text, made safe to be written again."""

from __future__ import annotations

import json
import math
from typing import Any

_LARGEST = 2**63


def json_object(text: str) -> dict[str, Any] | None:
    """The object that `text` begins with; None where it begins with none. NaN and Infinity become their words."""
    try:
        value, _ = json.JSONDecoder(parse_constant=str).raw_decode(text.lstrip())
    except (ValueError, RecursionError):
        return None
    return clean(value) if isinstance(value, dict) else None


def clean(value: Any) -> Any:
    """Without what cannot be written again as UTF-8 JSON: lone surrogates, numbers beyond a float, whole numbers
    beyond 64 bits."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {clean(key): clean(item) for key, item in value.items()}
    if isinstance(value, list):
        return [clean(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return None if isinstance(value, int) and abs(value) >= _LARGEST else value
