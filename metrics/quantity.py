"""A number as people see it: value, unit, source, and interval. None is unknown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from msgspec import Struct

# measured: by our own clock or counter; log: printed by the framework; given: typed by the user; computed: from
# settings or other figures; spec: data sheet.
Source = Literal["measured", "log", "given", "computed", "spec", "assumed"]
_SUREST_FIRST: tuple[Source, ...] = ("measured", "log", "given", "computed", "spec", "assumed")
_LEAST, _MOST = 1e-100, 1e100
IMPOSSIBLE = "impossible"
"""The first word of the note of a figure that has no number, since no device can do so much."""


class Quantity(Struct, frozen=True, gc=False):
    """A value with its unit and source. interval: 95 %, where there is one; interval_80: of a prediction, in the same
    unit. note: what it is a share of, or why it is unknown."""

    value: float | int | None
    unit: str
    source: Source
    interval: tuple[float, float] | None = None
    note: str = ""
    interval_80: tuple[float, float] | None = None

    @classmethod
    def of(cls, value: float | int | None, unit: str, source: Source, note: str = "") -> Quantity:
        """Return a quantity; nan, infinities and absurd values (1e308 s) are unknown."""
        known = value is not None and math.isfinite(value) and (value == 0 or _LEAST < abs(value) < _MOST)
        return cls(value if known else None, unit, source, note=note)

    def times(self, factor: float | None, unit: str, source: Source | None = None, note: str = "") -> Quantity:
        """Return it and its intervals times `factor`, in another unit. source: of the factor; the less sure one counts.

        An unknown quantity stays unknown, with its own note, which says why."""
        weaker = self.source if source is None else weakest(self.source, source)
        if self.value is None or factor is None or not math.isfinite(self.value * factor):
            return Quantity(None, unit, weaker, note=self.note if self.value is None else note)
        wide, narrow = (_sorted(end * factor for end in ends or ()) for ends in (self.interval, self.interval_80))
        return Quantity(self.value * factor, unit, weaker, wide, note, narrow)

    def under(self, numerator: float, unit: str, note: str = "") -> Quantity:
        """Return numerator / this, with its intervals, in another unit: the time of a speed."""
        if self.value is None or self.value <= 0:
            return Quantity(None, unit, self.source, note=self.note if self.value is None else note)
        known = (ends if ends and ends[0] > 0 else () for ends in (self.interval, self.interval_80))
        wide, narrow = (_sorted(numerator / end for end in ends) for ends in known)
        return Quantity(numerator / self.value, unit, self.source, wide, note, narrow)

    def plus(self, other: Quantity) -> Quantity:
        """Return the sum of two figures of one unit that go up and down together, so that their intervals add up."""

        def summed(mine: tuple[float, float] | None, theirs: tuple[float, float] | None) -> tuple[float, float] | None:
            return (mine[0] + theirs[0], mine[1] + theirs[1]) if mine and theirs else None

        source = weakest(self.source, other.source)
        if self.value is None or other.value is None:
            return Quantity(None, self.unit, source, note=self.note if self.value is None else other.note)
        wide, narrow = summed(self.interval, other.interval), summed(self.interval_80, other.interval_80)
        return Quantity(self.value + other.value, self.unit, source, wide, interval_80=narrow)

    def readable(self) -> Quantity:
        """Return bytes as GB, which people read; anything else as it is."""
        if not self.unit.startswith("bytes"):
            return self
        return self.times(1e-9, f"GB{self.unit.removeprefix('bytes')}", note=self.note)

    @property
    def missing(self) -> str:
        """Return the word for a figure without a number: unknown, or impossible where its note says so."""
        return IMPOSSIBLE if self.note.startswith(IMPOSSIBLE) else "unknown"

    def __str__(self) -> str:
        return self.missing if self.value is None else " ".join(filter(None, (shown(self.value), self.unit)))

    def to_json(self) -> dict[str, Any]:
        """Return the object of the schema of records ($defs/quantity)."""
        ends = self.interval and list(self.interval)
        known = {"value": self.value, "unit": self.unit, "source": self.source, "interval": ends}
        known |= {"interval_80": list(self.interval_80)} if self.interval_80 else {}
        return {**known, "note": self.note} if self.note else known

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Quantity:
        """Read an object that the schema of records accepts."""
        ends = {name: tuple(entry.get(name) or ()) for name in ("interval", "interval_80")}
        return cls(**{**entry, **{name: both if len(both) == 2 else None for name, both in ends.items()}})


def _sorted(ends: Iterable[float]) -> tuple[float, float] | None:
    known = sorted(ends)
    return (known[0], known[-1]) if known else None


def weakest(*sources: Source) -> Source:
    """Return the least sure of several sources, which is that of a figure made of them."""
    return max(sources, key=_SUREST_FIRST.index)


def shown(value: float | int | None, digits: int = 4) -> str:
    """Return the value to `digits` significant digits, thousands apart: 12,350 and 0.01235; integers in full."""
    if value is None or not math.isfinite(value):
        return "unknown"
    if isinstance(value, int) or value == 0:
        return f"{value:,.0f}"
    magnitude = math.floor(math.log10(abs(value)))
    if magnitude < -4 or magnitude >= 15:
        return f"{value:.{digits - 1}e}"
    decimals = digits - 1 - magnitude
    return f"{round(value, decimals):,.{max(decimals, 0)}f}"
