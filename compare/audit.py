"""The audit: every setting that decides whether groups of runs may be compared, as it really ran; their curves; within
each run what was requested against what ran; and from all of it the verdict with its reasons. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain, product
from pathlib import Path
from typing import Any, Literal, TypeVar

from msgspec import UNSET, Struct
from msgspec.structs import replace

from compare.curve import (
    CLOCKS_AGREE,
    MEASURED,
    Curve,
    Finding,
    Traced,
    compare_checksums,
    compare_rates,
    compare_tokens,
    compare_with,
)
from compare.groups import (
    CLOCK,
    CODE,
    DIGEST,
    ENVIRONMENT,
    FACTS,
    LAYOUT,
    METHOD,
    OURS,
    RARE,
    RECIPE,
    TOKENS,
    Among,
    Group,
    Question,
    Varied,
    choose,
    counted,
    expand,
    fact,
    rank_of,
    variables_of,
)
from compare.losses import compare_losses
from compare.objects import (
    AS_NAMED,
    MEANING,
    FieldRow,
    beside,
    changes_numbers,
    columns,
    deciding,
    distinct,
    object_rows,
    process_of,
    strays,
)
from compare.parting import Parting, Seen, candidates, first_parting
from compare.rehearsed import compare_validations, pairs_of, splits_sequences, strictly, trained
from conf.arguments import program
from conf.errors import InputError, Problem, closest, listed, some
from conf.mlperf import Benchmark, benchmark_of
from conf.vocabulary import OFF, RANKS, Rank, meant, shown_in, vocabulary
from metrics.repeats import SEED, gathered
from metrics.rules import gpus_of
from parsers import Declaration, Record, Run
from parsers.assemble import differences, same
from parsers.storage import STEPS_FILE

# allowed: another kernel for the same mathematics, or a setting without effect. not rehearsed: what a rehearsal
# leaves out, whatever its dump says.
State = Literal["identical", "varied", "allowed", "declared", "unknown", "unexplained", "not rehearsed"]
CheckState = Literal["equal", "apart", "unknown", "varied", "declared"]
Values = Mapping[str, tuple[Any, ...] | None]
Sides = Sequence[Group]
Word = Literal["comparable", "not comparable", "cannot tell", "nothing to compare"]

NEVER_READ = "probe_never_read"
"""Keys that were written for a framework and that its programs never looked at (parsers/probe.py)."""
_OFTEN_VARIED = (LAYOUT, "image", "precision")
_BY_NAME = (METHOD, RECIPE, ENVIRONMENT)  # of which much follows that differs without them, too
_A_SEED = (SEED, TOKENS)  # differ between the repeats of one experiment, and were planned: there a run that died counts
_OF_NO_RANK = ("figures", "steps")
_ESTIMATED = "estimated: does not count"
PLANNED = "planned: the settings that were requested were compared, and nothing ran"
ACCEPTED = "accepted: "
"""How the reason begins that a user gives by accept.KEY=REASON."""
_IF_KNOWN = f"if you know: {program('parse')} LOG --save status=completed"
_BEHIND_A_RELEASE = re.compile(r"-[1-9]\d*-g[0-9a-f]{7,}$")
_CHANGES_NUMBERS = ("attention_softmax_in_fp32",)  # kernels that are no other way to the same numbers
_OF_LOSS = ("model", "optimizer", "data")


class Row(Struct, frozen=True):
    """One setting as all groups have it. values: by group label, None where a run reports none. decides: this row
    alone forbids the comparison, or leaves it open."""

    setting: str
    kind: str
    state: State
    values: Values
    reason: str
    decides: bool
    rank: Rank


class Check(Struct, frozen=True):
    """One property that the groups must share over their steps. step: the first, from 0, at which they part; reason:
    the numbers there, or why it is not known. decides: alone it forbids the comparison, or leaves it open.
    varied, declared: apart, for a setting behind it is what is compared, or is declared."""

    name: str
    state: CheckState
    reason: str
    step: int | None
    decides: bool
    rank: Rank


class Deviation(Struct, frozen=True):
    """A setting that ran otherwise than requested. declared: the reason given for it. decides: alone it forbids
    the comparison."""

    run: str
    setting: str
    requested: Any
    effective: Any
    declared: str | None
    decides: bool
    rank: Rank


_Item = TypeVar("_Item", Row, Check, Deviation)


class Reason(Struct, frozen=True):
    """A reason of the verdict. settings: those, or the check, that it is about, if any. effect: how much it is known to
    matter, with who says so."""

    text: str
    rank: Rank
    settings: tuple[str, ...] = ()
    effect: str | None = None


class Verdict(Struct, frozen=True):
    """The word of the comparison, and the reasons that led to it, the weightiest first."""

    word: Word
    reasons: tuple[Reason, ...]

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the reasons as sentences."""
        return tuple(reason.text for reason in self.reasons)


