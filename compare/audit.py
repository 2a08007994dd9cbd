"""The audit: every setting that decides whether groups of runs may be compared, as it really ran; within each run what
was requested against what ran; and from both the verdict with its reasons. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from compare.checks import Check, checks, same_checksums
from compare.curve import Curve, curve_of
from compare.groups import SEED, Group, Side, gathered, sides
from compare.question import (
    DEVICE,
    DUMPED,
    FACTS,
    LAYOUT,
    PARAMETERS,
    TOKENS,
    Question,
    Varied,
    choose,
    expand,
    fact_of,
)
from conf.arguments import program
from conf.errors import InputError, Problem, closest, listed
from conf.vocabulary import Setting, vocabulary
from parsers import Declaration, Record, Run
from parsers.assemble import differences, same

# allowed: another kernel for the same mathematics, or a setting without effect. not rehearsed: what a rehearsal
# leaves out, whatever its dump says.
State = Literal["identical", "varied", "allowed", "declared", "unknown", "unexplained", "not rehearsed"]
Values = Mapping[str, tuple[Any, ...] | None]
Word = Literal["comparable", "not comparable", "cannot tell", "nothing to compare"]

NEVER_READ = "probe_never_read"
"""Keys that were written for a framework and that its programs never looked at (parsers/probe.py)."""
_OFTEN_VARIED = (LAYOUT, "image", "precision")
_A_SEED = (SEED, TOKENS)  # differ between the repeats of one experiment
_ENVIRONMENT = (DEVICE, TOKENS, *PARAMETERS, *DUMPED)
_NAMED = 6
_ESTIMATED = "estimated: does not count"
_IF_KNOWN = f"if you know: {program('parse')} LOG --save status=completed"


@dataclass(frozen=True, slots=True)
class Row:
    """One setting as all groups have it. values: by group label, None where a run reports none. decides: this row
    alone forbids the comparison, or leaves it open."""

    setting: str
    kind: str
    state: State
    values: Values
    reason: str
    decides: bool


@dataclass(frozen=True, slots=True)
class Deviation:
    """A setting that ran otherwise than requested. declared: the reason given for it. decides: alone it forbids
    the comparison."""

    run: str
    setting: str
    requested: Any
    effective: Any
    declared: str | None
    decides: bool


_Item = TypeVar("_Item", Row, Check, Deviation)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The word of the comparison, and the reasons that led to it."""

    word: Word
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Audit:
    """rows: every setting; checks: of the curves; deviations: requested against effective, run by run; varied: what is
    compared; rehearsed: these are rehearsals among themselves, and the verdict is about settings alone."""

    rows: tuple[Row, ...]
    checks: tuple[Check, ...]
    deviations: tuple[Deviation, ...]
    verdict: Verdict
    varied: Varied
    rehearsed: bool = False


def audit(
    groups: Sequence[Group], question: Question | None = None, curves: Mapping[str, Curve] | None = None
) -> Audit:
    """Compare the settings and curves of the groups that count. curves: of each run, by its path, where they are known
    already. InputError."""
    question = question or Question()
    counted, rehearsed = sides(groups)
    traced = curves if curves is not None else {run.path: curve_of(run.record) for s in counted for run in s.runs}
    compared = choose(counted, question.vary)
    may = compared.settings
    if rehearsed and "framework" in may:  # which the platform of a rehearsal follows, and nothing of it runs
        may |= {"platform", "hardware", DEVICE}
    rows: tuple[Row, ...] = ()
    if counted:
        facts = tuple(_fact_rows(counted, may, traced))
        same_tokens = any(row.setting == TOKENS and row.state == "identical" for row in facts)
        same_tokens = same_tokens or same_checksums(counted, traced)
        rows = (*facts, *_layout_row(counted, may), *_setting_rows(counted, may, same_tokens), *_topic_rows(counted))
    deviations = tuple(item for side in counted for run in side.usable for item in _deviations(run))
    curve_checks = checks(counted, traced, {row.setting: row.state for row in rows}, question.baseline)
    _refuse_unknown(question.accept, rows, curve_checks, deviations)
    rows = tuple(_accepted(row, row.setting, question.accept) for row in rows)
    curve_checks = tuple(_accepted(check, check.name, question.accept) for check in curve_checks)
    deviations = tuple(_accepted(item, item.setting, question.accept) for item in deviations)
    verdict = _verdict(groups, counted, rows, curve_checks, deviations)
    return Audit(rows, curve_checks, deviations, verdict, compared, rehearsed)


