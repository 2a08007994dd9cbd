"""A comparison as a report: the content of every form (page, Markdown, terminal) as data, in its order."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from markupsafe import Markup
from msgspec import Meta, Struct, json
from msgspec.structs import replace

from compare import regression
from compare.audit import Check, Deviation, Row
from compare.comparison import TOTAL, Compared, Comparison
from compare.figures import COST, FIGURES, SPEED, TITLES, Figure
from compare.groups import Group, counted, seed_of
from compare.report import charts
from conf.arguments import program
from conf.compose import SECRET
from conf.errors import listed, some
from metrics import Quantity, shown
from metrics.peak import hardware_of
from metrics.repeats import ENOUGH, gathered, requested_of
from parsers.given import typed

Tone = Literal["good", "bad", "open", "plain", "quiet"]


class Number(Struct, frozen=True):
    """A number as it is read. pointer: where compare.json has it in full (JSON pointer, RFC 6901)."""

    text: str
    value: float | int
    pointer: str


class Tag(Struct, frozen=True):
    """A word that is set apart. plain: it counts; quiet: it stands beside what counts."""

    text: str
    tone: Tone


# A text stands for a line, or a cell, of plain text; Markup is a drawing.
Line: TypeAlias = str | tuple[str | Number | Tag, ...]
UNKNOWN: Line = (Tag("unknown", "open"),)


class Measured(Struct, frozen=True):
    """A quantity in a cell. pointer: of the quantity in compare.json."""

    quantity: Quantity
    pointer: str
    with_unit: bool = True
    with_interval: bool = True

    @property
    def lines(self) -> tuple[Line, ...]:
        """Return value and source, below them the interval."""
        quantity, known = self.quantity, self.quantity.readable()
        if quantity.value is None or known.value is None:
            return ((Tag(quantity.missing, "open"),),)
        unit = f" {known.unit}" if self.with_unit and known.unit else ""
        source = Tag(quantity.source, "open" if quantity.source == "assumed" else "quiet")
        first: Line = (Number(shown(known.value), quantity.value, f"{self.pointer}/value"), f"{unit} ", source)
        if quantity.interval is None or known.interval is None or not self.with_interval:
            return (first,)
        return first, _ends(map(shown, known.interval), quantity.interval, self.pointer)


Cell: TypeAlias = str | tuple[Line, ...] | Measured


class Paragraph(Struct, frozen=True):
    line: Line


class Bullets(Struct, frozen=True):
    items: tuple[Line, ...]


class Table(Struct, frozen=True):
    """A table. rows: as many cells as heads; the first heads its row. numbers: all but the first column are.
    in_section: the title of its section says the same as the caption, which is hidden."""

    caption: str
    heads: Sequence[Line]
    rows: Sequence[Sequence[Cell]]
    numbers: bool = False
    in_section: bool = False

    def without_drawings(self) -> Table:
        """Return the table without the columns whose cells are drawings alone, for forms that have none."""
        drawn = {i for row in self.rows for i, c in enumerate(row) if any(lines_of(c)) and not text_of(lines_of(c)[0])}
        kept = [i for i in range(len(self.heads)) if i not in drawn]
        rows = [[row[i] for i in kept] for row in self.rows]
        return replace(self, heads=[self.heads[i] for i in kept], rows=rows)


class Charts(Struct, frozen=True):
    """Charts beside each other where there is room. legend: each group's line and shape, and its label."""

    charts: Sequence[charts.Chart]
    legend: tuple[tuple[Markup, str], ...] = ()


class Code(Struct, frozen=True):
    text: str
    label: str


class Details(Struct, frozen=True):
    """Blocks that are folded on the screen."""

    summary: str
    blocks: Sequence[Block]


class Section(Struct, frozen=True):
    """A part of the page. anchor: "" for a part of another section. beside: its parts are narrow, and stand beside each
    other."""

    title: str
    blocks: Sequence[Block]
    anchor: str = ""
    beside: bool = False


Block: TypeAlias = "Paragraph | Bullets | Table | Charts | Code | Details | Section"


class Report(Struct, frozen=True):
    """All that each form of the report lays out. word, tone: the verdict. headline: what it comes to, in sentences."""

    title: str
    word: str
    tone: Tone
    headline: tuple[Line, ...]
    sections: tuple[Section, ...]


def lines_of(content: Cell) -> tuple[Line, ...]:
    """Return the lines of a cell."""
    if isinstance(content, str):
        return (content,)
    return content.lines if isinstance(content, Measured) else content


def text_of(line: Line) -> str:
    """Return a line without its marks and drawings."""
    texts = (part.text if isinstance(part, Number | Tag) else part for part in line)
    return "".join(text for text in texts if not isinstance(text, Markup))


def ratio_lines(
    ratio: float | None, interval: tuple[float, float] | None, pointer: str, name: str = "ratio"
) -> tuple[Line, Line]:
    """Return a ratio and its interval, each empty where there is none. pointer: of the entry that has them."""
    text: Line = () if ratio is None else (Number(f"{ratio:.3f}", ratio, f"{pointer}/{name}"),)
    return text, _ends((f"{end:.3f}" for end in interval), interval, pointer) if interval else ()