class Audit(Struct, frozen=True):
    """The checks of a comparison. rows: every setting; checks: of the curves; deviations: requested against effective,
    run by run; varied: what is compared; among: of rehearsals or plans among themselves the verdict is about settings
    alone; parting: where rehearsals part, in the order of a step; objects: all that differs in the stacks' own
    configuration objects."""

    rows: tuple[Row, ...]
    checks: tuple[Check, ...]
    deviations: tuple[Deviation, ...]
    verdict: Verdict
    varied: Varied
    among: Among
    parting: Parting | None = None
    objects: tuple[FieldRow, ...] = ()


def audit(
    groups: Sequence[Group], question: Question, curves: Mapping[str, Curve], impossible: Mapping[str, str]
) -> Audit:
    """Compare the settings and curves of the groups that count. curves: of each run, by its path. impossible: why the
    figures of a run are, by its path: one of its facts is wrong, which the verdict may rest on. InputError."""
    sides = counted(groups)
    among = sides[0].among if sides else "figures"
    compared = choose(sides, question.vary)
    may = compared.settings
    if among == "rehearsed" and "framework" in may:  # which the platform of a rehearsal follows, and nothing of it runs
        may |= {"platform"} | expand(("hardware",))
    runs = [Traced(side.label, run, curves[run.path], len(side.usable) == 1) for side in sides for run in side.usable]
    checksums = compare_checksums(runs, len(sides))
    objects = object_rows(sides)
    rows = (*_rows(sides, may, curves, checksums), *_switch_rows(objects)) if sides else ()
    states = {row.setting: row.state for row in rows}
    ran = len(runs) > 1 and among != "planned"
    checks = tuple(_checks(sides, runs, checksums, states, question.baseline)) if ran else ()
    if too_fast := [f"{one.run.record.id} is {impossible[one.run.path]}" for one in runs if one.run.path in impossible]:
        more = f"; and so for {len(too_fast) - 1:,} more" if len(too_fast) > 1 else ""
        checks = (_check("figures", "unknown", f"{too_fast[0]}{more}", None, decides=True), *checks)
    whole = not any(splits_sequences(one.run.record) for one in runs)
    parts = _parting(runs, objects) if ran and whole and _is_strict(sides, runs) else None
    if parts and all(check.state == "equal" for check in checks):  # what left no trace in any number
        checks = (*checks, _check("parting", "apart", parts.sentence, max(0, parts.step), decides=True))
    deviations = tuple(item for side in sides for run in side.usable for item in _deviations(run))
    _refuse_unknown(question.accept, rows, checks, deviations)
    # Who accepts another image accepts what it is known by.
    accept = {DIGEST: question.accept["image"], **question.accept} if "image" in question.accept else question.accept
    rows = tuple(_accepted(row, row.setting, accept) for row in rows)
    checks = tuple(_accepted(check, check.name, question.accept) for check in checks)
    deviations = tuple(_accepted(item, item.setting, question.accept) for item in deviations)
    verdict = _verdict(groups, sides, rows, checks, deviations)
    if parts and verdict.word != "comparable":
        verdict = replace(verdict, reasons=(Reason(parts.text, "breaks"), *verdict.reasons))
    elif any(check.name == "loss" and check.state == "unknown" for check in checks) and (could := candidates(objects)):
        what = f"of the stacks' own objects these differ ({' / '.join(columns(could))}), and can make the losses part"
        text = f"{what}: {some([*map(beside, could)], 12, between='; ')}"
        verdict = replace(verdict, reasons=(*verdict.reasons, Reason(text, "breaks")))
    return Audit(rows, checks, deviations, verdict, compared, among, parts, objects)


def _parting(runs: Sequence[Traced], objects: Sequence[FieldRow]) -> Parting | None:
    """Return where rehearsals of one seed part first from the first of them."""
    seen = {id(run): Seen(run.label, run.run.record) for run in runs}
    return first_parting(((seen[id(one)], seen[id(other)]) for one, other in pairs_of(runs)), objects)


