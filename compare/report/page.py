"""A comparison as a report: the content of every form, in its order."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from compare.audit import Deviation, Row
from compare.checks import Check
from compare.comparison import TOTAL, Compared, Comparison
from compare.figures import COST, FIGURES, SPEED, Figure
from compare.groups import Group, gathered, seed_of, sides
from compare.regression import Line as FigureLine
from compare.regression import Outcome, Regression
from compare.report import charts
from compare.report.blocks import (
    NOT_REPORTED,
    UNKNOWN,
    Block,
    Bullets,
    Cell,
    Cells,
    Charts,
    Code,
    Details,
    Line,
    Measured,
    Number,
    Paragraph,
    Report,
    Section,
    Table,
    Tag,
    Tone,
    line,
    ratio_lines,
    tables,
)
from compare.report.words import advice, headline, no_ratio
from conf.arguments import program
from conf.compose import SECRET
from conf.errors import listed
from metrics import Quantity, shown
from metrics.peak import hardware_of
from metrics.repeats import requested_of
from parsers.given import typed

_TONES: Mapping[str, Tone] = {"comparable": "good", "not comparable": "bad", "cannot tell": "open"}
_STATES: Mapping[str, Tone] = {
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
_SIDE_BY_SIDE = 6  # groups that a table of settings has columns for
_COLUMNS = 4  # groups that a table of figures has columns for; more stand below each other
_NARROW = 2  # groups of which two tables stand beside each other
_FEW = 4  # groups whose ratios a page shows unfolded
_LAST_LINES = 10
_LARGEST_BYTES = 1_000_000  # of plan.json and experiment.yaml
_MANY = 50  # runs of which compare.csv alone has every figure
_TITLES = {figure.metric: figure.title for figure in FIGURES}
_FIRST = frozenset(figure.metric for figure in FIGURES if figure.table)
_TRAINED = ("num_layers", "hidden_size", "seq_length", "global_batch_size", "train_iters", "params_dtype", "fp8")
_HOW_TO_READ = (
    "Below a value: the 95 % interval of the mean over runs, from three runs on. Beside it: where it comes from."
)
_GATE_HEADS = ("figure", "reference", "noise %", "new", "noise %", "difference %", "95 % interval", "word", "limit")
_GATE_TONES: dict[Outcome, Tone] = {"ok": "good", "regression": "bad", "failed run": "bad", "cannot tell": "open"}
_HOW_JUDGED = (
    "A figure is a regression where its 95 % interval lies beyond the limit, and none where the interval does not "
    "reach it. Everything else is open: more runs are needed, at least three a side."
)


def report(comparison: Comparison, command: str) -> Report:
    """Return the full report. command: the one that made it."""
    curves = charts.curve_charts(comparison)
    groups = tuple((place, side.label) for place, side in charts.with_curves(comparison))
    return _report(
        comparison,
        Section("Verdict", (*_verdict_blocks(comparison), *_ratio_blocks(comparison), *_groups(comparison)), "verdict"),
        _audit_section(comparison),
        *_figures_section(comparison),
        *((Section("Curves", (Charts(curves, groups),), "curves"),) if curves else ()),
        *_scaling_section(comparison),
        _runs_section(comparison),
        _assumed_section(comparison),
        Section(
            "How to reproduce",
            (Code(command, "the command of this report"), *map(_reproduced, comparison.groups)),
            "reproduce",
        ),
    )


def summary(comparison: Comparison) -> Report:
    """Return what a terminal has room for: the verdict, what differs, the first figures and ratios."""
    audited = comparison.audit
    differing = [r for r in audited.rows if r.state in ("varied", "declared", "allowed") and _is_reported(r)]
    blocks: list[Block] = [Paragraph(line(_counted(audited.rows))), *_verdict_blocks(comparison)]
    blocks += _settings("What differs", differing, with_reasons=False)
    reasoned = [row for row in audited.rows if row.reason and (row in differing or row.state == "not rehearsed")]
    why = gathered((f"{row.state}: {row.reason}", row.setting) for row in reasoned)  # many have the same reason
    blocks += [Bullets(tuple(line(f"{listed(names)}, {reason}") for reason, names in why.items()))] if why else []
    blocks += [*_checks(comparison.checks), *_deviations([item for item in audited.deviations if not item.decides])]
    if comparison.group_figures:
        counts = listed([f"{g.label} {len(g.shown)}" for g in comparison.groups if g.shown])
        blocks.append(Paragraph(line(f"Runs that count: {counts}.")))
        blocks += _figures_blocks(comparison, "Groups", [figure for figure in FIGURES if figure.table])
    few = len(comparison.groups) <= _SIDE_BY_SIDE
    blocks += _ratios_of(comparison, _FIRST if few else frozenset((SPEED,)), few)
    if comparison.ratios and not few:
        blocks.append(Paragraph(line("The ratios of other figures: --json, or -o DIR.")))
    if not comparison.terms.prices.example:  # a break-even at our example prices helps nobody
        blocks += _break_evens(comparison)
    return _report(comparison, Section("", (*blocks, *_runs_without_numbers(comparison))))


def _report(comparison: Comparison, *sections: Section) -> Report:
    word = comparison.audit.verdict.word
    title = f"{listed([group.label for group in comparison.groups[:4]])}: {word}"
    return Report(title, word, _TONES.get(word, "plain"), headline(comparison), sections)


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
    rows: list[Cells] = []
    for group in comparison.groups:
        first = group.runs[0].record
        facts = (first.platform, hardware_of(first), devices.get(group.label), first.framework, first.image)
        known = [(listed(fact) if isinstance(fact, tuple) else fact) if fact else (NOT_REPORTED,) for fact in facts]
        mark = (Tag("baseline", "quiet"),) if group.label == comparison.baseline else ()
        provenance = Tag(first.provenance, "quiet" if first.provenance in ("measured", "imported") else "open")
        counted = f"{counting.get(group.label, 0)} of {len(group.runs)}"
        rows.append(((line(group.label), mark), *known, ((provenance,),), counted))
    heads = ("group", "platform", "hardware", "devices", "framework", "image", "provenance", "runs that count")
    yield from tables("Groups", heads, rows)
    alike = {row.setting: row for row in comparison.audit.rows if row.state == "identical"}
    trained = [(name, next(iter(alike[name].values.values()))) for name in _TRAINED if name in alike]
    if texts := [f"{name} {listed(values)}" for name, values in trained if values and values != (None,)]:
        yield Paragraph(line(f"Trained by all: {listed(texts)}."))


def _ratio_blocks(comparison: Comparison) -> Iterator[Block]:
    """Yield the ratios that a manager reads, of many groups throughput alone; all others folded."""
    few = len(comparison.groups) <= _FEW
    wanted = _FIRST if few else frozenset((SPEED,))
    yield from _ratios_of(comparison, wanted, few)
    if rest := tuple(_ratios_of(comparison, _TITLES.keys() - wanted, few, "Other figures: ")):
        yield Details("More ratios", rest)


def _ratios_of(comparison: Comparison, metrics: Set[str], few: bool, of: str = "") -> Iterator[Block]:
    """Yield tables: of few groups one each, with a line a figure; of many one for each figure, with a line a group."""
    parts = gathered(
        (item.group if few else _TITLES[item.metric], (f"/ratios/{index}", item))
        for index, item in enumerate(comparison.ratios)
        if item.metric in metrics and item.result
    )
    yield from (_ratio_table(comparison, name, of, part, few) for name, part in parts.items())
    if why := no_ratio(comparison.ratios, metrics):
        yield Bullets(tuple(map(line, why)))


def _ratio_table(
    comparison: Comparison, name: str, of: str, entries: Sequence[tuple[str, Compared]], few: bool
) -> Table:
    """Return the table of `entries`, each with its place in compare.json."""
    scale, bars = charts.ratio_bars([item.result for _, item in entries if item.result], comparison.difference)
    reasons = {item.reason for _, item in entries}
    heads: list[str | Line] = ["figure" if few else "group", "ratio", "95 % interval", ("drawn", scale), "result"]
    heads += [name if few else "group's", comparison.baseline, "why"]
    at, figures = _pointers(comparison), comparison.group_figures
    rows: list[Cells] = []
    for (pointer, item), bar in zip(entries, bars, strict=True):
        assert item.result is not None
        pair = {label: figures[label][item.metric] for label in (item.group, comparison.baseline)}
        unit = _common_unit(pair.values())
        # Each side's figure without its interval: the ratio has one of its own.
        values = (
            Measured(quantity, f"{at[label]}/figures/{item.metric}", unit is None or not few, with_interval=False)
            for label, quantity in pair.items()
        )
        first = _named(_TITLES[item.metric], unit) if few else item.group
        ratio, interval = ratio_lines(item.result, pointer)
        word = Tag(item.result.word, _WORDS.get(item.result.word, "plain"))
        rows.append((first, (ratio,), (interval,), ((bar,),), ((word,),), *values, item.reason))
    caption = f"{of}{name} against {comparison.baseline}"
    if len(reasons) == 1:  # it stands once, above the table
        caption, heads, rows = ": ".join((caption, *reasons)), heads[:-1], [row[:-1] for row in rows]
    (made,) = tables(caption, heads, rows)
    return made


def _audit_section(comparison: Comparison) -> Section:
    """Return what differs, then everything, folded."""
    rows = comparison.audit.rows
    differing = [row for state in _ORDER for row in rows if row.state == state and _is_reported(row)]
    differing += [row for row in rows if row.state not in (*_ORDER, "identical", "unknown")]
    silent = [row for row in rows if row.state in (*_ORDER, "unknown") and row not in differing]
    blocks: list[Block] = [Paragraph(line(_counted(rows))), *_settings("Differences", differing)]
    blocks += [*_checks(comparison.checks), *_deviations(comparison.audit.deviations)]
    if silent:
        unknown = _settings("Not reported by every group", sorted(silent, key=lambda row: not row.decides))
        blocks.append(Details(f"Not reported: {len(silent)} settings", unknown))
    if rows:
        kinds = gathered((row.kind, row) for row in rows)
        every = tuple(t for kind, same in kinds.items() for t in _settings(f"Kind: {kind}", same))
        blocks.append(Details(f"All {len(rows)} settings", every))
    return Section("Audit", tuple(blocks), "audit")


def _is_reported(row: Row) -> bool:
    """Return whether a group reports the setting at all: what none reports may differ, and nobody sees it."""
    return any(values is not None for values in row.values.values())


def _counted(rows: Sequence[Row]) -> str:
    if not rows:
        return "Nothing was audited: no group has a run that counts."
    counts = listed([f"{count} {state}" for state, count in Counter(row.state for row in rows).items()])
    return f"{len(rows)} settings and facts as they ran: {counts}."


def _settings(caption: str, rows: Sequence[Row], with_reasons: bool = True) -> tuple[Table, ...]:
    """Return a table of settings, a column a group; of many groups one column, each value with those that have it."""
    labels = list(rows[0].values) if rows else []
    beside = len(labels) <= _SIDE_BY_SIDE
    cells: list[Cells] = []
    for row in rows:
        values: list[Cell] = [(UNKNOWN if v is None else line(listed(v)),) for v in row.values.values()]
        if not beside:
            texts = (("unknown" if v is None else listed(v), label) for label, v in row.values.items())
            alike = gathered(texts)
            values = [tuple(line(text if len(alike) == 1 else f"{text}: {listed(by)}") for text, by in alike.items())]
        reason = line(row.reason if with_reasons else "")
        cells.append(((line(row.setting), reason), _state(row.state, row.decides), *values))
    return tables(caption, ("setting", "state", *(labels if beside else ["values"])), cells)


def _state(state: str, decides: bool) -> Cell:
    mark = (", ", Tag("decides", "bad")) if decides else ()
    return ((Tag(state, _STATES.get(state, "plain")), *mark),)


def _checks(checks: Sequence[Check]) -> tuple[Table, ...]:
    rows = [(c.name, _state(c.state, c.decides), "" if c.step is None else f"{c.step}", c.reason) for c in checks]
    return tables("Step by step", ("property", "state", "first step apart", "result"), rows)


def _deviations(deviations: Sequence[Deviation]) -> tuple[Table, ...]:
    none: Cell = ((Tag("none", "bad"),),)
    rows: list[Cells] = [
        (
            item.run,
            item.setting,
            f"{item.requested}",
            f"{item.effective}",
            none if item.declared is None else item.declared,
        )
        for item in deviations
    ]
    return tables("Requested, and not what ran", ("run", "setting", "requested", "ran", "reason given"), rows)


def _pointers(comparison: Comparison) -> Mapping[str, str]:
    """Return where compare.json has each group, by its label: JSON pointers."""
    return {group.label: f"/groups/{i}" for i, group in enumerate(comparison.groups)}


def _common_unit(quantities: Iterable[Quantity]) -> str | None:
    """Return the unit that all share, as it is read; else None."""
    units = {q.readable().unit for q in quantities if q.value is not None}
    return units.pop() if len(units) == 1 else None


def _named(title: str, unit: str | None) -> str:
    """Return a figure's title with its unit, where the title lacks it."""
    return title if not unit or f" {title}".endswith(f" {unit}") else f"{title}, {unit}"