def _ends(texts: Iterable[str], interval: tuple[float, float], pointer: str) -> Line:
    low, high = (
        Number(text, value, f"{pointer}/interval/{end}")
        for end, (text, value) in enumerate(zip(texts, interval, strict=True))
    )
    return low, " to ", high


_TONES: Mapping[str, Tone] = {
    **dict.fromkeys(("comparable", "ok", "faster", "cheaper", "better"), "good"),
    **dict.fromkeys(("not comparable", "regression", "failed run", "unexplained", "apart"), "bad"),
    **dict.fromkeys(("slower", "more expensive", "worse"), "bad"),
    **dict.fromkeys(("cannot tell", "declared", "unknown", "not rehearsed", "undecided"), "open"),
    **dict.fromkeys(("identical", "equal"), "quiet"),
}
_ORDER = ("unexplained", "declared", "varied", "allowed")
_SIDE_BY_SIDE = 6  # groups that a table of settings has columns for
_COLUMNS = 4  # groups that a table of figures has columns for; more stand below each other
_NARROW = 2  # groups of which two tables stand beside each other
_FEW = 4  # groups whose ratios a page shows unfolded
_LAST_LINES = 10
_LARGEST_BYTES = 1_000_000  # of plan.json and experiment.yaml
_MANY = 50  # runs of which compare.csv alone has every figure
_FIRST = frozenset(figure.metric for figure in FIGURES if figure.table)
_TRAINED = ("num_layers", "hidden_size", "seq_length", "global_batch_size", "train_iters", "params_dtype", "fp8")
_NOT_REPORTED: Line = (Tag("not reported", "quiet"),)
_HOW_TO_READ = (
    "Below a value: the 95 % interval of the mean over runs, from three runs on. Beside it: where it comes from."
)
_GATE_HEADS = ("figure", "reference", "noise %", "new", "noise %", "difference %", "95 % interval", "word", "limit")
_HOW_JUDGED = (
    "A figure is a regression where its 95 % interval lies beyond the limit, and none where the interval does not "
    "reach it. Everything else is open: more runs are needed, at least three a side."
)
_NO_NUMBER: Mapping[str, str] = {
    "not comparable": "No ratio is given: the groups differ in more than what is compared.",
    "cannot tell": "No ratio is given: too little is known to say whether the groups may be compared.",
    "nothing to compare": "One group of runs: there is nothing to compare it with.",
}
_SENTENCES = 3  # groups with a sentence of their own
_SPELLED = 3  # keys that a command is spelled out for


def report(comparison: Comparison, command: str) -> Report:
    """Return the full report. command: the one that made it."""
    curves = charts.curve_charts(comparison)
    groups = tuple((charts.sample(place), side.label) for place, side in charts.with_curves(comparison))
    # The ratios that a manager reads, of many groups throughput alone; all others folded.
    few = len(comparison.groups) <= _FEW
    wanted = _FIRST if few else {SPEED}
    rest = [*_ratios_of(comparison, TITLES.keys() - wanted, few, "Other figures: ")]
    ratios = [*_ratios_of(comparison, wanted, few), *([Details("More ratios", rest)] if rest else [])]
    verdict = [*_verdict_blocks(comparison), *ratios, *_groups(comparison)]
    commands: list[Block] = [Code(command, "the command of this report"), *map(_reproduced, comparison.groups)]
    return _report(
        comparison,
        Section("Verdict", verdict, "verdict"),
        _audit_section(comparison),
        *_figures_section(comparison),
        *([Section("Curves", [Charts(curves, groups)], "curves")] if curves else []),
        *_scaling_section(comparison),
        _runs_section(comparison),
        _assumed_section(comparison),
        Section("How to reproduce", commands, "reproduce"),
    )


def summary(comparison: Comparison) -> Report:
    """Return what a terminal has room for: the verdict, what differs, the first figures and ratios."""
    audited = comparison.audit
    differing = [r for r in audited.rows if r.state in ("varied", "declared", "allowed") and any(r.values.values())]
    blocks: list[Block] = [Paragraph(_counted(audited.rows)), *_verdict_blocks(comparison)]
    blocks += _settings("What differs", differing, with_reasons=False)
    reasoned = [row for row in audited.rows if row.reason and (row in differing or row.state == "not rehearsed")]
    why = gathered((f"{row.state}: {row.reason}", row.setting) for row in reasoned)  # many have the same reason
    blocks += _bullets(f"{listed(names)}, {reason}" for reason, names in why.items())
    blocks += [*_checks(audited.checks), *_deviations([item for item in audited.deviations if not item.decides])]
    if comparison.group_figures:
        counts = listed([f"{g.label} {len(g.shown)}" for g in comparison.groups if g.shown])
        blocks.append(Paragraph(f"Runs that count: {counts}."))
        blocks += _figures_blocks(comparison, "Groups", [figure for figure in FIGURES if figure.table])
    few = len(comparison.groups) <= _SIDE_BY_SIDE
    blocks += _ratios_of(comparison, _FIRST if few else {SPEED}, few)
    if comparison.ratios and not few:
        blocks.append(Paragraph("The ratios of other figures: --json, or -o DIR."))
    if not comparison.terms.prices.example:  # a break-even at our example prices helps nobody
        blocks += _break_evens(comparison)
    return _report(comparison, Section("", [*blocks, *_runs_without_numbers(comparison)]))


