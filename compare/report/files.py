"""The files that a comparison leaves in a directory: the same content as page, Markdown, spreadsheet, picture, JSON."""

from __future__ import annotations

import csv
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from html import escape
from io import StringIO
from pathlib import Path
from typing import Any

from compare.comparison import Comparison, to_json
from compare.figures import FIGURES
from compare.report.blocks import Report, lines_of, text_of
from compare.report.page import report
from conf.arguments import program
from metrics import Quantity
from parsers.storage import dumps
from parsers.text import plain

HERE = Path(__file__).parent
PICTURE = "compare.png"
_HEADS = ("verdict", "what", "group", "run", "figure", "value", "unit", "source", "low", "high", "word", "note")
# A spreadsheet takes a text that begins so as a formula (owasp.org/www-community/attacks/CSV_Injection).
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_SPECIAL = re.compile(r"([\\`*_\[\]|#~$@])")


def files(comparison: Comparison, argv: Sequence[str]) -> dict[str, str | bytes]:
    """Return compare.json, .html, .md, .csv and .png, by name. argv: the arguments that made them."""
    from compare.report.picture import png

    return {**texts(comparison, argv), PICTURE: png(comparison)}


def texts(comparison: Comparison, argv: Sequence[str]) -> dict[str, str]:
    """Return `files` without the picture."""
    content = report(comparison, f"{program('compare')} {shlex.join(argv)}")
    return {
        "compare.json": dumps(to_json(comparison), indent=1) + "\n",
        "compare.html": html(content),
        "compare.md": markdown(content, PICTURE),
        "compare.csv": csv_text(comparison),
    }


def html(content: Report) -> str:
    """Return a report as one HTML file: no script, nothing from elsewhere, readable by keyboard, screen reader and
    printer."""
    from markupsafe import Markup

    from compare.report.drawing import sample, svg

    style = Markup("\n".join((HERE / name).read_text(encoding="utf-8") for name in ("report.css", "drawing.css")))
    keep = {"svg": svg, "sample": sample, "style": style}
    return _laid_out("report.html", content, lambda text: plain(text, keep="\n"), **keep).lstrip()


def markdown(content: Report, picture: str = "") -> str:
    """Return a report as Markdown, for a pull request or a wiki: the same words and numbers, without the drawings.
    picture: a file beside it, shown on top."""
    text = _laid_out("report.md", content, _markdown_text, picture=picture, code=_code)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _laid_out(template: str, content: Report, clean: Callable[[str], str], **known: Any) -> str:
    """Return the template with the content in it. clean: what every text that goes in passes through."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: clean(value) if type(value) is str else value,
    )
    environment.filters |= {"lines": lines_of, "repr": repr, "kind": lambda part: type(part).__name__}
    return environment.get_template(template).render(report=content, text_of=text_of, **known)


def _markdown_text(text: str) -> str:
    """Return one line in which nothing is Markdown or HTML. An @ or # would call people and issues."""
    from markupsafe import Markup

    return Markup(escape(_SPECIAL.sub(r"\\\1", " ".join(plain(text).split())), quote=False))


def _code(text: str) -> str:
    """Return text as it is within <pre>: not fenced, for a line of a log could end a fence."""
    from markupsafe import Markup

    return Markup(escape(plain(text, keep="\n")))


def csv_text(comparison: Comparison) -> str:
    """Return a line for each figure of every run and group, and for every ratio, in full precision and in the units of
    compare.json; empty is unknown."""
    file = StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(_HEADS)
    for row in _csv_rows(comparison):
        texts_ = (plain(value) if isinstance(value, str) else value for value in row)
        safe = (f"'{t}" if isinstance(t, str) and t.startswith(_FORMULA) else t for t in texts_)
        writer.writerow([comparison.audit.verdict.word, *safe])
    return file.getvalue()


def _csv_rows(comparison: Comparison) -> Iterator[tuple[object, ...]]:
    for group in comparison.groups:
        for run in group.shown:
            for figure in FIGURES:
                q = comparison.run_figures[run.path][figure.metric]
                yield "run", group.label, run.record.id, figure.metric, *_quantity(q)
        for figure in FIGURES if group.label in comparison.group_figures else ():
            q = comparison.group_figures[group.label][figure.metric]
            yield "group", group.label, "", figure.metric, *_quantity(q)
    for item in comparison.ratios:
        ratio, (low, high) = "" if item.ratio is None else item.ratio, item.interval or ("", "")
        against = f"against {item.baseline}"
        yield "ratio", item.group, "", item.metric, ratio, against, "computed", low, high, item.word, item.reason


def _quantity(q: Quantity) -> tuple[object, ...]:
    return q.value, q.unit, q.source, *(q.interval or ("", "")), "", q.note
