"""What a report is made of before it is HTML or Markdown: sections of paragraphs, lists, tables and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias
from xml.etree.ElementTree import Element

from compare.pictures.drawing import Picture

Tone = Literal["good", "bad", "open", "plain", "quiet"]


@dataclass(frozen=True, slots=True)
class Number:
    """A number as it is read. pointer: where compare.json has it in full (JSON pointer, RFC 6901)."""

    text: str
    value: float | int
    pointer: str


@dataclass(frozen=True, slots=True)
class Tag:
    """A word that is set apart. plain: a source, quiet: beside what counts."""

    text: str
    tone: Tone


Inline: TypeAlias = str | Number | Tag | Element  # an <svg> that repeats what its row says
Line: TypeAlias = tuple[Inline, ...]
Cell: TypeAlias = tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Paragraph:
    line: Line


@dataclass(frozen=True, slots=True)
class Bullets:
    items: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """rows: as many cells as heads; the first heads its row. numbers: all but the first columns are. titled: by the
    section that it is in, so that nobody needs to see the caption again."""

    caption: str
    heads: tuple[Line, ...]
    rows: tuple[tuple[Cell, ...], ...]
    numbers: bool = False
    titled: bool = False


@dataclass(frozen=True, slots=True)
class Pictures:
    """Beside each other where there is room. legend: group labels, each by its place among the groups."""

    pictures: tuple[Picture, ...]
    legend: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Code:
    text: str
    label: str


@dataclass(frozen=True, slots=True)
class Details:
    """Folded on the screen."""

    summary: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """anchor: "" for a part of another section. beside: its parts are narrow, and stand beside each other."""

    title: str
    blocks: tuple[Block, ...]
    anchor: str = ""
    beside: bool = False


Block: TypeAlias = "Paragraph | Bullets | Table | Picture | Pictures | Code | Details | Section"


@dataclass(frozen=True, slots=True)
class Report:
    """word, tone: the verdict. headline: what it comes to, in sentences."""

    title: str
    word: str
    tone: Tone
    headline: tuple[Line, ...]
    sections: tuple[Section, ...]


def line(text: str) -> Line:
    """A line of plain text; of nothing, an empty one."""
    return (text,) if text else ()


def cell(text: str) -> Cell:
    """One line of plain text."""
    return (line(text),)


def text_of(parts: Sequence[Inline]) -> str:
    """A line without its marks and drawings."""
    texts = (part if isinstance(part, str) else part.text for part in parts if not isinstance(part, Element))
    return "".join(texts)