def _report(comparison: Comparison, *sections: Section) -> Report:
    word = comparison.audit.verdict.word
    title = f"{listed([group.label for group in comparison.groups[:4]])}: {word}"
    return Report(title, word, _TONES.get(word, "plain"), headline(comparison), sections)


def headline(comparison: Comparison) -> tuple[Line, ...]:
    """Return a sentence for each of the first groups: how fast, how sure, at which cost; or why there is no number."""
    known = _ratios(comparison, SPEED)
    if not known:
        return (_no_number(comparison),)
    # At example prices there is no cost: of what is assumed there are no ratios.
    costs = {item.group: (pointer, item) for pointer, item in _ratios(comparison, COST)}
    sentences: list[Line] = []
    for pointer, item in known[:_SENTENCES]:
        text = {
            "same": f"{item.group} is as fast as {item.baseline}",
            "undecided": f"Undecided whether {item.group} is faster than {item.baseline}",
        }.get(item.word, f"{item.group} is {item.word} than {item.baseline}")
        ratio, interval = ratio_lines(item.ratio, item.interval, pointer)
        sure: Line = ("95 % interval ", *interval) if interval else (f"no interval: {item.reason}",)
        cost: Line = ()
        if item.group in costs:
            pointer, cheap = costs[item.group]
            times, between = ratio_lines(cheap.ratio, cheap.interval, pointer)
            within: Line = (" (", *between, ")") if between else ()
            cost = ("; a token costs ", *times, " times as much", *within, " at your prices")
        sentences.append((f"{text}: ", *ratio, " times its tokens/s/GPU (", *sure, ")", *cost, "."))
    if (more := len(known) - _SENTENCES) > 0:
        sentences.append(f"{'1 more group is' if more == 1 else f'{more} more groups are'} in the table.")
    return tuple(sentences)


def _ratios(comparison: Comparison, metric: str) -> list[tuple[str, Compared]]:
    """Return the known ratios of a metric, each with its place in compare.json."""
    places = ((f"/ratios/{place}", item) for place, item in enumerate(comparison.ratios) if item.metric == metric)
    return [(pointer, item) for pointer, item in places if item.ratio is not None]


def _no_number(comparison: Comparison) -> str:
    deciding, stray = _deciding(comparison), _stray(comparison)
    if deciding == ["loss"]:
        return "No ratio is given: the groups train to other losses, and a speed counts at equal loss."
    if stray and {*stray} == {*deciding}:
        return "No ratio is given: not all that was requested ran."
    measured = any(group.usable for group in comparison.groups)
    unknown = "No throughput is known on both sides." if measured else "Rehearsed: nothing was measured."
    return _NO_NUMBER.get(comparison.audit.verdict.word, unknown)


def advice(comparison: Comparison) -> Iterator[Line]:
    """Yield what to do next; nothing where the question is answered."""
    word, keys, stray = comparison.audit.verdict.word, _deciding(comparison), _stray(comparison)
    if word == "not comparable":
        if unlike := [key for key in keys if key not in stray]:
            yield _unlike(comparison, unlike)
        if stray:  # neither runs that are alike nor vary= would help
            mend = "request what ran, or have the stack run what was requested"
            yield f"{some(stray)} did not run as requested: {mend}; or accept it, {_accept(stray)}"
    elif word == "cannot tell" and keys:
        stated = f"printed ([tprimat] effective {{…}}), stated of a log ({program('parse')} LOG --save KEY=VALUE)"
        yield f"What is unknown can be {stated}, or accepted: {_accept(keys)}"
    elif word == "cannot tell":
        yield "Complete a run of each group."
    elif word == "nothing to compare":
        yield "Name the runs of another group as well: of another platform, layout or image."
    elif comparison.audit.rehearsed:
        yield "Run it for real, without rehearse=: a rehearsal has no speed."
    else:
        yield from _repeats(comparison)
        figures = comparison.group_figures
        priced = [g for g in comparison.groups if g.label in figures and figures[g.label][COST].value is not None]
        devices = dict.fromkeys(group.runs[0].record.hardware for group in priced)
        options = " ".join(f"price.usd_per_gpu_hour.{device}=…" for device in devices if device)
        if options and comparison.terms.prices.example:
            yield f"Give your own prices, of which ours are an example: {options}"


