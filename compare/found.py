"""What a check of the curves came to, and what it looks at. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from compare.curve import Curve
from compare.groups import SEED
from parsers import Run


@dataclass(frozen=True, slots=True)
class Found:
    """step: the first, from 0, at which runs part."""

    state: Literal["equal", "apart", "unknown"]
    reason: str
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Traced:
    """A run that has a say, with the label of its group and its curve."""

    label: str
    run: Run
    curve: Curve

    @property
    def name(self) -> str:
        return self.run.record.id

    @property
    def seed(self) -> Any:
        """None where nobody says."""
        record = self.run.record
        told = record.setting(SEED)
        return record.requested.get(SEED) if told is None else told
