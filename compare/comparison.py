"""Everything that a comparison shows, as data: made once, then drawn as table, picture and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from msgspec import to_builtins

from compare.audit import Audit, audit
from compare.checks import Check
from compare.figures import FIGURES, Figure, pool, worded
from compare.groups import Group, group
from compare.question import Question
from compare.scaling import Scaled, scaled_json, scaling
from compare.statistics import Ratio, ratio_of
from compare.tracing import trace
from conf.errors import InputError, Problem, closest, listed
from metrics import Quantity
from metrics.bill import TRILLION, Terms, option_of
from metrics.price import EXAMPLE, read_prices
from metrics.whatif import BreakEven, break_evens
from parsers.find import copies
from parsers.progress import Progress, silent
from parsers.record import Run

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
    """run_figures: by run path; group_figures: by group label. ratios: none unless comparable. terms: what money,
    energy and CO2 of a training are worked out on. difference: the smallest that matters, as a share. break_evens:
    every option against the cheapest other, as ratios."""

    groups: tuple[Group, ...]
    baseline: str
    audit: Audit
    checks: tuple[Check, ...]
    run_figures: Mapping[str, Mapping[str, Quantity]]
    group_figures: Mapping[str, Mapping[str, Quantity]]
    ratios: tuple[Compared, ...]
    terms: Terms
    difference: float
    break_evens: tuple[BreakEven, ...]
    scaling: tuple[Scaled, ...]


def compare(
    runs: Sequence[Run], question: Question | None = None, terms: Terms | None = None, progress: Progress = silent
) -> Comparison:
    """Group, audit and, as far as the verdict allows, compare. InputError: a run twice, steps that cannot be used, no
    such baseline, setting or check."""
    return compare_groups(group(runs), question, terms, progress)


def compare_groups(
    groups: Sequence[Group], question: Question | None = None, terms: Terms | None = None, progress: Progress = silent
) -> Comparison:
    """`compare`, of runs that are grouped already."""
    question = question or Question()
    runs = [run for group_ in groups for run in group_.runs]
    problems = tuple(copies(runs))
    if problems:
        raise InputError(*problems)
    base = _baseline(groups, question.baseline)
    on = terms or Terms(tokens=TRILLION, prices=read_prices(EXAMPLE))
    traces = trace(runs, on, progress)
    audited = audit(groups, question, {path: one.curve for path, one in traces.items()})
    numbers = {path: one.figures for path, one in traces.items() if one.figures}
    pooled = {g.label: _pool([numbers[run.path] for run in g.shown]) for g in groups if g.shown}
    others = [g for g in groups if g.label != base.label and g.usable]
    may = audited.verdict.word == "comparable" and base.usable
    return Comparison(
        groups=tuple(groups),
        baseline=base.label,
        audit=audited,
        checks=audited.checks,
        run_figures=numbers,
        group_figures=pooled,
        ratios=tuple(_ratios(others, base, numbers, question.difference)) if may else (),
        terms=on,
        difference=question.difference,
        break_evens=_break_evens(groups, numbers, on) if may else (),
        scaling=scaling(groups, numbers, question.difference) if may else (),
    )


def _baseline(groups: Sequence[Group], label: str | None) -> Group:
    if label is None:
        return next((g for g in groups if g.usable), groups[0])
    labels = [g.label for g in groups]
    if label not in labels:
        hint = closest(label, labels) or "beside a candidate it may be a filter, too"
        raise InputError(Problem("baseline", "no such group", label, listed(labels), hint))
    return groups[labels.index(label)]


def _pool(numbers: Sequence[Mapping[str, Quantity]]) -> dict[str, Quantity]:
    return {f.metric: pool(f, [figures[f.metric] for figures in numbers]) for f in FIGURES}


def _break_evens(
    groups: Sequence[Group], numbers: Mapping[str, Mapping[str, Quantity]], terms: Terms
) -> tuple[BreakEven, ...]:
    carrying = [group for group in groups if group.usable]
    options = [option_of(g.label, [r.record for r in g.usable], [numbers[r.path] for r in g.usable]) for g in carrying]
    return break_evens(options, terms)


def _ratios(
    others: Sequence[Group], base: Group, numbers: Mapping[str, Mapping[str, Quantity]], difference: float
) -> Iterator[Compared]:
    """Yield every figure with a direction; what nobody in a pair of groups knows is left out."""
    for group_ in others:
        runs = (*group_.usable, *base.usable)
        for figure in FIGURES:
            if figure.better and any(numbers[run.path][figure.metric].value is not None for run in runs):
                quantities = [[numbers[run.path][figure.metric] for run in side.usable] for side in (group_, base)]
                yield _compared(figure, (group_, base), quantities, difference)


def _compared(
    figure: Figure, sides: tuple[Group, Group], quantities: Sequence[Sequence[Quantity]], difference: float
) -> Compared:
    group_, base = sides
    ours, theirs = map(_known, quantities)
    if ours is None or theirs is None or figure.better is None:
        silent = group_ if ours is None else base
        return Compared(group_.label, figure.metric, None, f"unknown of {silent.label}")
    if min(*ours, *theirs) <= 0:
        return Compared(group_.label, figure.metric, None, "no ratio: not above zero in every run")
    guess = next((q for side in quantities for q in side if q.source == "assumed"), None)
    if guess is not None:  # no word about what nobody measured or stated
        return Compared(group_.label, figure.metric, None, f"assumed: {guess.note}" if guess.note else "assumed")
    result = ratio_of(ours, theirs, figure.better, difference)
    result = replace(result, word=worded(figure, result.word))
    return Compared(group_.label, figure.metric, result, result.reason)


def _known(quantities: Sequence[Quantity]) -> list[float] | None:
    values = [q.value for q in quantities if q.value is not None]
    return [float(value) for value in values] if values and len(values) == len(quantities) else None


def to_json(comparison: Comparison) -> dict[str, Any]:
    """Return compare.json (compare.schema.json)."""
    audited = comparison.audit
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": {"word": audited.verdict.word, "reasons": list(audited.verdict.reasons)},
        "vary": list(audited.varied.keys),
        "vary_reason": audited.varied.reason,
        "baseline": comparison.baseline,
        "audit": to_builtins(audited.rows),
        "requested_not_effective": to_builtins(audited.deviations),
        "checks": to_builtins(comparison.checks),
        "rehearsed": audited.rehearsed,
        "difference": comparison.difference,
        "groups": [_group_json(comparison, group_) for group_ in comparison.groups],
        "ratios": [_ratio_json(item, comparison.baseline) for item in comparison.ratios],
        "terms": _terms_json(comparison.terms),
        "break_even": [
            {"option": even.option, "rival": even.rival, "price": even.up_to.to_json()}
            for even in comparison.break_evens
        ],
        "scaling": [scaled_json(scaled) for scaled in comparison.scaling],
    }


def _terms_json(terms: Terms) -> dict[str, Any]:
    prices, known = terms.prices, ("tokens", "power_price", "pue", "host_share", "goodput")
    return {
        **{name: getattr(terms, name) for name in known},
        "carbon": terms.carbon.to_json(),
        "currency": prices.currency,
        "prices_example": prices.example,
        "prices_date": prices.date,
        "prices_source": prices.source,
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
        "runs_to_decide": None if result is None else result.runs_to_decide,
        "reason": item.reason,
    }