def _accept(keys: Sequence[str]) -> str:
    return " ".join(f"accept.{key}=REASON" for key in keys) if len(keys) <= _SPELLED else "accept.KEY=REASON"


def _unlike(comparison: Comparison, keys: Sequence[str]) -> str:
    if list(keys) == ["loss"]:
        return f"Where this difference of losses will do, accept it: {_accept(keys)}; else find out why they part"
    # Nobody would compare clocks.
    settings = [row.setting for row in comparison.audit.rows if row.setting in keys and row.setting != "clock"]
    compared = ",".join((*comparison.audit.varied.keys, *settings))
    vary = f"compare it, vary={compared}; or " if 0 < len(settings) <= _SPELLED else ""
    return f"Run the groups alike in {some(keys)}; or {vary}accept what is meant to differ, {_accept(keys)}"


def _stray(comparison: Comparison) -> list[str]:
    return list(dict.fromkeys(item.setting for item in comparison.audit.deviations if item.decides))


def _deciding(comparison: Comparison) -> list[str]:
    """Return what accept.KEY would have to name."""
    audited = comparison.audit
    differs = audited.verdict.word == "not comparable"
    items = [(row.setting, row) for row in audited.rows] + [(check.name, check) for check in audited.checks]
    names = [name for name, item in items if item.decides and (item.state in ("unexplained", "apart")) == differs]
    return [*dict.fromkeys((*names, *_stray(comparison)))]


def _repeats(comparison: Comparison) -> Iterator[Line]:
    """Yield how many more runs would decide how fast a group is, where they would."""
    undecided = [(pointer, item) for pointer, item in _ratios(comparison, SPEED) if item.word == "undecided"]
    needed = [(item.runs_to_decide, pointer) for pointer, item in undecided if item.runs_to_decide]
    if needed:
        count, pointer = sorted(needed, key=lambda one: one[0])[-1]
        number = Number(shown(count), count, f"{pointer}/runs_to_decide")
        yield ("Repeat the runs with other seeds: about ", number, " a side would decide the throughput.")
    elif any(item.interval is None for _, item in undecided):
        yield f"Repeat the runs with other seeds: from {ENOUGH} a side on there is an interval."


def _bullets(texts: Iterable[str]) -> list[Bullets]:
    """Return one list; none without items."""
    items = tuple(texts)
    return [Bullets(items)] if items else []


def _table(
    caption: str, heads: Sequence[Line], rows: Sequence[Sequence[Cell]], numbers: bool = False, in_section: bool = False
) -> list[Table]:
    """Return one table; none without rows."""
    return [Table(caption, heads, rows, numbers, in_section)] if rows else []


def _verdict_blocks(comparison: Comparison) -> Iterator[Block]:
    """Yield the reasons, what to do next, and what is compared."""
    verdict, varied = comparison.audit.verdict, comparison.audit.varied
    yield from _bullets(verdict.texts)
    yield from (Paragraph((Tag("Next: ", "plain"), *step)) for step in advice(comparison))
    if len(comparison.groups) > 1:
        yield Paragraph(("What is compared: ", Tag(listed(varied.keys), "plain"), f" ({varied.reason})."))


def _groups(comparison: Comparison) -> Iterator[Block]:
    """Yield what each group ran on, and what was trained, as far as all groups report it alike."""
    devices = next((row.values for row in comparison.audit.rows if row.setting == "world_size"), {})
    counting = {side.label: len(side.usable) for side in counted(comparison.groups)}
    rows: list[list[Cell]] = []
    for group in comparison.groups:
        first = group.runs[0].record
        facts = (first.platform, hardware_of(first), devices.get(group.label), first.framework, first.image)
        known = [(listed(fact) if isinstance(fact, tuple) else fact) if fact else (_NOT_REPORTED,) for fact in facts]
        mark = (Tag("baseline", "quiet"),) if group.label == comparison.baseline else ""
        provenance = Tag(first.provenance, "quiet" if first.provenance in ("measured", "imported") else "open")
        counts = f"{counting.get(group.label, 0)} of {len(group.runs)}"
        rows.append([(group.label, mark), *known, ((provenance,),), counts])
    heads = ("group", "platform", "hardware", "devices", "framework", "image", "provenance", "runs that count")
    yield from _table("Groups", heads, rows)
    alike = {row.setting: row for row in comparison.audit.rows if row.state == "identical"}
    trained = [(name, next(iter(alike[name].values.values()))) for name in _TRAINED if name in alike]
    if texts := [f"{name} {listed(values)}" for name, values in trained if values and values != (None,)]:
        yield Paragraph(f"Trained by all: {listed(texts)}.")


