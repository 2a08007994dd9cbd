"""A comparison as a report: what a page or a Markdown file says, in its order. Pure: nothing is computed here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from compare.comparison import Compared, Comparison
from compare.drawing import Axis
from compare.drawing_pictures import ratio_axis, ratio_bar, ratio_scale
from compare.figures import FIGURES
from compare.report_audit import audit_section
from compare.report_blocks import (
    Block,
    Bullets,
    Cell,
    Details,
    Paragraph,
    Report,
    Section,
    Table,
    Tag,
    Tone,
    cell,
    line,
)
from compare.report_curves import curve_sections, scaling_sections
from compare.report_figures import assumed_section, figures_section
from compare.report_numbers import NOT_TOLD, UNKNOWN, common_unit, named, places, quantity_cell, ratio_lines
from compare.report_runs import reproduce_section, runs_section
from compare.report_sources import Launched
from compare.report_words import HEADLINE, headline
from conf.errors import listed

TONES: Mapping[str, Tone] = {"comparable": "good", "not comparable": "bad", "cannot tell": "open"}
_WORDS: Mapping[str, Tone] = {
    **dict.fromkeys(("faster", "cheaper", "better"), "good"),
    **dict.fromkeys(("slower", "dearer", "worse"), "bad"),
    "undecided": "open",
}
_TITLES = {figure.metric: figure.title for figure in FIGURES}
_FEW = 4  # groups whose ratios a page holds
_FIRST = frozenset(figure.metric for figure in FIGURES if figure.table)


def report(comparison: Comparison, launched: Mapping[str, Launched], command: str) -> Report:
    """launched: by run path, how it was started; command: the one that asked for this report."""
    sections = (
        _verdict_section(comparison),
        audit_section(comparison),
        *figures_section(comparison),
        *curve_sections(comparison),
        *scaling_sections(comparison),
        runs_section(comparison),
        assumed_section(comparison),
        reproduce_section(comparison, launched, command),
    )
    word = comparison.audit.verdict.word
    title = f"{listed([group.label for group in comparison.groups[:4]])}: {word}"
    return Report(title, word, TONES.get(word, "plain"), headline(comparison), sections)


def _verdict_section(comparison: Comparison) -> Section:
    verdict, varied = comparison.audit.verdict, comparison.audit.varied
    blocks: list[Block] = []
    if verdict.reasons:
        blocks.append(Bullets(tuple(line(reason) for reason in verdict.reasons)))
    if len(comparison.groups) > 1:
        blocks.append(Paragraph(("What is compared: ", Tag(listed(varied.keys), "plain"), f" ({varied.reason}).")))
    blocks += _ratio_blocks(comparison)
    blocks.append(_groups_table(comparison))
    return Section("Verdict", tuple(blocks), "verdict")


def _groups_table(comparison: Comparison) -> Table:
    rows = []
    for group in comparison.groups:
        first = group.runs[0].record
        facts = (first.platform, first.hardware, first.framework, first.image)
        counted = f"{len(group.usable)} of {len(group.runs)}"
        told = tuple(cell(fact) if fact else (NOT_TOLD,) for fact in facts)
        mark = (Tag("baseline", "quiet"),) if group.label == comparison.baseline else ()
        rows.append(
            ((line(group.label), mark), *told, ((Tag(first.provenance, _marked(first.provenance)),),), cell(counted))
        )
    heads = ("group", "platform", "hardware", "framework", "image", "provenance", "runs that count")
    return Table("Groups", tuple(map(line, heads)), tuple(rows))


def _marked(provenance: str) -> Tone:
    return "quiet" if provenance in ("measured", "imported") else "open"


def _ratio_blocks(comparison: Comparison) -> Iterator[Block]:
    """The ratios that a manager reads, of many groups throughput alone; all others folded."""
    found = [(f"/ratios/{index}", item) for index, item in enumerate(comparison.ratios)]
    wanted = _FIRST if len(comparison.groups) <= _FEW else frozenset((HEADLINE,))
    first = [(pointer, item) for pointer, item in found if item.metric in wanted]
    if first:
        yield _ratio_table(comparison, f"Against {comparison.baseline}", first)
    rest = [(pointer, item) for pointer, item in found if item.metric not in wanted]
    if rest:
        table = _ratio_table(comparison, f"Against {comparison.baseline}, other figures", rest)
        yield Details(f"{len(rest)} more ratios", (table,))


def _ratio_table(comparison: Comparison, caption: str, found: Sequence[tuple[str, Compared]]) -> Table:
    axis = ratio_axis([item.result for _, item in found if item.result is not None])
    groups = list(dict.fromkeys(item.group for _, item in found))
    heads = (
        line("figure" if len(groups) == 1 else "group, figure"),
        line(groups[0] if len(groups) == 1 else "group"),
        line(comparison.baseline),
        line("ratio"),
        line("95 % interval"),
        ("drawn", ratio_scale(axis)),
        line("word"),
        line("why"),
    )
    at = places(comparison)
    rows = []
    for pointer, item in found:
        sides = {label: comparison.group_figures[label][item.metric] for label in (item.group, comparison.baseline)}
        unit = common_unit(list(sides.values()))
        name = ("" if len(groups) == 1 else f"{item.group}: ") + named(_TITLES[item.metric], unit)
        # Each side's figure without its interval: the ratio has one of its own.
        values = (
            quantity_cell(quantity, f"{at.groups[label]}/figures/{item.metric}", with_unit=unit is None)[:1]
            for label, quantity in sides.items()
        )
        told = _told(item, pointer, axis, comparison.difference)
        rows.append((cell(name), *values, *told, cell(item.reason)))
    return Table(caption, heads, tuple(rows))


def _told(item: Compared, pointer: str, axis: Axis, difference: float) -> tuple[Cell, ...]:
    """Ratio, interval, drawing and word."""
    if item.result is None:
        return (UNKNOWN,), ((),), ((),), ((Tag("undecided", "open"),),)
    ratio, interval = ratio_lines(item.result, pointer)
    word = Tag(item.result.word, _WORDS.get(item.result.word, "plain"))
    return (ratio,), (interval,), ((ratio_bar(item.result, axis, difference),),), ((word,),)
