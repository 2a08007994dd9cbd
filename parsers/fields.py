"""From the printed pairs of a line to the fields of a Step, by a table: printed name -> (our name, conversion).

This runs once for every step of every log: it is written to be quick.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from parsers.record import STEP_FIELDS
from parsers.values import is_nonfinite

Column = tuple[str, Callable[[str], Any]]
_FIELDS = frozenset(STEP_FIELDS)
# Something stands behind a number: a quotation mark, a notebook's escape, another rank's message.
_BEHIND = re.compile(r"[\s\\\"',\[(]")


def step_fields(pairs: Iterable[tuple[str, str]], columns: Mapping[str, Column]) -> dict[str, Any]:
    """Return keyword arguments of a Step. A name that Step lacks goes to `metrics`; one without a column is skipped;
    what is printed as nan or inf is None and named in `nonfinite`."""
    values: dict[str, Any] = {}
    metrics: dict[str, float] = {}
    nonfinite: tuple[str, ...] = ()
    for name, printed in pairs:
        column = columns.get(name)
        if column is None:
            continue
        target, convert = column
        value = convert(printed)
        if value is None:
            printed = _BEHIND.split(printed.strip(), 1)[0]
            value = convert(printed)
        if target in _FIELDS:
            values[target] = value
            if value is None and is_nonfinite(printed):
                nonfinite = (*nonfinite, target)
        elif value is not None:
            metrics[target] = value
    values["metrics"], values["nonfinite"] = metrics, nonfinite
    return values


def number(text: str) -> float | None:
    """Return what `parsers.values.number` does, in a third of its time: for numbers of step lines."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value - value == 0.0 and text.isascii() and "_" not in text else None


def whole(text: str) -> int | None:
    """Return a count, however it is printed: 256, 256.0, 2e+3, 1,024."""
    value = number(text.replace(",", ""))
    return int(value) if value is not None and value.is_integer() else None


def commas(text: str) -> float | None:
    """Return a number with thousands separators: 59,202."""
    return number(text.replace(",", ""))


def gibibytes(text: str) -> int | None:
    """Return the bytes of a printed number of GiB (1024**3)."""
    value = number(text)
    return None if value is None else round(value * 1024**3)
