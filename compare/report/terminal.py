"""A comparison on the terminal: the verdict and its reasons first, numbers after them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import StringIO
from typing import IO, Any, Literal

from compare.comparison import Comparison
from compare.figures import FIGURES, SPEED
from compare.pictures.legend import titled
from compare.report.audit import differs
from compare.report.blocks import text_of
from compare.report.words import advice, cause, headline, no_ratio
from compare.row import Row
from compare.statistics import Ratio
from conf.errors import listed
from metrics import Quantity, shown
from parsers import Record
from parsers.text import plain

_PLAIN_WIDTH = 120
_MARKS: Mapping[str, tuple[str, str]] = {
    "measured": ("m", "our clock or counter"),
    "log": ("l", "printed by the framework"),
    "computed": ("c", "computed"),
    "spec": ("s", "data sheet"),
    "assumed": ("a", "assumed"),
}
_SIDE_BY_SIDE = 6  # groups that a line has columns for
_IN_TABLE = tuple(figure for figure in FIGURES if figure.table)


def print_table(comparison: Comparison, stream: IO[str]) -> None:
    """Write it to `stream`: in colour and to its width on a terminal, else plain at 120 columns."""
    with console_of(stream) as console:
        _print_all(console, comparison)


@contextmanager
def console_of(stream: IO[str]) -> Iterator[Any]:
    """A console to print on: `stream` itself where it is a terminal, else plain text of 120 columns."""
    from rich.console import Console

    if stream.isatty():
        yield Console(file=stream, highlight=False)
        return
    text = StringIO()
    yield Console(file=text, width=_PLAIN_WIDTH, highlight=False, color_system=None)
    stream.writelines(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


def _print_all(console: Any, comparison: Comparison) -> None:
    _print_verdict(console, comparison)
    _print_differences(console, comparison)
    _print_checks(console, comparison)
    _print_groups(console, comparison)
    _print_ratios(console, comparison)
    _print_break_evens(console, comparison)
    _print_left_out(console, comparison)


def _print_verdict(console: Any, comparison: Comparison) -> None:
    verdict = comparison.audit.verdict
    style = {"comparable": "bold green", "not comparable": "bold red", "cannot tell": "bold yellow"}
    states = [row.state for row in comparison.audit.rows]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    say(console, f"{verdict.word}" + (f" ({counts})" if counts else ""), style.get(verdict.word, "bold"))
    for sentence in headline(comparison):
        say(console, text_of(sentence))
    say_each(console, verdict.reasons)
    for step in advice(comparison):
        say(console, f"next: {text_of(step)}")
    if len(comparison.groups) > 1:
        varied = comparison.audit.varied
        say(console, f"compared: {listed(varied.keys)} ({varied.reason})")


def _print_differences(console: Any, comparison: Comparison) -> None:
    """What may differ, and below it why: of reasons, many are alike, and some are long."""
    rows = [row for row in comparison.audit.rows if row.state in ("varied", "declared", "allowed") and differs(row)]
    labels = list(rows[0].values) if rows else []
    beside = len(labels) <= _SIDE_BY_SIDE
    cells = [
        [r.setting, r.state, *([_values(r, label) for label in labels] if beside else [_all_values(r)])] for r in rows
    ]
    print_rows(console, "What differs", ["setting", "", *(labels if beside else ["values"])], cells)
    why: dict[str, list[str]] = {}
    for row in (row for row in comparison.audit.rows if row.reason and (row in rows or row.state == "not rehearsed")):
        why.setdefault(f"{row.state}: {row.reason}", []).append(row.setting)
    say_each(console, [f"{listed(settings)}, {reason}" for reason, settings in why.items()])


def _all_values(row: Row) -> str:
    """Of many groups: what was found, and in how many."""
    counts = Counter(_values(row, label) for label in row.values).most_common()
    more = [f"{len(counts) - _SIDE_BY_SIDE} more"] if len(counts) > _SIDE_BY_SIDE else []
    return listed([f"{value} ({count})" for value, count in counts[:_SIDE_BY_SIDE]] + more)


def _print_checks(console: Any, comparison: Comparison) -> None:
    cells = [[check.name, check.state, check.reason] for check in comparison.checks]
    print_rows(console, "Step by step", ["", "", "what was found"], cells)
    unlike = [item for item in comparison.audit.unlike if not item.decides]
    cells = [[u.setting, u.run, f"{u.requested}", f"{u.effective}", u.declared or ""] for u in unlike]
    print_rows(console, "Requested, and not what ran", ["setting", "run", "requested", "ran", "reason"], cells)


def _values(row: Row, label: str) -> str:
    found = row.values[label]
    return "unknown" if found is None else listed(found)


def _print_groups(console: Any, comparison: Comparison) -> None:
    figures = comparison.group_figures
    told = [f for f in _IN_TABLE if any(numbers[f.metric].value is not None for numbers in figures.values())]
    units = {f.metric: _unit([numbers[f.metric] for numbers in figures.values()]) for f in told}
    cells = [
        [titled(group), f"{len(group.shown)}", *(_cell(figures[group.label][f.metric], units[f.metric]) for f in told)]
        for group in comparison.groups
        if group.label in figures
    ]
    heads = [f"{f.title}\n{units[f.metric]}" if units[f.metric] else f.title for f in told]
    print_rows(console, "Groups", ["group", "runs", *heads], cells, numbers_from=1)
    if not cells:
        return
    shown_ = [numbers[f.metric] for numbers in figures.values() for f in told]
    used = {q.source for q in shown_ if q.value is not None}
    legend = ", ".join(f"{mark} {meaning}" for source, (mark, meaning) in _MARKS.items() if source in used)
    if legend:
        half = "; ± half of the 95 % interval of the mean over runs" if any(q.interval for q in shown_) else ""
        say(console, f"source: {legend}{half}", "dim")
    if unknown := [figure.title for figure in _IN_TABLE if figure not in told]:
        say(console, f"not told by any run: {listed(unknown)} (why: --json)", "dim")


def _unit(found: Sequence[Quantity]) -> str:
    """For the head of a column: the unit that all have, where the title does not say it."""
    units = {q.readable().unit for q in found if q.value is not None}
    unit = units.pop() if len(units) == 1 else ""
    return "" if unit.startswith("tokens/s") else unit


def _cell(quantity: Quantity, unit: str) -> str:
    known = quantity.readable()
    if known.value is None:
        return "unknown"
    apart = "" if unit or known.unit.startswith("tokens/s") else f" {known.unit}"
    text = f"{shown(known.value)}{apart} {_MARKS[known.source][0]}"
    if known.interval is None or not known.value:
        return text
    half = 50 * (known.interval[1] - known.interval[0]) / abs(known.value)
    return f"{text}\n±{shown(half, 2)} %"


def _print_ratios(console: Any, comparison: Comparison) -> None:
    few = len(comparison.groups) <= _SIDE_BY_SIDE
    titles = {figure.metric: figure.title for figure in _IN_TABLE if few or figure.metric == SPEED}
    known = [(item, item.result) for item in comparison.ratios if item.metric in titles and item.result]
    why = list(dict.fromkeys(item.reason for item, _ in known))
    one = len(why) == 1
    cells = [[i.group, titles[i.metric], *_ratio_cells(result), *([] if one else [i.reason])] for i, result in known]
    heads = ["group", "metric", "ratio", "95 % interval", "result", *([] if one else ["why"])]
    title = f"Against {comparison.baseline}" + (f": {why[0]}" if one else "")
    print_rows(console, title, heads, cells)
    say_each(console, no_ratio(comparison.ratios, titles))
    if known and not few:
        say(console, "the ratios of other figures: --json, or -o DIR", "dim")


def _ratio_cells(result: Ratio) -> Iterable[str]:
    interval = "" if result.interval is None else f"{result.interval[0]:.3f} to {result.interval[1]:.3f}"
    return f"{result.ratio:.3f}", interval, result.word


def _print_break_evens(console: Any, comparison: Comparison) -> None:
    """Prices of ours are an example: they answer nobody's question here."""
    if comparison.terms.prices.example:
        return
    known = [even for even in comparison.break_evens if even.up_to.value is not None]
    cells = [[even.option, even.rival, _ends(even.up_to)] for even in known]
    print_rows(console, "Break-even: cheaper up to this price of a GPU-hour", ["group", "than", ""], cells)


