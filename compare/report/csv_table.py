"""A comparison for a spreadsheet: one line for each figure of every run and group, and for every ratio."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from io import StringIO

from compare.comparison import Comparison
from compare.figures import FIGURES
from metrics import Quantity
from parsers.text import plain

_HEADS = ("verdict", "what", "group", "run", "figure", "value", "unit", "source", "low", "high", "word", "note")
# A spreadsheet takes a text that begins so as a formula (owasp.org/www-community/attacks/CSV_Injection).
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_text(comparison: Comparison) -> str:
    """In full precision, in the units of compare.json; empty is unknown. what: run, group or ratio."""
    file = StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(_HEADS)
    for row in _rows(comparison):
        writer.writerow([comparison.audit.verdict.word, *map(_safe, row)])
    return file.getvalue()


def _rows(comparison: Comparison) -> Iterator[tuple[object, ...]]:
    for group in comparison.groups:
        for run in group.shown:
            for figure in FIGURES:
                q = comparison.run_figures[run.path][figure.metric]
                yield "run", group.label, run.record.id, figure.metric, *_quantity(q)
        for figure in FIGURES if group.label in comparison.group_figures else ():
            q = comparison.group_figures[group.label][figure.metric]
            yield "group", group.label, "", figure.metric, *_quantity(q)
    for item in comparison.ratios:
        r = item.result
        known = ("", "", "") if r is None else (r.ratio, *(r.interval or ("", "")))
        what = f"against {comparison.baseline}"
        yield (
            "ratio",
            item.group,
            "",
            item.metric,
            known[0],
            what,
            "computed",
            *known[1:],
            r.word if r else "undecided",
            item.reason,
        )


def _quantity(q: Quantity) -> tuple[object, ...]:
    return q.value, q.unit, q.source, *(q.interval or ("", "")), "", q.note


def _safe(value: object) -> object:
    if not isinstance(value, str):
        return "" if value is None else value
    text = plain(value)
    return f"'{text}" if text.startswith(_FORMULA) else text