def _figures_section(comparison: Comparison) -> tuple[Section, ...]:
    """Return every part of FIGURES of which something is known; no section without a group that counts."""
    if not comparison.group_figures:
        return ()
    parts = []
    for part, figures in gathered((figure.part, figure) for figure in FIGURES).items():
        blocks: list[Block] = [*_figures_blocks(comparison, part.capitalize(), figures, in_section=True)]
        if part == "speed":
            blocks.append(Charts((charts.throughput_chart(comparison),)))
        if part == "cost":
            blocks += _break_evens(comparison)
            unit = _common_unit(figures[COST] for figures in comparison.group_figures.values())
            chart = None if unit is None else charts.price_chart(comparison, unit)
            blocks += [] if chart is None else [Charts((chart,), charts.legend(comparison))]
        parts.append(Section(part.capitalize(), tuple(blocks)))
    noted = [
        (figure.title, label, note)
        for figure in FIGURES
        for label, figures in comparison.group_figures.items()
        if (note := figures[figure.metric].note)
    ]
    notes = tables("Notes", ("figure", "group", "note"), noted)
    folded = [Details("What figures are measured against, and why some are unknown", notes)] if notes else []
    blocks = [Paragraph(line(_HOW_TO_READ)), *parts, *folded]
    return (Section("Figures", tuple(blocks), "figures", beside=len(comparison.group_figures) <= _NARROW),)


