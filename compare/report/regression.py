"""The result of the gate on a new container or driver: a report for people, regression.json for programs."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from msgspec import to_builtins

from compare.regression import Line, Outcome, Regression
from compare.report.blocks import Block, Bullets, Paragraph, Report, Section, Tone, line, tables
from conf.errors import listed
from metrics.quantity import shown

SCHEMA_VERSION = 1
_HEADS = ("figure", "reference", "noise %", "new", "noise %", "difference %", "95 % interval", "word", "limit")
_TONES: dict[Outcome, Tone] = {"ok": "good", "regression": "bad", "failed run": "bad", "cannot tell": "open"}
_HOW = (
    "A figure is a regression where its 95 % interval lies beyond the limit, and none where the interval does not "
    "reach it. Everything else is open: more runs are needed, at least three a side."
)


def regression_report(gate: Regression) -> Report:
    """Return the outcome, the figures of every experiment, and what changed between the sides."""
    limits = listed([f"{metric} {100 * limit:g} %" for metric, limit in gate.limits.items()])
    headline = f"{gate.candidate} against {gate.baseline} (limit: {limits})"
    blocks: list[Block] = [Bullets(tuple(map(line, gate.reasons)))] if gate.reasons else []
    blocks.append(Paragraph(line(_HOW)))
    for case in gate.cases:
        blocks += tables(case.experiment or "Figures", _HEADS, list(map(_cells, case.lines)), numbers=True)
    changes = [(change.fact, listed(change.reference), listed(change.new)) for change in gate.changes]
    changes = changes or [("nothing that the records report", "", "")]
    blocks += tables("What changed", ("fact", gate.baseline, gate.candidate), changes)
    return Report(headline, gate.outcome, _TONES[gate.outcome], (line(headline),), (Section("", tuple(blocks)),))


def _cells(figure: Line) -> tuple[str, ...]:
    unit = next((q.readable().unit for q in (figure.reference, figure.new) if q.value is not None), "")
    title = figure.title if not unit or unit == figure.title else f"{figure.title}, {unit}"
    ends = "" if (e := figure.interval_percent) is None else f"{e[0]:+.2f} to {e[1]:+.2f}"
    difference = "unknown" if figure.difference_percent is None else f"{figure.difference_percent:+.2f}"
    noise = (figure.reference_noise_percent, figure.new_noise_percent)
    before, after = ("" if percent is None else f"{percent:.2f}" for percent in noise)
    old, new = (shown(quantity.readable().value) for quantity in (figure.reference, figure.new))
    return title, old, before, new, after, difference, ends, figure.word.upper(), figure.state or ""


def to_json(gate: Regression) -> dict[str, Any]:
    """Return regression.json (regression.schema.json)."""
    return {
        "schema_version": SCHEMA_VERSION,
        "outcome": gate.outcome,
        "reasons": list(gate.reasons),
        "baseline": gate.baseline,
        "candidate": gate.candidate,
        "limits": dict(gate.limits),
        "cases": [
            {
                "experiment": case.experiment,
                "verdict": to_builtins(case.comparison.audit.verdict),
                "figures": list(map(_line_json, case.lines)),
            }
            for case in gate.cases
        ],
        "changes": to_builtins(gate.changes),
    }


def _line_json(line: Line) -> dict[str, Any]:
    known = {field.name: getattr(line, field.name) for field in fields(line) if field.name != "title"}
    return {**known, "reference": line.reference.to_json(), "new": line.new.to_json()}
