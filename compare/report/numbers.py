"""Numbers of a comparison as a report shows them, each with its place in compare.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compare.comparison import Comparison
from compare.report.blocks import Cell, Line, Number, Tag
from compare.statistics import Ratio
from metrics import Quantity, shown

UNKNOWN: Line = (Tag("unknown", "open"),)
NOT_TOLD: Line = (Tag("not told", "quiet"),)


@dataclass(frozen=True, slots=True)
class Places:
    """Where compare.json has a group (by label) and a run (by path): JSON pointers."""

    groups: Mapping[str, str]
    runs: Mapping[str, str]


def places(comparison: Comparison) -> Places:
    """Of every group and run."""
    groups = {group.label: f"/groups/{i}" for i, group in enumerate(comparison.groups)}
    runs = {r.path: f"{groups[g.label]}/runs/{k}" for g in comparison.groups for k, r in enumerate(g.runs)}
    return Places(groups, runs)


def quantity_cell(quantity: Quantity, pointer: str, with_unit: bool) -> Cell:
    """Value and source, below them the interval. pointer: of the quantity."""
    known = quantity.readable()
    if quantity.value is None or known.value is None:
        return (UNKNOWN,)
    unit = f" {known.unit}" if with_unit and known.unit else ""
    first: Line = (Number(shown(known.value), quantity.value, f"{pointer}/value"), f"{unit} ", _source(quantity))
    if quantity.interval is None or known.interval is None:
        return (first,)
    low, high = (
        Number(shown(text), value, f"{pointer}/interval/{end}")
        for end, (text, value) in enumerate(zip(known.interval, quantity.interval, strict=True))
    )
    return first, (low, " to ", high)


def common_unit(found: Sequence[Quantity]) -> str | None:
    """That all share, as it is read; else None."""
    units = {q.readable().unit for q in found if q.value is not None}
    return units.pop() if len(units) == 1 else None


def named(title: str, unit: str | None) -> str:
    """A figure with its unit, where its title does not say it."""
    return title if not unit or f" {title}".endswith(f" {unit}") else f"{title}, {unit}"


def _source(quantity: Quantity) -> Tag:
    return Tag(quantity.source, "open" if quantity.source == "assumed" else "quiet")


def ratio_lines(result: Ratio, pointer: str, name: str = "ratio") -> tuple[Line, Line]:
    """The ratio, and its interval; the second is empty where there is none. pointer: of the entry that has them."""
    ratio: Line = (Number(f"{result.ratio:.3f}", result.ratio, f"{pointer}/{name}"),)
    if result.interval is None:
        return ratio, ()
    low, high = (Number(f"{end:.3f}", end, f"{pointer}/interval/{i}") for i, end in enumerate(result.interval))
    return ratio, (low, " to ", high)
