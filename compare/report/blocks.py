"""The content of a report as data: sections of paragraphs, lists, tables, charts. Every form lays out the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

from markupsafe import Markup
from msgspec import Struct
from msgspec.structs import replace

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


class Measured(Struct, frozen=True):
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
        return first, _ends(map(shown, known.interval), quantity.interval, self.pointer)


Cell: TypeAlias = str | tuple[Line, ...] | Measured


class Paragraph(Struct, frozen=True):
    line: Line


class Bullets(Struct, frozen=True):
    items: tuple[Line, ...]


class Table(Struct, frozen=True):
    """rows: as many cells as heads; the first heads its row. numbers: all but the first column are. in_section: the
    title of its section says the same as the caption, which is hidden."""

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
    """anchor: "" for a part of another section. beside: its parts are narrow, and stand beside each other."""

    title: str
    blocks: Sequence[Block]
    anchor: str = ""
    beside: bool = False


Block: TypeAlias = "Paragraph | Bullets | Table | Charts | Code | Details | Section"


class Report(Struct, frozen=True):
    """word, tone: the verdict. headline: what it comes to, in sentences."""

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
