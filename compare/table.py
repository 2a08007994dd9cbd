"""A comparison on the terminal: the verdict and its reasons first, numbers after them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import StringIO
from typing import IO, Any, Literal

from compare.audit import Row
from compare.comparison import Compared, Comparison
from compare.figures import FIGURES
from compare.groups import Group
from conf.errors import listed
from metrics import Quantity, shown
from parsers import Record
from parsers.terminal import plain

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
    for reason in verdict.reasons:
        say(console, f"  - {reason}")
    if len(comparison.groups) > 1:
        varied = comparison.audit.varied
        say(console, f"compared: {listed(varied.keys)} ({varied.reason})")


def _print_differences(console: Any, comparison: Comparison) -> None:
    rows = [row for row in comparison.audit.rows if row.state in ("varied", "declared", "allowed", "not rehearsed")]
    labels = list(rows[0].values) if rows else []
    if len(labels) <= _SIDE_BY_SIDE:
        cells = [[row.setting, row.state, *(_values(row, label) for label in labels), row.reason] for row in rows]
        print_rows(console, "What differs", ["setting", "", *labels, "reason"], cells)
        return
    cells = [[row.setting, row.state, _all_values(row), row.reason] for row in rows]
    print_rows(console, "What differs", ["setting", "", "values", "reason"], cells)


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
        [_group(group), f"{len(group.shown)}", *(_cell(figures[group.label][f.metric], units[f.metric]) for f in told)]
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
        say(console, f"source: {legend}; ± half of the 95 % interval of the mean over runs", "dim")
    if unknown := [figure.title for figure in _IN_TABLE if figure not in told]:
        say(console, f"not told by any run: {listed(unknown)} (why: --json)", "dim")


def _group(group: Group) -> str:
    """An estimate stands beside what was measured, and is no run."""
    return group.label if group.usable else f"{group.label} ({group.shown[0].record.provenance})"


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
    titles = {figure.metric: figure.title for figure in _IN_TABLE}
    cells = [[i.group, titles[i.metric], *_ratio_cells(i)] for i in comparison.ratios if i.metric in titles]
    heads = ["group", "metric", "ratio", "95 % interval", "word", "why"]
    print_rows(console, f"Against {comparison.baseline}", heads, cells)


def _ratio_cells(item: Compared) -> Iterable[str]:
    result = item.result
    if result is None:
        return "unknown", "", "undecided", item.reason
    interval = "" if result.interval is None else f"{result.interval[0]:.3f} to {result.interval[1]:.3f}"
    return f"{result.ratio:.3f}", interval, result.word, item.reason


def _print_break_evens(console: Any, comparison: Comparison) -> None:
    """Prices of ours are an example: they answer nobody's question here."""
    if comparison.terms.prices.example:
        return
    known = [even for even in comparison.break_evens if even.price.value is not None]
    cells = [[even.option, even.rival, _ends(even.price)] for even in known]
    print_rows(console, "Break-even: cheaper up to this price of a GPU-hour", ["group", "than", ""], cells)


def _ends(price: Quantity) -> str:
    ends = f" ({shown(price.interval[0])} to {shown(price.interval[1])})" if price.interval else f" ({price.note})"
    return f"{shown(price.value)} {price.unit}{ends}"


def _print_left_out(console: Any, comparison: Comparison) -> None:
    left_out = [(group.label, run.record) for group in comparison.groups for run in group.runs]
    left_out = [(label, r) for label, r in left_out if r.status != "completed" or r.provenance == "rehearsed"]
    cells = [[label, r.id, r.provenance, _status(r), r.cause or "no cause told"] for label, r in left_out]
    print_rows(console, "Runs without numbers", ["group", "run", "", "status", "cause"], cells)


def _status(record: Record) -> str:
    """A launcher that is killed cannot write down that it is gone."""
    return "running (or its launcher died)" if record.status == "running" else record.status


def print_rows(
    console: Any, title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], numbers_from: int | None = None
) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    side: Literal["left", "right"]
    if not rows:
        return
    table = Table(box=box.SIMPLE_HEAD, title=Text(title), title_justify="left", title_style="bold", pad_edge=False)
    for index, head in enumerate(heads):
        side = "right" if numbers_from is not None and index >= numbers_from else "left"
        table.add_column(Text(plain(head, keep="\n")), justify=side, overflow="fold", no_wrap=index == 0)
    for row in rows:
        table.add_row(*(Text(plain(cell, keep="\n")) for cell in row))
    console.print()
    console.print(table)


def say(console: Any, text: str, style: str = "") -> None:
    from rich.text import Text

    console.print(Text(plain(text, keep="\n"), style=style))
