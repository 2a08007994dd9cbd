"""Runs that repeat each other, and a short name for each such group that says what sets it apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from conf.vocabulary import short_names, vocabulary
from metrics.peak import hardware_of
from metrics.repeats import SEED as SEED
from metrics.repeats import experiment_key, requested_of
from parsers import Record, Run

_READABLE = 60  # characters of a label
# Consequences of other settings: they name a group only where nothing else does.
_LAST = ("micro_batch_size", "num_micro_batches", "world_size", "lr_warmup_init", "lr_decay_iters", "padded_vocab_size")


@dataclass(frozen=True, slots=True)
class Group:
    """Repeats of one experiment: all requested alike but the seed."""

    label: str
    runs: tuple[Run, ...]

    @property
    def usable(self) -> tuple[Run, ...]:
        """Return the runs that carry numbers into a verdict."""
        return tuple(run for run in self.runs if carries_numbers(run.record))

    @property
    def shown(self) -> tuple[Run, ...]:
        """Return the runs whose figures are shown: those that carry numbers; of an estimate its own, beside them."""
        return self.usable or tuple(run for run in self.runs if has_figures(run.record))


@dataclass(frozen=True, slots=True)
class Side:
    """A group as the audit sees it. usable: the runs that count; runs: all that were planned."""

    label: str
    usable: tuple[Run, ...]
    runs: tuple[Run, ...]


def carries_numbers(record: Record) -> bool:
    """Return whether a run completed for real: a rehearsal has no speed, an estimate does not count."""
    return record.status == "completed" and record.provenance in ("measured", "imported")


def has_figures(record: Record) -> bool:
    """Return whether a run completed, and not on the wrong machine, as a rehearsal does. An estimate has figures, and
    does not count."""
    return record.status == "completed" and record.provenance != "rehearsed"


def sides(groups: Sequence[Group]) -> tuple[tuple[Side, ...], bool]:
    """Return what is audited: the groups that carry numbers; where none does, the rehearsed ones among themselves
    (True)."""
    real = tuple(Side(g.label, g.usable, g.runs) for g in groups if g.usable)
    if real:
        return real, False
    known = ("completed", "rehearsed")
    done = [(g, tuple(r for r in g.runs if (r.record.status, r.record.provenance) == known)) for g in groups]
    rehearsed = tuple(Side(g.label, runs, g.runs) for g, runs in done if runs)
    return rehearsed, bool(rehearsed)


def group(runs: Sequence[Run]) -> tuple[Group, ...]:
    """Return the groups, in the order of their first runs."""
    members: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        members.setdefault(experiment_key(run.record), []).append(run)
    labels = _labels([same[0].record for same in members.values()])
    return tuple(Group(label, tuple(same)) for label, same in zip(labels, members.values(), strict=True))


def _labels(firsts: Sequence[Record]) -> list[str]:
    """Return a label for each: the columns that vary, clearest first, until every group has a name of its own."""
    if len(firsts) == 1:
        return [_place(firsts[0]) or firsts[0].name]
    parts: list[list[str]] = [[] for _ in firsts]
    for column in _columns(firsts):
        cells = [column(record) for record in firsts]
        if len(set(cells)) > 1:
            for labels, cell in zip(parts, cells, strict=True):
                labels.extend([cell] if cell else [])
        if len({" ".join(labels) for labels in parts}) == len(parts):
            break
    names = [" ".join(labels) or "other" for labels in parts]
    # Logs from elsewhere, of which little is known, differ in too much to be called after it.
    return _unique([record.name for record in firsts] if max(map(len, names)) > _READABLE else names)


def _columns(firsts: Sequence[Record]) -> list[Callable[[Record], str]]:
    varying = [name for name in short_names() if len({repr(requested_of(record).get(name)) for record in firsts}) > 1]
    names = [name for name in vocabulary() if name not in (*short_names(), *_LAST, SEED)]
    settings = [_setting(name) for name in (*names, *_LAST)]
    facts = [_fact(name) for name in ("image", "provenance")]
    return [_place, _fact("framework"), lambda record: _layout(record, varying), *settings, *facts]


def _place(record: Record) -> str:
    return " ".join(dict.fromkeys(part for part in (record.platform, hardware_of(record)) if part))


def _layout(record: Record, varying: Sequence[str]) -> str:
    sizes = [(short_names()[name], requested_of(record).get(name)) for name in varying]
    large = [f"{short}{size}" for short, size in sizes if type(size) is int and size > 1]
    return " ".join(large) or ("no parallelism" if varying else "")


def _setting(name: str) -> Callable[[Record], str]:
    return lambda record: f"{name}={requested_of(record)[name]}" if name in requested_of(record) else f"{name} unknown"


def _fact(name: str) -> Callable[[Record], str]:
    return lambda record: str(getattr(record, name) or f"{name} unknown")


def _unique(labels: Sequence[str]) -> list[str]:
    seen: dict[str, int] = {}
    unique = []
    for label in labels:
        seen[label] = seen.get(label, 0) + 1
        unique.append(label if seen[label] == 1 else f"{label} ({seen[label]})")
    return unique
