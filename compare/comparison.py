"""Everything that a comparison shows, as data: made once, then laid out as page, picture, table and JSON."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, product
from pathlib import Path
from typing import Any, TypeAlias

from msgspec import Struct, to_builtins
from msgspec.structs import asdict, replace

from compare.audit import Audit, audit
from compare.curve import Curve, curve_of
from compare.decision import Deciding, Rerun, Standing, conditions, deciding, reruns, standing, title
from compare.figures import FIGURES, SPEED, pool, worded
from compare.groups import BENCHMARK, Group, Question, group, has_figures
from compare.statistics import Interval, Ratio, Word, ratio_of
from conf.errors import InputError, Problem, UserError, closest, listed, some
from conf.secret import in_texts
from metrics import Quantity, summarise
from metrics.bill import TRILLION, BreakEven, Terms, break_evens, option_of, priced
from metrics.published import Beside, beside
from metrics.quantity import IMPOSSIBLE
from metrics.repeats import gathered
from metrics.summary import STATED, counted_by
from metrics.terms import EXAMPLE, read_prices
from parsers import Run
from parsers.find import NO_RUN, copies
from parsers.progress import Progress, silent
from parsers.storage import STEPS_FILE, with_steps

SCHEMA_VERSION = 1
TOTAL = "tokens_per_s"
_MUCH = 1 << 30
"""Bytes of steps from which more processes are worth a third more of CPU time: they copy the records that they look at,
page by page (of 10,000 runs of 100 steps two processes took 18.1 s where one took 12.5)."""
_CHUNK, _BATCH = 8, 1000
_OF_RATE = ("speed", "utilisation", "energy", "cost")  # parts whose figures follow from tokens/s, but for these:
_APART = ("time_to_train", "cost_to_target", "step_time")
UNLIKE = "tokens/s are not counted alike"
"""The beginning of the reason for which there is no ratio."""
_KIND = ("platform", "hardware", "framework", "image")
Figures: TypeAlias = Mapping[str, Quantity]  # by metric
Numbers: TypeAlias = Mapping[str, Figures]  # by run path or group label
_Traced: TypeAlias = "tuple[Figures, Curve | None, tuple[Problem, ...]]"


class Compared(Struct, frozen=True):
    """One metric of one group over the baseline's, with the fields of `Ratio`. ratio: None where `reason` says why."""

    group: str
    baseline: str
    metric: str
    ratio: float | None
    interval: Interval | None
    word: Word
    runs_to_decide: int | None
    reason: str


class Scaled(Struct, frozen=True):
    """A group among others of its kind. smallest: the one with the fewest GPUs; efficiency: tokens/s per GPU over that
    one's with its interval, 1 where speed grows as GPUs do; of the smallest itself None."""

    group: str
    gpus: int
    smallest: str
    smallest_gpus: int
    efficiency: float | None = None
    interval: Interval | None = None


