"""A comparison as a report: the content of every form (page, Markdown, terminal) as data, in its order: the verdict and
the figures that decide, what to do next, curves, the audit, all figures, and how it was made."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from compare.audit import ACCEPTED, Check, Deviation, Reason, Row
from compare.comparison import TOTAL, UNLIKE, Compared, Comparison
from compare.decision import UNKNOWN_MODEL, about, gpus_spelled, recipe_spelled
from compare.figures import COST, FIGURES, SPEED, TITLES
from compare.groups import CLOCK, ENVIRONMENT, Group, comparable, counted
from compare.objects import speed_sentence
from compare.report import charts
from compare.report.blocks import (
    UNKNOWN,
    Block,
    Cell,
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
    bullets,
    folded,
    ratio_lines,
    table,
)
from compare.report.fields import fields_block
from compare.report.reproduce import reproduced
from conf.arguments import program
from conf.errors import listed, some
from conf.vocabulary import OFF, RANKS
from metrics import Quantity, shown
from metrics.bill import TRILLION
from metrics.repeats import DIFFER, ENOUGH, gathered
from metrics.rules import gpus_of

TONES: Mapping[str, Tone] = {
    **dict.fromkeys(("comparable", "ok", "faster", "cheaper", "better"), "good"),
    **dict.fromkeys(("not comparable", "regression", "failed run", "unexplained", "apart"), "bad"),
    **dict.fromkeys(("slower", "more expensive", "worse"), "bad"),
    **dict.fromkeys(("cannot tell", "declared", "unknown", "not rehearsed", "undecided"), "open"),
    **dict.fromkeys(("identical", "equal"), "quiet"),
}
_ORDER = ("unexplained", "declared", "varied", "allowed")
_ASIDE = {
    "ratio": "",
    "conditional": "nothing breaks it: the ratio stands, on conditions",
    "side by side": "side by side, without a ratio",
}
_PLANNED = "by the request: nothing ran"
_ACCEPTED = "what breaks it was accepted: the ratio stands on that condition"
_MEANING = {"breaks": "the work is another", "shifts": "the same work is done otherwise", "bookkeeping": "no effect"}
_WEIGHT: Mapping[str, Tone] = {"breaks": "bad", "shifts": "open", "bookkeeping": "quiet"}
_SIDE_BY_SIDE = 6  # groups that a table of settings has columns for
_COLUMNS = 3  # groups that a table of figures has columns for; more stand below each other
_NARROW = 2  # groups of which two tables stand beside each other
_FAST, _SLOW = 16, 4  # of more groups than a page has room for, those that it shows
_MOST_GROUPS = 24
REASONS = 5  # above the fold
_VARIABLE = f"{ENVIRONMENT}."
_ROWS = 12  # of differences that are not folded
_VALUES = 8  # of a setting, of many groups
_LAST_LINES = 10
_MANY = 50  # runs of which compare.csv alone has every figure
_TRAINED = ("num_layers", "hidden_size", "seq_length", "global_batch_size", "train_iters", "params_dtype", "fp8")
_HOW_TO_READ = (
    "Of several runs: their geometric mean, the arithmetic one where a value is not above zero, and of memory the most "
    "that was needed. Below: the mean's 95 % interval, from three runs on, or that of a prediction. Beside: where a "
    "value comes from."
)
_PARTED: Mapping[str, str] = {
    "lr_used": "the learning rates part",
    "tokens_seen": "the numbers of tokens seen part",
    "tokens_checksum": "other tokens were read",
    "loss": "the losses part",
}
_STRAY = "not all that was requested ran"
_WHICH = "which model was trained no log says, so name it here"
_SENTENCES = 3  # groups with a sentence of their own
_SPELLED = 3  # keys that a command is spelled out for


def report(comparison: Comparison, command: str) -> Report:
    """Return the full report. command: the one that made it."""
    part, aggregate = _part(comparison)
    drawn = charts.all_charts(part)
    commands: list[Block] = [Code(command, "the command of this report")]
    commands += [Details(f"How {group.label} was made", reproduced(group)) for group in part.groups]
    sections = (
        Section("What to do next", [*_next(part)], "next"),
        Section("Curves", [Charts(drawn, charts.legend(part))] if drawn else [], "curves"),
        _audit_section(comparison),
        _figures_section(part),
        _scaling_section(part),
        _runs_section(part),
        _assumed_section(part),
        Section("How to reproduce", commands, "reproduce"),
    )
    top = [*board(part), *bullets(aggregate)]
    return _report(part, top, *(section for section in sections if section.blocks))


def summary(comparison: Comparison) -> Report:
    """Return what a terminal has room for: the verdict, the figures that decide, what differs."""
    audited = comparison.audit
    differing = [r for r in audited.rows if r.state in ("varied", "declared", "allowed") and any(r.values.values())]
    blocks: list[Block] = [*_reasons(comparison, "more: --json"), *_next(comparison, "Next: "), *_question(comparison)]
    variables = [row.setting.partition(".")[2] for row in differing if row.setting.startswith(_VARIABLE)]
    differing = [row for row in differing if not row.setting.startswith(_VARIABLE)]
    if audited.among == "planned":  # one side has it, and the other has no such setting, or leaves it to its stack
        unlike = [r for r in audited.rows if (r.state, r.rank) == ("unknown", "shifts")]
        differing += [
            r for r in unlike if any(value not in OFF for known in r.values.values() for value in known or ())
        ]
    blocks += _settings("What differs", differing, with_reasons=False)
    blocks += bullets([f"variables of the environment that differ: {some(variables)}"] if variables else [])
    if not any(group.usable for group in comparison.groups):  # beside a ratio it is one of its conditions
        blocks += bullets(filter(None, [speed_sentence(audited.objects)]))
    reasoned = [row for row in audited.rows if row.reason and (row in differing or row.state == "not rehearsed")]
    why = gathered((f"{row.state}: {row.reason}", row.setting) for row in reasoned)  # many have the same reason
    blocks += bullets(f"{listed(names)}, {reason}" for reason, names in why.items())
    blocks += [*_checks(audited.checks), *_deviations(comparison, [i for i in audited.deviations if not i.decides])]
    if not comparison.terms.prices.example:  # a break-even at our example prices helps nobody
        blocks += _break_evens(comparison)
    part, aggregate = _part(comparison)
    top = [*board(part, [figure.metric for figure in FIGURES if figure.table]), *bullets(aggregate)]
    return _report(part, top, Section("", [*blocks, *_runs_without_numbers(part)]))


def _report(comparison: Comparison, top: Sequence[Block], *sections: Section) -> Report:
    word = comparison.audit.verdict.word
    rated = any(item.ratio is not None for item in comparison.ratios)
    aside = _ASIDE[comparison.standing] if rated or _grey(comparison) else ""
    planned = comparison.audit.among == "planned" and word != "nothing to compare"
    items: list[Row | Check] = [*comparison.audit.rows, *comparison.audit.checks]
    taken = any((i.state, i.rank) == ("declared", "breaks") and i.reason.startswith(ACCEPTED) for i in items)
    aside = _ACCEPTED if aside and taken and comparison.standing == "conditional" else aside
    tone = TONES.get(word, "plain")
    tone = "open" if comparison.standing == "conditional" and tone == "bad" else tone
    return Report(
        comparison.title, word, tone, headline(comparison), sections, _PLANNED if planned else aside, tuple(top)
    )


def _grey(comparison: Comparison) -> bool:
    """Return whether figures stand beside each other of which no ratio may be made."""
    return comparison.standing == "side by side" and comparison.audit.verdict.word != "nothing to compare"


def _part(comparison: Comparison) -> tuple[Comparison, list[str]]:
    """Return the groups that a page has room for, and what is said of all: of very many the baseline, the fastest and
    the slowest."""
    speeds = [(comparison.group_figures[g.label][SPEED].value or 0.0, g) for g in comparison.groups if g.shown]
    if len(comparison.groups) <= _MOST_GROUPS:
        return comparison, []
    ranked = [group for _, group in sorted(speeds, key=lambda one: -one[0])] or comparison.groups
    kept = {comparison.baseline, *(group.label for group in (*ranked[:_FAST], *ranked[-_SLOW:]))}
    groups = tuple(group for group in ranked if group.label in kept)
    figures = {label: known for label, known in comparison.group_figures.items() if label in kept}
    part = replace(comparison, groups=groups, group_figures=figures)
    part.__dict__["places"] = comparison.places  # in compare.json, and of their colours
    text = f"{len(comparison.groups):,} groups: shown are the baseline, the {_FAST} fastest and the {_SLOW} slowest"
    if known := [value for value, _ in speeds if value]:
        low, middle, high = statistics.quantiles(known, method="inclusive") if len(known) > 1 else known * 3
        text += f"; half of all have {shown(low)} to {shown(high)} tokens/s/GPU, and the median is {shown(middle)}"
    return part, [f"{text}. compare.csv has all."]


def headline(comparison: Comparison) -> tuple[Line, ...]:
    """Return a sentence for each of the first groups: how fast, how sure, on which conditions, at which cost; or why
    there is no number."""
    lead = next(iter(_decides(comparison)), SPEED)
    known = _ratios(comparison, lead)
    if not known:
        return _no_number(comparison)
    # At example prices there is no cost: of what is assumed there are no ratios.
    paid, of_what = ("cost_to_target", "the run") if lead == "time_to_train_s" else (COST, "a token")
    costs = {item.group: (pointer, item) for pointer, item in _ratios(comparison, paid)}
    provided = f"; on these conditions: {some(comparison.conditions, REASONS, '; ')}"
    sentences: list[Line] = []
    for pointer, item in known[:_SENTENCES]:
        ours, theirs = _sized(comparison, item.group, lead), _sized(comparison, item.baseline, lead)
        text = {
            "same": f"{ours} is as fast as {theirs}",
            "undecided": f"Undecided whether {ours} is faster than {theirs}",
        }.get(item.word, f"{ours} is {item.word} than {theirs}")
        ratio, interval = ratio_lines(item.ratio, item.interval, pointer)
        cost: Line = ()
        if item.group in costs:
            pointer, cheap = costs[item.group]
            times, between = ratio_lines(cheap.ratio, cheap.interval, pointer)
            within: Line = (" (", *between, ")") if between else ()
            cost = (f"; {of_what} costs ", *times, " times as much", *within, " at your prices")
        conditions = "; on the same conditions" if sentences else provided
        on: Line = (Tag(conditions, "quiet"),) if comparison.conditions else ()
        title = TITLES[item.metric]
        said: Line = (f"{text}: ", *ratio, f" times its {title} (95 % interval ", *interval, ")")
        if not interval:
            of = f" times the {title} of {theirs} ({item.reason}, so undecided)"
            said = (f"{ours} has ", *ratio, of)
        sentences.append((*said, *cost, *on, "."))
    if (more := len(known) - _SENTENCES) > 0:
        sentences.append(f"{'1 more group is' if more == 1 else f'{more:,} more groups are'} in the table.")
    return tuple(sentences)


def _sized(comparison: Comparison, label: str, metric: str) -> str:
    """Return a group with its GPUs where a figure of the whole machine is of unlike or unknown machines."""
    firsts = {side.label: side.usable[0].record for side in counted(comparison.groups)}
    gpus = {gpus_of(record) for record in firsts.values()}
    alike = metric == SPEED or (None not in gpus and len(gpus) == 1)
    return label if alike else f"{label} on {gpus_spelled(firsts[label])}"


def _decides(comparison: Comparison) -> list[str]:
    """Return the metrics that decide: first MLPerf's own, else one with a ratio, that was measured or printed rather
    than worked out."""
    metrics = [one.metric for one in comparison.decides if _of_interest(comparison, one.metric)]
    rated = [metric for metric in metrics if _ratios(comparison, metric)]
    sources = {one.metric: {q.source for q in one.figures.values()} for one in comparison.decides}
    sure = [metric for metric in rated if sources[metric] <= {"measured", "log"}]
    own = [metric for metric in rated if metric == "time_to_train_s"]  # which counts convergence, too
    return [*dict.fromkeys((*own, *sure[:1], *rated[:1], *metrics))]


def _ratios(comparison: Comparison, metric: str) -> list[tuple[str, Compared]]:
    """Return the known ratios of a metric, each with its place in compare.json."""
    labels = {group.label for group in comparison.groups}
    places = ((f"/ratios/{place}", item) for place, item in enumerate(comparison.ratios) if item.metric == metric)
    return [(pointer, item) for pointer, item in places if item.ratio is not None and item.group in labels]


def _no_number(comparison: Comparison) -> tuple[Line, ...]:
    """Return in a sentence why there is no ratio, and what it takes."""
    planned = comparison.audit.among == "planned"
    if comparison.audit.verdict.word == "nothing to compare":
        first = "One group of runs: there is nothing to compare it with"
    elif _deciding(comparison) == ["loss"]:
        first = "No ratio is given: the groups train to other losses, and a speed counts at equal loss"
    elif _grey(comparison):
        why = [*dict.fromkeys(_why(comparison))]
        more = [f"{len(why) - _SENTENCES} more reasons"] if len(why) > _SENTENCES + 1 else []
        because = ", and ".join([*why[: _SENTENCES + 1 - len(more)], *more])
        first = (
            f"What is planned cannot be compared as it is: {because}" if planned else f"No ratio is given: {because}"
        )
    elif planned:
        on = f", on these conditions: {some(comparison.conditions, REASONS, '; ')}" if comparison.conditions else ""
        same = "the same work" if comparison.audit.verdict.word == "comparable" else "the same work otherwise"
        first = f"What is planned does {same}{on}"
    else:
        measured = any(group.usable for group in comparison.groups)
        first = "No throughput is known on both sides" if measured else "Rehearsed: nothing was measured"
    by = gathered((step.because.replace("; ", ", "), step.group) for step in comparison.reruns)
    sides = {side.label for side in counted(comparison.groups)}
    takes = [why if {*labels} == sides else f"{why} ({some(labels)})" for why, labels in by.items()]
    takes = takes if len(by) <= _NARROW else [f"commands for {len(comparison.reruns)} groups"]
    what = "it" if planned else "a ratio"
    return (f"{first}; {what} takes, by the commands below, {'; '.join(takes)}." if by else f"{first}.",)


def _why(comparison: Comparison) -> Iterator[str]:
    """Yield in plain words the reasons of the weightiest rank."""
    audited, kinds = comparison.audit, {row.setting: row.kind for row in comparison.audit.rows}
    parted = {check.name: check.step for check in audited.checks if check.state == "apart"}
    stray = {item.setting for item in audited.deviations if item.decides}
    for reason in audited.verdict.reasons:
        name, count = next(iter(reason.settings), ""), len(reason.settings)
        if reason.rank != audited.verdict.reasons[0].rank:
            return
        if name in parted and name in _PARTED:
            yield _PARTED[name] + ("" if parted[name] is None else f" from step {parted[name]} on")
        elif name in stray:
            yield _STRAY
        elif count > _SPELLED:
            yield f"{count} settings ({listed([*dict.fromkeys(kinds[name] for name in reason.settings)])}) are unknown"
        else:
            yield reason.text


def advice(comparison: Comparison) -> Iterator[Line]:
    """Yield what to do beside running again; nothing where the question is answered."""
    word, keys = comparison.audit.verdict.word, _deciding(comparison)
    if word == "not comparable":
        # Nobody would compare clocks, and vary= is no help where it did not run as requested.
        aside = {CLOCK, *(item.setting for item in comparison.audit.deviations if item.decides)}
        settings = [
            row.setting for row in comparison.audit.rows if row.state == "unexplained" and row.setting not in aside
        ]
        compared = ",".join((*comparison.audit.varied.keys, *settings))
        can_vary = 0 < len(settings) <= _SPELLED and {*settings} <= {*comparable()}  # a version of ours cannot
        vary = f"compare it, vary={compared}; or " if can_vary else ""
        yield f"Or {vary}accept what is meant to differ: {_accept(comparison, keys)}"
    elif word == "cannot tell" and keys:
        yield f"Or accept what is unknown: {_accept(comparison, keys)}"
    elif word == "nothing to compare":
        yield "Name the runs of another group as well: of another platform, layout or image."
    elif word == "comparable" and comparison.audit.among == "planned":
        yield "Run both, without dry_run=true, and compare what ran: not all that is requested takes effect."
    elif word == "comparable" and comparison.audit.among == "rehearsed":
        yield "Run it for real, without rehearse=: a rehearsal has no speed."
    elif word == "comparable":
        yield from _repeats(comparison)
        figures = comparison.group_figures
        priced = [g for g in comparison.groups if g.label in figures and figures[g.label][COST].value is not None]
        devices = dict.fromkeys(group.runs[0].record.hardware for group in priced)
        options = " ".join(f"price.usd_per_gpu_hour.{device}=…" for device in devices if device)
        if options and comparison.terms.prices.example:
            yield f"Give your own prices, of which ours are an example: {options}"


def _accept(comparison: Comparison, keys: Sequence[str]) -> str:
    ranks = dict.fromkeys(reason.rank for reason in comparison.audit.verdict.reasons if reason.settings)
    many = f"accept.KEY=REASON (KEY: one of these, or all of a rank: {listed([*ranks])})"
    return " ".join(f"accept.{key}=REASON" for key in keys) if len(keys) <= _SPELLED else many


def _deciding(comparison: Comparison) -> list[str]:
    """Return what accept.KEY would have to name for another verdict: what its reasons are about."""
    return [*dict.fromkeys(name for reason in comparison.audit.verdict.reasons for name in reason.settings)]


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


def _next(comparison: Comparison, lead: str = "") -> Iterator[Block]:
    """Yield what to do next: the commands of the sides, and in sentences. lead: before the first."""
    for because, same in gathered((step.because, step) for step in comparison.reruns).items():
        commands = "\n".join(f"# {step.group}\n{step.command}" for step in same)
        if UNKNOWN_MODEL in commands:
            commands = f"MODEL=  # {_WHICH}: one of {program('models')}\n{commands}"
        yield Paragraph((Tag(lead, "plain"), f"For {because}:"))
        yield Code(commands, f"commands for {listed([step.group for step in same])}")
    yield from (Paragraph((Tag("" if comparison.reruns else lead, "plain"), *step)) for step in advice(comparison))


def _reasons(comparison: Comparison, more: str = "") -> Iterator[Block]:
    """Yield the reasons of the verdict, the weightiest first: five, and the others folded, or counted where nothing is
    folded."""
    lines = [*map(_reason, comparison.audit.verdict.reasons)]
    first, rest = lines[:REASONS], lines[REASONS:]
    yield from bullets([*first, f"and {len(rest)} {more}"] if rest and more else first)
    if ranks := dict.fromkeys(reason.rank for reason in comparison.audit.verdict.reasons if reason.settings):
        yield Paragraph(f"{'; '.join(f'{rank}: {_MEANING[rank]}' for rank in ranks)}.")
    if rest and not more:
        yield Details(f"{len(rest)} more reason{'s' if len(rest) > 1 else ''}", bullets(rest))


def _reason(reason: Reason) -> Line:
    effect = f". Known to matter: {reason.effect}" if reason.effect else ""
    rank: Line = (Tag(reason.rank, _WEIGHT[reason.rank]), " ") if reason.settings else ()
    return (*rank, reason.text, effect)


def board(comparison: Comparison, more: Sequence[str] = ()) -> Iterator[Block]:
    """Yield the figures that decide, of every group, under what it ran on. more: further metrics."""
    metrics = [*dict.fromkeys((*_decides(comparison), *more))]
    grey = _grey(comparison)
    caption = "Indicative, not a ratio" if grey else "The figures that decide"
    made = _figures(comparison, caption, metrics, in_section=not grey, drawn=True)
    groups = [group for group in comparison.groups if group.label in comparison.group_figures or not made]
    ran = [_ran_on(comparison, group) for group in groups]
    planned = comparison.audit.among == "planned"
    ran_title, on = ("What is planned", "runs on") if planned else ("What ran", "ran on")
    if len(groups) > _COLUMNS:
        first = made[0] if made else Table(ran_title, ["group"], [[""]] * len(groups), in_section=True)
        named_ = [(charts.titled(group), *facts) for group, facts in zip(groups, ran, strict=True)]
        rows = [[name, *row[1:]] for name, row in zip(named_, first.rows, strict=True)]
        yield replace(first, rows=rows, grey=grey)
    else:
        first = made[0] if made else Table(ran_title, ["figure", *[""] * len(groups)], [], in_section=True)
        ratios = first.heads[1 + len(groups) :]
        samples = ((charts.sample(comparison.places[group.label]), charts.titled(group)) for group in groups)
        heads, facts_ = [first.heads[0], *samples, *ratios], [on, *ran, *[""] * len(ratios)]
        yield replace(first, heads=heads, rows=[facts_, *first.rows], numbers=False, sides=len(groups), grey=grey)
    of = comparison.references
    published = gathered((line, g.label) for g in groups if g.label in of for line in of[g.label].lines)
    lines = [f"{listed(labels)}: {line}" for line, labels in published.items()]
    none = [line for line in _how_ratios(comparison, metrics, none=True) if f": {UNLIKE}" in line]
    differ = [label for label, known in comparison.group_figures.items() if known[SPEED].note == DIFFER]
    lines += [f"{listed(differ)}: {DIFFER} have no speed in common; name one of them"] if differ else []
    yield from bullets([*_how_ratios(comparison, metrics), *none, *lines])


def _ran_on(comparison: Comparison, group: Group) -> tuple[Line, ...]:
    """Return what a group ran on and with, as far as it is known, how often and when."""
    provenance = group.runs[0].record.provenance
    _, gpus, nodes, precision, software, _, image, runs, days = about(group)
    counting = next((len(side.usable) for side in counted(comparison.groups) if side.label == group.label), 0)
    clear = provenance in ("measured", "imported")
    if clear and group.label in gpus:  # which the head says
        gpus = gpus_spelled(group.runs[0].record)
    if counting < len(group.runs):
        runs = f"{counting:,} of {len(group.runs):,} runs count{'s' if counting == 1 else ''}"
    recipe, of = recipe_spelled(group.runs[0].record), group.runs[0].record.recipe
    recipe += f", {len(of.departures)} of its settings otherwise" if of and of.departures else ""
    lines = (" · ".join(filter(None, texts)) for texts in ((gpus, nodes), (precision, software, image), (recipe,)))
    tag = Tag(provenance, "quiet" if clear else "open")
    return (*filter(None, lines), ("".join(f"{text}, " for text in (runs, days) if text), tag))


def _of_interest(comparison: Comparison, metric: str) -> bool:
    """Return whether figures of a training of so many tokens are of interest: the tokens were given, or a price is
    known. Nobody trains a trillion tokens on a toy."""
    figures = comparison.group_figures.values()
    priced = any(known[COST].value is not None for known in figures)
    return priced or comparison.terms.tokens != TRILLION or not metric.startswith("training_")


def _figures(
    comparison: Comparison, caption: str, metrics: Iterable[str], in_section: bool = False, drawn: bool = False
) -> list[Table]:
    """Return a table of these figures as far as a group knows them: of few groups a column each, of many a row each. A
    ratio stands below its value; of a pair it has a column of its own. drawn: there with its interval as a drawing."""
    groups, of = [one for one in comparison.groups if one.label in comparison.group_figures], comparison.group_figures
    known = [name for name in metrics if any(of[group.label][name].value is not None for group in groups)]
    entries = {(item.group, name): (pointer, item) for name in known for pointer, item in _ratios(comparison, name)}
    pair = len(groups) == _NARROW and bool(entries)
    scale, *bars = charts.ratio_bars([item for _, item in entries.values()], comparison.difference)
    shown_bars = bars if pair and drawn else [""] * len(bars)
    ratios = {key: _ratio(*entry, bar) for (key, entry), bar in zip(entries.items(), shown_bars, strict=True)}
    units = {name: _common_unit(of[group.label][name] for group in groups) for name in known}
    tokens = f" for {comparison.terms.tokens:.3g} tokens".replace("e+", "e")
    titles = [named(f"{TITLES[name]}{tokens if name == 'training_days' else ''}", units[name]) for name in known]

    def value(group: Group, name: str) -> Measured:
        below = () if pair else ratios.get((group.label, name), ())
        return replace(_figure(comparison, group.label, name), with_unit=units[name] is None, below=below)

    rows: list[list[Cell]] = [[charts.titled(group), *(value(group, name) for name in known)] for group in groups]
    if len(groups) > _COLUMNS:
        return table(caption, ["group", *titles], rows, numbers=True, in_section=in_section)
    heads: list[Line] = ["figure", *map(charts.titled, groups)]
    rows = [[title, *(row[place] for row in rows)] for place, title in enumerate(titles, start=1)]
    if pair:
        other = next(iter(ratios))[0]
        heads.append((f"{other} / {comparison.baseline}", scale if drawn else ""))
        rows = [[*row, ratios.get((other, name), "")] for row, name in zip(rows, known, strict=True)]
    return table(caption, heads, rows, numbers=True, in_section=in_section)


def _ratio(pointer: str, item: Compared, bar: str) -> tuple[Line, ...]:
    """Return ratio and word; below them both drawn, and the interval."""
    ratio, interval = ratio_lines(item.ratio, item.interval, pointer)
    return (*ratio, " × ", _tag(item.word)), (bar, *interval)


def _how_ratios(comparison: Comparison, metrics: Iterable[str], none: bool = False) -> list[str]:
    """Return how ratios of these metrics were made; none: why there is none. A sentence a reason."""
    wanted = [item for item in comparison.ratios if item.metric in {*metrics} and (item.ratio is None) == none]
    why = gathered((item.reason, TITLES[item.metric]) for item in wanted if item.reason)
    of = {reason: some([*dict.fromkeys(names)]) for reason, names in why.items()}
    if none:
        return [f"No ratio of {names}: {reason}." for reason, names in of.items()]
    alone = len(of) == 1
    return [f"Ratios{'' if alone else f' of {names}'} to {comparison.baseline}: {why}." for why, names in of.items()]


def _figure(comparison: Comparison, label: str, metric: str) -> Measured:
    """Return a figure of a group. Its interval is a prediction's where a run's own figure has it."""
    pointer = f"/groups/{comparison.places[label]}/figures/{metric}"
    runs = (run for group in comparison.groups if group.label == label for run in group.shown)
    own = any(comparison.run_figures[run.path][metric].interval for run in runs)
    return Measured(comparison.group_figures[label][metric], pointer, predicted=own)


def _audit_section(comparison: Comparison) -> Section:
    """Return the reasons, what differs, then everything, folded."""
    rows = comparison.audit.rows
    # What no group reports may differ, and nobody sees it.
    ranked = sorted(rows, key=lambda row: RANKS.index(row.rank))
    differing = [row for state in _ORDER for row in ranked if row.state == state and any(row.values.values())]
    differing += [row for row in rows if row.state not in (*_ORDER, "identical", "unknown")]
    silent = [row for row in rows if row.state in (*_ORDER, "unknown") and row not in differing]
    blocks: list[Block] = [*_reasons(comparison), *_question(comparison)]
    alike = {row.setting: row for row in rows if row.state == "identical"}
    trained = [(name, next(iter(alike[name].values.values()))) for name in _TRAINED if name in alike]
    if texts := [f"{name} {listed(values)}" for name, values in trained if values and values != (None,)]:
        blocks.append(Paragraph(f"Trained by all: {listed(texts)}."))
    blocks += _settings("Differences", differing[:_ROWS])
    if more := differing[_ROWS:]:
        blocks.append(Details(f"{len(more)} more differences", _settings("More differences", more)))
    blocks += _checks(comparison.audit.checks)
    blocks += _deviations(comparison, comparison.audit.deviations)
    if silent:
        unknown = _settings("Not reported by every group", sorted(silent, key=lambda row: not row.decides))
        blocks.append(Details(f"Not reported: {len(silent)} settings", unknown))
    if rows:
        kinds = gathered((row.kind, row) for row in rows)
        every = [table_ for kind, same in kinds.items() for table_ in _settings(f"Kind: {kind}", same)]
        blocks.append(Details(f"All {len(rows)} settings", every))
    blocks += fields_block(comparison.audit.objects)
    return Section("Audit", blocks, "audit")


def _question(comparison: Comparison) -> Iterator[Block]:
    """Yield what is compared, and how many settings are as they are."""
    rows, varied = comparison.audit.rows, comparison.audit.varied
    if len(comparison.groups) > 1:
        yield Paragraph(("What is compared: ", Tag(listed(varied.keys), "plain"), f" ({varied.reason})."))
    counts = listed([f"{count} {state}" for state, count in Counter(row.state for row in rows).items()])
    none = "Nothing was audited: no group has a run that counts."
    how = "requested" if comparison.audit.among == "planned" else "they ran"
    yield Paragraph(f"{len(rows)} settings and facts as {how}: {counts}." if rows else none)


def _settings(caption: str, rows: Sequence[Row], with_reasons: bool = True) -> list[Table]:
    """Return a table of settings, a column a group; of many groups one column, each value with those that have it."""
    labels = list(rows[0].values) if rows else []
    beside = len(labels) <= _SIDE_BY_SIDE
    cells: list[list[Cell]] = []
    for row in rows:
        values: list[Cell] = [(UNKNOWN,) if v is None else listed(v) for v in row.values.values()]
        if not beside:
            alike = gathered(("unknown" if v is None else listed(v), label) for label, v in row.values.items())
            texts = [text if len(alike) == 1 else f"{text}: {some(by)}" for text, by in alike.items()]
            values = [(*texts[:_VALUES], *([f"and {more:,} more"] if (more := len(texts) - _VALUES) > 0 else []))]
        cells.append([(row.setting, row.reason if with_reasons else ""), _state(row), *values])
    return table(caption, ("setting", "state", *(labels if beside else ["values"])), cells)


def _state(item: Row | Check) -> Cell:
    return ((_tag(item.state), *((", ", Tag("decides", "bad")) if item.decides else ())),)


def _tag(word: str) -> Tag:
    return Tag(word, TONES.get(word, "plain"))


def _checks(checks: Sequence[Check]) -> list[Table]:
    rows = [(c.name, _state(c), "" if c.step is None else f"{c.step}", c.reason) for c in checks]
    return table("Step by step", ("property", "state", "first step apart", "result"), rows)


def _deviations(comparison: Comparison, deviations: Sequence[Deviation]) -> list[Table]:
    none: Cell = ((Tag("none", "bad"),),)
    known = [(item, none if item.declared is None else item.declared) for item in deviations]
    rows = [(i.run, i.setting, f"{i.requested}", f"{i.effective}", reason) for i, reason in known]
    planned = comparison.audit.among == "planned"
    title, runs = ("What runs instead", "will run") if planned else ("Requested, and not what ran", "ran")
    return table(title, ("run", "setting", "requested", runs, "reason given"), rows)


def _common_unit(quantities: Iterable[Quantity]) -> str | None:
    """Return the unit that all share, as it is read; else None."""
    units = {q.readable().unit for q in quantities if q.value is not None}
    return units.pop() if len(units) == 1 else None


def named(title: str, unit: str | None) -> str:
    """Return a figure's title with its unit, where the title lacks it."""
    return title if not unit or f" {title}".endswith(f" {unit}") else f"{title}, {unit}"