def _ends(price: Quantity) -> str:
    ends = f" ({shown(price.interval[0])} to {shown(price.interval[1])})" if price.interval else f" ({price.note})"
    return f"{shown(price.value)} {price.unit}{ends}"


def _print_left_out(console: Any, comparison: Comparison) -> None:
    left_out = [(group.label, run.record) for group in comparison.groups for run in group.runs]
    left_out = [(label, r) for label, r in left_out if r.status != "completed" or r.provenance == "rehearsed"]
    cells = [[label, r.id, r.provenance, _status(r), cause(r)] for label, r in left_out]
    print_rows(console, "Runs without numbers", ["group", "run", "", "status", "cause"], cells)


def _status(record: Record) -> str:
    """A launcher that is killed cannot write down that it is gone."""
    return "running (or its launcher died)" if record.status == "running" else record.status


def print_rows(
    console: Any, title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], numbers_from: int | None = None
) -> None:
    """A table; where numbers need more room than there is, turned, with a column a row. No number is ever broken."""
    if not rows:
        return
    table = _table(title, heads, rows, numbers_from)
    if numbers_from is not None and len(rows) <= _SIDE_BY_SIDE and _needed(console, table) > console.width:
        columns = [[head.replace("\n", ", "), *(row[i] for row in rows)] for i, head in enumerate(heads) if i]
        turned = _table(title, [heads[0], *(row[0] for row in rows)], columns, 1)
        table = min((turned, table), key=lambda one: _needed(console, one))
    width = console.width if numbers_from is None else max(console.width, _needed(console, table))
    console.print()
    console.print(table, width=width, crop=False)


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], numbers_from: int | None) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    side: Literal["left", "right"]
    look: Any = {"box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0), "pad_edge": False}
    table = Table(**look, title=Text(title), title_justify="left", title_style="bold")
    for index, head in enumerate(heads):
        number = numbers_from is not None and index >= numbers_from
        side = "right" if number else "left"
        widest = max(len(part) for row in rows for part in row[index].split("\n")) if number else None
        text = Text(plain(head, keep="\n"))
        table.add_column(text, justify=side, overflow="fold", no_wrap=index == 0, min_width=widest)
    for row in rows:
        table.add_row(*(Text(plain(cell, keep="\n")) for cell in row))
    return table


def _needed(console: Any, table: Any) -> int:
    """The columns of a terminal without which numbers or words are broken."""
    from rich.measure import Measurement

    return Measurement.get(console, console.options.update(max_width=10_000), table).minimum


def say_each(console: Any, sentences: Iterable[str]) -> None:
    """A list; lines that go on stand below each other."""
    from rich.table import Table
    from rich.text import Text

    found = Table.grid(padding=(0, 1))
    for sentence in sentences:
        found.add_row("  -", Text(plain(sentence)))
    if found.row_count:
        console.print(found)


def say(console: Any, text: str, style: str = "") -> None:
    from rich.text import Text

    console.print(Text(plain(text, keep="\n"), style=style))
