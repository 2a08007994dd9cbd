"""A report as Markdown, for a pull request or a wiki: the same words and numbers, without the drawings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import singledispatch
from html import escape

from compare.report_blocks import (
    Block,
    Bullets,
    Cell,
    Code,
    Details,
    Line,
    Paragraph,
    Picture,
    Pictures,
    Report,
    Section,
    Table,
    text_of,
)
from parsers.terminal import plain

_SPECIAL = re.compile(r"([\\`*_\[\]|#~$@])")
_TOP = 2


def markdown(report: Report, picture: str | None = None) -> str:
    """The file's text. picture: a file beside it, shown on top."""
    lines = [f"# {_text(report.word[:1].upper() + report.word[1:])}", "", _line(report.headline), ""]
    lines += [f"![{_text(report.title)}]({picture})", ""] if picture else []
    for section in report.sections:
        lines += _block(section, _TOP)
    return "\n".join(lines).rstrip() + "\n"


@singledispatch
def _block(block: Block, level: int) -> Iterator[str]:
    raise TypeError(f"no such block: {block!r}")


@_block.register(Section)
def _(block: Section, level: int) -> Iterator[str]:
    yield from (f"{'#' * level} {_text(block.title)}", "")
    for inner in block.blocks:
        yield from _block(inner, level + 1)


@_block.register(Paragraph)
def _(block: Paragraph, level: int) -> Iterator[str]:
    yield from (_line(block.line), "")


@_block.register(Bullets)
def _(block: Bullets, level: int) -> Iterator[str]:
    yield from (*(f"- {_line(item)}" for item in block.items), "")


@_block.register(Details)
def _(block: Details, level: int) -> Iterator[str]:
    yield from (f"<details><summary>{escape(plain(block.summary))}</summary>", "")
    for inner in block.blocks:
        yield from _block(inner, level)
    yield from ("</details>", "")


@_block.register(Code)
def _(block: Code, level: int) -> Iterator[str]:
    # Not fenced: a line of a log could end that.
    text = escape(plain(block.text, keep="\n"))
    yield from (f"<pre>{text}</pre>", "")


@_block.register(Picture)
@_block.register(Pictures)
def _(block: Picture | Pictures, level: int) -> Iterator[str]:
    yield from ()


@_block.register(Table)
def _(block: Table, level: int) -> Iterator[str]:
    drawn = {i for i in range(len(block.heads)) if any(row[i][0] and not text_of(row[i][0]) for row in block.rows)}
    kept = [i for i in range(len(block.heads)) if i not in drawn]
    yield from () if block.titled else (f"**{_text(block.caption)}**", "")
    yield _row([_line(block.heads[i]) for i in kept])
    yield _row(["---:" if block.numbers and i else "---" for i in kept])
    for row in block.rows:
        yield _row([_cell(row[i]) for i in kept])
    yield ""


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cell: Cell) -> str:
    return "<br>".join(_line(line) for line in cell if line)


def _line(line: Line) -> str:
    return _text(text_of(line))


def _text(text: str) -> str:
    """Nothing in it is Markdown or HTML; on one line. An @ or # would call people and issues."""
    return escape(_SPECIAL.sub(r"\\\1", " ".join(plain(text).split())), quote=False)
