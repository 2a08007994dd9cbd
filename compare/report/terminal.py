"""A report on the terminal, by rich: the verdict and its reasons first, numbers after them."""

from __future__ import annotations

from collections.abc import Mapping
from io import StringIO
from typing import IO, Any

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from compare.report.blocks import (
    Block,
    Bullets,
    Cell,
    Code,
    Measured,
    Paragraph,
    Report,
    Section,
    Table,
    lines_of,
    text_of,
)
from conf.plain import plain, terminal
from metrics import shown

_PLAIN_WIDTH = 120
_MARKS: Mapping[str, tuple[str, str]] = {
    "measured": ("m", "our clock or counter"),
    "log": ("l", "printed by the framework"),
    "given": ("g", "given by you"),
    "computed": ("c", "computed"),
    "spec": ("s", "data sheet"),
    "assumed": ("a", "assumed"),
}
_STYLES = {"good": "bold green", "bad": "bold red", "open": "bold yellow"}


def print_report(report: Report, stream: IO[str]) -> None:
    """Write it to `stream`: in colour and to its width on a terminal, else plain at 120 columns."""
    text = StringIO()
    on_terminal = stream.isatty()
    look: Any = (
        {"file": terminal(stream)} if on_terminal else {"file": text, "width": _PLAIN_WIDTH, "color_system": None}
    )
    console = Console(highlight=False, **look)
    _say(console, report.word, _STYLES.get(report.tone, "bold"))
    _say(console, report.title + (f" ({report.aside})" if report.aside else ""), "bold")
    for sentence in report.headline:
        _say(console, text_of(sentence))
    for block in (*report.board, *(block for section in report.sections for block in section.blocks)):
        _print(console, block)
    if legend := _legend(report):
        _say(console, legend, "dim")
    if not on_terminal:
        stream.writelines(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


def _print(console: Console, block: Block) -> None:
    """Print a block; what is folded on a page, and charts, are left to the page."""
    if isinstance(block, Paragraph):
        _say(console, text_of(block.line))
    elif isinstance(block, Bullets):
        grid = RichTable.grid(padding=(0, 1))  # lines that go on stand below each other
        for item in block.items:
            grid.add_row("  -", Text(plain(text_of(item))))
        console.print(grid)
    elif isinstance(block, Table):
        _print_table(console, block)
    elif isinstance(block, Code):
        _say(console, block.text)
    elif isinstance(block, Section):
        for inner in block.blocks:
            _print(console, inner)


def _legend(report: Report) -> str:
    """Return what the marks beside the numbers mean."""
    blocks = (*report.board, *(block for section in report.sections for block in section.blocks))
    tables = [block for block in blocks if isinstance(block, Table)]
    cells = [cell for table in tables for row in table.rows for cell in row]
    measured = [cell for cell in cells if isinstance(cell, Measured) and cell.quantity.value is not None]
    used = {cell.quantity.source for cell in measured}
    marks = ", ".join(f"{mark} {meaning}" for source, (mark, meaning) in _MARKS.items() if source in used)
    means = {cell.predicted for cell in measured if cell.quantity.interval}
    half = "; ± half of the 95 % interval of the geometric mean over runs" if False in means else ""
    ends = "; predicted: the ends of a prediction's own 95 % interval" if True in means else ""
    return f"source: {marks}{half}{ends}" if marks else ""


def _text(cell: Cell) -> str:
    """Return a cell in few columns: the source as a letter, the interval as a share."""
    if not isinstance(cell, Measured):
        return "\n".join(text for line in lines_of(cell) if (text := text_of(line)))
    known = cell.quantity.readable()
    unit = f" {known.unit}" if cell.with_unit and known.unit else ""
    texts = [known.missing if known.value is None else f"{shown(known.value)}{unit} {_MARKS[known.source][0]}"]
    if known.interval and cell.predicted:
        texts.append(f"{shown(known.interval[0], 3)} to {shown(known.interval[1], 3)} predicted")
    elif known.interval and known.value:
        texts.append(f"±{shown(50 * (known.interval[1] - known.interval[0]) / abs(known.value), 2)} %")
    return "\n".join([*texts, *filter(None, map(text_of, cell.below))])


def _print_table(console: Console, block: Table) -> None:
    """Print a table as wide as its numbers need: none is ever broken."""
    look: Any = {"box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0), "pad_edge": False}
    drawn = RichTable(**look, title=Text(plain(block.caption)), title_justify="left", title_style="bold")
    rows = [[plain(_text(cell), keep="\n") for cell in row] for row in block.rows]
    for index, head in enumerate(block.heads):
        number = block.numbers and index > 0
        firm = number or any(isinstance(row[index], Measured) for row in block.rows)
        widest = max(len(part) for row in rows for part in row[index].split("\n")) if firm else None
        text = Text(plain(text_of(head)))
        justify: Any = "right" if number else "left"
        drawn.add_column(text, justify=justify, overflow="fold", no_wrap=index == 0, min_width=widest)
    for row in rows:
        drawn.add_row(*map(Text, row))
    needed = Measurement.get(console, console.options.update(max_width=10_000), drawn).minimum
    numbers = block.numbers or any(isinstance(cell, Measured) for row in block.rows for cell in row)
    console.print()
    console.print(drawn, width=max(console.width, needed) if numbers else console.width, crop=False)


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(Text(plain(text, keep="\n"), style=style))