def _figures_section(comparison: Comparison) -> Section:
    """Return every part of FIGURES of which something is known; nothing without a group that counts."""
    groups, parts = comparison.group_figures, list[Block]()
    figures = [figure for figure in FIGURES if groups and _of_interest(comparison, figure.metric)]
    for part, same in gathered((figure.part, figure.metric) for figure in figures).items():
        blocks: list[Block] = [*_figures(comparison, part.capitalize(), same, in_section=True)]
        if part == "cost" and blocks:
            blocks += _break_evens(comparison)
            chart = charts.price_chart(comparison)
            blocks += [Charts((chart,), charts.legend(comparison))] if chart else []
        parts += [Section(part.capitalize(), blocks)] if blocks else []
    if not parts:
        return Section("All figures", [], "figures")
    metrics = [figure.metric for figure in figures]
    unknown = [TITLES[name] for name in metrics if all(known[name].value is None for known in groups.values())]
    noted = [(f.title, label, note) for f in figures for label in groups if (note := groups[label][f.metric].note)]
    notes: list[Block] = [Paragraph(f"Unknown in every group: {'; '.join(unknown)}.")] if unknown else []
    notes += table("Notes", ("figure", "group", "note"), noted)
    notes += bullets(_how_ratios(comparison, metrics, none=True))
    parts += bullets(_how_ratios(comparison, metrics))
    parts += [Details("What figures are measured against, and which are unknown, and why", notes)] if notes else []
    return Section("All figures", [Paragraph(_HOW_TO_READ), *parts], "figures", beside=len(groups) <= _NARROW)


