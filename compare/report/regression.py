"""A regression's outcome for people and programs: a table on the terminal, Markdown for a pull request, JSON."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from typing import IO, Any

from compare.regression import Case, Line, Regression
from conf.errors import listed
from metrics.quantity import Quantity, shown
from parsers.text import plain

SCHEMA_VERSION = 1
_HEADS = ("figure", "reference", "noise %", "new", "noise %", "difference %", "95 % interval", "word", "limit")
_STYLES = {"ok": "bold green", "regression": "bold red", "failed run": "bold red", "cannot tell": "bold yellow"}
_HOW = (
    "A regression is one whose whole 95 % interval lies beyond the limit, none one whose whole interval does not reach "
    "it. All else cannot be told: more runs are needed, three a side at least."
)


def print_regression(found: Regression, stream: IO[str]) -> None:
    """Write it to `stream`, the outcome first."""
    from compare.report.terminal import console_of, print_rows, say, say_each

    with console_of(stream) as console:
        say(console, _outcome(found), _STYLES[found.outcome])
        say_each(console, found.reasons)
        say(console, _HOW, "dim")
        for case in found.cases:
            rows = [_cells(line) for line in case.lines]
            print_rows(console, case.experiment or "Figures", _HEADS, rows, numbers_from=1)
        print_rows(console, "What changed", ["", found.baseline, found.candidate], _changes(found))


def to_markdown(found: Regression) -> str:
    """For a pull request: the outcome, the figures, what changed."""
    lines = [f"**{_cell(_outcome(found))}**", ""]
    lines += [f"- {_cell(reason)}" for reason in found.reasons]
    for case in found.cases:
        lines += ["", *([f"#### {_cell(case.experiment)}", ""] if case.experiment else [])]
        lines += _rows(_HEADS, [_cells(line) for line in case.lines], numbers=True)
    lines += ["", *_rows(["what changed", found.baseline, found.candidate], _changes(found))]
    return "\n".join([*lines, "", _HOW, ""])


def to_json(found: Regression) -> dict[str, Any]:
    """regression.json (regression.schema.json)."""
    return {
        "schema_version": SCHEMA_VERSION,
        "outcome": found.outcome,
        "reasons": list(found.reasons),
        "baseline": found.baseline,
        "candidate": found.candidate,
        "limits": {limit.metric: limit.share for limit in found.limits},
        "cases": [_case_json(case) for case in found.cases],
        "changes": [{"fact": c.fact, "reference": list(c.reference), "new": list(c.new)} for c in found.changes],
    }


def _changes(found: Regression) -> list[list[str]]:
    changes = [[change.fact, listed(change.reference), listed(change.new)] for change in found.changes]
    return changes or [["nothing that the records tell", "", ""]]


def _outcome(found: Regression) -> str:
    limits = listed([f"{limit.metric} {100 * limit.share:g} %" for limit in found.limits])
    return f"{found.outcome}: {found.candidate} against {found.baseline} (limit: {limits})"


def _cells(line: Line) -> list[str]:
    ends = "" if line.ends is None else f"{line.ends[0]:+.2f} to {line.ends[1]:+.2f}"
    difference = "unknown" if line.difference is None else f"{line.difference:+.2f}"
    (before, after), word = line.noise, line.word.upper()
    sides = [_value(line.reference), _noise(before), _value(line.new), _noise(after)]
    return [_title(line), *sides, difference, ends, word, line.state]


def _title(line: Line) -> str:
    unit = next((q.readable().unit for q in (line.reference, line.new) if q.value is not None), "")
    return line.title if not unit or unit == line.title else f"{line.title}, {unit}"


def _value(quantity: Quantity) -> str:
    return shown(quantity.readable().value)


def _noise(percent: float | None) -> str:
    return "" if percent is None else f"{percent:.2f}"


def _rows(heads: Sequence[str], rows: Sequence[Sequence[str]], numbers: bool = False) -> Iterator[str]:
    rule = ["---", *("---:" if numbers else "---" for _ in heads[1:])]
    for cells in (list(map(_cell, heads)), rule, *(list(map(_cell, row)) for row in rows)):
        yield f"| {' | '.join(cells)} |"


def _cell(text: str) -> str:
    """One line of Markdown that is only text: no tags, no links, no table ends."""
    return re.sub(r"([\\`*_\[\]|#~])", r"\\\1", html.escape(plain(text), quote=False))


def _case_json(case: Case) -> dict[str, Any]:
    verdict = case.comparison.audit.verdict
    return {
        "experiment": case.experiment,
        "verdict": {"word": verdict.word, "reasons": list(verdict.reasons)},
        "figures": [_line_json(line) for line in case.lines],
    }


def _line_json(line: Line) -> dict[str, Any]:
    return {
        "metric": line.metric,
        "reference": line.reference.to_json(),
        "reference_noise_percent": line.noise[0],
        "new": line.new.to_json(),
        "new_noise_percent": line.noise[1],
        "difference_percent": line.difference,
        "interval_percent": None if line.ends is None else list(line.ends),
        "word": line.word,
        "state": line.state or None,
        "reason": line.reason,
    }