class Comparison(Struct, frozen=True, kw_only=True, dict=True):
    """A comparison. run_figures: by run path; group_figures: by group label. ratios: none side by side. terms:
    what money, energy and CO2 of a training are worked out on. difference: the smallest that matters, as a share.
    break_evens: every option against the cheapest other, as ratios. standing, conditions: whether the ratios stand, and
    on what. decides: the figures of each user's decision. title: what is compared, in a line. references: what was
    published beside each group's speed, by its label. skipped: what is wrong with the records that are left out."""

    groups: tuple[Group, ...]
    baseline: str
    audit: Audit
    run_figures: Numbers
    group_figures: Numbers
    ratios: tuple[Compared, ...]
    terms: Terms
    difference: float
    break_evens: tuple[BreakEven, ...]
    scaling: tuple[Scaled, ...]
    standing: Standing
    conditions: tuple[str, ...]
    decides: tuple[Deciding, ...]
    title: str
    references: Mapping[str, Beside]
    skipped: tuple[Problem, ...] = ()

    @cached_property
    def reruns(self) -> tuple[Rerun, ...]:
        """Return the shortest list that would make the ratios stand."""
        return reruns(self.audit, self.groups, self.baseline)

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Return the place of each group among the groups, by its label."""
        return {group_.label: place for place, group_ in enumerate(self.groups)}


def compare(
    runs: Sequence[Run], question: Question | None = None, terms: Terms | None = None, progress: Progress = silent
) -> Comparison:
    """Group, audit and, as far as the verdict allows, compare. InputError: no run, a run twice, steps that cannot be
    used, no such baseline, setting or check."""
    if not runs:
        raise InputError(NO_RUN)
    return compare_groups(group(runs), question or Question(), terms, progress)


def compare_groups(
    groups: Sequence[Group], question: Question, terms: Terms | None, progress: Progress = silent
) -> Comparison:
    """Compare as `compare` does, of runs that are grouped already."""
    runs = [run for group_ in groups for run in group_.runs]
    base = _baseline(groups, runs, question.baseline)
    on = terms or Terms(tokens=TRILLION, prices=read_prices(EXAMPLE))
    numbers, curves = _trace(runs, on, progress)
    if numbers and (unknown := {f.metric for f in FIGURES}.difference(*numbers.values())):
        what, allowed = "no such metric in metrics/summary.py", listed(sorted(set().union(*numbers.values())))
        raise InputError(Problem("compare/figures.jsonl", what, listed(sorted(unknown)), allowed))
    audited = audit(groups, question, curves, impossible(numbers))
    pooled = {
        g.label: {f.metric: pool(f, [numbers[run.path][f.metric] for run in g.shown]) for f in FIGURES}
        for g in groups
        if g.shown
    }
    how = standing(audited, groups)
    counting = [g for g in groups if g.usable] if how != "side by side" and base.usable else []
    sold = [g for g in counting if not _unlike((g, base), numbers)]
    options = [option_of(g.label, [r.record for r in g.usable], [numbers[r.path] for r in g.usable]) for g in sold]
    return Comparison(
        groups=tuple(groups),
        baseline=base.label,
        audit=audited,
        run_figures=numbers,
        group_figures=pooled,
        ratios=tuple(_ratios(counting, base, numbers, question.difference)),
        terms=on,
        difference=question.difference,
        break_evens=break_evens(options, on),
        scaling=tuple(_scaling(counting, numbers, question.difference)),
        standing=how,
        conditions=conditions(audited, groups) if how != "side by side" else (),
        decides=deciding(groups, pooled),
        title=title(groups),
        references={g.label: beside(g.shown[0].record, pooled[g.label]) for g in groups if g.label in pooled},
    )


def without(comparison: Comparison, skipped: Sequence[Problem]) -> Comparison:
    """Return `comparison` with the records that were left out as they cannot be used: its ratios stand on that."""
    if not skipped:
        return comparison
    places = some([in_texts(one.where) for one in skipped], 3)
    left = (
        f"{len(skipped):,} of its records cannot be used and {'is' if len(skipped) == 1 else 'are'} left out: {places}"
    )
    return replace(comparison, conditions=(*comparison.conditions, left), skipped=tuple(skipped))


def _baseline(groups: Sequence[Group], runs: Sequence[Run], named: str | None) -> Group:
    """Return the group that is called so, else the first that counts. InputError: there is none, a run stands twice,
    or benchmarks differ."""
    problems, labels = [*copies(runs)], [group_.label for group_ in groups]
    if named is not None and named not in labels:
        hint = closest(named, labels) or "beside a candidate it may be a filter, too"
        problems.append(Problem("baseline", "no such group", named, listed(labels), hint))
    if problems:
        raise InputError(*problems)
    _refuse_other_benchmarks(runs)
    return next((g for g in groups if g.usable), groups[0]) if named is None else groups[labels.index(named)]


def _refuse_other_benchmarks(runs: Sequence[Run]) -> None:
    """Raise InputError where runs are results of different benchmarks of MLPerf: nothing of them is worth a look."""
    known = sorted({str(name) for run in runs if (name := run.record.environment.get(BENCHMARK)) is not None})
    if len(known) > 1:
        what = "results of different benchmarks: other work, and nothing to compare"
        raise InputError(Problem("RUN", what, listed(known), hint=f"the results of one: {BENCHMARK}={known[0]}"))


def impossible(numbers: Numbers) -> dict[str, str]:
    """Return by path why runs cannot have had their speed."""
    known = ((path, figures[SPEED]) for path, figures in numbers.items())
    return {path: speed.note for path, speed in known if speed.missing == IMPOSSIBLE}


def _trace(runs: Sequence[Run], terms: Terms, progress: Progress) -> tuple[dict[str, Figures], dict[str, Curve]]:
    """Return by path the figures (of `metrics.summarise`, priced) of each run that has some, and each run's curve.
    InputError: steps that cannot be used, of all runs."""
    figures, curves, problems = dict[str, Figures](), dict[str, Curve](), list[Problem]()
    for done, (run, (known, curve, wrong)) in enumerate(zip(runs, _all(runs, terms), strict=True), start=1):
        figures |= {run.path: known} if known else {}
        curves |= {run.path: curve} if curve else {}
        problems += wrong
        progress(done, len(runs))
    if problems:
        raise InputError(*problems)
    return figures, curves


def _traced(terms: Terms, run: Run) -> _Traced:
    """Return figures and curve, or what is wrong as data: a UserError does not survive the way between processes."""
    try:
        record = with_steps(run.record)
        figures = priced(record, summarise(record, terms.machines), terms) if has_figures(record) else {}
        return figures, curve_of(record), ()
    except UserError as error:
        return {}, None, error.problems


def _all(runs: Sequence[Run], terms: Terms) -> Iterator[_Traced]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    files = (Path(run.path) / STEPS_FILE for run in runs)
    if cores == 1 or sum(file.stat().st_size for file in files if file.exists()) < _MUCH:
        yield from (_traced(terms, run) for run in runs)
        return
    for first in range(0, len(runs), _BATCH):
        yield from _batch(runs[first : first + _BATCH], terms, cores)


def _batch(runs: Sequence[Run], terms: Terms, cores: int) -> Iterator[_Traced]:
    """Trace some runs in processes of their own: what these copy of our memory while they look at it goes with them."""
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    try:
        # fork: a worker has the runs already, and a caller's script needs no `if __name__ == "__main__"`.
        with ProcessPoolExecutor(min(cores, len(runs)), get_context("fork"), _start, (runs, terms)) as pool:
            # Ctrl-C waits while workers are made: one that it met before `_start` would print many lines.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                results = pool.map(_traced_here, range(len(runs)), chunksize=_CHUNK)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            yield from results
    except BrokenProcessPool as error:
        what = f"the system killed a process that reads runs, one of {min(cores, len(runs))}: too little memory?"
        problem = Problem("compare", what, f"{len(runs)} runs", hint="fewer runs at once, or more memory")
        raise UserError(problem) from error


_here: tuple[Sequence[Run], Terms]


def _start(runs: Sequence[Run], terms: Terms) -> None:
    """Prepare a worker."""
    global _here
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C, which the caller reports, ends it without a traceback
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    gc.disable()  # nothing here refers to itself
    _here = runs, terms


def _traced_here(place: int) -> _Traced:
    runs, terms = _here
    return _traced(terms, runs[place])


def _scaling(groups: Sequence[Group], numbers: Numbers, difference: float) -> Iterator[Scaled]:
    """Yield every group whose speed and number of GPUs is known, in families of one kind of machine, by GPUs; nothing
    of a family with one number of GPUs. Of groups with the fewest GPUs the first is the base of the others."""
    families: list[tuple[tuple[Any, ...], tuple[int, str, list[float]]]] = []
    for group_ in groups:
        first, *others = {run.record.setting("world_size") for run in group_.usable}
        rates = _known([numbers[run.path][SPEED] for run in group_.usable]) or [0.0]
        if type(first) is int and first > 0 and not others and min(rates) > 0 and not _unlike([group_], numbers):
            kind = (*_ways(group_, numbers), *(getattr(group_.usable[0].record, name) for name in _KIND))
            families.append((kind, (first, group_.label, rates)))
    for family in gathered(families).values():
        base, *larger = sorted(family, key=lambda one: one[0])
        if larger and larger[-1][0] > base[0]:
            yield Scaled(base[1], base[0], base[1], base[0])
            for gpus, label, rates in larger:
                result = ratio_of(rates, base[2], "higher", difference)
                yield Scaled(label, gpus, base[1], base[0], result.ratio, result.interval)


def _ratios(groups: Sequence[Group], base: Group, numbers: Numbers, difference: float) -> Iterator[Compared]:
    """Yield every figure with a direction of every other group; what nobody in a pair of groups knows is left out."""
    for group_, figure in product([one for one in groups if one.label != base.label], FIGURES):
        both = [[numbers[run.path][figure.metric] for run in side.usable] for side in (group_, base)]
        (ours, theirs), every = map(_known, both), [*chain(*both)]
        if figure.better is None or all(q.value is None for q in every):
            continue
        guess = next((q for q in every if q.source == "assumed"), None)
        of_rate = figure.part in _OF_RATE and not figure.metric.startswith(_APART)
        if ours is None or theirs is None:
            word = next(q.missing for q in every if q.value is None)
            result = Ratio(f"{word} of {group_.label if ours is None else base.label}")
        elif min(*ours, *theirs) <= 0:
            result = Ratio("no ratio: not above zero in every run")
        elif guess is not None:  # no word about what nobody measured or stated
            result = Ratio(f"assumed: {guess.note}" if guess.note else "assumed")
        elif of_rate and (unlike := _unlike((group_, base), numbers)):
            result = Ratio(unlike)
        else:
            result = ratio_of(ours, theirs, figure.better, difference)
        known = {**asdict(result), "word": worded(figure, result.word)}
        yield Compared(group=group_.label, baseline=base.label, metric=figure.metric, **known)


def _ways(side: Group, numbers: Numbers) -> list[str]:
    """Return how the speeds of a group's runs were counted."""
    return sorted({counted_by(numbers[run.path][TOTAL]) for run in side.usable})


