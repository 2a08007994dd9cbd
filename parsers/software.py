"""The software that decides a speed (conf/tables/software.yaml): what the beginning of a log prints of it, and what a
record holds of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from conf.vocabulary import read_yaml
from parsers.record import Record

TABLE = Path(__file__).parents[1] / "conf" / "tables" / "software.yaml"


class Software(Struct, frozen=True, forbid_unknown_fields=True):
    """One row of the table."""

    names: tuple[str, ...]
    lines: Mapping[str, str] = {}
    gpu: bool = False


@cache
def software() -> Mapping[str, Software]:
    """Return the rows by what people call them."""
    return msgspec.convert(dict(read_yaml(TABLE)), dict[str, Software])


@cache
def _lines() -> tuple[tuple[str, re.Pattern[bytes]], ...]:
    rows = (item for row in software().values() for item in row.lines.items())
    return tuple((name, re.compile(text.encode(), re.MULTILINE)) for name, text in rows)


def printed(head: bytes) -> Iterator[tuple[str, str]]:
    """Yield the versions that the beginning of a log prints; what it prints in two ways is unknown."""
    for name, pattern in _lines():
        values = set(pattern.findall(head))
        if len(values) == 1:
            yield name, values.pop().decode("ascii")


def stated(record: Record, row: Software) -> dict[str, Any]:
    """Return what a record says of one row, by name."""
    known = {"framework_version": record.framework_version, **record.environment}
    return {name: known[name] for name in row.names if known.get(name) is not None}
