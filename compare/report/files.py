"""The files that a comparison leaves in a directory."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from compare.comparison import Comparison, to_json
from compare.report.csv_table import csv_text
from compare.report.html_page import html
from compare.report.markdown import markdown
from compare.report.page import report
from compare.report.sources import launched
from parsers.storage import dumps

PICTURE = "compare.png"


def files(comparison: Comparison, argv: Sequence[str]) -> dict[str, str | bytes]:
    """compare.json, .html, .md, .csv and .png, by name. argv: what asked for them, without the program."""
    from compare.report.png import png

    return {**texts(comparison, argv), PICTURE: png(comparison)}


def texts(comparison: Comparison, argv: Sequence[str]) -> dict[str, str]:
    """`files` without the picture."""
    how = {group.runs[0].path: launched(group.runs[0].path) for group in comparison.groups}
    shown = report(comparison, how, shlex.join(["python", "-m", "compare", *argv]))
    return {
        "compare.json": dumps(to_json(comparison), indent=1) + "\n",
        "compare.html": html(shown),
        "compare.md": markdown(shown, PICTURE),
        "compare.csv": csv_text(comparison),
    }