def _unlike(sides: Sequence[Group], numbers: Numbers) -> str:
    """Return why speeds make no ratio; empty where they do."""
    ways = {side.label: _ways(side, numbers) for side in sides}
    known = {way for of_side in ways.values() for way in of_side}
    if known == {STATED}:
        return f"{UNLIKE}: {STATED}, of whose time stacks leave out unlike parts"
    of_each = "; ".join(f"{label} {' and '.join(of_side)}" for label, of_side in ways.items())
    return f"{UNLIKE}: {of_each}" if len(known) > 1 else ""


def _known(quantities: Sequence[Quantity]) -> list[float] | None:
    values = [q.value for q in quantities if q.value is not None]
    return [float(value) for value in values] if values and len(values) == len(quantities) else None


GROUPS = "groups"


def to_json(comparison: Comparison) -> dict[str, Any]:
    """Return compare.json (compare.schema.json)."""
    return {**about(comparison), GROUPS: [*group_objects(comparison)]}


def group_objects(comparison: Comparison) -> Iterator[dict[str, Any]]:
    """Yield what compare.json has of each group, made one by one: of ten thousand runs all together take much room."""
    return (_group_json(comparison, group_) for group_ in comparison.groups)


def about(comparison: Comparison) -> dict[str, Any]:
    """Return compare.json without any group."""
    audited, terms = comparison.audit, comparison.terms
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": verdict_json(comparison),
        "title": comparison.title,
        **{n: to_builtins(getattr(comparison, n)) for n in ("standing", "conditions", "reruns")},
        "skipped": [{"record": in_texts(one.where), "reason": in_texts(one.what)} for one in comparison.skipped],
        "decides": [one.metric for one in comparison.decides],
        "vary": list(audited.varied.keys),
        "vary_reason": audited.varied.reason,
        "baseline": comparison.baseline,
        "audit": to_builtins(audited.rows),
        "requested_not_effective": to_builtins(audited.deviations),
        "checks": to_builtins(audited.checks),
        "objects": to_builtins(audited.objects),
        "parting": to_builtins(audited.parting),
        "rehearsed": audited.among == "rehearsed",
        "planned": audited.among == "planned",
        "difference": comparison.difference,
        GROUPS: [],
        "ratios": to_builtins(comparison.ratios),
        "terms": {
            **_fields(terms, "tokens", "power_price", "pue", "host_share", "goodput"),
            "carbon": terms.carbon.to_json(),
            "currency": terms.prices.currency,
            **{f"prices_{k}": value for k, value in _fields(terms.prices, "example", "date", "source").items()},
        },
        "break_even": [
            {"option": even.option, "rival": even.rival, "price": even.up_to.to_json()}
            for even in comparison.break_evens
        ],
        "scaling": to_builtins(comparison.scaling),
    }


