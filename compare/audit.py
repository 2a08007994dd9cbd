"""The audit: every setting that decides whether groups of runs may be compared, as it really ran. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from compare.checks import Check, checks, same_checksums
from compare.curve import Curve, curve_of
from compare.deviations import Deviation, declared_by, deviations_of
from compare.groups import SEED, Group, Side, sides
from compare.question import Question
from compare.vary import DEVICE, DUMPED, FACTS, LAYOUT, PARAMETERS, TOKENS, Varied, choose, expand, fact_of
from compare.verdict import Row, State, Values, Verdict, accepted, refuse_unknown, some, verdict_of
from conf.vocabulary import Setting, vocabulary
from parsers import Record, Run
from parsers.assemble import same

_OFTEN_VARIED = (LAYOUT, "image", "precision")
_A_SEED = (SEED, TOKENS)  # differ between the repeats of one experiment
_ENVIRONMENT = (DEVICE, TOKENS, *PARAMETERS, *DUMPED)


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
    deviations = tuple(item for side in counted for run in side.usable for item in deviations_of(run))
    curve_checks = checks(counted, traced, {row.setting: row.state for row in rows}, question.baseline)
    refuse_unknown(question.accept, rows, curve_checks, deviations)
    rows, curve_checks, deviations = accepted(question.accept, rows, curve_checks, deviations)
    verdict = verdict_of(groups, counted, rows, curve_checks, deviations)
    return Audit(rows, curve_checks, deviations, verdict, compared, rehearsed)


def _fact_rows(counted: Sequence[Side], varied: frozenset[str], curves: Mapping[str, Curve]) -> Iterator[Row]:
    for name in FACTS:
        values = {
            side.label: _reported([_fact(run, name, curves) for run in _counting(side, name)]) for side in counted
        }
        if name not in (*PARAMETERS, *DUMPED) or any(values.values()):  # a probe or one stack alone reports them
            row = _row(name, None, values, varied, counted)
            timers = name == "clock" and row.state == "unexplained" and not row.reason
            yield replace(row, reason="step times by different timers") if timers else row


def _counting(side: Side, name: str) -> Sequence[Run]:
    """Return the runs that count for a fact. Seeds, and what follows from each, were planned: there a run that died
    counts."""
    return side.runs if name in _A_SEED else side.usable


def _fact(run: Run, name: str, curves: Mapping[str, Curve]) -> tuple[bool, Any]:
    if name == "clock":
        value: Any = curves[run.path].clock
    else:
        value = run.record.environment.get(name) if name in _ENVIRONMENT else fact_of(run.record, name)
    return value is not None, value


def _layout_row(counted: Sequence[Side], varied: frozenset[str]) -> Iterator[Row]:
    """Yield how a layout was requested: no log reports it, and alone it decides nothing, for its sizes have rows."""
    requests = [(side.label, [run.record.requested for run in side.usable]) for side in counted]
    values = {label: _reported([(LAYOUT in one, one.get(LAYOUT)) for one in asked]) for label, asked in requests}
    first = next(iter(values.values()))
    if all(_alike(first, value) for value in values.values()):
        yield Row(LAYOUT, LAYOUT, "identical", values, "", decides=False)
    elif any(values.values()):
        state: State = "varied" if LAYOUT in varied else "allowed"
        yield Row(LAYOUT, LAYOUT, state, values, "" if state == "varied" else "a name; its sizes decide", decides=False)


def _setting_rows(counted: Sequence[Side], varied: frozenset[str], same_tokens: bool) -> Iterator[Row]:
    settings = {name: setting for name, setting in vocabulary().items() if setting.dump}
    values = {name: {side.label: _values(side, name) for side in counted} for name in settings}
    for name, setting in settings.items():
        row = _row(name, setting, values[name], varied, counted)
        if setting.kind == "data" and row.state in ("unknown", "unexplained") and same_tokens:
            row = replace(row, state="allowed", reason="the first batch has the same tokens", decides=False)
        if row.state in ("unknown", "unexplained") and (why := _no_effect(name, values)):
            row = replace(row, state="allowed", reason=f"no effect: {why}", decides=False)
        if row.state != "unexplained" and (reason := _not_rehearsed(counted, name)):
            row = replace(row, state="not rehearsed", reason=reason, decides=False)
        given = [s.label for s in counted if any(_is_given(run.record, name) for run in s.usable)]
        yield (
            replace(row, reason="; ".join(filter(None, (row.reason, f"as given for {some(given)}")))) if given else row
        )


def _topic_rows(counted: Sequence[Side]) -> Iterator[Row]:
    """Yield what a rehearsal leaves out that is no setting: kernels, collectives."""
    topics = dict.fromkeys(t for side in counted for run in side.usable for t in run.record.not_rehearsed)
    for topic in (topic for topic in topics if topic not in vocabulary()):
        values: Values = {side.label: None for side in counted}
        yield Row(topic, "rehearsal", "not rehearsed", values, _not_rehearsed(counted, topic), decides=False)


def _not_rehearsed(counted: Sequence[Side], name: str) -> str:
    left_out = [
        (s.label, r.record.not_rehearsed[name]) for s in counted for r in s.usable if name in r.record.not_rehearsed
    ]
    reasons = dict.fromkeys(reason for _, reason in left_out)
    labels = list(dict.fromkeys(label for label, _ in left_out))
    whose = "" if len(labels) == len(counted) else f"{some(labels)}: "
    return f"{whose}{'; '.join(reasons)}" if left_out else ""


def _values(side: Side, name: str) -> tuple[Any, ...] | None:
    if name == SEED:
        return _reported([_seed(run.record) for run in side.runs])
    return _reported([_effective(run.record, name) for run in side.usable])


def _no_effect(name: str, values: Mapping[str, Values]) -> str:
    """Return why a setting that differs does nothing in any group; empty where it does."""
    switch = vocabulary()[name].only_if or ""
    if switch in values and all(value in ((None,), (False,)) for value in values[switch].values()):
        return f"{switch} is off"
    if name == "tokenizer_model" and all(value == ("NullTokenizer",) for value in values["tokenizer_type"].values()):
        return "the corpus holds token ids already"
    ends = [value[0] if value else None for value in values["train_iters"].values()]
    if name == "save_interval" and all(map(_saves_at_the_end, values[name].values(), ends)):
        return "nothing is saved before the end"
    return ""


def _saves_at_the_end(intervals: tuple[Any, ...] | None, end: Any) -> bool:
    if intervals is None or type(end) is not int:
        return False
    return all(every is None or (type(every) is int and every >= end) for every in intervals)


def _effective(record: Record, name: str) -> tuple[bool, Any]:
    """Return what ran, else what the user stated beside the log; before it, whether either is known."""
    return name in record.effective or _is_given(record, name), record.setting(name)


def _is_given(record: Record, name: str) -> bool:
    return name in record.given and name not in record.effective


def _seed(record: Record) -> tuple[bool, Any]:
    """Return the seed. A run that died before it reported one counts with the one requested: the set was planned."""
    known, value = _effective(record, SEED)
    return (known, value) if known else (SEED in record.requested, record.requested.get(SEED))


def _reported(reports: Sequence[tuple[bool, Any]]) -> tuple[Any, ...] | None:
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
    given = {side.label: declared_by(side.usable, name) for side in counted if side.label in reported}
    silent = [reported[label] for label, reason in given.items() if not reason]
    if any(given.values()) and all(_alike(silent[0], value) for value in silent):
        return "; ".join(f"{label}: {reason}" for label, reason in given.items() if reason)
    return ""
