"""The steps of a long record, field by field: two million take 400 MB, and a column of them hardly any time."""

from __future__ import annotations

import math
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, overload

import msgspec
from msgspec.structs import fields

from parsers.record import LARGEST, Step

_NONE: Mapping[str, float] = {"d": math.nan, "q": -LARGEST - 1}
"""In place of None in an array, by its kind: no step of a record has these values."""
_METRICS = "metrics"
_FEW = ("memory_kind", "nonfinite", "flags")
"""Fields of which a run has few values: each is kept once."""
_PACK = 4096


class LongSteps(Sequence[Step]):
    """Steps whose numbers are kept as arrays, and whose other metrics are packed."""

    def __init__(self) -> None:
        kinds = {field.name: "d" if "float" in str(field.type) else "q" for field in fields(Step)}
        self._numbers: dict[str, array[Any]] = {
            name: array(kind) for name, kind in kinds.items() if name not in (_METRICS, *_FEW)
        }
        self._few: dict[str, list[Any]] = {name: [] for name in _FEW}
        self._known: dict[Any, Any] = {}
        self._packs: list[bytes] = []
        self._recent: list[Mapping[str, float]] = []

    def extend(self, steps: Sequence[Step]) -> None:
        """Add the steps that follow the last."""
        for name, numbers in self._numbers.items():
            none = _NONE[numbers.typecode]
            numbers.extend([none if value is None else value for value in map(attrgetter(name), steps)])
        for name, values in self._few.items():
            values.extend([self._known.setdefault(value, value) for value in map(attrgetter(name), steps)])
        self._recent += [step.metrics for step in steps]
        while len(self._recent) >= _PACK:
            self._packs.append(zlib.compress(msgspec.msgpack.encode(self._recent[:_PACK]), 1))
            del self._recent[:_PACK]

    def rows(self, *names: str) -> Iterator[tuple[Any, ...]]:
        """Yield the fields `names` of one step after the other."""
        return zip(*(self._metrics() if name == _METRICS else self.column(name) for name in names), strict=True)

    def column(self, name: str) -> Sequence[Any]:
        """Return a field of every step."""
        if name == _METRICS:
            return [*self._metrics()]
        return self._few[name] if name in _FEW else _values(self._numbers[name])

    def _metrics(self) -> Iterator[Mapping[str, float]]:
        for number in range(len(self._packs)):
            yield from self._pack(number)
        yield from self._recent

    def _pack(self, number: int) -> list[Mapping[str, float]]:
        unpacked: list[Mapping[str, float]] = msgspec.msgpack.decode(zlib.decompress(self._packs[number]))
        return unpacked

    def __len__(self) -> int:
        return len(self._numbers["step"])

    def __iter__(self) -> Iterator[Step]:
        for first in range(0, len(self), _PACK):
            yield from self._steps(first, first + _PACK)

    def _steps(self, first: int, end: int) -> Iterator[Step]:
        """Yield the steps of one pack, or a part of it."""
        number, at = divmod(first, _PACK)
        metrics = self._pack(number) if number < len(self._packs) else self._recent
        found = {name: _values(numbers[first:end]) for name, numbers in self._numbers.items()}
        found |= {name: values[first:end] for name, values in self._few.items()}
        found[_METRICS] = metrics[at : at + end - first]
        for values in zip(*found.values(), strict=True):
            yield Step(**dict(zip(found, values, strict=True)))

    @overload
    def __getitem__(self, index: int) -> Step: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Step]: ...
    def __getitem__(self, index: int | slice) -> Step | Sequence[Step]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        at = range(len(self))[index]
        return next(self._steps(at, at + 1))


def _values(numbers: array[Any]) -> list[Any]:
    """Return the numbers of an array, None where none was reported. NaN alone is not itself."""
    if numbers.typecode == "d":
        return [value if value == value else None for value in numbers]
    none = _NONE["q"]
    return [None if value == none else value for value in numbers]