def _checks(
    sides: Sides, runs: Sequence[Traced], checksums: Finding, states: Mapping[str, str], baseline: str | None
) -> Iterator[Check]:
    """Yield every check over all runs that count. states: of the settings; a difference that follows from what is
    varied or declared, or that the rules of a benchmark allow, does not decide. What is not known decides nothing, the
    settings behind it do, but of rehearsals."""
    benchmark = benchmark_of_all(sides)
    # The speed and the losses of a completed run without any step are not known. A result of MLPerf is its time.
    empty = [one.run for one in runs if not (one.curve.steps or one.run.record.provenance == "rehearsed")]
    if empty and benchmark is None:
        file = Path(empty[0].path) / STEPS_FILE
        more = f"; and so for {len(empty) - 1:,} more" if len(empty) > 1 else ""
        reason = f"{file} {'has no step with a number' if file.exists() else 'is missing'}{more}"
        yield _check("steps", "unknown", reason, None, decides=True)
    strict = _is_strict(sides, runs)
    for name, result, behind, excuses in _findings(sides, runs, checksums, [*states], baseline):
        because = ((state, f"{key} is {state}") for state in excuses for key in behind if states.get(key) == state)
        by_rules: tuple[CheckState, str] = ("varied", f"by the rules of {benchmark.name}" if benchmark else "")
        state, why = next(because, by_rules)
        if result.state != "apart" or not why:
            decides = result.state == "apart" or (strict and result.state == "unknown")
            yield _check(name, result.state, result.reason, result.step, decides=decides)
        else:
            yield _check(name, state, f"{why}: {result.reason}", result.step, decides=False)


def _is_strict(sides: Sides, runs: Sequence[Traced]) -> bool:
    """Return whether a check that cannot be made leaves the comparison open: of rehearsals that made steps."""
    return bool(sides) and sides[0].among == "rehearsed" and trained(runs)


def _findings(
    sides: Sides, runs: Sequence[Traced], checksums: Finding, states: Sequence[str], baseline: str | None
) -> Iterator[tuple[str, Finding, Sequence[str], tuple[CheckState, ...]]]:
    """Yield each check of the curves by name, what it has found, the settings behind it, and the states of these that
    excuse it."""
    # Rates are compared with the surest: exact ones, then those used, then any.
    quality = [(c.digits is None, c.offsets == (0,), sum(map(math.isfinite, c.rates))) for c in (r.curve for r in runs)]
    rates = compare_with(runs[quality.index(max(quality))], runs, compare_rates)
    kinds = {name: setting.kind for name, setting in vocabulary().items()}
    schedule, count = shown_in("lr_used"), shown_in("tokens_seen")
    of_loss = [name for name in states if kinds.get(name) in _OF_LOSS and name not in schedule]
    behind = (*of_loss, *schedule, *count, SEED)
    either: tuple[CheckState, ...] = ("varied", "declared")
    yield "lr_used", rates, schedule, either
    yield "tokens_seen", compare_with(runs[0], runs, compare_tokens), count, either
    yield "tokens_checksum", checksums, (TOKENS, SEED, *count), either[:1]
    if _is_strict(sides, runs):
        for name, result in strictly(runs):
            yield name, result, behind, either[:1]
    else:
        losses = compare_losses([side.label for side in sides], runs, baseline)
        yield "loss", losses, behind, either[:1]
    if (validations := compare_validations(runs, _is_strict(sides, runs))) is not None:
        yield "validation", validations, (*behind, "eval_interval", "eval_iters"), either[:1]


def _check(name: str, state: CheckState, reason: str, step: int | None, decides: bool) -> Check:
    return Check(name, state, reason, step, decides, rank_of(name))


def _rows(sides: Sides, varied: frozenset[str], curves: Mapping[str, Curve], checksums: Finding) -> Iterator[Row]:
    """Yield every fact, how a layout was requested, and every setting, as all groups have it."""
    values: dict[str, dict[str, tuple[Any, ...] | None]] = {}
    for side in sides:  # group by group: a few records at a time are near the processor
        for name in (*FACTS, LAYOUT, *(name for name, setting in vocabulary().items() if setting.dump)):
            runs = side.runs if name in _A_SEED else side.usable
            values.setdefault(name, {})[side.label] = _distinct(_ran(runs, name, curves))
    yield from _ours(sides)
    for name in FACTS:
        if name not in RARE or any(values[name].values()):
            row = _row(name, values[name], varied, sides)
            timers = name == CLOCK and row.state == "unexplained" and not row.reason
            yield _timers(row, sides, curves) if timers else row
    yield from _code_rows(sides, varied)
    if any(values[LAYOUT].values()):  # no log reports it, and alone it decides nothing, for its sizes have rows
        first = next(iter(values[LAYOUT].values()))
        alike = all(_alike(first, value) for value in values[LAYOUT].values())
        state: State = "identical" if alike else "varied" if LAYOUT in varied else "allowed"
        reason = "a name; its sizes decide" if state == "allowed" else ""
        yield Row(LAYOUT, LAYOUT, state, values[LAYOUT], reason, decides=False, rank=rank_of(LAYOUT))
    tokens = _row(TOKENS, values[TOKENS], varied, sides)
    yield from _setting_rows(values, varied, sides, tokens.state == "identical" or checksums.state == "equal")
    yield from _variable_rows(sides, varied)