def _figures_blocks(
    comparison: Comparison, caption: str, figures: Sequence[Figure], in_section: bool = False
) -> Iterator[Block]:
    """Yield a table of these figures of all groups, and a sentence on those that are unknown in every group."""
    groups = [group for group in comparison.groups if group.label in comparison.group_figures]
    at, columns, unknown = _pointers(comparison), dict[str, list[Measured]](), list[str]()
    for figure in figures:
        quantities = [comparison.group_figures[group.label][figure.metric] for group in groups]
        if all(q.value is None for q in quantities):
            unknown.append(figure.title)
            continue
        unit = _common_unit(quantities)
        columns[_named(figure.title, unit)] = [
            Measured(q, f"{at[group.label]}/figures/{figure.metric}", unit is None)
            for q, group in zip(quantities, groups, strict=True)
        ]
    titles = [charts.titled(group) for group in groups]
    heads: tuple[str, ...] = ("figure", *titles)
    rows: list[Cells] = [(name, *cells) for name, cells in columns.items()]
    if len(groups) > _COLUMNS:
        heads, rows = ("group", *columns), list(zip(titles, *columns.values(), strict=True))
    yield from tables(caption, heads, rows if columns else [], numbers=True, in_section=in_section)
    if unknown:
        yield Paragraph(line(f"Unknown in every group: {'; '.join(unknown)}."))


