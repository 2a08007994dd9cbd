"""What the gate on a new container or driver came to: a report for people, regression.json for programs."""

from __future__ import annotations

from typing import Any

from compare.regression import Case, Line, Outcome, Regression
from compare.report.blocks import Block, Bullets, Paragraph, Report, Section, Tone, line, tables
from conf.errors import listed
from metrics.quantity import shown

SCHEMA_VERSION = 1
_HEADS = ("figure", "reference", "noise %", "new", "noise %", "difference %", "95 % interval", "word", "limit")
_TONES: dict[Outcome, Tone] = {"ok": "good", "regression": "bad", "failed run": "bad", "cannot tell": "open"}
_HOW = (
    "A regression is one whose 95 % interval lies beyond the limit, none one whose interval does not reach it. "
    "All else cannot be told: more runs are needed, three a side at least."
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
    ends = "" if figure.ends is None else f"{figure.ends[0]:+.2f} to {figure.ends[1]:+.2f}"
    difference = "unknown" if figure.difference is None else f"{figure.difference:+.2f}"
    before, after = ("" if percent is None else f"{percent:.2f}" for percent in figure.noise)
    old, new = (shown(quantity.readable().value) for quantity in (figure.reference, figure.new))
    return title, old, before, new, after, difference, ends, figure.word.upper(), figure.state


def to_json(gate: Regression) -> dict[str, Any]:
    """Return regression.json (regression.schema.json)."""
    return {
        "schema_version": SCHEMA_VERSION,
        "outcome": gate.outcome,
        "reasons": list(gate.reasons),
        "baseline": gate.baseline,
        "candidate": gate.candidate,
        "limits": dict(gate.limits),
        "cases": [_case_json(case) for case in gate.cases],
        "changes": [{"fact": c.fact, "reference": list(c.reference), "new": list(c.new)} for c in gate.changes],
    }


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
