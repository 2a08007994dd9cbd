"""A report as one HTML file: no script, nothing from elsewhere, readable by keyboard, screen reader and printer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import singledispatch
from pathlib import Path
from xml.etree.ElementTree import Element

from compare.pictures.drawing import Picture, look, marker, polyline
from compare.pictures.markup import Child, h, page
from compare.report import blocks
from compare.report.blocks import Cell, Line

# Whatever a record may have smuggled in: nothing is fetched and nothing runs.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_STYLE = Path(__file__).with_name("report.css")
_SIGNS = {"good": "✓", "bad": "✗", "open": "?", "plain": "–"}
_TOP = 2  # level of a section's heading


def html(report: blocks.Report) -> str:
    """The file's text."""
    head = h(
        "head",
        h("meta", charset="utf-8"),
        h("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        h("meta", name="viewport", content="width=device-width, initial-scale=1"),
        h("meta", name="color-scheme", content="light dark"),
        h("title", report.title),
        h("style", _STYLE.read_text(encoding="utf-8")),
    )
    skip = h("a", "Skip to the verdict", href="#verdict", class_="skip")
    body = h("body", skip, _banner(report), _contents(report), h("main", map(_section, report.sections), id="main"))
    return page(h("html", head, body, lang="en"))


def _banner(report: blocks.Report) -> Element:
    sign = h("span", _SIGNS.get(report.tone, "–"), class_="sign", aria_hidden="true")
    word = h("h1", sign, report.word[:1].upper() + report.word[1:])
    said = (h("p", _line(sentence), class_="headline") for sentence in report.headline)
    return h("header", word, said, class_=f"banner {report.tone}")


def _contents(report: blocks.Report) -> Element:
    links = (h("li", h("a", section.title, href=f"#{section.anchor}")) for section in report.sections)
    return h("nav", h("ul", links), aria_label="Contents")


def _section(section: blocks.Section) -> Element:
    title = h("h2", section.title, id=f"{section.anchor}-title")
    blocks = (_block(block, _TOP + 1) for block in section.blocks)
    # The skip link and the contents jump here: it takes the focus, too.
    name = f"{section.anchor}-title"
    beside = "beside" if section.beside else None
    return h("section", title, blocks, id=section.anchor, aria_labelledby=name, tabindex="-1", class_=beside)


@singledispatch
def _block(block: blocks.Block, level: int) -> Child:
    raise TypeError(f"no such block: {block!r}")


@_block.register(blocks.Paragraph)
def _(block: blocks.Paragraph, level: int) -> Child:
    return h("p", _line(block.line))


@_block.register(blocks.Bullets)
def _(block: blocks.Bullets, level: int) -> Child:
    return h("ul", (h("li", _line(item)) for item in block.items))


@_block.register(blocks.Section)
def _(block: blocks.Section, level: int) -> Child:
    return h("div", h(f"h{level}", block.title), (_block(inner, level + 1) for inner in block.blocks), class_="part")


@_block.register(blocks.Details)
def _(block: blocks.Details, level: int) -> Child:
    return h("details", h("summary", block.summary), (_block(inner, level) for inner in block.blocks))


@_block.register(blocks.Code)
def _(block: blocks.Code, level: int) -> Child:
    return h("pre", h("code", block.text), tabindex="0", role="region", aria_label=block.label)


@_block.register(Picture)
def _(block: Picture, level: int) -> Child:
    caption = h("figcaption", h("strong", block.title), " ", block.caption)
    return h("figure", caption, block.drawing)


@_block.register(blocks.Pictures)
def _(block: blocks.Pictures, level: int) -> Child:
    legend = h("ul", (h("li", _sample(place), label) for place, label in block.legend), class_="legend")
    return h(
        "div", legend if block.legend else None, h("div", (_block(p, level) for p in block.pictures), class_="pictures")
    )


@_block.register(blocks.Table)
def _(block: blocks.Table, level: int) -> Child:
    head = h("thead", h("tr", (h("th", _line(head), scope="col") for head in block.heads)))
    body = h("tbody", map(_row, block.rows))
    table = h(
        "table",
        h("caption", block.caption, class_="hidden" if block.titled else None),
        head,
        body,
        class_="numbers" if block.numbers else None,
    )
    # Wide tables scroll by themselves, by keyboard too.
    return h("div", table, class_="scroll", role="region", aria_label=block.caption, tabindex="0")


def _row(cells: Sequence[Cell]) -> Element:
    first, *others = cells
    return h("tr", h("th", _cell(first), scope="row"), (h("td", _cell(cell)) for cell in others))


def _cell(cell: Cell) -> Iterator[Child]:
    for index, line in enumerate(line for line in cell if line):
        yield _line(line) if index == 0 else h("div", _line(line), class_="below")


def _line(line: Line) -> list[Child]:
    return [_inline(part) for part in line]


def _inline(part: blocks.Inline) -> Child:
    if isinstance(part, (str, Element)):
        return part
    if isinstance(part, blocks.Number):
        return h("data", part.text, value=repr(part.value), data_json=part.pointer)
    return h("span", part.text, class_=f"tag {part.tone}")


def _sample(place: int) -> Element:
    parts = h("path", d=polyline([(1, 7), (35, 7)]), class_=f"curve {look(place)}"), marker(place, 18, 7)
    return h("svg", parts, viewBox="0 0 36 14", width="36", height="14", aria_hidden="true")