def _ratios_of(comparison: Comparison, metrics: Set[str], few: bool, of: str = "") -> Iterator[Block]:
    """Yield tables: of few groups one each, with a line a figure; of many one for each figure, with a line a group; and
    why there are no others, a sentence a reason."""
    wanted = [(f"/ratios/{place}", item) for place, item in enumerate(comparison.ratios) if item.metric in metrics]
    known = (entry for entry in wanted if entry[1].ratio is not None)
    parts = gathered((item.group if few else TITLES[item.metric], (pointer, item)) for pointer, item in known)
    yield from (_ratio_table(comparison, name, of, part, few) for name, part in parts.items())
    why = gathered((item.reason, TITLES[item.metric]) for _, item in wanted if item.ratio is None)
    yield from _bullets(f"No ratio of {listed([*dict.fromkeys(names)])}: {reason}." for reason, names in why.items())


def _ratio_table(
    comparison: Comparison, name: str, of: str, entries: Sequence[tuple[str, Compared]], few: bool
) -> Table:
    """Return the table of `entries`, each with its place in compare.json."""
    scale, *bars = charts.ratio_bars([item for _, item in entries], comparison.difference)
    reasons = {item.reason for _, item in entries}
    heads: list[Line] = ["figure" if few else "group", "ratio", "95 % interval", ("drawn", scale), "result"]
    heads += [name if few else "group's", comparison.baseline, "why"]
    rows: list[list[Cell]] = []
    for (pointer, item), bar in zip(entries, bars, strict=True):
        sides = (item.group, item.baseline)
        unit = _common_unit(comparison.group_figures[label][item.metric] for label in sides)
        # Each side's figure without its interval: the ratio has one of its own.
        look = {"with_unit": unit is None or not few, "with_interval": False}
        first = _named(TITLES[item.metric], unit) if few else item.group
        ratio, interval = ratio_lines(item.ratio, item.interval, pointer)
        values = [_figure(comparison, label, item.metric, **look) for label in sides]
        rows.append([first, (ratio,), (interval,), ((bar,),), ((_tag(item.word),),), *values, item.reason])
    caption = f"{of}{name} against {comparison.baseline}"
    if len(reasons) == 1:  # it stands once, above the table
        caption, heads, rows = ": ".join((caption, *reasons)), heads[:-1], [row[:-1] for row in rows]
    return Table(caption, heads, rows)


def _figure(comparison: Comparison, label: str, metric: str, **look: bool) -> Measured:
    """Return a figure of a group."""
    pointer = f"/groups/{comparison.places[label]}/figures/{metric}"
    return Measured(comparison.group_figures[label][metric], pointer, **look)


def _audit_section(comparison: Comparison) -> Section:
    """Return what differs, then everything, folded."""
    rows = comparison.audit.rows
    # What no group reports may differ, and nobody sees it.
    differing = [row for state in _ORDER for row in rows if row.state == state and any(row.values.values())]
    differing += [row for row in rows if row.state not in (*_ORDER, "identical", "unknown")]
    silent = [row for row in rows if row.state in (*_ORDER, "unknown") and row not in differing]
    blocks: list[Block] = [Paragraph(_counted(rows)), *_settings("Differences", differing)]
    blocks += [*_checks(comparison.audit.checks), *_deviations(comparison.audit.deviations)]
    if silent:
        unknown = _settings("Not reported by every group", sorted(silent, key=lambda row: not row.decides))
        blocks.append(Details(f"Not reported: {len(silent)} settings", unknown))
    if rows:
        kinds = gathered((row.kind, row) for row in rows)
        every = [table for kind, same in kinds.items() for table in _settings(f"Kind: {kind}", same)]
        blocks.append(Details(f"All {len(rows)} settings", every))
    return Section("Audit", blocks, "audit")


def _counted(rows: Sequence[Row]) -> str:
    if not rows:
        return "Nothing was audited: no group has a run that counts."
    counts = listed([f"{count} {state}" for state, count in Counter(row.state for row in rows).items()])
    return f"{len(rows)} settings and facts as they ran: {counts}."


def _settings(caption: str, rows: Sequence[Row], with_reasons: bool = True) -> list[Table]:
    """Return a table of settings, a column a group; of many groups one column, each value with those that have it."""
    labels = list(rows[0].values) if rows else []
    beside = len(labels) <= _SIDE_BY_SIDE
    cells: list[list[Cell]] = []
    for row in rows:
        values: list[Cell] = [(UNKNOWN,) if v is None else listed(v) for v in row.values.values()]
        if not beside:
            alike = gathered(("unknown" if v is None else listed(v), label) for label, v in row.values.items())
            values = [tuple(text if len(alike) == 1 else f"{text}: {listed(by)}" for text, by in alike.items())]
        cells.append([(row.setting, row.reason if with_reasons else ""), _state(row), *values])
    return _table(caption, ("setting", "state", *(labels if beside else ["values"])), cells)


def _state(item: Row | Check) -> Cell:
    return ((_tag(item.state), *((", ", Tag("decides", "bad")) if item.decides else ())),)


def _tag(word: str) -> Tag:
    return Tag(word, _TONES.get(word, "plain"))


def _checks(checks: Sequence[Check]) -> list[Table]:
    rows = [(c.name, _state(c), "" if c.step is None else f"{c.step}", c.reason) for c in checks]
    return _table("Step by step", ("property", "state", "first step apart", "result"), rows)