def _break_evens(comparison: Comparison) -> tuple[Table, ...]:
    """Return the table of the prices up to which a group costs less than another, where one is known."""
    rows = [
        (even.option, Measured(even.up_to, f"/break_even/{i}/price"), (line(even.rival), line(even.up_to.note)))
        for i, even in enumerate(comparison.break_evens)
        if even.up_to.value is not None
    ]
    return tables("Break-even", ("group", "up to this price of a GPU-hour", "costs less than"), rows, numbers=True)


def _assumed_section(comparison: Comparison) -> Section:
    """Return every figure that rests on what nobody measured, and the terms of the money."""
    if not comparison.group_figures:
        return Section("What was assumed", (Paragraph(line("Nothing: there are no figures.")),), "assumed")
    at = _pointers(comparison)
    guessed: list[tuple[str, Line]] = []
    for figure in FIGURES:
        for label, figures in comparison.group_figures.items():
            q = figures[figure.metric]
            if q.value is not None and q.source in ("assumed", "spec"):
                first = Measured(q, f"{at[label]}/figures/{figure.metric}").lines[0]
                guessed.append((q.note, (f"{figure.title} of {label}: ", *first)))
    rows = [(note or "no reason given", tuple(lines)) for note, lines in gathered(guessed).items()]
    assumed = tables("Figures that nobody measured", ("because", "figures"), rows)
    none = Paragraph(line("No figure of this report is assumed."))
    return Section("What was assumed", (*(assumed or (none,)), *_terms(comparison)), "assumed")


