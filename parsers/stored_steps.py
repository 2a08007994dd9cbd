"""steps.jsonl read back: as columns, a thousand steps in 10 ms, and only when somebody looks at them.

A file whose lines have one shape, as ours have, is checked and built column by column. Any other is read line by line
against the schema, which is also what tells where and why one is refused.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from itertools import repeat
from pathlib import Path
from typing import Any, overload

import orjson

from parsers.record import STEP_FIELDS, Step, step_from_json

_SETTERS: Mapping[str, Callable[[Step, Any], None]] = {name: getattr(Step, name).__set__ for name in STEP_FIELDS}
_DEFAULTS: Mapping[str, Any] = {f.name: f.default for f in fields(Step)}
_PYTHON = {"integer": int, "number": float, "string": str, "null": type(None)}
_KEPT = 4
_HUGE = 2**63  # as parsers/storage.py; reading line by line says what is wrong with it

Read = Callable[[Path], tuple[Step, ...]]


class StoredSteps(Sequence[Step]):
    """The steps in a file, which `read` reads when they are first looked at; only those of the last few files are kept.
    A file that cannot be used is told then, by an InputError."""

    def __init__(self, path: Path, read: Read) -> None:
        self._path, self._read = path, read

    def __len__(self) -> int:
        return len(self._steps())

    def __iter__(self) -> Iterator[Step]:
        return iter(self._steps())

    @overload
    def __getitem__(self, index: int) -> Step: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Step]: ...
    def __getitem__(self, index: int | slice) -> Step | Sequence[Step]:
        return self._steps()[index]

    def read(self) -> tuple[Step, ...]:
        """All of them, kept by nobody else."""
        return self._read(self._path)

    def _steps(self) -> tuple[Step, ...]:
        stat = self._path.stat()
        return _kept(self._path, self._read, (stat.st_mtime_ns, stat.st_size, stat.st_ino))


@lru_cache(maxsize=_KEPT)
def _kept(path: Path, read: Read, _: tuple[int, ...]) -> tuple[Step, ...]:
    return read(path)


def columns(text: str, schema: Mapping[str, Any]) -> tuple[Step, ...] | None:
    """The steps in `text`, or None where its lines are not all of one shape that `schema` (of one step) surely
    allows."""
    try:
        rows = _loads(text)
    except (ValueError, RecursionError):
        return None
    if len(rows) != text.rstrip().count("\n") + 1 or not all(isinstance(row, dict) for row in rows):
        return None  # an object over two lines, two on one, none
    names = tuple(rows[0])
    if any(len(row) != len(names) for row in rows) or not {*schema["required"]} <= {*names}:
        return None
    try:
        known = {name: [row[name] for row in rows] for name in names}
    except KeyError:
        return None
    if not all(_fits(column, schema["properties"].get(name, {})) for name, column in known.items()):
        return None
    return tuple(_built(known, len(rows)))


def _loads(text: str) -> list[Any]:
    """All lines at once: half the time of one after another."""
    found: list[Any] = orjson.loads(f"[{text.rstrip().replace(chr(10), ',')}]")
    return found


def _fits(column: Sequence[Any], rule: Mapping[str, Any]) -> bool:
    """Whether `rule` of the schema surely allows all of a column. Only what our schema says of a step is known."""
    kinds, allowed = {*map(type, column)}, rule.get("type", ())
    allowed = {allowed} if isinstance(allowed, str) else {*allowed}
    if "array" in allowed:
        return kinds == {list} and all(type(item) is str for items in filter(None, column) for item in items)
    if "object" in allowed:
        return kinds == {dict} and all(_plain(value) for values in filter(None, column) for value in values.values())
    python = {_PYTHON[name] for name in allowed} | ({int} if "number" in allowed else set())
    if rule and not kinds <= python:
        return False
    if not rule or str in kinds:
        return True
    told = [value for value in column if value is not None] if type(None) in kinds else column
    if int not in kinds and "minimum" not in rule:
        return math.isfinite(sum(told))  # 1e999 is read as inf
    return not told or (rule.get("minimum", -_HUGE) <= min(told) and min(told) > -_HUGE and max(told) < _HUGE)


def _plain(value: Any) -> bool:
    return (type(value) is float and math.isfinite(value)) or (type(value) is int and abs(value) < _HUGE)


def _built(known: Mapping[str, Sequence[Any]], count: int) -> list[Step]:
    """A frozen dataclass is slow to make one by one: its slots are filled column by column, which is six times
    faster."""
    steps: list[Step] = list(map(object.__new__, repeat(Step, count)))
    for name, fill in _SETTERS.items():
        column: Iterable[Any]
        if name in ("nonfinite", "flags"):
            told = known.get(name, ())
            column = map(tuple, told) if any(told) else repeat((), count)
        elif name == "metrics":
            column = known.get(name) or [{} for _ in range(count)]
        else:
            column = known.get(name, repeat(_DEFAULTS[name], count))
        deque(map(fill, steps, column), maxlen=0)
    return steps


def by_line(text: str, check: Callable[[str, int], dict[str, Any]]) -> Iterator[Step]:
    """One after another. check: an object of a line and its number, or an InputError."""
    for number, line in enumerate(text.split("\n"), start=1):
        if line:
            yield step_from_json(check(line, number))