def _break_evens(comparison: Comparison) -> list[Table]:
    """Return the table of the prices up to which a group costs less than another, where one is known."""
    rows = [
        (even.option, Measured(even.up_to, f"/break_even/{i}/price"), (even.rival, even.up_to.note))
        for i, even in enumerate(comparison.break_evens)
        if even.up_to.value is not None and even.option in comparison.group_figures
    ]
    return table("Break-even", ("group", "up to this price of a GPU-hour", "costs less than"), rows, numbers=True)


def _assumed_section(comparison: Comparison) -> Section:
    """Return every figure that rests on what nobody measured, and the terms of the money."""
    guessed: list[tuple[str, Line]] = []
    for figure in FIGURES:
        for label, figures in comparison.group_figures.items():
            q = figures[figure.metric]
            if q.value is not None and q.source in ("assumed", "spec"):
                first = _figure(comparison, label, figure.metric).lines[0]
                guessed.append((q.note, (f"{figure.title} of {label}: ", *first)))
    rows = [(note or "no reason given", tuple(lines)) for note, lines in gathered(guessed).items()]
    assumed = table("Figures that nobody measured", ("because", "figures"), rows)
    count = sum(len(lines) for _, lines in rows)
    blocks: list[Block] = [Details(f"{count:,} figures that nobody measured, and why", assumed)] if rows else []
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
    if _of_interest(comparison, "training_cost"):
        name = "Terms of time, money, energy and CO2"
        blocks.append(Details(name, table(name, ("of", "taken as"), taken)))
    return Section("What was assumed", blocks, "assumed")


