"""The files that a comparison leaves in a directory: the same content as page, Markdown, spreadsheet, picture, JSON.

fonts/: DejaVu 2.37, cut to Latin, Greek, Cyrillic and signs by pyftsubset, for machines without any font. Other scripts
come from the machine's own fonts; a character that none has is a box."""

from __future__ import annotations

import csv
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from html import escape
from io import StringIO
from itertools import product
from pathlib import Path
from textwrap import shorten, wrap
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from compare.comparison import Comparison, to_json
from compare.figures import FIGURES
from compare.report import charts
from compare.report.blocks import Report, lines_of, text_of
from compare.report.page import headline, report, summary
from conf.arguments import program
from conf.errors import some
from conf.plain import plain
from conf.secret import in_texts, without_shapes
from parsers.storage import dumps
from parsers.text import cell

_HERE = Path(__file__).parent
_PICTURE = "compare.png"
_HEADS = ("verdict", "what", "group", "run", "figure", "value", "unit", "source", "low", "high", "word", "note")
_SPECIAL = re.compile(r"([\\`*_\[\]|#~$@])")
# Of the picture.
_ZOOM = 1.6
_SPACE = 16.0
_PANEL = 44.0  # of a chart's title and caption
_SHOWN_REASONS = 3
_NAMED = 12  # groups that a picture has room to name: the page has all
_TITLES = {False: (16.0, 108), True: (12.5, 145)}  # size and characters a line, of one sentence and of more
_CAPTION = 175  # characters a line
_LABEL = 36


def files(comparison: Comparison, argv: Sequence[str]) -> dict[str, str | bytes]:
    """Return compare.json, .html, .md, .csv and .png, by name. argv: the arguments that made them."""
    return {**texts(comparison, argv), _PICTURE: png(comparison)}


def texts(comparison: Comparison, argv: Sequence[str]) -> dict[str, str]:
    """Return `files` without the picture."""
    content = report(comparison, f"{program('compare')} {shlex.join(argv)}")
    shown = {
        "compare.html": html(content),
        "compare.md": markdown(content, _PICTURE),
        "compare.csv": csv_text(comparison),
    }
    # records that others wrote may hold secrets
    about = {"compare.json": dumps(in_texts(to_json(comparison)), indent=1) + "\n"}
    return about | {name: without_shapes(text) for name, text in shown.items()}


def page(comparison: Comparison, argv: Sequence[str]) -> str:
    """Return compare.html alone. argv: the arguments that made it."""
    return html(report(comparison, f"{program('compare')} {shlex.join(argv)}"))


def html(content: Report) -> str:
    """Return a report as one page that needs nothing beside it."""
    style = Markup("\n".join(_read("report.css", "drawing.css")))
    return _laid_out("report.html", content, lambda text: plain(text, keep="\n"), style=style).lstrip()


def notebook(comparison: Comparison) -> str:
    """Return the top of the report as an element of HTML: title, verdict, and the figures that decide."""
    style = Markup("\n".join(_read("report.css", "drawing.css")).replace(":root", "&"))  # all of it below the element
    return _laid_out("notebook.html", summary(comparison), lambda text: plain(text, keep="\n"), style=style)


def markdown(content: Report, picture: str = "") -> str:
    """Return a report as Markdown, for a pull request or a wiki: the same words and numbers, without the drawings.
    picture: a file beside it, shown on top."""

    def cleaned(text: str) -> str:
        """Return one line in which nothing is Markdown or HTML. An @ or # would call people and issues."""
        return Markup(escape(_SPECIAL.sub(r"\\\1", " ".join(plain(text).split())), quote=False))

    def code(text: str) -> str:
        """Return text as it is within <pre>: not fenced, for a line of a log could end a fence."""
        return Markup(escape(plain(text, keep="\n")))

    text = _laid_out("report.md", content, cleaned, picture=picture, code=code)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _laid_out(template: str, content: Report, clean: Callable[[str], str], **known: Any) -> str:
    """Return the template with the content in it. clean: what every text that goes in passes through."""
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: clean(value) if type(value) is str else value,
    )
    environment.filters |= {"lines": lines_of, "repr": repr, "kind": lambda part: type(part).__name__}
    return environment.get_template(template).render(report=content, text_of=text_of, **known)


def _read(*names: str) -> Iterator[str]:
    return ((_HERE / name).read_text(encoding="utf-8") for name in names)


def csv_text(comparison: Comparison) -> str:
    """Return a line for each figure of every run and group, and for every ratio, in full precision and in the units of
    compare.json; empty is unknown."""
    file = StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(_HEADS)
    writer.writerows([comparison.audit.verdict.word, *map(cell, row)] for row in _csv_rows(comparison))
    return file.getvalue()


