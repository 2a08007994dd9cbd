"""Everything that a comparison shows, as data: made once, then laid out as page, picture, table and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeAlias

from msgspec import to_builtins

from compare.audit import Audit, audit
from compare.checks import Check
from compare.figures import FIGURES, SPEED, Figure, pool, worded
from compare.groups import Group, gathered, group
from compare.question import Question
from compare.statistics import Ratio, ratio_of
from compare.tracing import trace
from conf.errors import InputError, Problem, closest, listed
from metrics import Quantity
from metrics.bill import TRILLION, BreakEven, Terms, break_evens, option_of
from metrics.terms import EXAMPLE, read_prices
from parsers.find import copies
from parsers.progress import Progress, silent
from parsers.record import Run

SCHEMA_VERSION = 1
TOTAL = "tokens_per_s"
_KIND = ("platform", "hardware", "framework", "image")
Numbers: TypeAlias = Mapping[str, Mapping[str, Quantity]]  # by run path or group label, and by metric


@dataclass(frozen=True, slots=True)
class Compared:
    """One metric of one group against the baseline. result is None where `reason` says why."""

    group: str
    metric: str
    result: Ratio | None
    reason: str


@dataclass(frozen=True, slots=True)
class Scaled:
    """A group among others of its kind. smallest: the one with the fewest GPUs; efficiency: tokens/s per GPU over that
    one's, 1 where speed grows as GPUs do; of the smallest itself None."""

    group: str
    smallest: str
    gpus: int
    smallest_gpus: int
    efficiency: Ratio | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """run_figures: by run path; group_figures: by group label. ratios: none unless comparable. terms: what money,
    energy and CO2 of a training are worked out on. difference: the smallest that matters, as a share. break_evens:
    every option against the cheapest other, as ratios."""

    groups: tuple[Group, ...]
    baseline: str
    audit: Audit
    checks: tuple[Check, ...]
    run_figures: Numbers
    group_figures: Numbers
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
    if problems := tuple(copies(runs)):
        raise InputError(*problems)
    base = _baseline(groups, question.baseline)
    on = terms or Terms(tokens=TRILLION, prices=read_prices(EXAMPLE))
    traces = trace(runs, on, progress)
    audited = audit(groups, question, {path: one.curve for path, one in traces.items()})
    numbers = {path: one.figures for path, one in traces.items() if one.figures}
    pooled = {
        g.label: {f.metric: pool(f, [numbers[run.path][f.metric] for run in g.shown]) for f in FIGURES}
        for g in groups
        if g.shown
    }
    carrying = [g for g in groups if g.usable]
    options = [option_of(g.label, [r.record for r in g.usable], [numbers[r.path] for r in g.usable]) for g in carrying]
    may = audited.verdict.word == "comparable" and base.usable
    return Comparison(
        groups=tuple(groups),
        baseline=base.label,
        audit=audited,
        checks=audited.checks,
        run_figures=numbers,
        group_figures=pooled,
        ratios=tuple(_ratios([g for g in carrying if g.label != base.label], base, numbers, question.difference))
        if may
        else (),
        terms=on,
        difference=question.difference,
        break_evens=break_evens(options, on) if may else (),
        scaling=tuple(_scaling(groups, numbers, question.difference)) if may else (),
    )


def _baseline(groups: Sequence[Group], label: str | None) -> Group:
    if label is None:
        return next((g for g in groups if g.usable), groups[0])
    labels = [g.label for g in groups]
    if label not in labels:
        hint = closest(label, labels) or "beside a candidate it may be a filter, too"
        raise InputError(Problem("baseline", "no such group", label, listed(labels), hint))
    return groups[labels.index(label)]