def _terms(comparison: Comparison) -> tuple[Table, ...]:
    terms, prices = comparison.terms, comparison.terms.prices
    source = " ".join(part for part in (prices.date, prices.source) if part)
    whose = "an example, not your price" if prices.example else "yours"

    def number(name: str, unit: str = "", none: str = "unknown") -> Cell | str:
        value = getattr(terms, name)
        return none if value is None else ((Number(shown(value), value, f"/terms/{name}"), unit),)

    rows = (
        ("training that time, money and energy are of", number("tokens", " tokens")),
        ("prices", f"{prices.currency}, {whose}" + (f": {source}" if source else "")),
        ("electricity on top", number("power_price", f" {prices.currency}/kWh", "none")),
        ("power usage effectiveness of the building", number("pue")),
        ("hosts and network, as a share of the GPUs' power", number("host_share")),
        ("share of the time that makes progress", number("goodput")),
        ("carbon intensity", Measured(terms.carbon, "/terms/carbon")),
    )
    return tables("Terms of time, money, energy and CO2", ("of", "taken as"), rows)


def _scaling_section(comparison: Comparison) -> tuple[Section, ...]:
    """Return how speed grows with GPUs; nothing where no groups of one kind differ in their GPUs."""
    if not comparison.scaling:
        return ()
    rows: list[Cells] = []
    for index, scaled in enumerate(comparison.scaling):
        at, group = f"/scaling/{index}", _pointers(comparison)[scaled.group]
        total = comparison.group_figures[scaled.group][TOTAL]
        ratio, interval = ratio_lines(scaled.efficiency, at, "efficiency") if scaled.efficiency else ((), ())
        gpus: Cell = ((Number(f"{scaled.gpus:,}", scaled.gpus, f"{at}/gpus"),),)
        speed = Measured(total, f"{group}/figures/{TOTAL}", with_unit=False)
        rows.append((scaled.group, gpus, speed, (ratio,), (interval,), scaled.smallest if scaled.efficiency else ""))
    heads = ("group", "GPUs", "tokens/s", "of linear growth", "95 % interval", "from")
    numbers = tables("Scaling: tokens/s per GPU over those with the fewest GPUs", heads, rows, numbers=True)
    return (
        Section(
            "Scaling", (Charts((charts.scaling_chart(comparison),), charts.legend(comparison)), *numbers), "scaling"
        ),
    )


