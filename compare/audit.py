"""Whether groups of runs may be compared at all: every setting that decides it, as it really ran. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from compare.groups import SEED, Group
from compare.vary import FACTS, LAYOUT, TOKENS, Varied, choose, expand
from conf.errors import listed
from conf.vocabulary import vocabulary
from metrics.pace import pace
from parsers import Declaration, Record, Run
from parsers.assemble import differences, same

# allowed: another kernel for the same mathematics, or a setting without effect.
State = Literal["identical", "varied", "allowed", "declared", "unknown", "unexplained"]
Word = Literal["comparable", "not comparable", "cannot tell", "nothing to compare"]

# A setting that has no effect while its switch is None or False in every group.
_SWITCHES: Mapping[str, str] = {
    "fp8_recipe": "fp8",
    "recompute_method": "recompute_granularity",
    "recompute_num_layers": "recompute_granularity",
    "rope_scaling_factor": "use_rope_scaling",
}
_A_SEED = (SEED, TOKENS)  # differ between the repeats of one experiment
Values = Mapping[str, tuple[Any, ...] | None]


@dataclass(frozen=True, slots=True)
class Row:
    """One setting over all groups. values: group label to the values found there, None where one is not told.

    decides: this row alone forbids the comparison, or leaves it open.
    """

    setting: str
    kind: str
    state: State
    values: Values
    reason: str
    decides: bool


@dataclass(frozen=True, slots=True)
class Unlike:
    """A setting that a run was asked for and did not get. declared: the reason given for it."""

    run: str
    setting: str
    requested: Any
    effective: Any
    declared: str | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The word, and what led to it."""

    word: Word
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Audit:
    """rows: every setting; unlike: requested against effective, run by run; varied: what is compared."""

    rows: tuple[Row, ...]
    unlike: tuple[Unlike, ...]
    verdict: Verdict
    varied: Varied


def audit(groups: Sequence[Group], vary: Sequence[str] | None = None) -> Audit:
    """Hold the groups that carry numbers against each other. vary: what is being compared (settings, kinds, facts);
    None: what the groups themselves suggest. InputError."""
    carrying = [group for group in groups if group.usable]
    compared = choose(carrying, vary)
    may = compared.settings
    rows = (*_fact_rows(carrying, may), *_layout_row(carrying, may), *_setting_rows(carrying, may)) if carrying else ()
    unlike = tuple(_unlike(run) for group in carrying for run in group.usable)
    flat = tuple(item for items in unlike for item in items)
    return Audit(rows, flat, _verdict(groups, rows, flat), compared)


def _fact_rows(groups: Sequence[Group], varied: frozenset[str]) -> Iterator[Row]:
    for name in FACTS:
        values = {group.label: _told([_fact(run.record, name) for run in _counting(group, name)]) for group in groups}
        yield _row(name, "fact", values, varied, groups)


def _counting(group: Group, name: str) -> Sequence[Run]:
    """The set of seeds, and what follows from each, was planned: a run that died counts."""
    return group.runs if name in _A_SEED else group.usable


def _fact(record: Record, name: str) -> tuple[bool, Any]:
    if name == "clock":
        value: Any = pace(record).clock
    else:
        value = record.environment.get(name) if name == TOKENS else getattr(record, name)
    return value is not None, value


def _layout_row(groups: Sequence[Group], varied: frozenset[str]) -> Iterator[Row]:
    """How a layout was asked for: no log tells it, and alone it decides nothing, for the sizes are rows themselves."""
    asked = [(group.label, [run.record.requested for run in group.usable]) for group in groups]
    values = {label: _told([(LAYOUT in one, one.get(LAYOUT)) for one in requests]) for label, requests in asked}
    first = next(iter(values.values()))
    if all(_alike(first, found) for found in values.values()):
        yield Row(LAYOUT, LAYOUT, "identical", values, "", decides=False)
    elif any(values.values()):
        state: State = "varied" if LAYOUT in varied else "allowed"
        yield Row(LAYOUT, LAYOUT, state, values, "" if state == "varied" else "a name; its sizes decide", decides=False)


def _setting_rows(groups: Sequence[Group], varied: frozenset[str]) -> Iterator[Row]:
    settings = {name: setting for name, setting in vocabulary().items() if setting.dump}
    values = {name: {group.label: _values(group, name) for group in groups} for name in settings}
    same_tokens = any(row.setting == TOKENS and row.state == "identical" for row in _fact_rows(groups, varied))
    for name, setting in settings.items():
        row = _row(name, setting.kind, values[name], varied, groups)
        if setting.kind == "data" and row.state in ("unknown", "unexplained") and same_tokens:
            row = replace(row, state="allowed", reason="the first batch has the same tokens", decides=False)
        if row.state in ("unknown", "unexplained") and _is_off(values.get(_SWITCHES.get(name, ""))):
            row = replace(row, state="allowed", reason=f"no effect: {_SWITCHES[name]} is off", decides=False)
        yield row


def _values(group: Group, name: str) -> tuple[Any, ...] | None:
    if name == SEED:
        return _told([_seed(run.record) for run in group.runs])
    return _told([_effective(run.record, name) for run in group.usable])


