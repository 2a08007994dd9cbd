"""The steps of a run while its log is read, however many: the last ones as they are, earlier ones packed."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import overload

import msgspec

from parsers.record import Step

_PACK = 4096  # a step takes half a kB as it is, some 30 bytes packed


class Steps(Sequence[Step]):
    """Steps in ascending order. The last _PACK can be replaced, any number taken back."""

    def __init__(self, packs: Sequence[bytes] = (), recent: Sequence[Step] = ()) -> None:
        self._packs, self._recent = [*packs], [*recent]

    def append(self, step: Step) -> None:
        """Add the step that follows the last."""
        self._recent.append(step)
        if len(self._recent) >= 2 * _PACK:
            self._packs.append(zlib.compress(msgspec.msgpack.encode(self._recent[:_PACK]), 1))
            del self._recent[:_PACK]

    def replace(self, index: int, step: Step) -> None:
        """Put another description of the same step at `index`, which counts from the end: -1 is the last."""
        self._recent[index] = step

    def take_back(self, number: int) -> None:
        """Drop all steps from `number` on."""
        while self._recent and self._recent[-1].step >= number:
            self._recent.pop()
            if len(self._recent) < _PACK and self._packs:
                self._recent[:0] = _unpacked(self._packs.pop())

    def copy(self) -> Sequence[Step]:
        """Return the steps so far; appending later does not change what was returned."""
        return Steps(self._packs, self._recent) if self._packs else tuple(self._recent)

    def __len__(self) -> int:
        return len(self._packs) * _PACK + len(self._recent)

    def __iter__(self) -> Iterator[Step]:
        for pack in self._packs:
            yield from _unpacked(pack)
        yield from self._recent

    @overload
    def __getitem__(self, index: int) -> Step: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Step]: ...
    def __getitem__(self, index: int | slice) -> Step | Sequence[Step]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        if -len(self._recent) <= index < 0:
            return self._recent[index]
        at = range(len(self))[index]
        packed = len(self._packs) * _PACK
        return self._recent[at - packed] if at >= packed else _unpacked(self._packs[at // _PACK])[at % _PACK]


@lru_cache(maxsize=1)
def _unpacked(pack: bytes) -> list[Step]:
    return _DECODER.decode(zlib.decompress(pack))


_DECODER = msgspec.msgpack.Decoder(list[Step])
