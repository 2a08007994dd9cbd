"""A corpus in the making, PREFIX.partial: data that only grow, and a journal of how much of them counts. After a kill
at any moment the last line of the journal says where to go on; what lies behind it is cut off."""

from __future__ import annotations

import json
import os
import shutil
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from conf.errors import InputError, Problem, some
from conf.locks import lock_of, take
from corpora import manifest
from corpora.manifest import Input
from launchers.rank_modules import rank_module

PARTIAL = ".partial"
TOKENS, LENGTHS, DROPPED, INDEX, SEALED = "tokens", "lengths", "dropped.jsonl", "index", "manifest.json"
_GROWING = (TOKENS, LENGTHS, DROPPED)
_SETTINGS, _JOURNAL = "settings.json", "journal.jsonl"
_CHUNK = 2**20  # lengths at a time
OFTEN_S = 2.0
"""Seconds between two lines of the journal: what a kill costs at most."""


class State(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the journal. input, offset, line, packed: the next block. sizes: of the growing files, in bytes.
    least, largest: ids. of_input, dropped: documents of the present input. finished: an input that ended here."""

    input: int = 0
    offset: int = 0
    line: int = 1
    packed: int = 0
    sizes: tuple[int, int, int] = (0, 0, 0)
    documents: int = 0
    tokens: int = 0
    least: int | None = None
    largest: int | None = None
    of_input: int = 0
    dropped: Mapping[str, int] = msgspec.field(default_factory=dict)
    finished: Input | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """The three files of a corpus, by their final names."""

    prefix: Path

    def path(self, suffix: str) -> Path:
        """Return the file of the corpus with `suffix`."""
        return Path(f"{self.prefix}{suffix}")

    @property
    def partial(self) -> Path:
        """Return the folder where it is made."""
        return self.path(PARTIAL)

    def there(self) -> list[Path]:
        """Return its files that exist."""
        return [path for suffix in manifest.SUFFIXES if (path := self.path(suffix)).exists()]


@contextmanager
def alone(prefix: Path) -> Iterator[None]:
    """Hold the lock of the corpus at `prefix`. InputError: another process makes it."""
    with lock_of(prefix).open("w") as lock:
        if not take(lock):
            what, hint = "another process makes this corpus", "wait for it, or -o /another/prefix"
            raise InputError(Problem(str(prefix), what, hint=hint))
        yield


class Partial:
    """The growing files of a corpus, open for writing; every OSError is the caller's."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Go on with the corpus in `folder`, or begin it. InputError: it is made of something else."""
        self.folder, self.finished = folder, list[Input]()
        self.state = self._resumed(settings)
        self._stack, self._unsaved = ExitStack(), False
        for name, size in zip(_GROWING, self.state.sizes, strict=True):
            (folder / name).touch()
            os.truncate(folder / name, size)
        opened = {name: self._stack.enter_context((folder / name).open("ab", buffering=0)) for name in _GROWING}
        self._files = [opened[name] for name in _GROWING]
        self._journal = self._stack.enter_context((folder / _JOURNAL).open("ab", buffering=0))
        self._saved_at, self._pause_s = time.monotonic(), OFTEN_S

    def __enter__(self) -> Partial:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _resumed(self, settings: Mapping[str, Any]) -> State:
        path, wanted = self.folder / _SETTINGS, json.dumps(settings, indent=1)
        if not path.exists():
            self.folder.mkdir(exist_ok=True)  # killed while it was begun
            if others := [one.name for one in self.folder.iterdir() if not one.name.startswith(_SETTINGS)]:
                what = "is in the way: a folder that holds no unfinished corpus"
                raise InputError(Problem(str(self.folder), what, some(others), hint="-o /another/prefix"))
            _replace(path, wanted.encode())
            return State()
        state = self._last()
        try:
            check_settings(self.folder, settings)
        except InputError:
            if state.tokens:
                raise
            for name in (*_GROWING, _JOURNAL):  # nothing is made: of other inputs, of none that was left
                (self.folder / name).unlink(missing_ok=True)
            _replace(path, wanted.encode())
            self.finished = []
            return State()
        return state

    def _last(self) -> State:
        """Return the last line of the journal that the files bear out, and cut the journal behind it."""
        path, last, at, good = self.folder / _JOURNAL, State(), 0, 0
        sizes = [file.stat().st_size if (file := self.folder / name).exists() else 0 for name in _GROWING]
        finished = list[Input]()
        for raw in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
            at += len(raw)
            try:
                state = msgspec.json.decode(raw, type=State)
            except msgspec.MsgspecError:
                break
            if not raw.endswith(b"\n") or any(size > there for size, there in zip(state.sizes, sizes, strict=True)):
                break
            last, good = state, at
            finished += [state.finished] if state.finished else []
        if path.exists():
            os.truncate(path, good)
        self.finished = finished
        return last

    def add(self, state: State, tokens: bytes, lengths: bytes, dropped: bytes) -> None:
        """Append data, and save `state`, which includes them, when it is time to."""
        for file, data in zip(self._files, (tokens, lengths, dropped), strict=True):
            _write(file, data)
        parts = (len(tokens), len(lengths), len(dropped))
        sizes = tuple(old + new for old, new in zip(self.state.sizes, parts, strict=True))
        self.state = msgspec.structs.replace(state, sizes=sizes)
        if state.finished:
            self.finished.append(state.finished)
        if state.finished or time.monotonic() - self._saved_at > self._pause_s:
            self.save()

    def save(self) -> None:
        """Write the journal's next line, once the data that it counts are on the disk."""
        began = time.monotonic()
        for file in self._files:
            os.fsync(file.fileno())
        _write(self._journal, msgspec.json.encode(self.state) + b"\n")
        os.fsync(self._journal.fileno())
        self._saved_at = time.monotonic()
        self._pause_s = max(OFTEN_S, 20 * (self._saved_at - began))

    def seal(self, made: manifest.Manifest) -> None:
        """Write the manifest: from now on the corpus only moves to its final name."""
        _replace(self.folder / SEALED, manifest.encode(made))


def write_index(folder: Path, dtype: str) -> tuple[int, str]:
    """Write the index of the corpus in `folder`, some lengths at a time. Return the documents and the index' sha256."""
    order = rank_module("corpus_order")
    code = next(code for code, name in order.TYPES.items() if np.dtype(name) == np.dtype(dtype))
    size = (folder / LENGTHS).stat().st_size // 4
    lengths = np.memmap(folder / LENGTHS, "<i4", "r") if size else np.empty(0, "<i4")
    chunks = [slice(at, at + _CHUNK) for at in range(0, size, _CHUNK)]
    sequences = sum(int(np.count_nonzero(lengths[chunk])) for chunk in chunks)
    with (folder / INDEX).open("wb") as file:
        file.write(order.HEADER + struct.pack("<QBQQ", 1, code, sequences, size + 1))
        for chunk in chunks:
            file.write(lengths[chunk][lengths[chunk] > 0].tobytes())
        at = 0
        for chunk in chunks:
            own = lengths[chunk][lengths[chunk] > 0]
            ends = at + np.cumsum(own, dtype="<i8") * np.dtype(dtype).itemsize
            file.write(np.concatenate([[at], ends[:-1]]).astype("<i8").tobytes() if own.size else b"")
            at = int(ends[-1]) if own.size else at
        file.write(np.zeros(1, "<i8").tobytes())
        at = 0
        for chunk in chunks:
            limits = at + np.cumsum(lengths[chunk] > 0, dtype="<i8")
            file.write(limits.tobytes())
            at = int(limits[-1])
        file.flush()
        os.fsync(file.fileno())
    return size, str(order.sha256(folder / INDEX))


def publish(corpus: Written) -> None:
    """Move a sealed corpus to its final name: the manifest last. InputError: another file has come there."""
    folder = corpus.partial
    moves = {TOKENS: ".bin", INDEX: ".idx", DROPPED: manifest.DROPPED, SEALED: ".json"}
    targets = {folder / name: corpus.path(suffix) for name, suffix in moves.items() if (folder / name).exists()}
    if there := [target for target in targets.values() if target.exists()]:
        problems = (Problem(str(path), "has come here meanwhile, and is not overwritten") for path in there)
        raise InputError(*problems)
    for source, target in targets.items():
        if source.name == DROPPED and not source.stat().st_size:
            source.unlink()
        else:
            source.rename(target)
    _sync_folder(corpus.prefix.parent)
    shutil.rmtree(folder)


def check_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Raise InputError if the corpus that is begun in `folder` is not the one of `settings`."""
    path = folder / _SETTINGS
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        before = None
    if before != json.loads(json.dumps(settings)):
        what = "an unfinished corpus of other inputs, options or libraries is there"
        hint = f"remove {folder}, or -o /another/prefix"
        found = _difference(before, settings) if before else f"{path.name} is damaged"
        raise InputError(Problem(str(folder), what, found, hint=hint))


def is_sealed(corpus: Written) -> bool:
    """Return whether all of the corpus is made, and not all of it moved."""
    return (corpus.partial / SEALED).exists()


def _difference(before: Any, now: Any, where: str = "") -> str:
    """Return the first place where two settings differ."""
    if isinstance(before, dict) and isinstance(now, Mapping):
        keys = [key for key in {**before, **now} if before.get(key) != json.loads(json.dumps(now.get(key)))]
        return _difference(before.get(keys[0]), now.get(keys[0]), f"{where}.{keys[0]}".strip(".")) if keys else ""
    if isinstance(before, list) and len(before) == len(now):
        pairs = zip(before, json.loads(json.dumps(now)), strict=True)
        place, old, new = next((i, old, new) for i, (old, new) in enumerate(pairs) if old != new)
        return _difference(old, new, f"{where}[{place}]")
    return f"{where}: {before}, now {now}"[:300]


def _write(file: Any, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def _replace(path: Path, data: bytes) -> None:
    """Write a file that is there whole, or not at all."""
    new = path.with_name(f"{path.name}.new")
    with new.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    at = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(at)
    finally:
        os.close(at)
