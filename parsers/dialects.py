"""The dialects by name. To add one: a module with what `parsers.events.Dialect` asks, and a line here."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import cast

from parsers.events import Dialect

DIALECTS: Mapping[str, str] = {
    "megatron": "parsers.megatron",
}


@cache
def load(name: str) -> Dialect:
    """The module of a dialect. KeyError: no such dialect."""
    return cast(Dialect, import_module(DIALECTS[name]))