def _ours(sides: Sides) -> Iterator[Row]:
    """Yield with which version of ours each group was rehearsed, which decides what its record says."""
    known = {side.label: _distinct([_fact_or_unset(run.record, OURS) for run in side.usable]) for side in sides}
    if sides[0].among == "rehearsed" and any(known.values()):
        row = _row(OURS, known, frozenset(), sides)
        what = "two versions of TensorPrimat made the records: rehearse all with one"
        yield replace(row, reason=what) if row.state == "unexplained" else row


def _code_rows(sides: Sides, varied: frozenset[str]) -> Iterator[Row]:
    """Yield in what each group was not what it was named: a dirty checkout, changed files, folders in front. It decides
    whatever is compared, and where both have it: nobody knows what ran. Then the versions of the stack's packages."""
    of_runs = {side.label: [strays(run.record) for run in side.usable] for side in sides}
    for name, meaning in MEANING.items():
        found = {k: tuple(dict.fromkeys(v for run in runs for v in run.get(name, ()))) for k, runs in of_runs.items()}
        if any(found.values()):
            values = {label: texts or (AS_NAMED,) for label, texts in found.items()}
            yield Row(name, "fact", "unexplained", values, meaning, decides=True, rank=rank_of(name))
    processes = {side.label: [process_of(run.record).commits for run in side.usable] for side in sides}
    shared = set.intersection(*(set(commits) for runs in processes.values() for commits in runs))
    for package in sorted(shared):
        name = f"{CODE}.{package}"
        ran = {label: _distinct([commits[package] for commits in runs]) for label, runs in processes.items()}
        yield _row(name, ran, varied | {name} if "framework_version" in varied else varied, sides)


def _variable_rows(sides: Sides, varied: frozenset[str]) -> Iterator[Row]:
    """Yield every variable of the environment that was set for a run's speed, or that its ranks had. One that a user
    has set, or that changes numbers, is always named."""
    records = [run.record for side in sides for run in side.usable]
    own = {declared.key for record in records for declared in record.declared}
    planned = {*chain(*(record.variables or {} for record in records))}

    def ran_with(record: Record, name: str) -> Any:
        """Return its value; a variable that no plan has is known where somebody looked."""
        unseen = name not in planned and (record.read_back is None or record.read_back.process is None)
        return UNSET if unseen else _fact_or_unset(record, f"{ENVIRONMENT}.{name}")

    for bare in sorted({*chain(*(variables_of(record) or {} for record in records))}):
        name = f"{ENVIRONMENT}.{bare}"
        ran = {side.label: [ran_with(run.record, bare) for run in side.usable] for side in sides}
        excused = ENVIRONMENT in varied and name not in own and not changes_numbers(bare)
        values = {label: _distinct(known) for label, known in ran.items()}
        yield _row(name, values, varied | {name} if excused else varied, sides)


def _switch_rows(objects: Sequence[FieldRow]) -> Iterator[Row]:
    """Yield what no setting and no variable says, and changes what a GPU computes."""
    for row in deciding(objects):
        name = f"{row.object}.{row.field}"
        reason = "a GPU computes otherwise with it, or the numbers of a longer run, which a toy on a CPU does not show"
        yield Row(name, "fact", "unexplained", row.values, reason, decides=True, rank=rank_of(name))


def _fact_or_unset(record: Record, name: str) -> Any:
    value = fact(record, name)
    return UNSET if value is None else value


def _timers(row: Row, sides: Sides, curves: Mapping[str, Curve]) -> Row:
    """Return the row of clocks that differ: they do no harm where our clock is one of two, and agrees with the other in
    every run that has both."""
    used = {clock for values in row.values.values() for clock in values or ()}
    ours = [curve for side in sides for run in side.usable if (curve := curves[run.path]).clock == MEASURED]
    theirs = {curve.agrees for curve in ours}
    if len(theirs) == 1 and used == {MEASURED, *theirs}:
        known = f"both timers of {len(ours)} runs agree within {100 * CLOCKS_AGREE:g} %"
        return replace(row, state="allowed", reason=known, decides=False)
    return replace(row, reason="step times by different timers")


