"""A report as Markdown, for a pull request or a wiki: the same words and numbers, without the drawings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import singledispatch
from html import escape

from compare.pictures.drawing import Picture
from compare.report import blocks
from compare.report.blocks import Cell, Line, text_of
from parsers.text import plain

_SPECIAL = re.compile(r"([\\`*_\[\]|#~$@])")
_TOP = 2


def markdown(report: blocks.Report, picture: str | None = None) -> str:
    """The file's text. picture: a file beside it, shown on top."""
    lines = [f"# {_text(report.word[:1].upper() + report.word[1:])}", ""]
    lines += [part for sentence in report.headline for part in (_line(sentence), "")]
    lines += [f"![{_text(report.title)}]({picture})", ""] if picture else []
    for section in report.sections:
        lines += _block(section, _TOP)
    return "\n".join(lines).rstrip() + "\n"


@singledispatch
def _block(block: blocks.Block, level: int) -> Iterator[str]:
    raise TypeError(f"no such block: {block!r}")


@_block.register(blocks.Section)
def _(block: blocks.Section, level: int) -> Iterator[str]:
    yield from (f"{'#' * level} {_text(block.title)}", "")
    for inner in block.blocks:
        yield from _block(inner, level + 1)


@_block.register(blocks.Paragraph)
def _(block: blocks.Paragraph, level: int) -> Iterator[str]:
    yield from (_line(block.line), "")


@_block.register(blocks.Bullets)
def _(block: blocks.Bullets, level: int) -> Iterator[str]:
    yield from (*(f"- {_line(item)}" for item in block.items), "")


@_block.register(blocks.Details)
def _(block: blocks.Details, level: int) -> Iterator[str]:
    yield from (f"<details><summary>{escape(plain(block.summary))}</summary>", "")
    for inner in block.blocks:
        yield from _block(inner, level)
    yield from ("</details>", "")


@_block.register(blocks.Code)
def _(block: blocks.Code, level: int) -> Iterator[str]:
    # Not fenced: a line of a log could end that.
    text = escape(plain(block.text, keep="\n"))
    yield from (f"<pre>{text}</pre>", "")


@_block.register(Picture)
@_block.register(blocks.Pictures)
def _(block: Picture | blocks.Pictures, level: int) -> Iterator[str]:
    yield from ()


@_block.register(blocks.Table)
def _(block: blocks.Table, level: int) -> Iterator[str]:
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
