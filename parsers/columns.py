"""Steps by columns: a metric looks at one field of every step, and to make a Step costs as much as to read one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, overload

from parsers.record import STEP_FIELDS, Step

_SETTERS: Mapping[str, Callable[[Step, Any], None]] = {name: getattr(Step, name).__set__ for name in STEP_FIELDS}
_UNTOLD = Step(step=0, line=1, iteration=None)


class Columns(Sequence[Step]):
    """Steps of which only the columns are kept, and which are made when somebody asks for one. known: a field's value
    in each of `count` steps; a field that is not there is untold in all of them."""

    def __init__(self, known: Mapping[str, Sequence[Any]], count: int) -> None:
        self._known, self._count = known, count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Step]:
        """A frozen dataclass is slow to make one by one: slots are filled column by column, which is six times
        faster."""
        steps: list[Step] = list(map(object.__new__, repeat(Step, self._count)))
        for name, fill in _SETTERS.items():
            deque(map(fill, steps, self.column(name)), maxlen=0)
        return iter(steps)

    @overload
    def __getitem__(self, index: int) -> Step: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Step]: ...
    def __getitem__(self, index: int | slice) -> Step | Sequence[Step]:
        if isinstance(index, slice):
            found = {name: values[index] for name, values in self._known.items()}
            return Columns(found, len(range(self._count)[index]))
        return Step(**{name: values[index] for name, values in self._known.items()})

    def column(self, name: str) -> Sequence[Any]:
        """The field `name` of every step."""
        return self._known[name] if name in self._known else [getattr(_UNTOLD, name)] * self._count


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
