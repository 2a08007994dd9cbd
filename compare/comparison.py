"""Everything that a comparison shows, as data: made once, then drawn as table, picture and JSON."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compare.audit import Audit, audit
from compare.curves import Check, checks
from compare.figures import FIGURES, Figure
from compare.groups import Group, carries_numbers, group
from compare.statistics import Ratio, mean_of, ratio_of
from conf.errors import InputError, Problem, closest, listed
from metrics import Quantity, summarise
from parsers.find import Run, copies

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Compared:
    """One metric of one group against the baseline. result is None where `reason` says why."""

    group: str
    metric: str
    result: Ratio | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """run_figures: by run path; group_figures: by group label. ratios: none unless comparable."""

    groups: tuple[Group, ...]
    baseline: str
    audit: Audit
    checks: tuple[Check, ...]
    run_figures: Mapping[str, Mapping[str, Quantity]]
    group_figures: Mapping[str, Mapping[str, Quantity]]
    ratios: tuple[Compared, ...]


def compare(runs: Sequence[Run], vary: Sequence[str] | None = None, baseline: str | None = None) -> Comparison:
    """Group, audit and, as far as the verdict allows, compare. InputError: a run twice, no such baseline or setting."""
    problems = tuple(copies(runs))
    if problems:
        raise InputError(*problems)
    groups = group(runs)
    base = _baseline(groups, baseline)
    audited = audit(groups, vary)
    numbers = {run.path: summarise(run.record) for run in runs if carries_numbers(run.record)}
    pooled = {g.label: _pool([numbers[run.path] for run in g.usable]) for g in groups if g.usable}
    others = [g for g in groups if g.label != base.label and g.usable]
    may = audited.verdict.word == "comparable" and base.usable
    return Comparison(
        groups=groups,
        baseline=base.label,
        audit=audited,
        checks=checks(groups),
        run_figures=numbers,
        group_figures=pooled,
        ratios=tuple(_compared(f, g, base, numbers) for g in others for f in FIGURES if f.better) if may else (),
    )


def _baseline(groups: Sequence[Group], label: str | None) -> Group:
    if label is None:
        return next((g for g in groups if g.usable), groups[0])
    labels = [g.label for g in groups]
    if label not in labels:
        raise InputError(Problem("--baseline", "no such group", label, listed(labels), closest(label, labels)))
    return groups[labels.index(label)]


def _pool(numbers: Sequence[Mapping[str, Quantity]]) -> dict[str, Quantity]:
    return {figure.metric: _pooled(figure, [n[figure.metric] for n in numbers]) for figure in FIGURES}


def _pooled(figure: Figure, found: Sequence[Quantity]) -> Quantity:
    """Unknown where one run does not know: a mean over the others would be of a selection."""
    values = _known(found)
    first = found[0]
    if values is None or any((q.unit, q.source) != (first.unit, first.source) for q in found):
        return Quantity(None, first.unit, first.source)
    if figure.pooled == "max":
        return Quantity.of(max(values), first.unit, first.source)
    if figure.pooled == "mean":
        return Quantity.of(statistics.fmean(values), first.unit, first.source)
    if min(values) <= 0:
        return Quantity(None, first.unit, first.source)
    mean, interval = mean_of(values)
    return Quantity(mean, first.unit, first.source, interval)


def _compared(figure: Figure, group_: Group, base: Group, numbers: Mapping[str, Mapping[str, Quantity]]) -> Compared:
    ours = _known([numbers[run.path][figure.metric] for run in group_.usable])
    theirs = _known([numbers[run.path][figure.metric] for run in base.usable])
    if ours is None or theirs is None or figure.better is None or min(*ours, *theirs) <= 0:
        return Compared(group_.label, figure.metric, None, "unknown on one side")
    result = ratio_of(ours, theirs, figure.better)
    return Compared(group_.label, figure.metric, result, result.reason)


def _known(found: Sequence[Quantity]) -> list[float] | None:
    values = [q.value for q in found if q.value is not None]
    return [float(value) for value in values] if values and len(values) == len(found) else None


def to_json(comparison: Comparison) -> dict[str, Any]:
    """compare.json (compare.schema.json)."""
    audited = comparison.audit
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": {"word": audited.verdict.word, "reasons": list(audited.verdict.reasons)},
        "vary": list(audited.varied.keys),
        "vary_reason": audited.varied.reason,
        "baseline": comparison.baseline,
        "audit": [
            {
                "setting": row.setting,
                "kind": row.kind,
                "state": row.state,
                "values": {label: None if v is None else list(v) for label, v in row.values.items()},
                "reason": row.reason,
                "decides": row.decides,
            }
            for row in audited.rows
        ],
        "requested_not_effective": [
            {
                "run": item.run,
                "setting": item.setting,
                "requested": item.requested,
                "effective": item.effective,
                "declared": item.declared,
            }
            for item in audited.unlike
        ],
        "groups": [_group_json(comparison, group_) for group_ in comparison.groups],
        "ratios": [_ratio_json(item, comparison.baseline) for item in comparison.ratios],
    }


def _group_json(comparison: Comparison, group_: Group) -> dict[str, Any]:
    first = group_.runs[0].record
    facts = {name: getattr(first, name) for name in ("provenance", "platform", "hardware", "framework", "image")}
    figures = comparison.group_figures.get(group_.label, {})
    return {
        "label": group_.label,
        **facts,
        "counted_runs": len(group_.usable),
        "figures": {name: quantity.to_json() for name, quantity in figures.items()},
        "runs": [_run_json(run, comparison.run_figures.get(run.path, {})) for run in group_.runs],
    }


def _run_json(run: Run, figures: Mapping[str, Quantity]) -> dict[str, Any]:
    record = run.record
    known = {name: getattr(record, name) for name in ("id", "name", "status", "cause")}
    return {
        "path": run.path,
        **known,
        "notes": list(record.notes),
        "figures": {name: quantity.to_json() for name, quantity in figures.items()},
    }


def _ratio_json(item: Compared, baseline: str) -> dict[str, Any]:
    result = item.result
    interval = None if result is None or result.interval is None else list(result.interval)
    return {
        "group": item.group,
        "baseline": baseline,
        "metric": item.metric,
        "ratio": None if result is None else result.ratio,
        "interval": interval,
        "word": "undecided" if result is None else result.word,
        "reason": item.reason,
    }
