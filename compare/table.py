"""A comparison on the terminal: the verdict and its reasons first, numbers after them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from typing import IO, Any

from compare.audit import Row
from compare.comparison import Compared, Comparison
from compare.figures import FIGURES
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
_MEMORY = 1e9


def print_table(comparison: Comparison, stream: IO[str]) -> None:
    """Write it to `stream`: in colour and to its width on a terminal, else plain at 120 columns."""
    from rich.console import Console

    if stream.isatty():
        _print_all(Console(file=stream, highlight=False), comparison)
        return
    text = StringIO()
    _print_all(Console(file=text, width=_PLAIN_WIDTH, highlight=False, color_system=None), comparison)
    stream.writelines(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


def _print_all(console: Any, comparison: Comparison) -> None:
    _print_verdict(console, comparison)
    _print_differences(console, comparison)
    _print_groups(console, comparison)
    _print_ratios(console, comparison)
    _print_left_out(console, comparison)


def _print_verdict(console: Any, comparison: Comparison) -> None:
    verdict = comparison.audit.verdict
    style = {"comparable": "bold green", "not comparable": "bold red", "cannot tell": "bold yellow"}
    states = [row.state for row in comparison.audit.rows]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    _say(console, f"{verdict.word}" + (f" ({counts})" if counts else ""), style.get(verdict.word, "bold"))
    for reason in verdict.reasons:
        _say(console, f"  - {reason}")
    if len(comparison.groups) > 1:
        varied = comparison.audit.varied
        _say(console, f"compared: {listed(varied.keys)} ({varied.reason})")


def _print_differences(console: Any, comparison: Comparison) -> None:
    rows = [row for row in comparison.audit.rows if row.state in ("varied", "declared", "allowed")]
    labels = list(rows[0].values) if rows else []
    cells = [[row.setting, row.state, *(_values(row, label) for label in labels), row.reason] for row in rows]
    _table(console, "What differs", ["setting", "", *labels, "reason"], cells)


def _values(row: Row, label: str) -> str:
    found = row.values[label]
    return "unknown" if found is None else listed(found)


def _print_groups(console: Any, comparison: Comparison) -> None:
    figures = comparison.group_figures
    cells = [
        [group.label, f"{len(group.usable)}", *(_cell(figures[group.label][f.metric]) for f in FIGURES)]
        for group in comparison.groups
        if group.label in figures
    ]
    _table(console, "Groups", ["group", "runs", *(figure.title for figure in FIGURES)], cells, numbers_from=1)
    used = {q.source for numbers in figures.values() for q in numbers.values() if q.value is not None}
    legend = ", ".join(f"{mark} {meaning}" for source, (mark, meaning) in _MARKS.items() if source in used)
    if legend:
        _say(console, f"source: {legend}; in brackets the 95 % interval of the mean over runs", "dim")


def _cell(quantity: Quantity) -> str:
    if quantity.value is None:
        return "unknown"
    text = f"{_in_unit(quantity.value, quantity.unit)} {_MARKS[quantity.source][0]}"
    if quantity.interval is None:
        return text
    low, high = (_in_unit(end, quantity.unit, with_unit=False) for end in quantity.interval)
    return f"{text}\n({low} to {high})"


def _in_unit(value: float, unit: str, with_unit: bool = True) -> str:
    if unit.startswith("bytes"):
        return f"{shown(value / _MEMORY)} GB{unit.removeprefix('bytes')}"
    return f"{shown(value)} s" if unit == "s" and with_unit else shown(value)


def _print_ratios(console: Any, comparison: Comparison) -> None:
    titles = {figure.metric: figure.title for figure in FIGURES}
    cells = [[item.group, titles[item.metric], *_ratio_cells(item)] for item in comparison.ratios]
    heads = ["group", "metric", "ratio", "95 % interval", "word", "why"]
    _table(console, f"Against {comparison.baseline}", heads, cells)


def _ratio_cells(item: Compared) -> Iterable[str]:
    result = item.result
    if result is None:
        return "unknown", "", "undecided", item.reason
    interval = "" if result.interval is None else f"{result.interval[0]:.3f} to {result.interval[1]:.3f}"
    return f"{result.ratio:.3f}", interval, result.word, item.reason


def _print_left_out(console: Any, comparison: Comparison) -> None:
    left_out = [(group.label, run.record) for group in comparison.groups for run in group.runs]
    left_out = [(label, r) for label, r in left_out if r.status != "completed" or r.provenance == "rehearsed"]
    cells = [[label, r.id, r.provenance, _status(r), r.cause or "no cause told"] for label, r in left_out]
    _table(console, "Runs without numbers", ["group", "run", "", "status", "cause"], cells)


def _status(record: Record) -> str:
    """A launcher that is killed cannot write down that it is gone."""
    return "running (or its launcher died)" if record.status == "running" else record.status


def _table(
    console: Any, title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], numbers_from: int | None = None
) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return
    table = Table(box=box.SIMPLE_HEAD, title=Text(title), title_justify="left", title_style="bold", pad_edge=False)
    for index, head in enumerate(heads):
        right = numbers_from is not None and index >= numbers_from
        table.add_column(Text(plain(head)), justify="right" if right else "left", overflow="fold", no_wrap=index == 0)
    for row in rows:
        table.add_row(*(Text(plain(cell, keep="\n")) for cell in row))
    console.print()
    console.print(table)


def _say(console: Any, text: str, style: str = "") -> None:
    from rich.text import Text

    console.print(Text(plain(text, keep="\n"), style=style))