def _fact_rows(counted: Sequence[Side], varied: frozenset[str], curves: Mapping[str, Curve]) -> Iterator[Row]:
    for name in FACTS:
        # Seeds, and what follows from each, were planned: there a run that died counts.
        runs = {side.label: side.runs if name in _A_SEED else side.usable for side in counted}
        values = {label: _reported([_fact(run, name, curves) for run in same]) for label, same in runs.items()}
        if name not in (*PARAMETERS, *DUMPED) or any(values.values()):  # a probe or one stack alone reports them
            row = _row(name, None, values, varied, counted)
            timers = name == "clock" and row.state == "unexplained" and not row.reason
            yield replace(row, reason="step times by different timers") if timers else row


def _fact(run: Run, name: str, curves: Mapping[str, Curve]) -> tuple[bool, Any]:
    if name == "clock":
        value: Any = curves[run.path].clock
    else:
        value = run.record.environment.get(name) if name in _ENVIRONMENT else fact_of(run.record, name)
    return value is not None, value


def _layout_row(counted: Sequence[Side], varied: frozenset[str]) -> Iterator[Row]:
    """Yield how a layout was requested: no log reports it, and alone it decides nothing, for its sizes have rows."""
    requests = {side.label: [run.record.requested for run in side.usable] for side in counted}
    values = {label: _reported([(LAYOUT in r, r.get(LAYOUT)) for r in same]) for label, same in requests.items()}
    first = next(iter(values.values()))
    if all(_alike(first, value) for value in values.values()):
        yield Row(LAYOUT, LAYOUT, "identical", values, "", decides=False)
    elif any(values.values()):
        state: State = "varied" if LAYOUT in varied else "allowed"
        yield Row(LAYOUT, LAYOUT, state, values, "" if state == "varied" else "a name; its sizes decide", decides=False)


def _setting_rows(counted: Sequence[Side], varied: frozenset[str], same_tokens: bool) -> Iterator[Row]:
    settings = {name: setting for name, setting in vocabulary().items() if setting.dump}
    values = {
        name: {
            s.label: _reported([_ran(r.record, name) for r in (s.runs if name == SEED else s.usable)]) for s in counted
        }
        for name in settings
    }
    for name, setting in settings.items():
        row = _row(name, setting, values[name], varied, counted)
        if setting.kind == "data" and row.state in ("unknown", "unexplained") and same_tokens:
            row = replace(row, state="allowed", reason="the first batch has the same tokens", decides=False)
        if row.state in ("unknown", "unexplained") and (why := _no_effect(name, values)):
            row = replace(row, state="allowed", reason=f"no effect: {why}", decides=False)
        if row.state != "unexplained" and (reason := _not_rehearsed(counted, name)):
            row = replace(row, state="not rehearsed", reason=reason, decides=False)
        records = [(s.label, run.record) for s in counted for run in s.usable]
        given = dict.fromkeys(label for label, r in records if name in r.given and name not in r.effective)
        reasons = (row.reason, f"as given for {some(list(given))}" if given else "")
        yield replace(row, reason="; ".join(filter(None, reasons)))


def _topic_rows(counted: Sequence[Side]) -> Iterator[Row]:
    """Yield what a rehearsal leaves out that is no setting: kernels, collectives."""
    topics = dict.fromkeys(t for side in counted for run in side.usable for t in run.record.not_rehearsed)
    for topic in (topic for topic in topics if topic not in vocabulary()):
        values: Values = {side.label: None for side in counted}
        yield Row(topic, "rehearsal", "not rehearsed", values, _not_rehearsed(counted, topic), decides=False)


def _not_rehearsed(counted: Sequence[Side], name: str) -> str:
    """Return why, and by which groups, a setting or topic was not rehearsed; empty where it was by all."""
    left_out = [(s.label, why) for s in counted for r in s.usable if (why := r.record.not_rehearsed.get(name))]
    labels = list(dict.fromkeys(label for label, _ in left_out))
    whose = "" if len(labels) in (0, len(counted)) else f"{some(labels)}: "
    return whose + "; ".join(dict.fromkeys(why for _, why in left_out))


def _no_effect(name: str, values: Mapping[str, Values]) -> str:
    """Return why a setting that differs does nothing in any group; empty where it does."""
    switch = vocabulary()[name].only_if or ""
    if switch in values and all(value in ((None,), (False,)) for value in values[switch].values()):
        return f"{switch} is off"
    if name == "tokenizer_model" and all(value == ("NullTokenizer",) for value in values["tokenizer_type"].values()):
        return "the corpus holds token ids already"
    if name == "save_interval":
        ends = [value[0] if value else None for value in values["train_iters"].values()]
        # Where none is reported it may be any: as if it saved at once.
        every = [(at, end) for saved, end in zip(values[name].values(), ends, strict=True) for at in saved or (0,)]
        if all(type(end) is int and (at is None or (type(at) is int and at >= end)) for at, end in every):
            return "nothing is saved before the end"
    return ""


