"""The content of a report as data: sections of paragraphs, lists, tables, charts. Every form lays out the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from compare.report.charts import Chart, RatioBar, RatioScale
from compare.statistics import Ratio
from metrics import Quantity, shown

Tone = Literal["good", "bad", "open", "plain", "quiet"]


@dataclass(frozen=True, slots=True)
class Number:
    """A number as it is read. pointer: where compare.json has it in full (JSON pointer, RFC 6901)."""

    text: str
    value: float | int
    pointer: str


@dataclass(frozen=True, slots=True)
class Tag:
    """A word that is set apart. plain: it counts; quiet: it stands beside what counts."""

    text: str
    tone: Tone


Inline: TypeAlias = str | Number | Tag | RatioBar | RatioScale
Line: TypeAlias = tuple[Inline, ...]
UNKNOWN: Line = (Tag("unknown", "open"),)
NOT_REPORTED: Line = (Tag("not reported", "quiet"),)


@dataclass(frozen=True, slots=True)
class Measured:
    """A quantity in a cell. pointer: of the quantity in compare.json."""

    quantity: Quantity
    pointer: str
    with_unit: bool = True
    with_interval: bool = True

    @property
    def lines(self) -> tuple[Line, ...]:
        """Value and source, below them the interval."""
        quantity, known = self.quantity, self.quantity.readable()
        if quantity.value is None or known.value is None:
            return (UNKNOWN,)
        unit = f" {known.unit}" if self.with_unit and known.unit else ""
        source = Tag(quantity.source, "open" if quantity.source == "assumed" else "quiet")
        first: Line = (Number(shown(known.value), quantity.value, f"{self.pointer}/value"), f"{unit} ", source)
        if quantity.interval is None or known.interval is None or not self.with_interval:
            return (first,)
        low, high = (
            Number(shown(text), value, f"{self.pointer}/interval/{end}")
            for end, (text, value) in enumerate(zip(known.interval, quantity.interval, strict=True))
        )
        return first, (low, " to ", high)


Cell: TypeAlias = tuple[Line, ...] | Measured
Cells: TypeAlias = "tuple[Cell | str, ...]"


@dataclass(frozen=True, slots=True)
class Paragraph:
    line: Line


@dataclass(frozen=True, slots=True)
class Bullets:
    items: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """rows: as many cells as heads; the first heads its row. numbers: all but the first column are. in_section: the
    title of its section says the same as the caption, which is hidden."""

    caption: str
    heads: tuple[Line, ...]
    rows: tuple[tuple[Cell, ...], ...]
    numbers: bool = False
    in_section: bool = False

    def without_drawings(self) -> Table:
        """Return the table without the columns whose cells are drawings alone, for forms that have none."""
        drawn = {i for row in self.rows for i, c in enumerate(row) if any(lines_of(c)) and not text_of(lines_of(c)[0])}
        kept = [i for i in range(len(self.heads)) if i not in drawn]
        rows = tuple(tuple(row[i] for i in kept) for row in self.rows)
        return Table(self.caption, tuple(self.heads[i] for i in kept), rows, self.numbers, self.in_section)


@dataclass(frozen=True, slots=True)
class Charts:
    """Charts beside each other where there is room. legend: group labels, each by its place among the groups."""

    charts: tuple[Chart, ...]
    legend: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Code:
    text: str
    label: str


@dataclass(frozen=True, slots=True)
class Details:
    """Blocks that are folded on the screen."""

    summary: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """anchor: "" for a part of another section. beside: its parts are narrow, and stand beside each other."""

    title: str
    blocks: tuple[Block, ...]
    anchor: str = ""
    beside: bool = False


Block: TypeAlias = "Paragraph | Bullets | Table | Charts | Code | Details | Section"


@dataclass(frozen=True, slots=True)
class Report:
    """word, tone: the verdict. headline: what it comes to, in sentences."""

    title: str
    word: str
    tone: Tone
    headline: tuple[Line, ...]
    sections: tuple[Section, ...]


def line(text: str) -> Line:
    """Return a line of plain text; an empty one for no text."""
    return (text,) if text else ()


def tables(
    caption: str,
    heads: Sequence[str | Line],
    rows: Sequence[Cells],
    numbers: bool = False,
    in_section: bool = False,
) -> tuple[Table, ...]:
    """Return one table; none without rows. A text stands for a line, or a cell, of plain text."""
    lines = tuple(line(head) if isinstance(head, str) else head for head in heads)
    cells = tuple(tuple((line(cell),) if isinstance(cell, str) else cell for cell in row) for row in rows)
    return (Table(caption, lines, cells, numbers, in_section),) if rows else ()


def lines_of(content: Cell) -> tuple[Line, ...]:
    """Return the lines of a cell."""
    return content.lines if isinstance(content, Measured) else content


def text_of(parts: Line) -> str:
    """Return a line without its marks and drawings."""
    return "".join(
        part if isinstance(part, str) else part.text for part in parts if isinstance(part, str | Number | Tag)
    )


def ratio_lines(result: Ratio, pointer: str, name: str = "ratio") -> tuple[Line, Line]:
    """Return the ratio, and its interval, empty where there is none. pointer: of the entry that has them."""
    ratio: Line = (Number(f"{result.ratio:.3f}", result.ratio, f"{pointer}/{name}"),)
    if result.interval is None:
        return ratio, ()
    low, high = (Number(f"{end:.3f}", end, f"{pointer}/interval/{i}") for i, end in enumerate(result.interval))
    return ratio, (low, " to ", high)