def _csv_rows(comparison: Comparison) -> Iterator[tuple[object, ...]]:
    for group in comparison.groups:
        known = [("run", run.record.id, comparison.run_figures[run.path]) for run in group.shown]
        if group.label in comparison.group_figures:
            known.append(("group", "", comparison.group_figures[group.label]))
        for (what, run, figures), figure in product(known, FIGURES):
            q = figures[figure.metric]
            ends = q.interval or ("", "")
            yield what, group.label, run, figure.metric, q.value, q.unit, q.source, *ends, "", q.note
    for item in comparison.ratios:
        ratio, (low, high) = "" if item.ratio is None else item.ratio, item.interval or ("", "")
        against = f"against {item.baseline}"
        yield "ratio", item.group, "", item.metric, ratio, against, "computed", low, high, item.word, item.reason


def png(comparison: Comparison) -> bytes:
    """Return throughput, loss, learning rate and step time as a file in PNG, of the shape of a slide: the page's
    charts, drawn by resvg."""
    import resvg_py

    drawn = charts.all_charts(comparison)
    width, y, parts = 2 * charts.WIDTH + 3 * _SPACE, _SPACE, list[str]()
    size, _ = _TITLES[len(headline(comparison)) > 1]
    for text in title(comparison).splitlines():
        y += 1.3 * size
        parts.append(charts.element("text", text, x=_SPACE, y=y, font_size=size, class_="strong"))
    y += _SPACE
    groups = charts.with_curves(comparison)[:_NAMED]
    for index, (place, side) in enumerate(groups):  # with their lines and shapes, three a row
        row, column = divmod(index, 3)
        x, here = _SPACE + column * (2 * charts.WIDTH + _SPACE) / 3, y + 20 * row
        count = f"{len(side.usable):,} run" + ("" if len(side.usable) == 1 else "s")
        label = f"{_short(side.label, _LABEL)} ({count})"
        parts.append(charts.element("g", charts.sample(place), transform=f"translate({x:g} {here:g})"))
        parts.append(charts.element("text", label, x=x + 44, y=here + 12, class_="label"))
    y += 20 * ((len(groups) + 2) // 3) + (_SPACE if groups else 0)
    for row in range(0, len(drawn), 2):
        for column, chart in enumerate(drawn[row : row + 2]):
            x = _SPACE + column * (charts.WIDTH + _SPACE)
            parts.append(charts.element("text", chart.title, x=x, y=y + 16, font_size=15, class_="strong"))
            parts.append(charts.element("text", _short(chart.caption, 84), x=x, y=y + 34, class_="tick"))
            parts.append(chart.svg(x=x, y=y + 40, width=charts.WIDTH, height=chart.height))
        y += _PANEL + max(charts.HEIGHT, *(chart.height for chart in drawn[row : row + 2])) + _SPACE
    for text in _caption(comparison):
        parts.append(charts.element("text", text, x=_SPACE, y=y, class_="tick"))
        y += 16
    drawing = charts.canvas(width, y, parts, xmlns="http://www.w3.org/2000/svg", width=width, height=y)
    fonts = [str(path) for path in sorted((_HERE / "fonts").glob("*.ttf"))]
    return resvg_py.svg_to_bytes(drawing, style_sheet=style(), background="#ffffff", zoom=_ZOOM, font_files=fonts)


def style() -> str:
    """Return the page's rules for drawings, with its light colours in place of their names, which resvg lacks."""
    page, rules = _read("report.css", "drawing.css")
    light = dict(re.findall(r"--([\w-]+): (#\w+);", page.partition("@media")[0]))
    return re.sub(r"var\(--([\w-]+)\)", lambda name: light[name[1]], rules).replace("inherit", '"DejaVu Sans"')


def _short(text: str, width: int) -> str:
    return shorten(plain(text), width, placeholder=" …")


def title(comparison: Comparison) -> str:
    """Return the headline of the page, wrapped."""
    word = "" if comparison.ratios else f"{comparison.audit.verdict.word.capitalize()}. "
    first, *others = (plain(text_of(sentence)) for sentence in headline(comparison))
    _, width = _TITLES[bool(others)]
    return "\n".join(line for sentence in (word + first, *others) for line in wrap(sentence, width))


def _caption(comparison: Comparison) -> Iterator[str]:
    """Yield lines on where the numbers come from, and on what speaks against comparing them."""
    records = [run.record for _, side in charts.with_curves(comparison) for run in side.usable]
    provenance = ", ".join(dict.fromkeys(record.provenance for record in records)) or "no runs"
    devices, hosts = (
        ", ".join(dict.fromkeys(str(record.environment.get(name) or "unknown") for record in records))
        for name in ("device_name", "host")
    )
    texts_ = [f"{provenance}: {len(records):,} completed runs; device: {devices}; host: {hosts}."]
    if comparison.audit.verdict.word != "comparable":
        texts_.append(some(comparison.audit.verdict.texts, _SHOWN_REASONS, "; "))
    for text in texts_:
        yield from wrap(plain(text), _CAPTION, max_lines=3, placeholder=" …")