def _ran(record: Record, name: str) -> tuple[bool, Any]:
    """Return what ran, else what the user stated beside the log; before it, whether either is known. A run that died
    before it reported its seed counts with the one requested: the set of seeds was planned."""
    if name == SEED and name not in record.effective and name not in record.given:
        return SEED in record.requested, record.requested.get(SEED)
    return name in record.effective or name in record.given, record.setting(name)


def _reported(reports: Sequence[tuple[bool, Any]]) -> tuple[Any, ...] | None:
    """Return the distinct values; None where one is not known."""
    if not all(known for known, _ in reports):
        return None
    distinct: list[Any] = []
    for _, value in reports:
        if not any(same(value, other) for other in distinct):
            distinct.append(value)
    return tuple(sorted(distinct, key=repr))


def _row(name: str, setting: Setting | None, values: Values, varied: frozenset[str], counted: Sequence[Side]) -> Row:
    """Return the row. setting: None of a fact. An unknown fact, kernel or setting that nobody can request decides
    nothing."""
    kind = "fact" if setting is None else setting.kind
    state, reason = _state(name, kind, values, varied, counted)
    matters = setting is not None and kind != "kernels" and setting.request is not None and name not in varied
    decides = state == "unexplained" or (state == "unknown" and matters)
    return Row(name, kind, state, values, reason, decides)


def _state(name: str, kind: str, values: Values, varied: frozenset[str], counted: Sequence[Side]) -> tuple[State, str]:
    reported = {label: value for label, value in values.items() if value is not None}
    mixed = [label for label, value in reported.items() if len(value) > 1 and name not in _A_SEED]
    if mixed and kind != "kernels":
        return "unexplained", f"differs between the repeats of {some(mixed)}"
    first = next(iter(reported.values()), ())
    apart = any(not _alike(first, value) for value in reported.values())
    excused = name in varied or kind == "kernels"
    declared = _declared(name, reported, counted) if apart and not excused else ""
    if apart and not excused and not declared:
        named = next((key for key in _OFTEN_VARIED if name in expand((key,))), None)
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


def _declared(name: str, reported: Values, counted: Sequence[Side]) -> str:
    """Return the reasons given for a setting, where the groups that give none have it alike."""
    given = {side.label: _declared_by(side.usable, name) for side in counted if side.label in reported}
    silent = [reported[label] for label, reason in given.items() if not reason]
    if any(given.values()) and all(_alike(silent[0], value) for value in silent):
        return "; ".join(f"{label}: {reason}" for label, reason in given.items() if reason)
    return ""


def _declared_by(runs: Sequence[Run], name: str) -> str | None:
    """Return the reason that all of `runs` give for a setting. Under its canonical name the declared value must be the
    one that ran. Older records have paths of the config, with values as they were typed."""
    setting = vocabulary().get(name)

    def concerns(declaration: Declaration, record: Record) -> bool:
        if setting is not None and declaration.key == name:
            return same(declaration.value, record.setting(name))
        return declaration.key == (name if setting is None else setting.request)

    given = [[d.reason for d in run.record.declared if concerns(d, run.record)] for run in runs]
    return given[0][0] if given and all(given) else None


def _deviations(run: Run) -> Iterator[Deviation]:
    """Yield all of a run. Made anew: a record edited by hand may have an old list."""
    record = run.record
    for one in differences(record.requested, record.effective):
        reason = _declared_by([run], one.setting)
        yield Deviation(record.id, one.setting, one.requested, one.effective, reason, decides=reason is None)
    never = record.environment.get(NEVER_READ)
    for key in map(str, never if isinstance(never, list | tuple) else ()):
        if key not in record.effective:  # a setting that the log reports has been judged by what ran
            reason, requested = _declared_by([run], key), record.requested.get(key, "written")
            yield Deviation(record.id, key, requested, "never read", reason, reason is None and key in vocabulary())


def _refuse_unknown(
    reasons: Mapping[str, str], rows: Sequence[Row], checks: Sequence[Check], deviations: Sequence[Deviation]
) -> None:
    """Raise InputError on a key that names nothing of the audit. Without rows nothing was audited, and all pass."""
    known = {*(row.setting for row in rows), *(check.name for check in checks), *(item.setting for item in deviations)}
    if wrong := [key for key in reasons if key not in known] if rows else []:
        allowed = f"{listed([check.name for check in checks])}, or a setting or fact of the audit"
        shown = f"the keys are in the table of the audit: {program('compare')} RUNS -o DIR"
        hints = {key: closest(key, known) or shown for key in wrong}
        raise InputError(
            *(Problem(f"accept.{k}", "nothing of that name", k, allowed, hint) for k, hint in hints.items())
        )