def _is_off(switch: Values | None) -> bool:
    return switch is not None and all(found in ((None,), (False,)) for found in switch.values())


def _effective(record: Record, name: str) -> tuple[bool, Any]:
    reading = record.effective.get(name)
    return reading is not None, record.setting(name)


def _seed(record: Record) -> tuple[bool, Any]:
    """A run that died before it told its seed counts with the one it was given: the set was planned."""
    told, value = _effective(record, SEED)
    return (told, value) if told else (SEED in record.requested, record.requested.get(SEED))


def _told(found: Sequence[tuple[bool, Any]]) -> tuple[Any, ...] | None:
    if not all(told for told, _ in found):
        return None
    distinct: list[Any] = []
    for _, value in found:
        if not any(same(value, other) for other in distinct):
            distinct.append(value)
    return tuple(sorted(distinct, key=repr))


def _row(name: str, kind: str, values: Values, varied: frozenset[str], groups: Sequence[Group]) -> Row:
    state, reason = _state(name, kind, values, varied, groups)
    matters = kind not in ("fact", "kernels") and name not in varied
    decides = state == "unexplained" or (state == "unknown" and matters)
    return Row(name, kind, state, values, reason, decides)


def _state(name: str, kind: str, values: Values, varied: frozenset[str], groups: Sequence[Group]) -> tuple[State, str]:
    silent = [label for label, found in values.items() if found is None]
    if silent:
        return "unknown", f"not told by {listed(silent)}"
    mixed = [label for label, found in values.items() if found is not None and len(found) > 1 and name not in _A_SEED]
    if mixed and kind != "kernels":
        return "unexplained", f"differs between the repeats of {listed(mixed)}"
    first = next(iter(values.values()))
    apart = [label for label, found in values.items() if not _alike(first, found)]
    if not apart:
        return "identical", ""
    if name in varied:
        return "varied", ""
    if kind == "kernels":
        return "allowed", "another kernel"
    declared = _declared(name, values, groups)
    if declared:
        return "declared", declared
    return "unexplained", f"layouts are compared with --vary {LAYOUT}" if name in expand((LAYOUT,)) else ""


def _alike(first: tuple[Any, ...] | None, found: tuple[Any, ...] | None) -> bool:
    if first is None or found is None or len(first) != len(found):
        return False
    return all(same(a, b) for a, b in zip(first, found, strict=True))


def _declared(name: str, values: Values, groups: Sequence[Group]) -> str:
    """The reasons given for a setting, where the groups that give none have it alike."""
    given = {group.label: _declared_by(group.usable, name) for group in groups}
    silent = [values[label] for label, reason in given.items() if not reason]
    if not all(_alike(silent[0], found) for found in silent):
        return ""
    return "; ".join(f"{label}: {reason}" for label, reason in given.items() if reason)


def _declared_by(runs: Sequence[Run], name: str) -> str | None:
    reasons = [[d.reason for d in run.record.declared if _speaks_of(d, name, run.record)] for run in runs]
    return reasons[0][0] if reasons and all(reasons) else None


def _speaks_of(declaration: Declaration, name: str, record: Record) -> bool:
    """Under its canonical name the value that is declared must be the one that ran. Older records hold paths of the
    config, with values as they were typed."""
    setting = vocabulary().get(name)
    if setting is None:
        return declaration.key == name
    if declaration.key == name:
        return same(declaration.value, record.setting(name))
    return declaration.key == setting.request


def _unlike(run: Run) -> Iterator[Unlike]:
    # Made anew: a record edited by hand may hold an old list.
    for difference in differences(run.record.requested, run.record.effective):
        declared = _declared_by([run], difference.setting)
        yield Unlike(run.record.id, difference.setting, difference.requested, difference.effective, declared)


def _verdict(groups: Sequence[Group], rows: Sequence[Row], unlike: Sequence[Unlike]) -> Verdict:
    wrong = [_sentence(row) for row in rows if row.state == "unexplained"]
    wrong += [_unlike_sentence(item) for item in unlike if item.declared is None]
    if wrong:
        return Verdict("not comparable", tuple(wrong))
    empty = [group.label for group in groups if not group.usable]
    if empty and len(empty) >= len(groups) - 1:
        return Verdict("cannot tell", (f"no completed run that carries numbers: {listed(empty)}",))
    open_ = [_sentence(row) for row in rows if row.decides]
    if open_:
        return Verdict("cannot tell", tuple(open_))
    if len(groups) == 1:
        return Verdict("nothing to compare", ("one group of runs only",))
    return Verdict("comparable", tuple(f"no completed run: {label}" for label in empty))


def _sentence(row: Row) -> str:
    if row.state == "unknown":
        return f"{row.setting}: unknown, {row.reason}"
    values = "; ".join(f"{label} {listed(found or ())}" for label, found in row.values.items())
    return f"{row.setting}: {values}" + (f" ({row.reason})" if row.reason else "")


def _unlike_sentence(item: Unlike) -> str:
    return f"{item.setting} of {item.run}: requested {item.requested}, ran {item.effective}"