def _setting_rows(
    values: Mapping[str, Values], varied: frozenset[str], sides: Sides, same_tokens: bool
) -> Iterator[Row]:
    """Yield every setting that a log may report, and what a rehearsal leaves out that is none: kernels, collectives."""
    benchmark = benchmark_of_all(sides)
    records = [(side.label, run.record) for side in sides for run in side.usable]
    given = gathered((name, label) for label, r in records for name in r.given if name not in r.effective)
    left_out = dict.fromkeys(topic for _, record in records for topic in record.not_rehearsed)
    for name in (name for name, setting in vocabulary().items() if setting.dump):
        row = _row(name, values[name], varied, sides)
        if row.state in ("unexplained", "declared"):
            means = _row(name, _meant(name, sides), varied, sides)
            known = "the same by its meaning" if means.state == "identical" else means.reason
            row = row if means.state == row.state else replace(means, values=row.values, reason=known)
        if row.state in ("unknown", "unexplained"):
            tokens = "the first batch has the same tokens" if row.kind == "data" and same_tokens else ""
            follows = _follows(row, [_row(of, values[of], varied, sides) for of in vocabulary()[name].fixed_by])
            if why := tokens or follows or _no_effect(name, values):
                row = replace(row, state="allowed", reason=why, decides=False)
            elif benchmark:
                row = _by_rules(benchmark, row, sides)
        elif row.state == "declared" and (why := _no_effect(name, values)):
            row = replace(row, state="allowed", reason=why)
        if row.state != "unexplained" and name in left_out and (reason := _not_rehearsed(sides, name)):
            row = replace(row, state="not rehearsed", reason=reason, decides=False)
        labels = [*dict.fromkeys(given.get(name, ()))]
        reasons = (row.reason, f"as given for {some(labels)}" if labels else "")
        yield replace(row, reason="; ".join(filter(None, reasons)))
    for topic in left_out:
        if topic not in vocabulary():
            nobody: Values = {side.label: None for side in sides}
            why = _not_rehearsed(sides, topic)
            yield Row(topic, "rehearsal", "not rehearsed", nobody, why, decides=False, rank="shifts")


def benchmark_of_all(sides: Sides) -> Benchmark | None:
    """Return the benchmark of MLPerf's closed division that every run that counts is a result of."""
    first, *others = [benchmark_of(run.record.environment) for side in sides for run in side.usable]
    return first if all(other is first for other in others) else None


def _follows(row: Row, causes: Sequence[Row]) -> str:
    """Return why a setting that is not known is the same on all sides; empty where it need not be."""
    usual = vocabulary()[row.setting].usual if causes else None
    stated = [value for values in row.values.values() for value in values or ()]
    alike = causes and row.state == "unknown" and all(cause.state == "identical" for cause in causes)
    alike = alike and (usual is None or all(value == usual for value in stated))
    return f"follows from {listed([cause.setting for cause in causes])}" if alike else ""


def _by_rules(benchmark: Benchmark, row: Row, sides: Sides) -> Row:
    """Return the row of a setting that is not known, or differs, as MLCommons' rules leave two results comparable."""
    silent = [side.label for side in sides if not all(gpus_of(run.record) for run in side.usable)]
    if row.setting == "world_size" and silent:
        why = f"on how many GPUs {some(silent)} trained is not reported, and the time to train follows from it"
        return replace(row, state="unknown", reason=why, decides=True, rank="breaks")
    fixed = benchmark.fixes(row.setting)
    if not row.decides or (fixed and row.state == "unexplained"):
        return row
    why = "fixed" if fixed else "the submitter's choice"
    return replace(row, state="allowed", reason=f"{why} by the rules of {benchmark.name}", decides=False)


def _not_rehearsed(sides: Sides, name: str) -> str:
    """Return why, and by which groups, a setting or topic was not rehearsed; empty where it was by all."""
    left_out = [(s.label, why) for s in sides for r in s.usable if (why := r.record.not_rehearsed.get(name))]
    labels = list(dict.fromkeys(label for label, _ in left_out))
    whose = "" if len(labels) in (0, len(sides)) else f"{some(labels)}: "
    return whose + "; ".join(dict.fromkeys(why for _, why in left_out))


def _no_effect(name: str, values: Mapping[str, Values]) -> str:
    """Return why a setting that differs does nothing in any group; empty where it does."""
    row = vocabulary()[name]
    switch = row.only_if or ""
    if switch in values and all(value in [(off,) for off in OFF] for value in values[switch].values()):
        return f"no effect: {switch} is off"
    if row.idle is None:
        return ""
    # Where none is reported it may be any: as if it were 0.
    sides = ((own or (0,), values[row.idle.beside][label] or (None,)) for label, own in values[name].items())
    idle = all(row.idle.applies(at, other) for own, others in sides for at, other in product(own, others))
    return f"no effect: {row.idle.because}" if idle else ""


def _ran(runs: Sequence[Run], name: str, curves: Mapping[str, Curve]) -> list[Any]:
    """Return of each run the fact, or the setting that ran, else what the user stated beside the log; UNSET where it is
    not known. A run that died before it reported its seed counts with the one requested: the set of seeds was
    planned."""
    if name == LAYOUT:
        return [run.record.requested.get(name, UNSET) for run in runs]
    if name == CLOCK:
        clocks = (curves[run.path].clock for run in runs)
        return [UNSET if clock is None else clock for clock in clocks]
    if name not in vocabulary():
        return [_fact_or_unset(run.record, name) for run in runs]
    ran = [run.record.effective.get(name) for run in runs]
    if None not in ran:
        return [reading.value for reading in ran if reading]
    instead = [{**(r.record.requested if name == SEED else {}), **r.record.given}.get(name, UNSET) for r in runs]
    return [other if reading is None else reading.value for reading, other in zip(ran, instead, strict=True)]


