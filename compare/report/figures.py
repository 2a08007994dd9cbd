"""The figures of a report, part by part, and what of them is assumed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from compare.comparison import Comparison
from compare.figures import COST, FIGURES, SPEED, Figure
from compare.pictures.drawing import Picture
from compare.pictures.figures import figure_picture, price_picture
from compare.pictures.legend import legend, titled
from compare.report.blocks import (
    Block,
    Cell,
    Details,
    Line,
    Number,
    Paragraph,
    Pictures,
    Section,
    Table,
    cell,
    line,
)
from compare.report.numbers import common_unit, named, places, quantity_cell
from metrics import Quantity, shown

_COLUMNS = 4  # groups that stand beside each other; more stand below each other
_NARROW = 2  # groups of which two tables stand beside each other


def figures_section(comparison: Comparison) -> tuple[Section, ...]:
    """Every part of FIGURES of which something is known; none without a group that counts."""
    if not comparison.group_figures:
        return ()
    parts = tuple(_part(comparison, part) for part in dict.fromkeys(figure.part for figure in FIGURES))
    legend = (
        "Below a value: the 95 % interval of the mean over runs, from three runs on. Beside it: where it comes from."
    )
    blocks = (Paragraph(line(legend)), *parts, *_notes(comparison))
    return (Section("Figures", blocks, "figures", beside=len(comparison.group_figures) <= _NARROW),)


def _part(comparison: Comparison, part: str) -> Section:
    figures = [figure for figure in FIGURES if figure.part == part]
    known = [figure for figure in figures if any(q.value is not None for q in _found(comparison, figure))]
    blocks: list[Block] = [_table(comparison, part.capitalize(), known)] if known else []
    if unknown := [figure.title for figure in figures if figure not in known]:
        blocks.append(Paragraph(line(f"Unknown in every group: {'; '.join(unknown)}.")))
    blocks += _extras(comparison, part)
    return Section(part.capitalize(), tuple(blocks))


def _found(comparison: Comparison, figure: Figure) -> list[Quantity]:
    return [figures[figure.metric] for figures in comparison.group_figures.values()]


def _table(comparison: Comparison, caption: str, figures: Sequence[Figure]) -> Table:
    at = places(comparison)
    units = {figure.metric: common_unit(_found(comparison, figure)) for figure in figures}
    labels = list(comparison.group_figures)
    titles = {group.label: titled(group) for group in comparison.groups}
    cells: dict[tuple[str, str], Cell] = {
        (label, figure.metric): quantity_cell(
            comparison.group_figures[label][figure.metric],
            f"{at.groups[label]}/figures/{figure.metric}",
            with_unit=units[figure.metric] is None,
        )
        for label in labels
        for figure in figures
    }
    names = {figure.metric: line(named(figure.title, units[figure.metric])) for figure in figures}
    if len(labels) <= _COLUMNS:
        rows = tuple(((names[f.metric],), *(cells[label, f.metric] for label in labels)) for f in figures)
        return Table(
            caption, (line("figure"), *(line(titles[label]) for label in labels)), rows, numbers=True, titled=True
        )
    below = tuple((cell(titles[label]), *(cells[label, f.metric] for f in figures)) for label in labels)
    return Table(caption, (line("group"), *(names[f.metric] for f in figures)), below, numbers=True, titled=True)


def _extras(comparison: Comparison, part: str) -> Iterator[Block]:
    if part == "speed":
        yield Pictures((figure_picture(comparison, SPEED, "Throughput", "tokens/s/GPU"),))
    if part == "cost":
        yield from _break_evens(comparison)
        picture = _price_picture(comparison)
        if picture is not None:
            yield Pictures((picture,), legend(comparison))


def _price_picture(comparison: Comparison) -> Picture | None:
    unit = common_unit([figures[COST] for figures in comparison.group_figures.values()])
    return None if unit is None else price_picture(comparison, SPEED, COST, ("tokens/s/GPU", unit))


def _break_evens(comparison: Comparison) -> Iterator[Table]:
    found = [(i, even) for i, even in enumerate(comparison.break_evens) if even.up_to.value is not None]
    rows = tuple(
        (cell(even.option), quantity_cell(even.up_to, f"/break_even/{i}/price", with_unit=True), cell(even.rival))
        for i, even in found
    )
    if rows:
        heads = ("group", "up to this price of a GPU-hour", "costs less than")
        yield Table("Break-even", tuple(map(line, heads)), rows, numbers=True)


def _notes(comparison: Comparison) -> Iterator[Block]:
    titles = {figure.metric: figure.title for figure in FIGURES}
    rows = [
        (cell(titles[metric]), cell(label), cell(quantity.note))
        for metric in titles
        for label, figures in comparison.group_figures.items()
        for quantity in [figures[metric]]
        if quantity.note
    ]
    if rows:
        heads = tuple(map(line, ("figure", "group", "note")))
        summary = "What figures were held against, and why some are unknown"
        yield Details(summary, (Table("Notes", heads, tuple(rows)),))


def assumed_section(comparison: Comparison) -> Section:
    """Every figure that rests on what nobody measured, the terms of the money, and what is no measurement at all."""
    if not comparison.group_figures:
        return Section("What was assumed", (Paragraph(line("Nothing: there are no figures.")),), "assumed")
    at = places(comparison)
    blocks: list[Block] = []
    guessed: dict[str, list[Line]] = {}
    for figure in FIGURES:
        for label, figures in comparison.group_figures.items():
            q = figures[figure.metric]
            if q.value is not None and q.source in ("assumed", "spec"):
                told = quantity_cell(q, f"{at.groups[label]}/figures/{figure.metric}", with_unit=True)[0]
                guessed.setdefault(q.note, []).append((f"{figure.title} of {label}: ", *told))
    if guessed:
        rows = tuple((cell(note or "not told why"), tuple(found)) for note, found in guessed.items())
        blocks.append(Table("Figures that nobody measured", (line("because"), line("figures")), rows))
    else:
        blocks.append(Paragraph(line("No figure of this report is assumed.")))
    blocks.append(_terms(comparison))
    return Section("What was assumed", tuple(blocks), "assumed")


def _terms(comparison: Comparison) -> Table:
    terms, prices = comparison.terms, comparison.terms.prices
    told = " ".join(part for part in (prices.date, prices.source) if part)
    whose = "an example, not your price" if prices.example else "yours"
    rows = (
        (cell("training that time, money and energy are of"), _term("tokens", terms.tokens, " tokens")),
        (cell("prices"), cell(f"{prices.currency}, {whose}" + (f": {told}" if told else ""))),
        (cell("electricity on top"), _term("power_price", terms.power_price, f" {prices.currency}/kWh", "none")),
        (cell("power usage effectiveness of the building"), _term("pue", terms.pue)),
        (cell("hosts and network, as a share of the GPUs' power"), _term("host_share", terms.host_share)),
        (cell("share of the time that makes progress"), _term("goodput", terms.goodput)),
        (cell("carbon intensity"), quantity_cell(terms.carbon, "/terms/carbon", with_unit=True)),
    )
    return Table("Terms of time, money, energy and CO2", (line("of"), line("taken as")), rows)


def _term(name: str, value: float | None, unit: str = "", none: str = "unknown") -> Cell:
    return cell(none) if value is None else ((Number(shown(value), value, f"/terms/{name}"), unit),)
