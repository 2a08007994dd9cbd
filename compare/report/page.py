"""A comparison as a report: what every form says, in its order. Pure: nothing is computed here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import TypeAlias

from compare.audit import Deviation, Row
from compare.checks import Check
from compare.comparison import Compared, Comparison
from compare.figures import FIGURES, SPEED
from compare.groups import sides
from compare.report.blocks import (
    NOT_REPORTED,
    UNKNOWN,
    Block,
    Bullets,
    Cell,
    Details,
    Measured,
    Paragraph,
    Report,
    Section,
    Table,
    Tag,
    Tone,
    cell,
    line,
    ratio_lines,
    table,
)
from compare.report.charts import ratio_bars
from compare.report.figures import (
    assumed_section,
    break_evens,
    common_unit,
    curve_sections,
    figures_blocks,
    figures_section,
    group_pointers,
    named,
    scaling_sections,
)
from compare.report.runs import Launched, reproduce_section, runs_section, runs_without_numbers
from compare.report.words import advice, headline, no_ratio
from conf.errors import listed
from metrics.peak import hardware_of

TONES: Mapping[str, Tone] = {"comparable": "good", "not comparable": "bad", "cannot tell": "open"}
STATES: Mapping[str, Tone] = {
    **dict.fromkeys(("identical", "equal"), "quiet"),
    **dict.fromkeys(("declared", "unknown", "not rehearsed"), "open"),
    **dict.fromkeys(("unexplained", "apart"), "bad"),
}
_WORDS: Mapping[str, Tone] = {
    **dict.fromkeys(("faster", "cheaper", "better"), "good"),
    **dict.fromkeys(("slower", "dearer", "worse"), "bad"),
    "undecided": "open",
}
_ORDER = ("unexplained", "declared", "varied", "allowed")
_SIDE_BY_SIDE = 6  # groups that a table has columns for
_FEW = 4  # groups whose ratios a page shows in the open
_TITLES = {figure.metric: figure.title for figure in FIGURES}
_FIRST = frozenset(figure.metric for figure in FIGURES if figure.table)
_TRAINED = ("num_layers", "hidden_size", "seq_length", "global_batch_size", "train_iters", "params_dtype", "fp8")
_Entry: TypeAlias = tuple[str, Compared]  # with its place in compare.json


def report(comparison: Comparison, launched: Mapping[str, Launched], command: str) -> Report:
    """Return the full report. launched: by run path, how it was started; command: the one that asked for this."""
    return _report(
        comparison,
        Section("Verdict", (*_verdict_blocks(comparison), *_ratio_blocks(comparison), *_groups(comparison)), "verdict"),
        _audit_section(comparison),
        *figures_section(comparison),
        *curve_sections(comparison),
        *scaling_sections(comparison),
        runs_section(comparison),
        assumed_section(comparison),
        reproduce_section(comparison, launched, command),
    )


def summary(comparison: Comparison) -> Report:
    """Return what a terminal has room for: the verdict, what differs, the first figures and ratios."""
    audited = comparison.audit
    differing = [r for r in audited.rows if r.state in ("varied", "declared", "allowed") and differs(r)]
    blocks: list[Block] = [Paragraph(line(_counted(audited.rows))), *_verdict_blocks(comparison)]
    blocks += _settings("What differs", differing, with_reasons=False)
    blocks += _reasons([row for row in audited.rows if row in differing or row.state == "not rehearsed"])
    blocks += [*_checks(comparison.checks), *_deviations([item for item in audited.deviations if not item.decides])]
    if comparison.group_figures:
        counts = listed([f"{g.label} {len(g.shown)}" for g in comparison.groups if g.shown])
        blocks.append(Paragraph(line(f"Runs that count: {counts}.")))
        blocks += figures_blocks(comparison, "Groups", [figure for figure in FIGURES if figure.table])
    few = len(comparison.groups) <= _SIDE_BY_SIDE
    blocks += _ratios_of(comparison, _FIRST if few else frozenset((SPEED,)), few)
    if comparison.ratios and not few:
        blocks.append(Paragraph(line("The ratios of other figures: --json, or -o DIR.")))
    if not comparison.terms.prices.example:  # prices of ours answer nobody's question here
        blocks += break_evens(comparison)
    return _report(comparison, Section("", (*blocks, *runs_without_numbers(comparison))))


def _report(comparison: Comparison, *sections: Section) -> Report:
    word = comparison.audit.verdict.word
    title = f"{listed([group.label for group in comparison.groups[:4]])}: {word}"
    return Report(title, word, TONES.get(word, "plain"), headline(comparison), sections)


def _verdict_blocks(comparison: Comparison) -> Iterator[Block]:
    """Yield the reasons, what to do next, and what is compared."""
    verdict, varied = comparison.audit.verdict, comparison.audit.varied
    if verdict.reasons:
        yield Bullets(tuple(map(line, verdict.reasons)))
    yield from (Paragraph((Tag("Next: ", "plain"), *step)) for step in advice(comparison))
    if len(comparison.groups) > 1:
        yield Paragraph(("What is compared: ", Tag(listed(varied.keys), "plain"), f" ({varied.reason})."))


def _groups(comparison: Comparison) -> Iterator[Block]:
    """Yield what each group ran on, and what was trained, as far as all groups report it alike."""
    devices = next((row.values for row in comparison.audit.rows if row.setting == "world_size"), {})
    counting = {side.label: len(side.usable) for side in sides(comparison.groups)[0]}
    rows: list[tuple[Cell, ...]] = []
    for group in comparison.groups:
        first = group.runs[0].record
        facts = (first.platform, hardware_of(first), devices.get(group.label), first.framework, first.image)
        known = [cell(listed(fact) if isinstance(fact, tuple) else fact) if fact else (NOT_REPORTED,) for fact in facts]
        mark = (Tag("baseline", "quiet"),) if group.label == comparison.baseline else ()
        provenance = Tag(first.provenance, "quiet" if first.provenance in ("measured", "imported") else "open")
        counted = f"{counting.get(group.label, 0)} of {len(group.runs)}"
        rows.append(((line(group.label), mark), *known, ((provenance,),), cell(counted)))
    heads = ("group", "platform", "hardware", "devices", "framework", "image", "provenance", "runs that count")
    yield table("Groups", heads, rows)
    alike = {row.setting: row for row in comparison.audit.rows if row.state == "identical"}
    trained = [(name, next(iter(alike[name].values.values()))) for name in _TRAINED if name in alike]
    if texts := [f"{name} {listed(values)}" for name, values in trained if values and values != (None,)]:
        yield Paragraph(line(f"Trained by all: {listed(texts)}."))


def _ratio_blocks(comparison: Comparison) -> Iterator[Block]:
    """Yield the ratios that a manager reads, of many groups throughput alone; all others folded."""
    few = len(comparison.groups) <= _FEW
    wanted = _FIRST if few else frozenset((SPEED,))
    yield from _ratios_of(comparison, wanted, few)
    rest = tuple(_ratios_of(comparison, _TITLES.keys() - wanted, few, "Other figures: "))
    if rest:
        yield Details("More ratios", rest)


def _ratios_of(comparison: Comparison, metrics: Set[str], few: bool, of: str = "") -> Iterator[Block]:
    """Yield tables: of few groups one each, with a line a figure; of many one for each figure, with a line a group."""
    parts: dict[str, list[_Entry]] = {}
    for index, item in enumerate(comparison.ratios):
        if item.metric in metrics and item.result:
            parts.setdefault(item.group if few else _TITLES[item.metric], []).append((f"/ratios/{index}", item))
    yield from (_ratio_table(comparison, name, of, part, few) for name, part in parts.items())
    if why := no_ratio(comparison.ratios, metrics):
        yield Bullets(tuple(map(line, why)))


def _ratio_table(comparison: Comparison, name: str, of: str, entries: Sequence[_Entry], few: bool) -> Table:
    scale, bars = ratio_bars([item.result for _, item in entries if item.result], comparison.difference)
    reasons = {item.reason for _, item in entries}
    heads = [*map(line, ("figure" if few else "group", "ratio", "95 % interval")), ("drawn", scale)]
    heads += map(line, ("result", name if few else "group's", comparison.baseline, "why"))
    at, figures = group_pointers(comparison), comparison.group_figures
    rows: list[tuple[Cell, ...]] = []
    for (pointer, item), bar in zip(entries, bars, strict=True):
        assert item.result is not None
        pair = {label: figures[label][item.metric] for label in (item.group, comparison.baseline)}
        unit = common_unit(list(pair.values()))
        # Each side's figure without its interval: the ratio has one of its own.
        values = (
            Measured(quantity, f"{at[label]}/figures/{item.metric}", unit is None or not few, with_interval=False)
            for label, quantity in pair.items()
        )
        first = cell(named(_TITLES[item.metric], unit) if few else item.group)
        ratio, interval = ratio_lines(item.result, pointer)
        word = Tag(item.result.word, _WORDS.get(item.result.word, "plain"))
        rows.append((first, (ratio,), (interval,), ((bar,),), ((word,),), *values, cell(item.reason)))
    caption = f"{of}{name} against {comparison.baseline}"
    if len(reasons) > 1:
        return Table(caption, tuple(heads), tuple(rows))
    return Table(": ".join((caption, *reasons)), tuple(heads[:-1]), tuple(row[:-1] for row in rows))


def _audit_section(comparison: Comparison) -> Section:
    """Return what differs, then everything, folded."""
    rows = comparison.audit.rows
    differing = [row for state in _ORDER for row in rows if row.state == state and differs(row)]
    differing += [row for row in rows if row.state not in (*_ORDER, "identical", "unknown")]
    silent = [row for row in rows if row.state in (*_ORDER, "unknown") and row not in differing]
    blocks: list[Block] = [Paragraph(line(_counted(rows))), *_settings("Differences", differing)]
    blocks += [*_checks(comparison.checks), *_deviations(comparison.audit.deviations)]
    if silent:
        deciding_first = sorted(silent, key=lambda row: not row.decides)
        unknown = _settings("Not reported by every group", deciding_first)
        blocks.append(Details(f"Not reported: {len(silent)} settings", tuple(unknown)))
    if rows:
        kinds = dict.fromkeys(row.kind for row in rows)
        tables = (t for kind in kinds for t in _settings(f"Kind: {kind}", [row for row in rows if row.kind == kind]))
        blocks.append(Details(f"All {len(rows)} settings", tuple(tables)))
    return Section("Audit", tuple(blocks), "audit")


def differs(row: Row) -> bool:
    """Return whether a group reports the setting at all: what none reports may differ, and is not seen to."""
    return any(values is not None for values in row.values.values())


def _counted(rows: Sequence[Row]) -> str:
    if not rows:
        return "Nothing was audited: no group has a run that counts."
    counts = listed([f"{count} {state}" for state, count in Counter(row.state for row in rows).items()])
    return f"{len(rows)} settings and facts as they ran: {counts}."


def _reasons(rows: Sequence[Row]) -> Iterator[Bullets]:
    """Yield why settings may differ: many have the same reason, and some reasons are long."""
    why: dict[str, list[str]] = {}
    for row in (row for row in rows if row.reason):
        why.setdefault(f"{row.state}: {row.reason}", []).append(row.setting)
    if why:
        yield Bullets(tuple(line(f"{listed(settings)}, {reason}") for reason, settings in why.items()))


def _settings(caption: str, rows: Sequence[Row], with_reasons: bool = True) -> Iterator[Table]:
    if not rows:
        return
    labels = list(rows[0].values)
    beside = len(labels) <= _SIDE_BY_SIDE
    heads = ("setting", "state", *(labels if beside else ["values"]))
    cells = [
        (
            (line(row.setting), line(row.reason if with_reasons else "")),
            _state(row.state, row.decides),
            *(map(_value, row.values.values()) if beside else (_by_value(row),)),
        )
        for row in rows
    ]
    yield table(caption, heads, cells)


def _state(state: str, decides: bool) -> Cell:
    mark = (", ", Tag("decides", "bad")) if decides else ()
    return ((Tag(state, STATES.get(state, "plain")), *mark),)


def _value(values: tuple[object, ...] | None) -> Cell:
    return (UNKNOWN,) if values is None else cell(listed(values))


def _by_value(row: Row) -> Cell:
    """Return each value with the groups that have it, of groups that are too many for a column each."""
    alike: dict[str, list[str]] = {}
    for label, values in row.values.items():
        alike.setdefault("unknown" if values is None else listed(values), []).append(label)
    if len(alike) == 1:
        return cell(next(iter(alike)))
    return tuple(line(f"{value}: {listed(labels)}") for value, labels in alike.items())


def _checks(checks: Sequence[Check]) -> Iterator[Table]:
    rows = [
        (
            cell(check.name),
            _state(check.state, check.decides),
            cell("" if check.step is None else f"{check.step}"),
            cell(check.reason),
        )
        for check in checks
    ]
    if rows:
        yield table("Step by step", ("property", "state", "first step apart", "result"), rows)


def _deviations(deviations: Sequence[Deviation]) -> Iterator[Table]:
    rows = [
        (
            cell(item.run),
            cell(item.setting),
            cell(f"{item.requested}"),
            cell(f"{item.effective}"),
            ((Tag("none", "bad"),),) if item.declared is None else cell(item.declared),
        )
        for item in deviations
    ]
    if rows:
        heads = ("run", "setting", "requested", "ran", "reason given")
        yield table("Requested, and not what ran", heads, rows)