def _meant(name: str, sides: Sides) -> Values:
    """Return the values of a setting by their meaning beside the other settings of each run."""

    def of(record: Record) -> Any:
        ran = record.setting(name)
        known = {other: record.setting(other) for other in (*record.effective, *record.given)}
        return meant(name, ran, known) if name in known else UNSET

    return {side.label: _distinct([of(run.record) for run in side.usable]) for side in sides}


def _distinct(values: Sequence[Any]) -> tuple[Any, ...] | None:
    """Return the distinct values; None where one is not known."""
    return None if UNSET in values else distinct(values)


def _row(name: str, values: Values, varied: frozenset[str], sides: Sides) -> Row:
    """Return the row. An unknown fact, kernel, or setting that is bookkeeping (but for the seed) or that nobody can
    request decides nothing, unless it is of the precision and another group reports it."""
    setting = vocabulary().get(name)
    kind = "fact" if setting is None else setting.kind
    state, reason = _state(name, kind, values, varied, sides)
    ran = kind == "precision" and any(value not in (None, (None,)) for value in values.values())
    ran |= sides[0].among == "rehearsed" and (True,) in values.values()  # on here, and nobody says so there
    matters = setting is not None and kind != "kernels" and bool(setting.request or ran) and name not in varied
    matters = matters and (rank_of(name) != "bookkeeping" or name in _A_SEED)
    decides = state == "unexplained" or (state == "unknown" and matters)
    return Row(name, kind, state, values, reason, decides, rank_of(name))


def _state(name: str, kind: str, values: Values, varied: frozenset[str], sides: Sides) -> tuple[State, str]:
    reported = {label: value for label, value in values.items() if value is not None}
    mixed = [label for label, value in reported.items() if len(value) > 1 and name not in _A_SEED]
    if mixed and kind != "kernels":
        return "unexplained", f"differs between the repeats of {some(mixed)}"
    first = next(iter(reported.values()), ())
    apart = any(not _alike(first, value) for value in reported.values())
    changes = name in _CHANGES_NUMBERS and sides[0].among == "rehearsed"  # where torch's own operations run
    excused = name in varied or (kind == "kernels" and not changes)
    declared = _declared(name, reported, sides) if apart and not excused else ""
    if apart and not excused and not declared:
        itself = name.partition(".")[0]
        often = (key for key in _OFTEN_VARIED if name in expand((key,)))
        named = itself if itself in _BY_NAME else next(often, None)
        return "unexplained", f"{named}s are compared with vary={named}" if named else ""
    if silent := [label for label in values if label not in reported]:
        return "unknown", f"not reported by {some(silent)}"
    if not apart:
        return "identical", ""
    if declared:
        return "declared", declared
    return ("varied", "") if name in varied else ("allowed", "another kernel")


def _alike(first: tuple[Any, ...] | None, value: tuple[Any, ...] | None) -> bool:
    if first is None or value is None or len(first) != len(value):
        return False
    return all(same(a, b) for a, b in zip(first, value, strict=True))


def differs(row: Row, label: str, other: str) -> bool:
    """Return whether two groups report another value of a setting."""
    first, second = row.values[label], row.values[other]
    return first is not None and second is not None and not _alike(first, second)


def _declared(name: str, reported: Values, sides: Sides) -> str:
    """Return the reasons given for a setting, where the groups that give none have it alike."""
    given = {side.label: _declared_by(side.usable, name) for side in sides if side.label in reported}
    silent = [reported[label] for label, reason in given.items() if not reason]
    alike = all(_alike(silent[0], value) for value in silent)
    return "; ".join(f"{label}: {reason}" for label, reason in given.items() if reason) if alike else ""


def _declared_by(runs: Sequence[Run], name: str) -> str | None:
    """Return the reason that all of `runs` give for a setting. Under its canonical name the declared value must be the
    one that ran. Older records have paths of the config, with values as they were typed."""
    setting = vocabulary().get(name)

    def concerns(declaration: Declaration, record: Record) -> bool:
        # An option of a framework is declared by its path there.
        key = declaration.key if setting is None or setting.request else declaration.key.rpartition(".")[2]
        if setting is not None and key == name:
            return same(declaration.value, record.setting(name))
        return declaration.key == (name if setting is None else setting.request)

    given = [[d.reason for d in run.record.declared if concerns(d, run.record)] for run in runs]
    recipes = [run.record.recipe for run in runs]
    if setting is not None and setting.rank == "breaks" and not setting.request and all(recipes):
        given = [
            given_ or [f"changes numerics, by the vendor's recipe {r.name}"]
            for given_, r in zip(given, recipes, strict=True)
            if r
        ]
    return given[0][0] if given and all(given) else None


