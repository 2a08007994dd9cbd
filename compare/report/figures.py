"""The figures of a report, part by part, what of them is assumed, and the charts and tables of curves and scaling."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from compare.comparison import Comparison
from compare.figures import COST, FIGURES, SPEED, Figure
from compare.report.blocks import (
    Block,
    Cell,
    Charts,
    Details,
    Line,
    Measured,
    Number,
    Paragraph,
    Section,
    Table,
    cell,
    line,
    ratio_lines,
    table,
)
from compare.report.charts import (
    curve_charts,
    legend,
    price_chart,
    scaling_chart,
    strip_chart,
    titled,
    with_curves,
)
from compare.scaling import TOTAL, Scaled
from metrics import Quantity, shown

_COLUMNS = 4  # groups that stand beside each other; more stand below each other
_NARROW = 2  # groups of which two tables stand beside each other
_HOW_TO_READ = (
    "Below a value: the 95 % interval of the mean over runs, from three runs on. Beside it: where it comes from."
)


def group_pointers(comparison: Comparison) -> Mapping[str, str]:
    """Return where compare.json has each group, by its label: JSON pointers."""
    return {group.label: f"/groups/{i}" for i, group in enumerate(comparison.groups)}


def common_unit(quantities: Sequence[Quantity]) -> str | None:
    """Return the unit that all share, as it is read; else None."""
    units = {q.readable().unit for q in quantities if q.value is not None}
    return units.pop() if len(units) == 1 else None


def named(title: str, unit: str | None) -> str:
    """Return a figure's title with its unit, where the title does not say it."""
    return title if not unit or f" {title}".endswith(f" {unit}") else f"{title}, {unit}"


def figures_section(comparison: Comparison) -> tuple[Section, ...]:
    """Return every part of FIGURES of which something is known; no section without a group that counts."""
    if not comparison.group_figures:
        return ()
    parts = []
    for part in dict.fromkeys(figure.part for figure in FIGURES):
        numbers = figures_blocks(comparison, part.capitalize(), [f for f in FIGURES if f.part == part], titled=True)
        parts.append(Section(part.capitalize(), (*numbers, *_extras(comparison, part))))
    blocks = (Paragraph(line(_HOW_TO_READ)), *parts, *_notes(comparison))
    return (Section("Figures", blocks, "figures", beside=len(comparison.group_figures) <= _NARROW),)


def figures_blocks(
    comparison: Comparison, caption: str, figures: Sequence[Figure], titled: bool = False
) -> Iterator[Block]:
    """Yield a table of these figures of all groups, and a sentence on those that are unknown in every group."""
    known = [figure for figure in figures if any(q.value is not None for q in _pooled(comparison, figure))]
    if known:
        yield _figures_table(comparison, caption, known, titled)
    if unknown := [figure.title for figure in figures if figure not in known]:
        yield Paragraph(line(f"Unknown in every group: {'; '.join(unknown)}."))


def _pooled(comparison: Comparison, figure: Figure) -> list[Quantity]:
    return [figures[figure.metric] for figures in comparison.group_figures.values()]


def _figures_table(comparison: Comparison, caption: str, figures: Sequence[Figure], in_section: bool) -> Table:
    at, units = group_pointers(comparison), {f.metric: common_unit(_pooled(comparison, f)) for f in figures}
    groups = [group for group in comparison.groups if group.label in comparison.group_figures]
    columns: list[tuple[Line, list[Cell]]] = []
    for figure in figures:
        unit, metric = units[figure.metric], figure.metric
        cells: list[Cell] = [
            Measured(comparison.group_figures[g.label][metric], f"{at[g.label]}/figures/{metric}", unit is None)
            for g in groups
        ]
        columns.append((line(named(figure.title, unit)), cells))
    titles = [titled(group) for group in groups]
    if len(groups) <= _COLUMNS:
        heads, rows = ("figure", *titles), [((name,), *cells) for name, cells in columns]
        return Table(caption, tuple(map(line, heads)), tuple(rows), numbers=True, titled=in_section)
    below = tuple((cell(title), *(cells[i] for _, cells in columns)) for i, title in enumerate(titles))
    return Table(caption, (line("group"), *(name for name, _ in columns)), below, numbers=True, titled=in_section)


def _extras(comparison: Comparison, part: str) -> Iterator[Block]:
    if part == "speed":
        yield Charts((strip_chart(comparison, SPEED, "Throughput", "tokens/s/GPU"),))
    if part == "cost":
        yield from break_evens(comparison)
        unit = common_unit([figures[COST] for figures in comparison.group_figures.values()])
        chart = None if unit is None else price_chart(comparison, SPEED, COST, ("tokens/s/GPU", unit))
        if chart is not None:
            yield Charts((chart,), legend(comparison))