def _deviations(deviations: Sequence[Deviation]) -> list[Table]:
    none: Cell = ((Tag("none", "bad"),),)
    known = [(item, none if item.declared is None else item.declared) for item in deviations]
    rows = [(i.run, i.setting, f"{i.requested}", f"{i.effective}", reason) for i, reason in known]
    return _table("Requested, and not what ran", ("run", "setting", "requested", "ran", "reason given"), rows)


def _common_unit(quantities: Iterable[Quantity]) -> str | None:
    """Return the unit that all share, as it is read; else None."""
    units = {q.readable().unit for q in quantities if q.value is not None}
    return units.pop() if len(units) == 1 else None


def _named(title: str, unit: str | None) -> str:
    """Return a figure's title with its unit, where the title lacks it."""
    return title if not unit or f" {title}".endswith(f" {unit}") else f"{title}, {unit}"


def _figures_section(comparison: Comparison) -> Iterator[Section]:
    """Yield every part of FIGURES of which something is known; no section without a group that counts."""
    groups = comparison.group_figures
    if not groups:
        return
    parts: list[Block] = [Paragraph(_HOW_TO_READ)]
    for part, figures in gathered((figure.part, figure) for figure in FIGURES).items():
        blocks: list[Block] = [*_figures_blocks(comparison, part.capitalize(), figures, in_section=True)]
        if part == "speed":
            blocks.append(Charts((charts.throughput_chart(comparison),)))
        if part == "cost":
            blocks += _break_evens(comparison)
            chart = charts.price_chart(comparison)
            blocks += [Charts((chart,), charts.legend(comparison))] if chart else []
        parts.append(Section(part.capitalize(), blocks))
    noted = [(f.title, label, note) for f in FIGURES for label in groups if (note := groups[label][f.metric].note)]
    if notes := _table("Notes", ("figure", "group", "note"), noted):
        parts.append(Details("What figures are measured against, and why some are unknown", notes))
    yield Section("Figures", parts, "figures", beside=len(groups) <= _NARROW)


def _figures_blocks(
    comparison: Comparison, caption: str, figures: Sequence[Figure], in_section: bool = False
) -> Iterator[Block]:
    """Yield a table of these figures of all groups, and a sentence on those that are unknown in every group."""
    groups = [group for group in comparison.groups if group.label in comparison.group_figures]
    columns, unknown = dict[str, list[Measured]](), list[str]()
    for figure in figures:
        quantities = [comparison.group_figures[group.label][figure.metric] for group in groups]
        if all(q.value is None for q in quantities):
            unknown.append(figure.title)
            continue
        unit = _common_unit(quantities)
        columns[_named(figure.title, unit)] = [
            _figure(comparison, group.label, figure.metric, with_unit=unit is None) for group in groups
        ]
    titles = [charts.titled(group) for group in groups]
    if len(groups) > _COLUMNS:
        heads, rows = ["group", *columns], [*zip(titles, *columns.values(), strict=True)]
    else:
        heads, rows = ["figure", *titles], [(name, *cells) for name, cells in columns.items()]
    yield from _table(caption, heads, rows if columns else [], numbers=True, in_section=in_section)
    if unknown:
        yield Paragraph(f"Unknown in every group: {'; '.join(unknown)}.")


def _break_evens(comparison: Comparison) -> list[Table]:
    """Return the table of the prices up to which a group costs less than another, where one is known."""
    rows = [
        (even.option, Measured(even.up_to, f"/break_even/{i}/price"), (even.rival, even.up_to.note))
        for i, even in enumerate(comparison.break_evens)
        if even.up_to.value is not None
    ]
    return _table("Break-even", ("group", "up to this price of a GPU-hour", "costs less than"), rows, numbers=True)


def _assumed_section(comparison: Comparison) -> Section:
    """Return every figure that rests on what nobody measured, and the terms of the money."""
    if not comparison.group_figures:
        return Section("What was assumed", [Paragraph("Nothing: there are no figures.")], "assumed")
    guessed: list[tuple[str, Line]] = []
    for figure in FIGURES:
        for label, figures in comparison.group_figures.items():
            q = figures[figure.metric]
            if q.value is not None and q.source in ("assumed", "spec"):
                first = _figure(comparison, label, figure.metric).lines[0]
                guessed.append((q.note, (f"{figure.title} of {label}: ", *first)))
    rows = [(note or "no reason given", tuple(lines)) for note, lines in gathered(guessed).items()]
    assumed = _table("Figures that nobody measured", ("because", "figures"), rows)
    blocks: list[Block] = [*assumed] if assumed else [Paragraph("No figure of this report is assumed.")]
    terms, prices = comparison.terms, comparison.terms.prices
    source = " ".join(filter(None, (prices.date, prices.source)))
    whose = "an example, not your price" if prices.example else "yours"

    def number(name: str, unit: str = "", none: str = "unknown") -> Cell:
        value = getattr(terms, name)
        return none if value is None else ((Number(shown(value), value, f"/terms/{name}"), unit),)

    taken: list[tuple[str, Cell]] = [
        ("training that time, money and energy are of", number("tokens", " tokens")),
        ("prices", f"{prices.currency}, {whose}" + (f": {source}" if source else "")),
        ("electricity on top", number("power_price", f" {prices.currency}/kWh", "none")),
        ("power usage effectiveness of the building", number("pue")),
        ("hosts and network, as a share of the GPUs' power", number("host_share")),
        ("share of the time that makes progress", number("goodput")),
        ("carbon intensity", Measured(terms.carbon, "/terms/carbon")),
    ]
    blocks += _table("Terms of time, money, energy and CO2", ("of", "taken as"), taken)
    return Section("What was assumed", blocks, "assumed")