def _accepted(item: _Item, name: str, reasons: Mapping[str, str]) -> _Item:
    """Return the item; declared, where `reasons` accepts its difference."""
    if name not in reasons or not item.decides:
        return item
    text = f"accepted: {reasons[name]}"
    if isinstance(item, Deviation):
        return replace(item, declared=text, decides=False)
    return replace(item, state="declared", reason=f"{text} ({item.reason})" if item.reason else text, decides=False)


def _verdict(
    groups: Sequence[Group],
    counted: Sequence[Side],
    rows: Sequence[Row],
    checks: Sequence[Check],
    deviations: Sequence[Deviation],
) -> Verdict:
    """Return the verdict: what differs decides before what is not known; both before what is missing."""
    wrong = [_sentence(row) for row in rows if row.decides and row.state == "unexplained"]
    wrong += [f"{check.name}: {check.reason}" for check in checks if check.decides and check.state == "apart"]
    wrong += _ran_otherwise([item for item in deviations if item.decides])
    if wrong:
        return Verdict("not comparable", tuple(wrong))
    labels = {side.label for side in counted}
    left_out = [group for group in groups if group.label not in labels]
    not_counted = gathered((_why_not(group), group.label) for group in left_out)
    beside = tuple(f"{reason}: {some(names)}" for reason, names in not_counted.items())
    if not counted or (len(counted) == 1 and any(_why_not(group) != _ESTIMATED for group in left_out)):
        return Verdict("cannot tell", beside or ("no completed run",))
    if len(counted) == 1:
        return Verdict("nothing to compare", ("one group of runs only", *beside))
    unknown = gathered((row.reason, row.setting) for row in rows if row.decides)
    open_ = [f"{listed(names)}: unknown, {reason}" for reason, names in unknown.items()]
    open_ += [f"{check.name}: {check.reason}" for check in checks if check.decides]
    if open_:
        return Verdict("cannot tell", tuple(open_))
    apart = (f"{check.name}: {check.reason}" for check in checks if check.state == "declared")
    return Verdict("comparable", (*apart, *_rehearsal(counted, rows), *beside))


def some(labels: Sequence[str]) -> str:
    """Return the first labels, and how many more there are."""
    more = len(labels) - _NAMED
    return listed(labels) if more <= 1 else f"{listed(labels[:_NAMED])} and {more} more"


def _why_not(group: Group) -> str:
    """Return why a group does not count."""
    provenances, statuses = ({getattr(run.record, name) for run in group.runs} for name in ("provenance", "status"))
    if provenances == {"estimated"}:
        return _ESTIMATED
    if provenances == {"rehearsed"} and "completed" in statuses:
        return "rehearsed, which is not compared with what was measured"
    return f"the log does not report how it ended ({_IF_KNOWN})" if statuses == {"unknown"} else "no completed run"


def _rehearsal(counted: Sequence[Side], rows: Sequence[Row]) -> Iterator[str]:
    if all(run.record.provenance == "rehearsed" for side in counted for run in side.usable):
        yield "rehearsed: settings, rates and losses were compared, and nothing that is measured"
        if names := [row.setting for row in rows if row.state == "not rehearsed"]:
            yield f"not rehearsed: {listed(names)}"


def _sentence(row: Row) -> str:
    texts = _distinguished([values for values in row.values.values() if values is not None])
    parts = [f"{label} {'unknown' if values is None else texts(values)}" for label, values in row.values.items()]
    more = f"; and {len(parts) - _NAMED} groups more" if len(parts) > _NAMED + 1 else ""
    shown = "; ".join(parts[:_NAMED] if more else parts) + more
    return f"{row.setting}: {shown}" + (f" ({row.reason})" if row.reason else "")


def _ran_otherwise(deviations: Sequence[Deviation]) -> Iterator[str]:
    """Yield one sentence for all runs that requested the same and ran the same."""
    runs = []
    for item in deviations:
        both = [(item.requested,), (item.effective,)]
        runs.append(((item.setting, *map(_distinguished(both), both)), item.run))
    for (setting, requested, effective), names in gathered(runs).items():
        yield f"{setting} of {some(names)}: requested {requested}, ran {effective}"


def _distinguished(rows: Sequence[tuple[Any, ...]]) -> Callable[[tuple[Any, ...]], str]:
    """Return how values become text, such that 100 and a hand-edited '100' do not look alike."""
    distinct = {repr(value): str(value) for values in rows for value in values}
    alike = len({*distinct.values()}) < len(distinct)
    return lambda values: listed([repr(value) for value in values] if alike else values)
