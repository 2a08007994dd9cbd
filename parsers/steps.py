"""The steps of a run, however many: the last ones in memory, the earlier ones in a file without a name."""

from __future__ import annotations

import marshal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import IO, Any, NamedTuple, overload

from parsers.record import STEP_FIELDS, Step

_CHUNK = 1024
_values = attrgetter(*STEP_FIELDS)
_Makers = Sequence["Callable[[Any], Step]"]


class Sealed(NamedTuple):
    """A step whose numbers are still text: `make(raw)` is the Step. Most steps of a long log are never looked at one by
    one, and building them takes longer than finding them."""

    step: int
    make: Callable[[Any], Step]
    raw: tuple[Any, ...]


def opened(entry: Step | Sealed) -> Step:
    """The Step itself."""
    return entry.make(entry.raw) if isinstance(entry, Sealed) else entry


def _stored(values: Any) -> Step:
    return Step(**dict(zip(STEP_FIELDS, values, strict=True)))


NOTHING = Sealed(-1, _stored, ())
"""What a reader's fast lane gives for a line that tells nothing new."""


class StepLog:
    """Steps in ascending order. The last _CHUNK can be replaced, any number taken back. last_number: of the last."""

    def __init__(self) -> None:
        self.last_number = -1
        self._recent: list[Step | Sealed] = []
        self._first: Step | Sealed | None = None
        self._file: IO[bytes] | None = None
        self._chunks: list[int] = []  # where each chunk of _CHUNK steps begins in the file
        self._makers: list[Callable[[Any], Step]] = [_stored]

    @property
    def first(self) -> Step | None:
        return None if self._first is None else opened(self._first)

    @property
    def last(self) -> Step | None:
        return self.at(-1) if self._recent else None

    def latest(self, count: int) -> range:
        """The places of the last `count` steps, from the end: -1, -2, …"""
        return range(-1, -min(count, len(self._recent)) - 1, -1)

    def at(self, index: int) -> Step:
        """index: from the end, below zero, at most _CHUNK back."""
        entry = self._recent[index]
        if isinstance(entry, Sealed):
            entry = self._recent[index] = opened(entry)
        return entry

    def append(self, entry: Step | Sealed) -> None:
        if not self._recent:
            self._first = entry
        self._recent.append(entry)
        self.last_number = entry.step
        if len(self._recent) >= 2 * _CHUNK:
            self._spill()

    def replace(self, index: int, step: Step) -> None:
        """index: as in `at`."""
        if self._first is not None and not self._chunks and len(self._recent) + index == 0:
            self._first = step
        self._recent[index] = step

    def drop_from(self, step: int) -> None:
        """Take back all steps from number `step` on."""
        while self._recent and self._recent[-1].step >= step:
            self._recent.pop()
            if not self._recent and self._chunks and self._file is not None:
                self._recent = list(_load(self._file, self._chunks.pop(), self._makers))
        self.last_number = self._recent[-1].step if self._recent else -1
        if not self._recent:
            self._first = None

    def frozen(self) -> Sequence[Step]:
        """What is there now; appending later does not change it."""
        recent = tuple(map(opened, self._recent))
        if not self._chunks or self._file is None:
            return recent
        return _Spilled(self._file, tuple(self._chunks), recent, tuple(self._makers))

    def _spill(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115  it lives as long as its readers
        self._chunks.append(self._file.seek(0, 2))
        # Version 2 of the format: later ones look for objects that come twice, which takes longer.
        marshal.dump([self._plain(entry) for entry in self._recent[:_CHUNK]], self._file, 2)
        del self._recent[:_CHUNK]

    def _plain(self, entry: Step | Sealed) -> tuple[int, tuple[Any, ...]]:
        if not isinstance(entry, Sealed):
            return 0, _values(entry)
        if self._makers[-1] != entry.make:
            self._makers.append(entry.make)
        return len(self._makers) - 1, entry.raw


class _Spilled(Sequence[Step]):
    def __init__(self, file: IO[bytes], chunks: tuple[int, ...], recent: tuple[Step, ...], makers: _Makers) -> None:
        self._file, self._chunks, self._recent, self._makers = file, chunks, recent, makers

    def __len__(self) -> int:
        return len(self._chunks) * _CHUNK + len(self._recent)

    def __iter__(self) -> Iterator[Step]:
        for offset in self._chunks:
            yield from _load(self._file, offset, self._makers)
        yield from self._recent

    def __reversed__(self) -> Iterator[Step]:
        yield from reversed(self._recent)
        for offset in reversed(self._chunks):
            yield from reversed(_load(self._file, offset, self._makers))

    @overload
    def __getitem__(self, index: int) -> Step: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Step]: ...
    def __getitem__(self, index: int | slice) -> Step | Sequence[Step]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        at = index + len(self) if index < 0 else index
        if not 0 <= at < len(self):
            raise IndexError(index)
        chunk, place = divmod(at, _CHUNK)
        if chunk < len(self._chunks):
            return _load(self._file, self._chunks[chunk], self._makers)[place]
        return self._recent[at - len(self._chunks) * _CHUNK]


def _load(file: IO[bytes], offset: int, makers: _Makers) -> list[Step]:
    file.seek(offset)
    return [makers[maker](raw) for maker, raw in marshal.load(file)]  # we wrote it, in a file without a name