def _scaling_section(comparison: Comparison) -> Iterator[Section]:
    """Yield how speed grows with GPUs; nothing where no groups of one kind differ in their GPUs."""
    if not comparison.scaling:
        return
    rows: list[list[Cell]] = []
    for index, scaled in enumerate(comparison.scaling):
        at = f"/scaling/{index}"
        ratio, interval = ratio_lines(scaled.efficiency, scaled.interval, at, "efficiency")
        gpus: Cell = ((Number(f"{scaled.gpus:,}", scaled.gpus, f"{at}/gpus"),),)
        speed = _figure(comparison, scaled.group, TOTAL, with_unit=False)
        rows.append([scaled.group, gpus, speed, (ratio,), (interval,), scaled.smallest if ratio else ""])
    heads = ("group", "GPUs", "tokens/s", "of linear growth", "95 % interval", "from")
    numbers = _table("Scaling: tokens/s per GPU over those with the fewest GPUs", heads, rows, numbers=True)
    chart = Charts((charts.scaling_chart(comparison),), charts.legend(comparison))
    yield Section("Scaling", [chart, *numbers], "scaling")


def _runs_section(comparison: Comparison) -> Section:
    """Return runs without numbers unfolded; the figures of the others folded."""
    blocks: list[Block] = [*_runs_without_numbers(comparison)]
    runs = [run for group in comparison.groups for run in group.runs]
    blocks += [
        _folded(f"Last lines of {run.record.id}", "\n".join(run.record.last_lines[-_LAST_LINES:]))
        for run in runs
        if run.path not in comparison.run_figures and run.record.last_lines
    ]
    blocks += [_run_figures(comparison, group) for group in comparison.groups if group.shown]
    noted = [(run.record.id, note) for run in runs for note in run.record.notes]
    if notes := _table("Notes of the runs", ("run", "note"), noted):
        blocks.append(Details(f"Notes of the runs ({len(noted)})", notes))
    return Section("Runs", blocks, "runs")


def _runs_without_numbers(comparison: Comparison) -> list[Table]:
    """Return the table of the runs that have no figures, with the reason of each."""
    rows: list[list[Cell]] = []
    for label, run in ((group.label, run) for group in comparison.groups for run in group.runs):
        record, done = run.record, run.record.status == "completed"
        if run.path not in comparison.run_figures:
            # A launcher that is killed cannot write down that it is gone.
            status = "running (or its launcher died)" if record.status == "running" else record.status
            why = "a rehearsal has no speed" if done and record.provenance == "rehearsed" else "no cause reported"
            state = (Tag(status, "quiet" if done else "bad"), f" {record.provenance}")
            rows.append([record.id, label, (state,), record.cause or why])
    return _table("Runs without numbers", ("run", "group", "status", "cause"), rows)


def _run_figures(comparison: Comparison, group: Group) -> Details:
    runs, numbers = group.shown, comparison.run_figures
    wanted = [figure for figure in FIGURES if figure.table or len(runs) <= _MANY]
    known = [f for f in wanted if any(numbers[run.path][f.metric].value is not None for run in runs)]
    at = {run.path: f"/groups/{comparison.places[group.label]}/runs/{i}/figures" for i, run in enumerate(group.runs)}
    rows: list[list[Cell]] = [
        [run.record.id, *(Measured(numbers[run.path][f.metric], f"{at[run.path]}/{f.metric}") for f in known)]
        for run in runs
    ]
    caption, heads = f"{group.label}: the figures of every run", ("run", *(figure.title for figure in known))
    return Details(f"{caption} ({len(runs)})", _table(caption, heads, rows, numbers=True))