def verdict_json(comparison: Comparison) -> dict[str, Any]:
    """Return the verdict. reasons: as sentences; ranked: the same with what each is about."""
    verdict = comparison.audit.verdict
    return {"word": verdict.word, "reasons": list(verdict.texts), "ranked": to_builtins(verdict.reasons)}


def _group_json(comparison: Comparison, group_: Group) -> dict[str, Any]:
    def figures(known: Mapping[str, Quantity]) -> dict[str, Any]:
        return {"figures": {name: quantity.to_json() for name, quantity in known.items()}}

    return {
        "label": group_.label,
        **_fields(group_.runs[0].record, "provenance", "platform", "hardware", "framework", "image", "image_source"),
        **{name: to_builtins(getattr(group_.runs[0].record, name)) for name in ("method", "batch", "recipe")},
        "counted_runs": len(group_.usable),
        **figures(comparison.group_figures.get(group_.label, {})),
        **comparison.references.get(group_.label, Beside()).to_json(),
        "runs": [
            {
                "path": in_texts(run.path),
                **_fields(run.record, "id", "name", "status", "cause", "notes"),
                **figures(comparison.run_figures.get(run.path, {})),
            }
            for run in group_.runs
        ],
    }


def _fields(of: object, *names: str) -> dict[str, Any]:
    return {name: getattr(of, name) for name in names}
