"""A comparison as a report: what a page or a Markdown file says, in its order. Pure: nothing is computed here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import TypeAlias

from compare.comparison import Compared, Comparison
from compare.figures import FIGURES, SPEED
from compare.groups import sides
from compare.pictures.drawing import Axis
from compare.pictures.ratios import ratio_axis, ratio_bar, ratio_scale
from compare.report.audit import audit_section
from compare.report.blocks import (
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
from compare.report.curves import curve_sections, scaling_sections
from compare.report.figures import assumed_section, figures_section
from compare.report.numbers import NOT_TOLD, common_unit, named, places, quantity_cell, ratio_lines
from compare.report.runs import reproduce_section, runs_section
from compare.report.sources import Launched
from compare.report.words import advice, headline, no_ratio
from compare.statistics import Ratio
from conf.errors import listed
from metrics.peak import hardware_of

TONES: Mapping[str, Tone] = {"comparable": "good", "not comparable": "bad", "cannot tell": "open"}
_WORDS: Mapping[str, Tone] = {
    **dict.fromkeys(("faster", "cheaper", "better"), "good"),
    **dict.fromkeys(("slower", "dearer", "worse"), "bad"),
    "undecided": "open",
}
_TITLES = {figure.metric: figure.title for figure in FIGURES}
_FEW = 4  # groups whose ratios a page holds
_FIRST = frozenset(figure.metric for figure in FIGURES if figure.table)
_TRAINED = ("num_layers", "hidden_size", "seq_length", "global_batch_size", "train_iters", "params_dtype", "fp8")
_Found: TypeAlias = tuple[str, Compared]  # with its place in compare.json


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
    blocks += [Paragraph((Tag("Next: ", "plain"), *step)) for step in advice(comparison)]
    if len(comparison.groups) > 1:
        blocks.append(Paragraph(("What is compared: ", Tag(listed(varied.keys), "plain"), f" ({varied.reason}).")))
    blocks += _ratio_blocks(comparison)
    blocks.append(_groups_table(comparison))
    blocks += _alike(comparison)
    return Section("Verdict", tuple(blocks), "verdict")


def _alike(comparison: Comparison) -> Iterator[Paragraph]:
    """What was trained, as far as all groups tell it alike."""
    rows = {row.setting: row for row in comparison.audit.rows if row.state == "identical"}
    found = [(name, next(iter(rows[name].values.values()))) for name in _TRAINED if name in rows]
    told = [f"{name} {listed(values)}" for name, values in found if values and values != (None,)]
    if told:
        yield Paragraph(line(f"Trained by all: {listed(told)}."))


def _groups_table(comparison: Comparison) -> Table:
    devices = next((row.values for row in comparison.audit.rows if row.setting == "world_size"), {})
    counting = {side.label: len(side.usable) for side in sides(comparison.groups)[0]}
    rows = []
    for group in comparison.groups:
        first = group.runs[0].record
        facts = (first.platform, hardware_of(first), devices.get(group.label), first.framework, first.image)
        counted = f"{counting.get(group.label, 0)} of {len(group.runs)}"
        told = tuple(cell(listed(fact) if isinstance(fact, tuple) else fact) if fact else (NOT_TOLD,) for fact in facts)
        mark = (Tag("baseline", "quiet"),) if group.label == comparison.baseline else ()
        rows.append(
            ((line(group.label), mark), *told, ((Tag(first.provenance, _marked(first.provenance)),),), cell(counted))
        )
    heads = ("group", "platform", "hardware", "devices", "framework", "image", "provenance", "runs that count")
    return Table("Groups", tuple(map(line, heads)), tuple(rows))


def _marked(provenance: str) -> Tone:
    return "quiet" if provenance in ("measured", "imported") else "open"


def _ratio_blocks(comparison: Comparison) -> Iterator[Block]:
    """The ratios that a manager reads, of many groups throughput alone; all others folded."""
    few = len(comparison.groups) <= _FEW
    wanted = _FIRST if few else frozenset((SPEED,))
    yield from _ratios_of(comparison, wanted, few)
    rest = tuple(_ratios_of(comparison, _TITLES.keys() - wanted, few, "Other figures: "))
    if rest:
        yield Details("More ratios", rest)


def _ratios_of(comparison: Comparison, metrics: Set[str], few: bool, of: str = "") -> Iterator[Block]:
    """Tables: of few groups one each, with a line a figure; of many one for each figure, with a line a group."""
    parts: dict[str, list[_Found]] = {}
    for index, item in enumerate(comparison.ratios):
        if item.metric in metrics and item.result:
            parts.setdefault(item.group if few else _TITLES[item.metric], []).append((f"/ratios/{index}", item))
    yield from (_ratio_table(comparison, name, of, part, few) for name, part in parts.items())
    if why := no_ratio(comparison.ratios, metrics):
        yield Bullets(tuple(map(line, why)))


def _ratio_table(comparison: Comparison, name: str, of: str, found: Sequence[_Found], few: bool) -> Table:
    axis = ratio_axis([item.result for _, item in found if item.result is not None])
    reasons = {item.reason for _, item in found}
    heads = [*map(line, ("figure" if few else "group", "ratio", "95 % interval")), ("drawn", ratio_scale(axis))]
    heads += map(line, ("result", name if few else "group's", comparison.baseline, "why"))
    at, numbers = places(comparison), comparison.group_figures
    rows: list[tuple[Cell, ...]] = []
    for pointer, item in found:
        assert item.result is not None
        sides = {label: numbers[label][item.metric] for label in (item.group, comparison.baseline)}
        unit = common_unit(list(sides.values()))
        # Each side's figure without its interval: the ratio has one of its own.
        values = (
            quantity_cell(quantity, f"{at.groups[label]}/figures/{item.metric}", with_unit=unit is None or not few)[:1]
            for label, quantity in sides.items()
        )
        first = named(_TITLES[item.metric], unit) if few else item.group
        rows.append(
            (cell(first), *_told(item.result, pointer, axis, comparison.difference), *values, cell(item.reason))
        )
    caption = f"{of}{name} against {comparison.baseline}"
    if len(reasons) > 1:
        return Table(caption, tuple(heads), tuple(rows))
    return Table(": ".join((caption, *reasons)), tuple(heads[:-1]), tuple(row[:-1] for row in rows))


def _told(result: Ratio, pointer: str, axis: Axis, difference: float) -> tuple[Cell, ...]:
    """Ratio, interval, drawing and word."""
    ratio, interval = ratio_lines(result, pointer)
    word = Tag(result.word, _WORDS.get(result.word, "plain"))
    return (ratio,), (interval,), ((ratio_bar(result, axis, difference),),), ((word,),)
