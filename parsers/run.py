"""A run directory that was read."""

from __future__ import annotations

from dataclasses import dataclass

from parsers.record import Record


@dataclass(frozen=True, slots=True)
class Run:
    """A record, and the directory that it came from."""

    path: str
    record: Record
