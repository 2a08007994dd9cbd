"""Steps by columns: a metric looks at one field of every step, and to make a Step costs as much as to read one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Any, overload

from parsers.record import STEP_FIELDS, Step

_SETTERS: Mapping[str, Callable[[Step, Any], None]] = {name: getattr(Step, name).__set__ for name in STEP_FIELDS}


class Columns(Sequence[Step]):
    """Steps that are made when somebody asks for one. rows: objects with a Step's fields, which are cheaper."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self._rows, self._columns = rows, dict[str, list[Any]]()

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Step]:
        """A frozen dataclass is slow to make one by one: slots are filled column by column, which is six times
        faster."""
        steps: list[Step] = list(map(object.__new__, repeat(Step, len(self))))
        for name, fill in _SETTERS.items():
            deque(map(fill, steps, self.column(name)), maxlen=0)
        return iter(steps)

    @overload
    def __getitem__(self, index: int) -> Step: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Step]: ...
    def __getitem__(self, index: int | slice) -> Step | Sequence[Step]:
        if isinstance(index, slice):
            return Columns(self._rows[index])
        return Step(**{name: getattr(self._rows[index], name) for name in STEP_FIELDS})

    def column(self, name: str) -> list[Any]:
        """The field `name` of every step."""
        if name not in self._columns:
            self._columns[name] = [*map(attrgetter(name), self._rows)]
        return self._columns[name]


def columns(steps: Sequence[Step], *names: str) -> list[Sequence[Any]]:
    """The fields `names` of every step, each as a column of its own, whatever the steps are kept in; looked at once,
    for they may lie in a file."""
    if isinstance(steps, Columns):
        return [steps.column(name) for name in names]
    found: list[list[Any]] = [[] for _ in names]
    for step in steps:
        for values, name in zip(found, names, strict=True):
            values.append(getattr(step, name))
    return [*found]