def _deviations(run: Run) -> Iterator[Deviation]:
    """Yield all of a run. Made anew: a record edited by hand may have an old list."""
    record = run.record
    ran = {name: reading.value for name, reading in record.effective.items()}
    for one in differences(record.requested, record.effective):
        if same(meant(one.setting, one.requested, record.requested), meant(one.setting, one.effective, ran)):
            continue
        reason = _declared_by([run], one.setting)
        values = (one.setting, one.requested, one.effective)
        yield Deviation(record.id, *values, reason, reason is None, rank_of(one.setting))
    never = record.environment.get(NEVER_READ)
    for key in map(str, never if isinstance(never, list | tuple) else ()):
        if key not in record.effective:  # a setting that the log reports has been judged by what ran
            reason, requested = _declared_by([run], key), record.requested.get(key, "written")
            decides = reason is None and key in vocabulary()
            yield Deviation(record.id, key, requested, "never read", reason, decides, rank_of(key))


def _refuse_unknown(
    reasons: Mapping[str, str], rows: Sequence[Row], checks: Sequence[Check], deviations: Sequence[Deviation]
) -> None:
    """Raise InputError on a key that names nothing of the audit. Without rows nothing was audited, and all pass."""
    known = {*RANKS, *(row.setting for row in rows), *(check.name for check in checks)}
    known |= {item.setting for item in deviations}
    if wrong := [key for key in reasons if key not in known] if rows else []:
        allowed = f"{listed([*RANKS, *(check.name for check in checks)])}, or a setting or fact of the audit"
        table = f"the keys are in the table of the audit: {program('compare')} RUNS -o DIR"
        what = "nothing of that name"
        raise InputError(*(Problem(f"accept.{k}", what, k, allowed, closest(k, known) or table) for k in wrong))


def _accepted(item: _Item, name: str, reasons: Mapping[str, str]) -> _Item:
    """Return the item; declared, where `reasons` accepts its difference, by its name or by its rank. What has no speed,
    or an impossible one, no rank excuses."""
    reason = reasons.get(name) or ("" if name in _OF_NO_RANK else reasons.get(item.rank))
    if not reason or not item.decides:
        return item
    text = f"{ACCEPTED}{reason}"
    if isinstance(item, Deviation):
        return replace(item, declared=text, decides=False)
    return replace(item, state="declared", reason=f"{text} ({item.reason})" if item.reason else text, decides=False)


def _verdict(
    groups: Sequence[Group], sides: Sides, rows: Sequence[Row], checks: Sequence[Check], deviations: Sequence[Deviation]
) -> Verdict:
    """Return the verdict: what differs decides before what is not known; both before what is missing."""
    wrong = [_reason(sentence(row), row.setting) for row in rows if row.decides and row.state == "unexplained"]
    wrong += [_of_check(check) for check in checks if check.decides and check.state == "apart"]
    wrong += _ran_otherwise([item for item in deviations if item.decides])
    unknown = gathered(((row.reason, row.rank), row.setting) for row in rows if row.decides and row.state == "unknown")
    open_ = [_reason(f"{some(names)}: unknown, {reason}", *names) for (reason, _), names in unknown.items()]
    open_ += [_of_check(check) for check in checks if check.decides and check.state == "unknown"]
    if sides and (lost := _lost(groups, sides)):
        open_ += [_reason(f"no completed run: {some(lost)}", "run")]
    if wrong:
        return Verdict("not comparable", _ranked([*wrong, *open_]))
    labels = {side.label for side in sides}
    left_out = [group for group in groups if group.label not in labels]
    not_counted = gathered((_why_not(group), group.label) for group in left_out)
    beside = tuple(Reason(f"{reason}: {some(names)}", "bookkeeping") for reason, names in not_counted.items())
    beside += tuple(Reason(text, "bookkeeping") for group in groups for text in _older(group))
    if not sides or (len(sides) == 1 and any(_why_not(group) != _ESTIMATED for group in left_out)):
        return Verdict("cannot tell", beside or (Reason("no completed run", "breaks"),))
    if len(sides) == 1:
        return Verdict("nothing to compare", (Reason("one group of runs only", "bookkeeping"), *beside))
    if open_:
        return Verdict(
            "cannot tell", (*_ranked(open_), *(reason for reason in beside if sides[0].among == "rehearsed"))
        )
    apart = (_of_check(check) for check in checks if check.state == "declared")
    if sides[0].among == "planned":
        return Verdict("comparable", (Reason(PLANNED, "bookkeeping"), *beside))
    if sides[0].among == "figures":
        return Verdict("comparable", (*apart, *beside))
    rehearsed = "rehearsed: settings, rates and losses were compared, and nothing that is measured"
    missing = listed([row.setting for row in rows if row.state == "not rehearsed"])
    own = [f"{side.label} {version}" for side in sides for version in of_no_release(side.usable)]
    texts = [rehearsed, *([f"not rehearsed: {missing}"] if missing else [])]
    texts += [f"commits that no release has: {some(own)}"] if own else []
    return Verdict("comparable", (*apart, *(Reason(text, "bookkeeping") for text in texts), *beside))


