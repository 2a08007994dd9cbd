"""A line of the audit: one setting as all groups have it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

# allowed: another kernel for the same mathematics, or a setting without effect. not rehearsed: what a rehearsal tells
# nothing of, whatever its dump says.
State = Literal["identical", "varied", "allowed", "declared", "unknown", "unexplained", "not rehearsed"]
Values = Mapping[str, tuple[Any, ...] | None]


@dataclass(frozen=True, slots=True)
class Row:
    """One setting over all groups. values: group label to the values found there, None where one is not told.

    decides: this row alone forbids the comparison, or leaves it open.
    """

    setting: str
    kind: str
    state: State
    values: Values
    reason: str
    decides: bool