def _scaling_section(comparison: Comparison) -> Section:
    """Return how speed grows with GPUs; nothing where no groups of one kind differ in their GPUs."""
    rows: list[list[Cell]] = []
    for index, scaled in enumerate(comparison.scaling):
        if scaled.group not in comparison.group_figures:
            continue
        at = f"/scaling/{index}"
        ratio, interval = ratio_lines(scaled.efficiency, scaled.interval, at, "efficiency")
        gpus: Cell = ((Number(f"{scaled.gpus:,}", scaled.gpus, f"{at}/gpus"),),)
        speed = replace(_figure(comparison, scaled.group, TOTAL), with_unit=False)
        rows.append([scaled.group, gpus, speed, (ratio,), (interval,), scaled.smallest if ratio else ""])
    heads = ("group", "GPUs", "tokens/s", "of linear growth", "95 % interval", "from")
    numbers = table("Scaling: tokens/s per GPU over those with the fewest GPUs", heads, rows, numbers=True)
    chart = [Charts((charts.scaling_chart(comparison),), charts.legend(comparison))] if rows else []
    return Section("Scaling", [*chart, *numbers], "scaling")


def _runs_section(comparison: Comparison) -> Section:
    """Return runs without numbers unfolded; the figures of the others folded."""
    blocks: list[Block] = [*_runs_without_numbers(comparison)]
    runs = [run for group in comparison.groups for run in group.runs]
    blocks += [
        folded(f"Last lines of {run.record.id}", "\n".join(run.record.last_lines[-_LAST_LINES:]))
        for run in runs
        if run.path not in comparison.run_figures and run.record.last_lines
    ]
    blocks += [_run_figures(comparison, group) for group in comparison.groups if group.shown]
    noted = [(run.record.id, note) for run in runs for note in run.record.notes]
    if notes := table("Notes of the runs", ("run", "note"), noted):
        blocks.append(Details(f"Notes of the runs ({len(noted):,})", notes))
    return Section("Runs", blocks, "runs")


