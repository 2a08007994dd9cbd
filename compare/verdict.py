"""From the audit's rows, checks and deviations to one word, and the sentences that led to it; what the user accepts is
declared before. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from compare.checks import Check
from compare.deviations import Deviation
from compare.groups import Group, Side
from conf.arguments import program
from conf.errors import InputError, Problem, closest, listed

# allowed: another kernel for the same mathematics, or a setting without effect. not rehearsed: what a rehearsal
# leaves out, whatever its dump says.
State = Literal["identical", "varied", "allowed", "declared", "unknown", "unexplained", "not rehearsed"]
Values = Mapping[str, tuple[Any, ...] | None]
Word = Literal["comparable", "not comparable", "cannot tell", "nothing to compare"]
_NAMED = 6
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


_Item = TypeVar("_Item", Row, Check, Deviation)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The word of the comparison, and the reasons that led to it."""

    word: Word
    reasons: tuple[str, ...]


def verdict_of(
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
    beside = tuple(_beside(groups, counted))
    if not counted or (len(counted) == 1 and any(not _is_estimated(g) for g in _not_counted(groups, counted))):
        return Verdict("cannot tell", beside or ("no completed run",))
    if len(counted) == 1:
        return Verdict("nothing to compare", ("one group of runs only", *beside))
    open_ = [*_unknown(rows), *(f"{check.name}: {check.reason}" for check in checks if check.decides)]
    if open_:
        return Verdict("cannot tell", tuple(open_))
    apart = (f"{check.name}: {check.reason}" for check in checks if check.state == "declared")
    return Verdict("comparable", (*apart, *_rehearsal(counted, rows), *beside))


def some(labels: Sequence[str]) -> str:
    """Return the first labels, and how many more there are."""
    more = len(labels) - _NAMED
    return listed(labels) if more <= 1 else f"{listed(labels[:_NAMED])} and {more} more"


def _not_counted(groups: Sequence[Group], counted: Sequence[Side]) -> Sequence[Group]:
    have = {side.label for side in counted}
    return [group for group in groups if group.label not in have]


def _is_estimated(group: Group) -> bool:
    return all(run.record.provenance == "estimated" for run in group.runs)


def _beside(groups: Sequence[Group], counted: Sequence[Side]) -> Iterator[str]:
    why: dict[str, list[str]] = {}
    for group in _not_counted(groups, counted):
        provenances = {run.record.provenance for run in group.runs}
        done = any(run.record.status == "completed" for run in group.runs)
        if provenances == {"estimated"}:
            why.setdefault("estimated: does not count", []).append(group.label)
        elif provenances == {"rehearsed"} and done:
            why.setdefault("rehearsed, which is not compared with what was measured", []).append(group.label)
        elif {run.record.status for run in group.runs} == {"unknown"}:
            why.setdefault(f"the log does not report how it ended ({_IF_KNOWN})", []).append(group.label)
        else:
            why.setdefault("no completed run", []).append(group.label)
    yield from (f"{reason}: {some(labels)}" for reason, labels in why.items())


def _rehearsal(counted: Sequence[Side], rows: Sequence[Row]) -> Iterator[str]:
    if all(run.record.provenance == "rehearsed" for side in counted for run in side.usable):
        yield "rehearsed: settings, rates and losses were compared, and nothing that is measured"
        names = [row.setting for row in rows if row.state == "not rehearsed"]
        if names:
            yield f"not rehearsed: {listed(names)}"


def _unknown(rows: Iterable[Row]) -> Iterator[str]:
    """Yield the settings that the same groups do not report, in one sentence."""
    by_reason: dict[str, list[str]] = {}
    for row in rows:
        if row.decides:
            by_reason.setdefault(row.reason, []).append(row.setting)
    yield from (f"{listed(names)}: unknown, {reason}" for reason, names in by_reason.items())


def _sentence(row: Row) -> str:
    texts = _apart([values for values in row.values.values() if values is not None])
    parts = [f"{label} {'unknown' if values is None else texts(values)}" for label, values in row.values.items()]
    more = f"; and {len(parts) - _NAMED} groups more" if len(parts) > _NAMED + 1 else ""
    shown = "; ".join(parts[:_NAMED] if more else parts) + more
    return f"{row.setting}: {shown}" + (f" ({row.reason})" if row.reason else "")


def _ran_otherwise(deviations: Sequence[Deviation]) -> Iterator[str]:
    """Yield one sentence for all runs that requested the same and ran the same."""
    runs: dict[tuple[str, str, str], list[str]] = {}
    for item in deviations:
        texts = _apart([(item.requested,), (item.effective,)])
        runs.setdefault((item.setting, texts((item.requested,)), texts((item.effective,))), []).append(item.run)
    for (setting, requested, effective), names in runs.items():
        yield f"{setting} of {some(names)}: requested {requested}, ran {effective}"


def _apart(rows: Sequence[tuple[Any, ...]]) -> Callable[[tuple[Any, ...]], str]:
    """Return how values become text, such that 100 and a hand-edited '100' do not look alike."""
    distinct = {repr(value): str(value) for values in rows for value in values}
    alike = len({*distinct.values()}) < len(distinct)
    return lambda values: listed([repr(value) for value in values] if alike else values)


def refuse_unknown(
    reasons: Mapping[str, str], rows: Sequence[Row], checks: Sequence[Check], deviations: Sequence[Deviation]
) -> None:
    """Raise InputError on a key that names nothing of the audit. Without rows nothing was audited, and all pass."""
    known = {*(row.setting for row in rows), *(check.name for check in checks), *(item.setting for item in deviations)}
    wrong = [key for key in reasons if key not in known] if rows else []
    allowed = f"{listed([check.name for check in checks])}, or a setting or fact of the audit"
    if wrong:
        shown = f"the keys are in the table of the audit: {program('compare')} RUNS -o DIR"
        hints = {key: closest(key, known) or shown for key in wrong}
        raise InputError(
            *(Problem(f"accept.{k}", "nothing of that name", k, allowed, hint) for k, hint in hints.items())
        )


def accepted(
    reasons: Mapping[str, str], rows: Sequence[Row], checks: Sequence[Check], deviations: Sequence[Deviation]
) -> tuple[tuple[Row, ...], tuple[Check, ...], tuple[Deviation, ...]]:
    """Return all three with what `reasons` accepts declared."""

    def declared(item: _Item, name: str) -> _Item:
        if name not in reasons or not item.decides:
            return item
        text = f"accepted: {reasons[name]}"
        if isinstance(item, Deviation):
            return replace(item, declared=text, decides=False)
        return replace(item, state="declared", reason=f"{text} ({item.reason})" if item.reason else text, decides=False)

    return (
        tuple(declared(row, row.setting) for row in rows),
        tuple(declared(check, check.name) for check in checks),
        tuple(declared(item, item.setting) for item in deviations),
    )