def _reproduced(group: Group) -> Section:
    """Return commands, commits, images and the config of a group's runs."""
    rows: list[list[Cell]] = []
    for run in group.runs:
        r = run.record
        framework = " ".join(filter(None, (r.framework, r.framework_version)))
        commit = r.environment.get("launcher_commit")
        facts = (r.id, seed_of(r), r.started_at, commit, r.image, framework, run.path)
        rows.append([(_NOT_REPORTED,) if fact in (None, "") else f"{fact}" for fact in facts])
    heads = ("run", "seed", "started", "commit", "image", "framework", "directory")
    blocks: list[Block] = [*_table(f"Runs of {group.label}", heads, rows)]
    first = group.runs[0].record
    command, experiment = launched(group.runs[0].path)
    if command:
        blocks.append(Code(command, f"how the first run of {group.label} was started"))
    elif first.provenance == "imported":
        blocks.append(Paragraph("Made from a log that was imported:"))
        stated = [f"{name}={value}" for name, value in typed(first.given).items()]
        read = f"{program('parse')} {shlex.join([first.log or 'LOG', '--save', *stated])}"
        blocks.append(Code(read, f"how the first run of {group.label} was read"))
    else:
        blocks.append(Paragraph("How it was started is not known: there is no plan.json in its directory."))
    settings = {**requested_of(first), **{name: f"{value} (given)" for name, value in first.given.items()}}
    if experiment:
        blocks.append(_folded(f"Config of {group.label} (experiment.yaml of its first run)", experiment))
    elif settings:
        text = "\n".join(f"{name}: {value}" for name, value in settings.items())
        blocks.append(_folded(f"Settings of {group.label}, as the record has them", text))
    environments = [run.record.environment for run in group.runs]
    places: list[tuple[str, Cell]] = [
        (name, tuple(dict.fromkeys(str(environment.get(name, "unknown")) for environment in environments)))
        for name in dict.fromkeys(name for environment in environments for name in environment)
    ]
    if known := _table(f"Host, GPU and versions of {group.label}", ("fact", "value"), places):
        blocks.append(Details(f"Where {group.label} ran: {len(places)} facts", known))
    return Section(group.label, blocks)


def _folded(summary: str, text: str) -> Details:
    return Details(summary, (Code(text, summary),))


class _Plan(Struct):
    """The part of plan.json that is shown."""

    argv: Annotated[list[str], Meta(min_length=1)]
    env: dict[str, str] = {}


def launched(directory: str) -> tuple[str | None, str | None]:
    """Return how the run of a directory was started, by its plan.json as a shell takes it, and its experiment.yaml.
    None: not there, or not as we write them."""
    texts: list[str | None] = []
    for path in (Path(directory) / name for name in ("plan.json", "experiment.yaml")):
        try:
            texts.append(path.read_text(encoding="utf-8") if path.stat().st_size <= _LARGEST_BYTES else None)
        except (OSError, ValueError):  # a name or a text that is no UTF-8, too
            texts.append(None)
    text, experiment = texts
    try:
        plan = json.decode(text or "", type=_Plan)
    except (ValueError, RecursionError):
        return None, experiment
    # A secret by its name alone.
    variables = (f'{k}="${k}"' if SECRET.search(k) else f"{k}={shlex.quote(v)}" for k, v in sorted(plan.env.items()))
    return " \\\n  ".join([f"cd {shlex.quote(directory)} &&", *variables, shlex.join(plan.argv)]), experiment


def regression_report(gate: regression.Regression) -> Report:
    """Return the outcome, the figures of every experiment, and what changed between the sides."""
    limits = listed([f"{metric} {100 * limit:g} %" for metric, limit in gate.limits.items()])
    headline = f"{gate.candidate} against {gate.baseline} (limit: {limits})"
    blocks: list[Block] = [*_bullets(gate.reasons), Paragraph(_HOW_JUDGED)]
    for case in gate.cases:
        blocks += _table(case.experiment or "Figures", _GATE_HEADS, [*map(_gate_cells, case.lines)], numbers=True)
    nothing = "nothing that all runs report" if gate.unreported else "nothing"
    for caption, facts in (("What changed", gate.changes), ("Not known whether it changed", gate.unreported)):
        cells = [(one.fact, listed(one.reference), listed(one.new)) for one in facts]
        cells = cells or ([(nothing, "", "")] if facts is gate.changes else [])
        blocks += _table(caption, ("fact", gate.baseline, gate.candidate), cells)
    if gate.unchanged:
        blocks.append(Paragraph(f"Unchanged: {listed([f'{one.fact} {listed(one.new)}' for one in gate.unchanged])}."))
    return Report(headline, gate.outcome, _TONES[gate.outcome], (headline,), (Section("", blocks),))


def _gate_cells(figure: regression.Line) -> tuple[str, ...]:
    unit = next((q.readable().unit for q in (figure.reference, figure.new) if q.value is not None), "")
    ends = "" if (e := figure.interval_percent) is None else f"{e[0]:+.2f} to {e[1]:+.2f}"
    difference = "unknown" if figure.difference_percent is None else f"{figure.difference_percent:+.2f}"
    noise = (figure.reference_noise_percent, figure.new_noise_percent)
    before, after = ("" if percent is None else f"{percent:.2f}" for percent in noise)
    old, new = (shown(q.readable().value) if q.value is not None else q.missing for q in (figure.reference, figure.new))
    title, word = _named(TITLES[figure.metric], unit), figure.word.upper()
    return title, old, before, new, after, difference, ends, word, figure.state or ""
