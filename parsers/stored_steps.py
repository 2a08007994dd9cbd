"""steps.jsonl read back: as columns, a thousand steps in 5 ms, and only when somebody looks at them.

A file whose lines have one shape, as ours have, is checked column by column. Any other is read line by line against the
schema, which is also what tells where and why one is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, overload

import orjson

from parsers.columns import Columns
from parsers.record import STEP_FIELDS, Step, step_from_json

_PYTHON = {"integer": int, "number": float, "string": str, "null": type(None)}
_KEPT = 4
_HUGE = 2**63  # as parsers/storage.py; reading line by line says what is wrong with it

Read = Callable[[Path], Sequence[Step]]


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

    def read(self) -> Sequence[Step]:
        """All of them, kept by nobody else."""
        return self._read(self._path)

    def _steps(self) -> Sequence[Step]:
        stat = self._path.stat()
        return _kept(self._path, self._read, (stat.st_mtime_ns, stat.st_size, stat.st_ino))


@lru_cache(maxsize=_KEPT)
def _kept(path: Path, read: Read, _: tuple[int, ...]) -> Sequence[Step]:
    return read(path)


def by_column(text: str, schema: Mapping[str, Any]) -> Columns | None:
    """The steps in `text`, or None where its lines are not all of one shape that `schema` (of one step) surely
    allows."""
    try:
        rows = _loads(text)
    except (ValueError, RecursionError):
        return None
    if len(rows) != text.rstrip().count("\n") + 1 or {*map(type, rows)} != {dict}:
        return None  # an object over two lines, two on one, none
    names = tuple(rows[0])
    if not {*schema["required"]} <= {*names} or [*chain.from_iterable(rows)] != [*names] * len(rows):
        return None
    known: dict[str, Sequence[Any]] = dict(zip(names, zip(*map(dict.values, rows), strict=True), strict=True))
    if not all(_fits(column, schema["properties"].get(name, {})) for name, column in known.items()):
        return None
    for name in ("nonfinite", "flags"):
        if name in known:
            known[name] = [*map(tuple, known[name])]
    return Columns({name: known[name] for name in STEP_FIELDS if name in known}, len(rows))


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
    if not told:
        return True
    least, most = min(told), max(told)
    return bool(rule.get("minimum", least) <= least and least > -_HUGE and most < _HUGE)


def _plain(value: Any) -> bool:
    return (type(value) is float and math.isfinite(value)) or (type(value) is int and abs(value) < _HUGE)


def by_line(text: str, check: Callable[[str, int], dict[str, Any]]) -> Iterator[Step]:
    """One after another. check: an object of a line and its number, or an InputError."""
    for number, line in enumerate(text.split("\n"), start=1):
        if line:
            yield step_from_json(check(line, number))
