"""The parts of a report, as data: every form (page, Markdown, terminal) lays out the same ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

from markupsafe import Markup
from msgspec import Struct

from compare.report.charts import Chart
from metrics import Quantity, shown

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
_ROWS = 200  # of a table on the page


class Measured(Struct, frozen=True):
    """A quantity in a cell. pointer: of the quantity in compare.json. below: further lines. predicted: its interval is
    that of a prediction, and of no mean over runs."""

    quantity: Quantity
    pointer: str
    with_unit: bool = True
    below: tuple[Line, ...] = ()
    predicted: bool = False

    @property
    def lines(self) -> tuple[Line, ...]:
        """Return value and source, below them the interval."""
        quantity, known = self.quantity, self.quantity.readable()
        if quantity.value is None or known.value is None:
            return (Tag(quantity.missing, "open"),), *self.below
        unit = f" {known.unit}" if self.with_unit and known.unit else ""
        source = Tag(quantity.source, "open" if quantity.source == "assumed" else "quiet")
        first: Line = (Number(shown(known.value), quantity.value, f"{self.pointer}/value"), f"{unit} ", source)
        if quantity.interval is None or known.interval is None:
            return first, *self.below
        ends = _ends(map(shown, known.interval), quantity.interval, self.pointer)
        return first, (*ends, *([" predicted"] if self.predicted else [])), *self.below


Cell: TypeAlias = str | tuple[Line, ...] | Measured


class Paragraph(Struct, frozen=True):
    line: Line


class Bullets(Struct, frozen=True):
    items: tuple[Line, ...]


class Table(Struct, frozen=True):
    """A table. rows: as many cells as heads; the first heads its row. numbers: all but the first column are.
    in_section: the title of its section says the same as the caption, which is hidden. sides: of the board, whose first
    figures are large, the columns that are a group's; those behind them are ratios. grey: nothing is claimed of it."""

    caption: str
    heads: Sequence[Line]
    rows: Sequence[Sequence[Cell]]
    numbers: bool = False
    in_section: bool = False
    sides: int = 0
    grey: bool = False


class Charts(Struct, frozen=True):
    """Charts beside each other where there is room. legend: each group's line and shape, and its label."""

    charts: Sequence[Chart]
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
    """All that each form of the report lays out. title: what is compared; word, tone: the verdict; aside: how its
    figures stand; headline: what it comes to, in sentences; board: the figures that decide."""

    title: str
    word: str
    tone: Tone
    headline: tuple[Line, ...]
    sections: tuple[Section, ...]
    aside: str = ""
    board: tuple[Block, ...] = ()


def table(
    caption: str, heads: Sequence[Line], rows: Sequence[Sequence[Cell]], numbers: bool = False, in_section: bool = False
) -> list[Table]:
    """Return one table; none without rows, and of very many the first ones."""
    if len(rows) > _ROWS:
        caption = f"{caption} (the first {_ROWS} of {len(rows):,}: compare.json has all)"
    return [Table(caption, heads, rows[:_ROWS], numbers, in_section)] if rows else []


def bullets(texts: Iterable[Line]) -> list[Bullets]:
    """Return one list; none without items."""
    items = tuple(texts)
    return [Bullets(items)] if items else []


def folded(summary: str, text: str) -> Details:
    """Return a text as it is, folded."""
    return Details(summary, (Code(text, summary),))


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
