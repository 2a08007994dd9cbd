"""The curves' part of the audit: learning rates, tokens and losses step by step. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from compare.groups import Group

CheckState = Literal["equal", "apart", "unknown"]


@dataclass(frozen=True, slots=True)
class Check:
    """One property that the groups must share over their steps. step: the first, from 0, at which they part; reason:
    the numbers there, or why it is not known. decides: alone it forbids the comparison, or leaves it open."""

    name: str
    state: CheckState
    reason: str
    step: int | None
    decides: bool


def checks(groups: Sequence[Group]) -> tuple[Check, ...]:
    """Every check over the groups that carry numbers."""
    return ()
