"""Runs that repeat each other, and a short name for each such group that says what sets it apart."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

from conf.vocabulary import short_names, vocabulary
from metrics.peak import hardware_of
from metrics.repeats import SEED as SEED
from metrics.repeats import experiment_key, requested_of
from parsers import Record, Run

_READABLE = 60  # characters of a label
_Key = TypeVar("_Key", bound=Hashable)
_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Group:
    """Repeats of one experiment: all requested alike but the seed. rehearsed: compared with other rehearsals alone."""

    label: str
    runs: tuple[Run, ...]
    rehearsed: bool = False

    @cached_property
    def usable(self) -> tuple[Run, ...]:
        """Return the runs that count: a rehearsal has no speed, and counts among rehearsals; an estimate never does."""
        count = ("rehearsed",) if self.rehearsed else ("measured", "imported")
        done = (run for run in self.runs if run.record.status == "completed")
        return tuple(run for run in done if run.record.provenance in count)

    @property
    def shown(self) -> tuple[Run, ...]:
        """Return the runs whose figures are shown: those that carry numbers; of an estimate its own, beside them."""
        return self.usable or tuple(run for run in self.runs if has_figures(run.record))


def has_figures(record: Record) -> bool:
    """Return whether a run completed, and not on the wrong machine, as a rehearsal does."""
    return record.status == "completed" and record.provenance != "rehearsed"


def seed_of(record: Record) -> Any:
    """Return the seed that ran, else the one requested; None where neither is known."""
    ran = record.setting(SEED)
    return record.requested.get(SEED) if ran is None else ran


def counted(groups: Sequence[Group]) -> tuple[Group, ...]:
    """Return what is audited: the groups that carry numbers; where none does, the rehearsed ones among themselves."""
    rehearsed = (replace(one, rehearsed=True) for one in groups)
    return tuple(one for one in groups if one.usable) or tuple(one for one in rehearsed if one.usable)


def gathered(pairs: Iterable[tuple[_Key, _Item]]) -> dict[_Key, list[_Item]]:
    """Return the second parts of `pairs` by their first."""
    by_key: dict[_Key, list[_Item]] = {}
    for key, item in pairs:
        by_key.setdefault(key, []).append(item)
    return by_key


def group(runs: Sequence[Run]) -> tuple[Group, ...]:
    """Return the groups, in the order of their first runs."""
    members = gathered((experiment_key(run.record), run) for run in runs)
    labels = _labels([same[0].record for same in members.values()])
    return tuple(Group(label, tuple(same)) for label, same in zip(labels, members.values(), strict=True))


def _labels(firsts: Sequence[Record]) -> list[str]:
    """Return a label for each: the columns that vary, clearest first, until every group has a name of its own."""
    if len(firsts) == 1:
        return [_place(firsts[0]) or firsts[0].name]
    names = [""] * len(firsts)
    for cells in _columns(firsts):
        if len(set(cells)) > 1:
            names = [" ".join(filter(None, pair)) for pair in zip(names, cells, strict=True)]
        if len({*names}) == len(names):
            break
    names = [name or "other" for name in names]
    # Logs from elsewhere, of which little is known, differ in too much to be called after it.
    names = [record.name for record in firsts] if max(map(len, names)) > _READABLE else names
    counts = [names[:i].count(name) + 1 for i, name in enumerate(names)]
    return [name if count == 1 else f"{name} ({count})" for name, count in zip(names, counts, strict=True)]


def _columns(firsts: Sequence[Record]) -> Iterator[list[str]]:
    """Yield what may set groups apart, the clearest first, as every group has it."""
    requests = [requested_of(record) for record in firsts]

    def facts(name: str) -> list[str]:
        return [str(getattr(record, name) or f"{name} unknown") for record in firsts]

    yield [_place(record) for record in firsts]
    yield facts("framework")
    varying = [name for name in short_names() if len({repr(requested.get(name)) for requested in requests}) > 1]
    sizes = [[(short_names()[name], requested.get(name)) for name in varying] for requested in requests]
    large = [" ".join(f"{short}{n}" for short, n in one if type(n) is int and n > 1) for one in sizes]
    smallest = " ".join(f"{short_names()[name]}1" for name in varying)
    yield [size or smallest for size in large]
    others = [row for name, row in vocabulary().items() if name not in (*short_names(), SEED)]
    for row in sorted(others, key=lambda row: bool(row.follows)):  # a consequence names a group where nothing else does
        name = row.name
        yield [f"{name}={requested[name]}" if name in requested else f"{name} unknown" for requested in requests]
    yield facts("image")
    yield facts("provenance")


def _place(record: Record) -> str:
    return " ".join(dict.fromkeys(part for part in (record.platform, hardware_of(record)) if part))
