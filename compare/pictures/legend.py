"""What groups are called in pictures and tables."""

from __future__ import annotations

from compare.comparison import Comparison
from compare.groups import Group


def titled(group: Group) -> str:
    """Its label, and whether its figures were measured at all."""
    provenance = group.runs[0].record.provenance
    told = provenance in ("measured", "imported") or provenance in group.label
    return group.label if told else f"{group.label} ({provenance})"


def legend(comparison: Comparison) -> tuple[tuple[int, str], ...]:
    """The groups whose figures are drawn, each with the place that gives it colour, dash and shape."""
    return tuple((place, titled(group)) for place, group in enumerate(comparison.groups) if group.shown)