def _runs_section(comparison: Comparison) -> Section:
    """Return runs without numbers unfolded; the figures of the others folded."""
    blocks: list[Block] = [*_runs_without_numbers(comparison)]
    records = [run.record for group in comparison.groups for run in group.runs]
    blocks += [
        _folded(f"Last lines of {run.record.id}", "\n".join(run.record.last_lines[-_LAST_LINES:]))
        for group in comparison.groups
        for run in group.runs
        if run.path not in comparison.run_figures and run.record.last_lines
    ]
    blocks += [_run_figures(comparison, group) for group in comparison.groups if group.shown]
    noted = [(record.id, note) for record in records for note in record.notes]
    if noted:
        notes = tables("Notes of the runs", ("run", "note"), noted)
        blocks.append(Details(f"Notes of the runs ({len(noted)})", notes))
    return Section("Runs", tuple(blocks), "runs")


def _runs_without_numbers(comparison: Comparison) -> tuple[Table, ...]:
    """Return the table of the runs that have no figures, with the reason of each."""
    rows: list[Cells] = []
    for label, run in ((group.label, run) for group in comparison.groups for run in group.runs):
        record, done = run.record, run.record.status == "completed"
        if run.path not in comparison.run_figures:
            # A launcher that is killed cannot write down that it is gone.
            status = "running (or its launcher died)" if record.status == "running" else record.status
            why = "a rehearsal has no speed" if done and record.provenance == "rehearsed" else "no cause reported"
            state = (Tag(status, "quiet" if done else "bad"), f" {record.provenance}")
            rows.append((record.id, label, (state,), record.cause or why))
    return tables("Runs without numbers", ("run", "group", "status", "cause"), rows)


def _run_figures(comparison: Comparison, group: Group) -> Details:
    runs, numbers = group.shown, comparison.run_figures
    wanted = FIGURES if len(runs) <= _MANY else [figure for figure in FIGURES if figure.table]
    known = [f for f in wanted if any(numbers[run.path][f.metric].value is not None for run in runs)]
    at = {run.path: f"{_pointers(comparison)[group.label]}/runs/{i}/figures" for i, run in enumerate(group.runs)}
    rows: list[Cells] = [
        (run.record.id, *(Measured(numbers[run.path][f.metric], f"{at[run.path]}/{f.metric}") for f in known))
        for run in runs
    ]
    caption = f"{group.label}: the figures of every run"
    heads = ("run", *(figure.title for figure in known))
    return Details(f"{caption} ({len(runs)})", tables(caption, heads, rows, numbers=True))


def _reproduced(group: Group) -> Section:
    """Return commands, commits, images and the config of a group's runs."""
    rows: list[Cells] = []
    for run in group.runs:
        r = run.record
        framework = " ".join(part for part in (r.framework, r.framework_version) if part)
        commit = r.environment.get("launcher_commit")
        facts = (r.id, seed_of(r), r.started_at, commit, r.image, framework, run.path)
        rows.append(tuple((NOT_REPORTED,) if fact in (None, "") else f"{fact}" for fact in facts))
    heads = ("run", "seed", "started", "commit", "image", "framework", "directory")
    blocks: list[Block] = [*tables(f"Runs of {group.label}", heads, rows)]
    first = group.runs[0].record
    command, experiment = launched(group.runs[0].path)
    if command:
        blocks.append(Code(command, f"how the first run of {group.label} was started"))
    elif first.provenance == "imported":
        blocks.append(Paragraph(line("Made from a log that was imported:")))
        stated = [f"{name}={value}" for name, value in typed(first.given).items()]
        read = f"{program('parse')} {shlex.join([first.log or 'LOG', '--save', *stated])}"
        blocks.append(Code(read, f"how the first run of {group.label} was read"))
    else:
        blocks.append(Paragraph(line("How it was started is not known: there is no plan.json in its directory.")))
    settings = {**requested_of(first), **{name: f"{value} (given)" for name, value in first.given.items()}}
    if experiment:
        blocks.append(_folded(f"Config of {group.label} (experiment.yaml of its first run)", experiment))
    elif settings:
        text = "\n".join(f"{name}: {value}" for name, value in settings.items())
        blocks.append(_folded(f"Settings of {group.label}, as the record has them", text))
    environments = [run.record.environment for run in group.runs]
    names = dict.fromkeys(name for environment in environments for name in environment)
    facts_: list[tuple[str, Cell]] = [
        (name, tuple(map(line, dict.fromkeys(str(environment.get(name, "unknown")) for environment in environments))))
        for name in names
    ]
    if facts_:
        places = tables(f"Host, GPU and versions of {group.label}", ("fact", "value"), facts_)
        blocks.append(Details(f"Where {group.label} ran: {len(facts_)} facts", places))
    return Section(group.label, tuple(blocks))