def break_evens(comparison: Comparison) -> Iterator[Table]:
    """Yield the table of the prices up to which a group costs less than another, where one is known."""
    rows = [
        (cell(even.option), Measured(even.up_to, f"/break_even/{i}/price"), (line(even.rival), line(even.up_to.note)))
        for i, even in enumerate(comparison.break_evens)
        if even.up_to.value is not None
    ]
    if rows:
        yield table("Break-even", ("group", "up to this price of a GPU-hour", "costs less than"), rows, numbers=True)


def _notes(comparison: Comparison) -> Iterator[Block]:
    rows = [
        (cell(figure.title), cell(label), cell(figures[figure.metric].note))
        for figure in FIGURES
        for label, figures in comparison.group_figures.items()
        if figures[figure.metric].note
    ]
    if rows:
        notes = table("Notes", ("figure", "group", "note"), rows)
        yield Details("What figures are measured against, and why some are unknown", (notes,))


def assumed_section(comparison: Comparison) -> Section:
    """Return every figure that rests on what nobody measured, and the terms of the money."""
    if not comparison.group_figures:
        return Section("What was assumed", (Paragraph(line("Nothing: there are no figures.")),), "assumed")
    at = group_pointers(comparison)
    guessed: dict[str, list[Line]] = {}
    for figure in FIGURES:
        for label, figures in comparison.group_figures.items():
            q = figures[figure.metric]
            if q.value is not None and q.source in ("assumed", "spec"):
                first = Measured(q, f"{at[label]}/figures/{figure.metric}").lines[0]
                guessed.setdefault(q.note, []).append((f"{figure.title} of {label}: ", *first))
    rows = [(cell(note or "no reason given"), tuple(lines)) for note, lines in guessed.items()]
    none = Paragraph(line("No figure of this report is assumed."))
    first_block = table("Figures that nobody measured", ("because", "figures"), rows) if rows else none
    return Section("What was assumed", (first_block, _terms(comparison)), "assumed")


def _terms(comparison: Comparison) -> Table:
    terms, prices = comparison.terms, comparison.terms.prices
    source = " ".join(part for part in (prices.date, prices.source) if part)
    whose = "an example, not your price" if prices.example else "yours"
    rows = (
        (cell("training that time, money and energy are of"), _term("tokens", terms.tokens, " tokens")),
        (cell("prices"), cell(f"{prices.currency}, {whose}" + (f": {source}" if source else ""))),
        (cell("electricity on top"), _term("power_price", terms.power_price, f" {prices.currency}/kWh", "none")),
        (cell("power usage effectiveness of the building"), _term("pue", terms.pue)),
        (cell("hosts and network, as a share of the GPUs' power"), _term("host_share", terms.host_share)),
        (cell("share of the time that makes progress"), _term("goodput", terms.goodput)),
        (cell("carbon intensity"), Measured(terms.carbon, "/terms/carbon")),
    )
    return table("Terms of time, money, energy and CO2", ("of", "taken as"), rows)


def _term(name: str, value: float | None, unit: str = "", none: str = "unknown") -> Cell:
    return cell(none) if value is None else ((Number(shown(value), value, f"/terms/{name}"), unit),)


def curve_sections(comparison: Comparison) -> tuple[Section, ...]:
    """Return the curves; nothing where no run reports a step."""
    drawn = curve_charts(comparison)
    groups = tuple((place, side.label) for place, side in with_curves(comparison))
    return (Section("Curves", (Charts(drawn, groups),), "curves"),) if drawn else ()


def scaling_sections(comparison: Comparison) -> tuple[Section, ...]:
    """Return how speed grows with GPUs; nothing where no groups of one kind differ in their GPUs."""
    if not comparison.scaling:
        return ()
    heads = ("group", "GPUs", "tokens/s", "of linear growth", "95 % interval", "from")
    rows = [_scaling_row(comparison, index, scaled) for index, scaled in enumerate(comparison.scaling)]
    numbers = table("Scaling: tokens/s per GPU over those with the fewest GPUs", heads, rows, numbers=True)
    return (Section("Scaling", (Charts((scaling_chart(comparison),), legend(comparison)), numbers), "scaling"),)


def _scaling_row(comparison: Comparison, index: int, scaled: Scaled) -> tuple[Cell, ...]:
    at = f"/scaling/{index}"
    total = comparison.group_figures[scaled.group][TOTAL]
    ratio, interval = ratio_lines(scaled.efficiency, at, "efficiency") if scaled.efficiency else ((), ())
    return (
        cell(scaled.group),
        ((Number(f"{scaled.gpus:,}", scaled.gpus, f"{at}/gpus"),),),
        Measured(total, f"{group_pointers(comparison)[scaled.group]}/figures/{TOTAL}", with_unit=False),
        (ratio,),
        (interval,),
        cell(scaled.smallest if scaled.efficiency else ""),
    )
