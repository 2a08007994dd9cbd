"""A number as people see it: value, unit, where it comes from, and how sure it is. None is unknown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

# measured: by our own clock or counter; log: printed by the framework; computed: from settings; spec: data sheet.
Source = Literal["measured", "log", "computed", "spec", "assumed"]


@dataclass(frozen=True, slots=True)
class Quantity:
    """interval: 95 %, where there is one."""

    value: float | int | None
    unit: str
    source: Source
    interval: tuple[float, float] | None = None

    @classmethod
    def of(cls, value: float | int | None, unit: str, source: Source) -> Quantity:
        """nan and infinities are no values: unknown."""
        finite = value is not None and math.isfinite(value)
        return cls(value if finite else None, unit, source)

    def __str__(self) -> str:
        return " ".join(part for part in (shown(self.value), "" if self.value is None else self.unit) if part)

    def to_json(self) -> dict[str, Any]:
        """As in the schema of records ($defs/quantity)."""
        interval = None if self.interval is None else list(self.interval)
        return {"value": self.value, "unit": self.unit, "source": self.source, "interval": interval}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Quantity:
        """From an object that the schema of records accepts."""
        interval = entry["interval"]
        pair = None if interval is None or len(interval) != 2 else (float(interval[0]), float(interval[1]))
        return cls(entry["value"], entry["unit"], entry["source"], pair)


def shown(value: float | int | None, digits: int = 4) -> str:
    """To `digits` significant digits, thousands apart: 12,350 and 0.01235; whole numbers whole."""
    if value is None or not math.isfinite(value):
        return "unknown"
    if isinstance(value, int) or value == 0:
        return f"{value:,.0f}"
    magnitude = math.floor(math.log10(abs(value)))
    if magnitude < -4 or magnitude >= 15:
        return f"{value:.{digits - 1}e}"
    decimals = digits - 1 - magnitude
    return f"{round(value, decimals):,.{max(decimals, 0)}f}"
