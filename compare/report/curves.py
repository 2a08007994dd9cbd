"""The curves' part of a report, and how speed grows with GPUs where runs differ in them."""

from __future__ import annotations

from compare.comparison import Comparison
from compare.pictures.curves import curve_picture
from compare.pictures.figures import scaling_picture
from compare.pictures.legend import legend
from compare.pictures.series import curves, with_curves
from compare.report.blocks import Cell, Number, Pictures, Section, Table, cell, line
from compare.report.numbers import places, quantity_cell, ratio_lines
from compare.scaling import TOTAL, Scaled


def curve_sections(comparison: Comparison) -> tuple[Section, ...]:
    """None where no run tells a step."""
    drawn = tuple(curve_picture(found, len(comparison.groups)) for found in curves(comparison))
    if not drawn:
        return ()
    return (
        Section(
            "Curves",
            (Pictures(drawn, tuple((place, side.label) for place, side in with_curves(comparison))),),
            "curves",
        ),
    )


def scaling_sections(comparison: Comparison) -> tuple[Section, ...]:
    """None where no groups of one kind differ in their GPUs."""
    if not comparison.scaling:
        return ()
    heads = ("group", "GPUs", "tokens/s", "of linear growth", "95 % interval", "from")
    rows = tuple(_row(comparison, index, scaled) for index, scaled in enumerate(comparison.scaling))
    table = Table(
        "Scaling: tokens/s per GPU over those with the fewest GPUs", tuple(map(line, heads)), rows, numbers=True
    )
    return (Section("Scaling", (Pictures((scaling_picture(comparison),), legend(comparison)), table), "scaling"),)


def _row(comparison: Comparison, index: int, scaled: Scaled) -> tuple[Cell, ...]:
    at = f"/scaling/{index}"
    total = comparison.group_figures[scaled.group][TOTAL]
    found = ratio_lines(scaled.efficiency, at, "efficiency") if scaled.efficiency else ((), ())
    return (
        cell(scaled.group),
        ((Number(f"{scaled.gpus:,}", scaled.gpus, f"{at}/gpus"),),),
        quantity_cell(total, f"{places(comparison).groups[scaled.group]}/figures/{TOTAL}", with_unit=False),
        *((part,) for part in found),
        cell(scaled.smallest if scaled.efficiency else ""),
    )
