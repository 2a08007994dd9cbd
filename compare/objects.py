"""The stacks' own configuration objects, held against each other by class and field: every field that differs, with the
part of a training step that it can change; and what code ran, where that is not what its version names. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
from msgspec import UNSET, Struct

from compare.groups import CODE, Group
from conf.errors import listed
from conf.vocabulary import read_yaml, vocabulary
from metrics.repeats import gathered
from parsers import Record
from parsers.assemble import same
from parsers.read_back import Object, Process

TABLE = Path(__file__).parent.parent / "conf" / "tables" / "causes.yaml"
Part = Literal[
    "data",
    "mask",
    "first weights",
    "forward",
    "loss",
    "backward",
    "gradient reduction",
    "clipping",
    "optimizer",
    "schedule",
]
"""The parts of a step in their order, and the weights with which the first one begins."""
Cause = Literal[Part, "speed", "unknown", "bookkeeping"]
CAUSES: tuple[Cause, ...] = get_args(Cause)
"""The parts of a step in their order, then what changes no number."""
Weight = Literal["differs", "alone", "default", "idle"]
WEIGHTS: tuple[Weight, ...] = get_args(Weight)
WHOLE = "(all of it)"
_OFF = (None, False, 0, "")
_READ_AT = {"model": "TransformerConfig", "ddp": "DistributedDataParallelConfig", "optimizer": "OptimizerConfig"}
"""Where `built` of the vocabulary reads → our name of the object."""
EDITED = "edited_files"
"""The fact of a record that lists the rendered files which were not as rendered when the run began."""
_DIRTY = "-dirty"
AS_NAMED = "as named"


class FieldRow(Struct, frozen=True):
    """A field that is not alike in all groups. values: by group label, those of its runs; None where its class has no
    such field. cause: the part of a step that it can change. weight: differs (every class has it), alone (a class lacks
    it, and another has a value that it had to be given), default (the others have their class's default), idle (it does
    nothing in any group). at_default: labels of the groups whose value is their class's default. setting: of the
    vocabulary, which is judged by its own row."""

    object: str
    field: str
    cause: Cause
    weight: Weight
    values: Mapping[str, tuple[Any, ...] | None]
    at_default: tuple[str, ...] = ()
    setting: str | None = None

    @property
    def order(self) -> tuple[int, int, str, str]:
        """Return the place among all rows: what can matter first, in the order of a step."""
        noise = self.cause == "bookkeeping" or WEIGHTS.index(self.weight) > 1
        return (noise + (self.weight == "idle"), CAUSES.index(self.cause), self.object, self.field)


class Table(Struct, frozen=True):
    """conf/tables/causes.yaml, whose head says what each part means."""

    causes: Mapping[Cause, tuple[str, ...]]
    decides: tuple[str, ...]
    variables: tuple[str, ...]
    idle: Mapping[str, Idle]
    absent: Mapping[str, Any]


class Idle(Struct, frozen=True, rename={"has": "is"}):
    """A field does nothing unless another has a value, or this one."""

    unless: str
    has: Any = UNSET

    def holds(self, other: Any) -> bool:
        """Return whether the other field has it so."""
        return other in _OFF if self.has is UNSET else other != self.has


@cache
def table() -> Table:
    """Return the table. Raises what msgspec says of an entry that is not as its head says."""
    return msgspec.convert(dict(read_yaml(TABLE)), Table)


@cache
def cause_of(owner: str, field: str) -> Cause:
    """Return the part of a step that a field of the object `owner` can change."""
    names = (f"{owner}:{field}", field, field.rpartition(".")[2])
    for cause, patterns in table().causes.items():
        if any(
            fnmatchcase(name, pattern) for pattern in patterns for name in names if (":" in pattern) == (":" in name)
        ):
            return cause
    return "unknown"


def object_rows(sides: Sequence[Group]) -> tuple[FieldRow, ...]:
    """Return every field that differs between the groups whose runs were read, the weightiest first; nothing of fewer
    than two."""
    read = {side.label: [r.record.read_back.objects for r in side.usable if r.record.read_back] for side in sides}
    known = {label: objects for label, objects in read.items() if objects and all(objects)}
    if len(known) < 2:
        return ()
    names = dict.fromkeys(name for runs in known.values() for objects in runs for name in objects)
    rows = (row for name in names for row in _rows(name, {k: [o.get(name) for o in v] for k, v in known.items()}))
    return tuple(sorted(rows, key=lambda row: row.order))


def _rows(name: str, sides: Mapping[str, Sequence[Object | None]]) -> Iterator[FieldRow]:
    """Yield the rows of one object; of one that not every group has a single row."""
    read = {label: [one for one in runs if one is not None] for label, runs in sides.items()}
    if any(len(read[label]) < len(runs) for label, runs in sides.items()):
        kinds = {label: tuple(dict.fromkeys(one.kind for one in runs)) or None for label, runs in read.items()}
        yield FieldRow(name, WHOLE, "unknown", "default", kinds)
        return
    absent = table().absent
    for field in dict.fromkeys(field for runs in read.values() for one in runs for field in one.fields):
        values = {label: _values(field, runs) for label, runs in read.items()}
        means = absent.get(f"{name}:{field}", absent.get(field, UNSET))
        first, *others = ((means,) if value is None and means is not UNSET else value for value in values.values())
        if all(_alike(first, other) for other in others):
            continue
        default = tuple(label for label, runs in read.items() if all(_at_default(field, one) for one in runs))
        weight = _weight(field, read, values, default)
        yield FieldRow(name, field, cause_of(name, field), weight, values, default, _settings().get((name, field)))


def _weight(
    field: str,
    read: Mapping[str, Sequence[Object]],
    values: Mapping[str, tuple[Any, ...] | None],
    default: Sequence[str],
) -> Weight:
    idle = next((rule for pattern, rule in table().idle.items() if fnmatchcase(field, pattern)), None)
    if idle and all(idle.holds(one.fields.get(idle.unless)) for runs in read.values() for one in runs):
        return "idle"
    if None not in values.values():
        return "differs"
    return "default" if all(value is None or label in default for label, value in values.items()) else "alone"


def _values(field: str, runs: Sequence[Object]) -> tuple[Any, ...] | None:
    """Return the distinct values of a field; None where a run's class does not have it."""
    if not all(field in one.fields for one in runs):
        return None
    return distinct(one.fields[field] for one in runs)


