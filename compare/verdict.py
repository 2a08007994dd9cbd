"""From the audit's findings to one word, and the sentences that led to it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from compare.curves import Check
from compare.groups import Group, Side
from compare.row import Row
from compare.unlike import Unlike
from conf.errors import listed

Word = Literal["comparable", "not comparable", "cannot tell", "nothing to compare"]
_NAMED = 6
_IF_KNOWN = "if you know: python -m parsers LOG --save status=completed"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The word, and what led to it."""

    word: Word
    reasons: tuple[str, ...]


def verdict_of(
    groups: Sequence[Group],
    held: Sequence[Side],
    rows: Sequence[Row],
    checks: Sequence[Check],
    unlike: Sequence[Unlike],
) -> Verdict:
    """What differs decides before what is not known; both before what is missing."""
    wrong = [_sentence(row) for row in rows if row.decides and row.state == "unexplained"]
    wrong += [f"{check.name}: {check.reason}" for check in checks if check.decides and check.state == "apart"]
    wrong += _ran_otherwise([item for item in unlike if item.decides])
    if wrong:
        return Verdict("not comparable", tuple(wrong))
    beside = tuple(_beside(groups, held))
    if not held or (len(held) == 1 and any(not _is_estimated(g) for g in _without_a_say(groups, held))):
        return Verdict("cannot tell", beside or ("no completed run",))
    if len(held) == 1:
        return Verdict("nothing to compare", ("one group of runs only", *beside))
    open_ = [*_unknown(rows), *(f"{check.name}: {check.reason}" for check in checks if check.decides)]
    if open_:
        return Verdict("cannot tell", tuple(open_))
    apart = (f"{check.name}: {check.reason}" for check in checks if check.state == "declared")
    return Verdict("comparable", (*apart, *_rehearsal(held, rows), *beside))


def some(labels: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    more = len(labels) - _NAMED
    return listed(labels) if more <= 1 else f"{listed(labels[:_NAMED])} and {more} more"


def _without_a_say(groups: Sequence[Group], held: Sequence[Side]) -> Sequence[Group]:
    have = {side.label for side in held}
    return [group for group in groups if group.label not in have]


def _is_estimated(group: Group) -> bool:
    return all(run.record.provenance == "estimated" for run in group.runs)


def _beside(groups: Sequence[Group], held: Sequence[Side]) -> Iterator[str]:
    why: dict[str, list[str]] = {}
    for group in _without_a_say(groups, held):
        provenances = {run.record.provenance for run in group.runs}
        done = any(run.record.status == "completed" for run in group.runs)
        if provenances == {"estimated"}:
            why.setdefault("estimated, without a say", []).append(group.label)
        elif provenances == {"rehearsed"} and done:
            why.setdefault("rehearsed, which is not held against what was measured", []).append(group.label)
        elif {run.record.status for run in group.runs} == {"unknown"}:
            why.setdefault(f"the log does not tell how it ended ({_IF_KNOWN})", []).append(group.label)
        else:
            why.setdefault("no completed run", []).append(group.label)
    yield from (f"{reason}: {some(labels)}" for reason, labels in why.items())


def _rehearsal(held: Sequence[Side], rows: Sequence[Row]) -> Iterator[str]:
    if all(run.record.provenance == "rehearsed" for side in held for run in side.usable):
        yield "rehearsed: settings, rates and losses were compared, and nothing that is measured"
        names = [row.setting for row in rows if row.state == "not rehearsed"]
        if names:
            yield f"not rehearsed: {listed(names)}"


def _unknown(rows: Iterable[Row]) -> Iterator[str]:
    """Settings that the same groups do not tell, in one sentence."""
    by_reason: dict[str, list[str]] = {}
    for row in rows:
        if row.decides:
            by_reason.setdefault(row.reason, []).append(row.setting)
    yield from (f"{listed(names)}: unknown, {reason}" for reason, names in by_reason.items())


def _sentence(row: Row) -> str:
    texts = _apart([found for found in row.values.values() if found is not None])
    values = [f"{label} {'unknown' if found is None else texts(found)}" for label, found in row.values.items()]
    more = f"; and {len(values) - _NAMED} groups more" if len(values) > _NAMED + 1 else ""
    shown = "; ".join(values[:_NAMED] if more else values) + more
    return f"{row.setting}: {shown}" + (f" ({row.reason})" if row.reason else "")


def _ran_otherwise(found: Sequence[Unlike]) -> Iterator[str]:
    """One sentence for all runs that were asked for the same and ran the same."""
    runs: dict[tuple[str, str, str], list[str]] = {}
    for item in found:
        texts = _apart([(item.requested,), (item.effective,)])
        runs.setdefault((item.setting, texts((item.requested,)), texts((item.effective,))), []).append(item.run)
    for (setting, requested, effective), names in runs.items():
        yield f"{setting} of {some(names)}: requested {requested}, ran {effective}"


def _apart(found: Sequence[tuple[Any, ...]]) -> Callable[[tuple[Any, ...]], str]:
    """Values as text, such that 100 and a hand-edited '100' do not look alike."""
    distinct = {repr(value): str(value) for values in found for value in values}
    alike = len({*distinct.values()}) < len(distinct)
    return lambda values: listed([repr(value) for value in values] if alike else values)