def _folded(summary: str, text: str) -> Details:
    return Details(summary, (Code(text, summary),))


def launched(directory: str) -> tuple[str | None, str | None]:
    """Return how the run of a directory was started, by its plan.json as a shell takes it, and its experiment.yaml.
    None: not there, or not as we write them."""
    plan, experiment = (_text(Path(directory) / name) for name in ("plan.json", "experiment.yaml"))
    try:
        entry: Any = json.loads(plan or "")
    except (ValueError, RecursionError):
        entry = None
    argv, env = (entry.get(name) for name in ("argv", "env")) if isinstance(entry, dict) else (None, None)
    if not isinstance(argv, list) or not argv or not all(isinstance(part, str) for part in argv):
        return None, experiment
    known = sorted(env.items()) if isinstance(env, dict) else []
    # A secret by its name alone.
    variables = [f'{k}="${k}"' if SECRET.search(k) else f"{k}={shlex.quote(str(v))}" for k, v in known]
    return " \\\n  ".join([f"cd {shlex.quote(directory)} &&", *variables, shlex.join(argv)]), experiment


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8") if path.stat().st_size <= _LARGEST_BYTES else None
    except (OSError, ValueError):  # a name or a text that is no UTF-8, too
        return None


def regression_report(gate: Regression) -> Report:
    """Return the outcome, the figures of every experiment, and what changed between the sides."""
    limits = listed([f"{metric} {100 * limit:g} %" for metric, limit in gate.limits.items()])
    headline = f"{gate.candidate} against {gate.baseline} (limit: {limits})"
    blocks: list[Block] = [Bullets(tuple(map(line, gate.reasons)))] if gate.reasons else []
    blocks.append(Paragraph(line(_HOW_JUDGED)))
    for case in gate.cases:
        blocks += tables(case.experiment or "Figures", _GATE_HEADS, list(map(_gate_cells, case.lines)), numbers=True)
    changes = [(change.fact, listed(change.reference), listed(change.new)) for change in gate.changes]
    changes = changes or [("nothing that the records report", "", "")]
    blocks += tables("What changed", ("fact", gate.baseline, gate.candidate), changes)
    return Report(headline, gate.outcome, _GATE_TONES[gate.outcome], (line(headline),), (Section("", tuple(blocks)),))


def _gate_cells(figure: FigureLine) -> tuple[str, ...]:
    unit = next((q.readable().unit for q in (figure.reference, figure.new) if q.value is not None), "")
    title = figure.title if not unit or unit == figure.title else f"{figure.title}, {unit}"
    ends = "" if (e := figure.interval_percent) is None else f"{e[0]:+.2f} to {e[1]:+.2f}"
    difference = "unknown" if figure.difference_percent is None else f"{figure.difference_percent:+.2f}"
    noise = (figure.reference_noise_percent, figure.new_noise_percent)
    before, after = ("" if percent is None else f"{percent:.2f}" for percent in noise)
    old, new = (shown(quantity.readable().value) for quantity in (figure.reference, figure.new))
    return title, old, before, new, after, difference, ends, figure.word.upper(), figure.state or ""