def _runs_without_numbers(comparison: Comparison) -> list[Table]:
    """Return the table of the runs that have no figures, with the reason of each."""
    rows: list[list[Cell]] = []
    for label, run in ((group.label, run) for group in comparison.groups for run in group.runs):
        record, done = run.record, run.record.status == "completed"
        if run.path not in comparison.run_figures and record.provenance != "planned":
            why = "a rehearsal has no speed" if done and record.provenance == "rehearsed" else "no cause reported"
            state = (Tag(record.status, "quiet" if done else "bad"), f" {record.provenance}")
            rows.append([record.id, label, (state,), record.cause or why])
    return table("Runs without numbers", ("run", "group", "status", "cause"), rows)


def _run_figures(comparison: Comparison, group: Group) -> Details:
    runs, numbers = group.shown, comparison.run_figures
    wanted = [f for f in FIGURES if _of_interest(comparison, f.metric) and (f.table or len(runs) <= _MANY)]
    known = [f for f in wanted if any(numbers[run.path][f.metric].value is not None for run in runs)]
    at = {run.path: f"/groups/{comparison.places[group.label]}/runs/{i}/figures" for i, run in enumerate(group.runs)}
    rows: list[list[Cell]] = [
        [run.record.id, *(Measured(numbers[run.path][f.metric], f"{at[run.path]}/{f.metric}") for f in known)]
        for run in runs
    ]
    caption, heads = f"{group.label}: the figures of every run", ("run", *(figure.title for figure in known))
    return Details(f"{caption} ({len(runs):,})", table(caption, heads, rows, numbers=True))