def _scaling(groups: Sequence[Group], numbers: Numbers, difference: float) -> Iterator[Scaled]:
    """Yield every group whose speed and number of GPUs is known, in families of one kind of machine, by GPUs; nothing
    of a family with one number of GPUs. Of groups with the fewest GPUs the first is the base of the others."""
    rates = {g.label: _known([numbers[run.path][SPEED] for run in g.usable]) for g in groups}
    families: list[tuple[tuple[Any, ...], tuple[int, Group]]] = []
    for group_ in groups:
        sizes = {run.record.setting("world_size") for run in group_.usable}
        gpus = sizes.pop() if len(sizes) == 1 else None
        if type(gpus) is int and gpus > 0 and min(rates[group_.label] or (0.0,)) > 0:
            first = group_.usable[0].record
            families.append((tuple(getattr(first, name) for name in _KIND), (gpus, group_)))
    for family in gathered(families).values():
        by_gpus = sorted(family, key=lambda one: one[0])
        fewest, base = by_gpus[0]
        for gpus, group_ in by_gpus if by_gpus[-1][0] > fewest else ():
            ours, theirs = rates[group_.label] or (), rates[base.label] or ()
            efficiency = None if group_ is base else ratio_of(ours, theirs, "higher", difference)
            yield Scaled(group_.label, base.label, gpus, fewest, efficiency)


def _ratios(others: Sequence[Group], base: Group, numbers: Numbers, difference: float) -> Iterator[Compared]:
    """Yield every figure with a direction; what nobody in a pair of groups knows is left out."""
    for group_ in others:
        for figure in FIGURES:
            both = [[numbers[run.path][figure.metric] for run in side.usable] for side in (group_, base)]
            if figure.better and any(q.value is not None for q in chain(*both)):
                yield _compared(figure, (group_.label, base.label), both, difference)


def _compared(
    figure: Figure, labels: tuple[str, str], quantities: Sequence[Sequence[Quantity]], difference: float
) -> Compared:
    ours, theirs = map(_known, quantities)
    guess = next((q for q in chain(*quantities) if q.source == "assumed"), None)
    if ours is None or theirs is None or figure.better is None:
        reason = f"unknown of {labels[0] if ours is None else labels[1]}"
    elif min(*ours, *theirs) <= 0:
        reason = "no ratio: not above zero in every run"
    elif guess is not None:  # no word about what nobody measured or stated
        reason = f"assumed: {guess.note}" if guess.note else "assumed"
    else:
        result = ratio_of(ours, theirs, figure.better, difference)
        result = replace(result, word=worded(figure, result.word))
        return Compared(labels[0], figure.metric, result, result.reason)
    return Compared(labels[0], figure.metric, None, reason)


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
        "scaling": [_scaled_json(scaled) for scaled in comparison.scaling],
    }


def _terms_json(terms: Terms) -> dict[str, Any]:
    prices, known = terms.prices, ("tokens", "power_price", "pue", "host_share", "goodput")
    return {
        **{name: getattr(terms, name) for name in known},
        "carbon": terms.carbon.to_json(),
        "currency": prices.currency,
        **{f"prices_{name}": getattr(prices, name) for name in ("example", "date", "source")},
    }


def _group_json(comparison: Comparison, group_: Group) -> dict[str, Any]:
    first = group_.runs[0].record
    return {
        "label": group_.label,
        **{name: getattr(first, name) for name in ("provenance", "platform", "hardware", "framework", "image")},
        "counted_runs": len(group_.usable),
        "figures": _figures_json(comparison.group_figures.get(group_.label, {})),
        "runs": [
            {
                "path": run.path,
                **{name: getattr(run.record, name) for name in ("id", "name", "status", "cause", "notes")},
                "figures": _figures_json(comparison.run_figures.get(run.path, {})),
            }
            for run in group_.runs
        ],
    }


def _figures_json(figures: Mapping[str, Quantity]) -> dict[str, Any]:
    return {name: quantity.to_json() for name, quantity in figures.items()}


def _ratio_json(item: Compared, baseline: str) -> dict[str, Any]:
    result = item.result
    return {
        "group": item.group,
        "baseline": baseline,
        "metric": item.metric,
        "ratio": None if result is None else result.ratio,
        "interval": None if result is None else result.interval,
        "word": "undecided" if result is None else result.word,
        "runs_to_decide": None if result is None else result.runs_to_decide,
        "reason": item.reason,
    }


def _scaled_json(scaled: Scaled) -> dict[str, Any]:
    result = scaled.efficiency
    known = {name: getattr(scaled, name) for name in ("group", "gpus", "smallest", "smallest_gpus")}
    ratio, interval = (None, None) if result is None else (result.ratio, result.interval)
    return {**known, "efficiency": ratio, "interval": interval}
