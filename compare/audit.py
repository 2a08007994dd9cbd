"""Whether groups of runs may be compared at all: every setting that decides it, as it really ran. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from compare.find import Run
from compare.groups import SEED, Group
from conf.errors import InputError, Problem, closest, listed
from conf.vocabulary import vocabulary
from metrics.pace import pace
from parsers import Record
from parsers.assemble import differences, same

# allowed: another kernel for the same mathematics, or a setting without effect.
State = Literal["identical", "varied", "allowed", "declared", "unknown", "unexplained"]
Word = Literal["comparable", "not comparable", "cannot tell", "nothing to compare"]

DEFAULT_VARY = ("platform",)
# Facts of the record beside the settings of the vocabulary; not knowing them decides nothing.
_FACTS = ("platform", "hardware", "framework", "framework_version", "image", "clock")
_IMPLIED: Mapping[str, tuple[str, ...]] = {
    "platform": ("hardware", "framework", "framework_version", "image", "layout"),
    "framework": ("framework_version", "image"),
    "layout": ("micro_batch_size", "num_micro_batches"),
    "lr": ("lr_warmup_init",),
    "lr_warmup_iters": ("lr_warmup_init",),
    "train_iters": ("lr_decay_iters",),
}
# A setting that has no effect while its switch is None or False in every group.
_SWITCHES: Mapping[str, str] = {
    "fp8_recipe": "fp8",
    "recompute_method": "recompute_granularity",
    "recompute_num_layers": "recompute_granularity",
    "rope_scaling_factor": "use_rope_scaling",
}
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
    """rows: every setting; unlike: requested against effective, run by run."""

    rows: tuple[Row, ...]
    unlike: tuple[Unlike, ...]
    verdict: Verdict


def audit(groups: Sequence[Group], vary: Sequence[str] = DEFAULT_VARY) -> Audit:
    """Hold the groups that carry numbers against each other. vary: what is being compared (settings, kinds, facts)."""
    varied = expand(vary)
    carrying = [group for group in groups if group.usable]
    rows = (*_fact_rows(carrying, varied), *_setting_rows(carrying, varied)) if carrying else ()
    unlike = tuple(_unlike(run) for group in carrying for run in group.usable)
    flat = tuple(item for items in unlike for item in items)
    return Audit(rows, flat, _verdict(groups, rows, flat))


def expand(vary: Iterable[str]) -> frozenset[str]:
    """All settings and facts that `vary` names, by themselves, by their kind, or as a consequence. InputError."""
    kinds: dict[str, list[str]] = {}
    for setting in vocabulary().values():
        kinds.setdefault(setting.kind, []).append(setting.name)
    known = {*kinds, *vocabulary(), *_FACTS}
    unknown = [name for name in vary if name not in known]
    if unknown:
        first = unknown[0]
        allowed = listed([*_FACTS, *kinds]) + ", or a setting of conf/vocabulary.yaml"
        raise InputError(Problem("--vary", "no such setting", listed(unknown), allowed, closest(first, sorted(known))))
    found: set[str] = set()
    left = list(vary)
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += [*_IMPLIED.get(name, ()), *kinds.get(name, ())]
    return frozenset(found)


def _fact_rows(groups: Sequence[Group], varied: frozenset[str]) -> Iterator[Row]:
    for name in _FACTS:
        values = {group.label: _told([_fact(run.record, name) for run in group.usable]) for group in groups}
        yield _row(name, "fact", values, varied, groups)


def _fact(record: Record, name: str) -> tuple[bool, Any]:
    value = pace(record).clock if name == "clock" else getattr(record, name)
    return value is not None, value


def _setting_rows(groups: Sequence[Group], varied: frozenset[str]) -> Iterator[Row]:
    values = {name: {group.label: _values(group, name) for group in groups} for name in vocabulary()}
    for name, setting in vocabulary().items():
        row = _row(name, setting.kind, values[name], varied, groups)
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
    mixed = [label for label, found in values.items() if found is not None and len(found) > 1 and name != SEED]
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
    declared = _declared(name, apart, groups)
    return ("declared", declared) if declared else ("unexplained", "")


def _alike(first: tuple[Any, ...] | None, found: tuple[Any, ...] | None) -> bool:
    if first is None or found is None or len(first) != len(found):
        return False
    return all(same(a, b) for a, b in zip(first, found, strict=True))


def _declared(name: str, apart: Sequence[str], groups: Sequence[Group]) -> str:
    """The reasons given for a setting, if each group that is apart gives one, or the first group does for itself."""
    given = {group.label: _declared_by(group.usable, name) for group in groups}
    first = next(iter(given.values()))
    if first is None and not all(given[label] for label in apart):
        return ""
    return "; ".join(f"{label}: {reason}" for label, reason in given.items() if reason)


def _declared_by(runs: Sequence[Run], name: str) -> str | None:
    setting = vocabulary().get(name)
    keys = {name, setting.request if setting is not None else name}
    reasons = [[d.reason for d in run.record.declared if d.key in keys] for run in runs]
    return reasons[0][0] if reasons and all(reasons) else None


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