def of_no_release(runs: Sequence[Run]) -> list[str]:
    """Return the versions of a stack that git describes by commits behind a release."""
    versions = dict.fromkeys(run.record.framework_version or "" for run in runs)
    return [version for version in versions if _BEHIND_A_RELEASE.search(version)]


def _reason(text: str, *names: str) -> Reason:
    """Return the reason about settings, facts or a check of one rank."""
    effects = ((name, row.effect) for name in names if (row := vocabulary().get(name)))
    whose = "{}: " if len(names) > 1 else ""
    known = [f"{whose.format(name)}{effect.text} ({effect.source})" for name, effect in effects if effect]
    return Reason(text, rank_of(names[0]), names, "; ".join(known) or None)


def _of_check(check: Check) -> Reason:
    return _reason(f"{check.name}: {check.reason}", check.name)


def _ranked(reasons: Sequence[Reason]) -> tuple[Reason, ...]:
    """Return the reasons by rank; of one rank what follows from others behind these."""
    named = {name for reason in reasons for name in reason.settings}

    def weight(reason: Reason) -> tuple[int, bool]:
        return RANKS.index(reason.rank), all(follows(name, named) for name in reason.settings)

    return tuple(sorted(reasons, key=weight))


def follows(name: str, others: Collection[str]) -> bool:
    """Return whether a setting is what it is because of one of `others`."""
    row = vocabulary().get(name)
    return row is not None and not {*row.follows, row.only_if}.isdisjoint({*others} - {name})


def _lost(groups: Sequence[Group], sides: Sides) -> list[str]:
    """Return the groups, with the cause, that were to be compared and have no completed run: rehearsals, and the runs
    of a stack of which none completed. One layout of several that fails is no reason to tell nothing of the others."""
    known, stacks = {side.label for side in sides}, {side.runs[0].record.framework for side in sides}
    wanted = {"figures": "measured"}.get(sides[0].among, sides[0].among)
    failed = [group for group in groups if group.label not in known and group.runs[0].record.provenance == wanted]
    lost = [g for g in failed if wanted == "rehearsed" or g.runs[0].record.framework not in stacks]
    causes = [(g.label, next((run.record.cause for run in g.runs if run.record.cause), None)) for g in lost]
    return [f"{label} ({cause})" if cause else label for label, cause in causes]


def _older(group: Group) -> Iterator[str]:
    """Yield which attempts do not count."""
    for run in group.older:
        when, what = run.record.started_at or "an unknown time", run.record.status
        yield f"{run.path} of {when[:16]} ({what}) does not count: {group.label} was rehearsed again"


def _why_not(group: Group) -> str:
    """Return why a group does not count."""
    provenances, statuses = ({getattr(run.record, name) for run in group.runs} for name in ("provenance", "status"))
    if provenances == {"estimated"}:
        return _ESTIMATED
    if provenances == {"planned"}:
        return "planned, which is compared with other plans alone"
    if provenances == {"rehearsed"} and "completed" in statuses:
        return "rehearsed, which is not compared with what was measured"
    return f"the log does not report how it ended ({_IF_KNOWN})" if statuses == {"unknown"} else "no completed run"


def sentence(row: Row) -> str:
    """Return what every group has of a setting, in a line."""
    texts = _texts(list(row.values.values()))
    parts = [f"{label} {text}" for label, text in zip(row.values, texts, strict=True)]
    return f"{row.setting}: {some(parts, between='; ')}" + (f" ({row.reason})" if row.reason else "")


def _ran_otherwise(deviations: Sequence[Deviation]) -> Iterator[Reason]:
    """Yield one reason for all runs that requested the same and ran the same."""
    same_ = gathered(((item.setting, *_texts([(item.requested,), (item.effective,)])), item.run) for item in deviations)
    for (setting, requested, effective), names in same_.items():
        yield _reason(f"{setting} of {some(names)}: requested {requested}, ran {effective}", setting)


def _texts(rows: Sequence[tuple[Any, ...] | None]) -> list[str]:
    """Return values as text, such that 100 and a hand-edited '100' do not look alike."""
    distinct = {repr(value): str(value) for values in rows for value in values or ()}
    text = repr if len({*distinct.values()}) < len(distinct) else str
    return ["unknown" if values is None else listed([text(value) for value in values]) for values in rows]