def distinct(values: Iterable[Any]) -> tuple[Any, ...]:
    """Return the values that are not the same, in one order."""
    several = [*{id(value): value for value in values}.values()]  # of repeats nearly all are one object
    if len(several) < 2:
        return tuple(several)
    found: list[Any] = []
    for value in several:
        found += [] if any(same(value, other) for other in found) else [value]
    return tuple(sorted(found, key=repr))


def _alike(first: tuple[Any, ...] | None, other: tuple[Any, ...] | None) -> bool:
    if first is None or other is None:
        return first is other
    return len(first) == len(other) and all(same(a, b) for a, b in zip(first, other, strict=True))


def _at_default(field: str, one: Object) -> bool:
    return field in one.defaults and field in one.fields and same(one.defaults[field], one.fields[field])


@cache
def _settings() -> Mapping[tuple[str, str], str]:
    """Return (object, field) → the setting of the vocabulary that is read there."""
    places = ((at.split("."), name) for name, row in vocabulary().items() for at in _listed(row.built))
    return {(_READ_AT[at[0]], at[1]): name for at, name in places if len(at) == 2 and at[0] in _READ_AT}


def _listed(built: str | list[str]) -> list[str]:
    return [built] if isinstance(built, str) else built


def speed_switches(rows: Sequence[FieldRow]) -> tuple[FieldRow, ...]:
    """Return the rows of what can change how fast a step is, and no number of it."""
    heavy = (row for row in rows if row.cause == "speed" and row.weight in ("differs", "alone"))
    return tuple(row for row in heavy if row.setting is None)


def speed_sentence(rows: Sequence[FieldRow]) -> str:
    """Return in which switches of the speed alone groups differ; empty without one. Their labels once: they are
    long."""
    switches = speed_switches(rows)
    labels = " / ".join(columns(switches))
    return f"switches of the speed alone differ ({labels}): {'; '.join(map(beside, switches))}" if switches else ""


def deciding(rows: Sequence[FieldRow]) -> tuple[FieldRow, ...]:
    """Return the rows that decide a comparison by themselves: a toy shows nothing of what they change."""
    return tuple(row for row in rows if f"{row.object}:{row.field}" in table().decides)


def columns(rows: Sequence[FieldRow]) -> tuple[str, ...]:
    """Return the labels of the groups in the order of each row's values; none without a row."""
    return tuple(rows[0].values) if rows else ()


def beside(row: FieldRow) -> str:
    """Return a row in a line, without the labels of the groups: "bucket_size null / 1000000"."""
    return f"{row.field} {' / '.join(map(text_of, row.values.values()))}"


def text_of(values: tuple[Any, ...] | None) -> str:
    """Return the values of one group; "not there" where its class has no such field."""
    return "not there" if values is None else listed([v if isinstance(v, str) and v else json.dumps(v) for v in values])


# Code.


def strays(record: Record) -> dict[str, tuple[str, ...]]:
    """Return in what a run was not what it was named, by what is wrong; nothing of a run that was, or of which nobody
    read it."""
    process = process_of(record)
    edited = record.environment.get(EDITED)
    found = {
        "uncommitted": tuple(f"{name} {commit}" for name, commit in process.commits.items() if commit.endswith(_DIRTY)),
        "changed": process.changed,
        "ahead": process.ahead,
        "edited": tuple(map(str, edited)) if isinstance(edited, list | tuple) else (),
    }
    return {f"{CODE}_{what}": values for what, values in found.items() if values}


def changes_numbers(variable: str) -> bool:
    """Return whether a variable of the environment changes what is computed, and not only how fast."""
    return any(fnmatchcase(variable, pattern) for pattern in table().variables)


def process_of(record: Record) -> Process:
    """Return what was read of the process; an empty one where nothing was."""
    return (record.read_back.process if record.read_back else None) or Process()


MEANING: Mapping[str, str] = {
    f"{CODE}_uncommitted": "the checkout has changes that no commit has",
    f"{CODE}_changed": "files of the stack are not as they were installed or committed",
    f"{CODE}_ahead": "code that no version names: from folders in front of the packages, or run whenever Python starts",
    f"{CODE}_edited": "rendered files were changed after they were rendered",
}


def by_cause(rows: Sequence[FieldRow]) -> Mapping[str, list[FieldRow]]:
    """Return the rows by the part of a step that they can change, in the order of a step."""
    return gathered((row.cause, row) for row in sorted(rows, key=lambda row: row.order))
