"""What the probe left of each rank (launchers/ranks/rehearsal/tprimat_probe.py), read as a stranger's input: of bounded
size, checked by the structs below; what is wrong with a file is reported, never raised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from parsers.text import json_object

LARGEST_FILE = 64 << 20
MOST_FILES = 8192
_MOST_TEXTS = 200
_PLACES = ("tensor", "pipeline", "data", "context", "expert")
_Count = Annotated[int, Meta(ge=0, lt=2**53)]  # a larger one would not survive as a JSON number elsewhere


class Parameter(Struct, frozen=True, array_like=True):
    """One parameter, or a rank's part of it. name: in the whole model. shape: on this rank. whole: elements in the
    whole model. decays: by weight decay; None is not known."""

    name: str
    shape: Annotated[tuple[_Count, ...], Meta(max_length=8)]
    whole: _Count
    decays: bool | None


class ProbedStep(Struct, frozen=True):
    """One optimizer step. groups: a list of each parameter group, the learning rate first. forwards, samples: of this
    rank, since the step before. tokens_checksum: the sum of the hashes of its samples, modulo 2**52. loss_sum: of the
    mean losses of its `losses` micro-batches."""

    groups: tuple[tuple[Any, ...], ...] = ()
    forwards: _Count | None = None
    samples: _Count | None = None
    tokens_checksum: _Count | None = None
    loss_sum: float | None = None
    losses: _Count | None = None

    @property
    def rates(self) -> tuple[float | None, ...]:
        """Return each parameter group's learning rate."""
        return tuple(group[0] if group and type(group[0]) in (int, float) else None for group in self.groups)


class _Chunk(Struct, frozen=True):
    parameters: tuple[Parameter, ...] | None = None
    layers: tuple[_Count, ...] = ()


class _File(Struct, frozen=True):
    rank: _Count
    ranks: Mapping[str, Any] | None = None
    settings: Mapping[str, Any] | None = None
    chunks: tuple[_Chunk | None, ...] = ()
    steps: tuple[ProbedStep, ...] = ()
    never_read: Mapping[str, tuple[str, ...]] | None = None
    faults: tuple[str, ...] = ()
    probe_time_total_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFile:
    """A rank's file. world: number of ranks. places: this one's index among those that split the same thing. layers:
    global numbers from 1. never_read: names that were set and that whoever takes them never looked at. own_time_s: what
    the probe took of the rank's time, all in all."""

    file: str
    rank: int
    world: int | None
    places: Mapping[str, int]
    settings: Mapping[str, Any]
    parameters: Sequence[Parameter] | None
    layers: Sequence[int]
    steps: Sequence[ProbedStep]
    never_read: Sequence[str] | None
    faults: Sequence[str] = field(default_factory=tuple)
    own_time_s: float | None = None


def read_files(folder: Path) -> tuple[list[RankFile], list[str]]:
    """Return the files of `folder`, by rank, and what is wrong with those that cannot be used."""
    files: dict[int, RankFile] = {}
    wrong: list[str] = []
    try:
        paths = sorted(folder.glob("rank*.json"))
    except OSError as error:
        return [], [f"{folder.name}: {error.strerror}"]
    if len(paths) > MOST_FILES:
        wrong.append(f"{len(paths)} files; the first {MOST_FILES} are read")
    for path in paths[:MOST_FILES]:
        result = _read(path)
        if isinstance(result, str):
            wrong.append(f"{path.name}: {result}")
        else:
            files[result.rank] = result
    return [files[rank] for rank in sorted(files)], wrong[:_MOST_TEXTS]


def _read(path: Path) -> RankFile | str:
    """Return the file, or why it cannot be used."""
    try:
        if not path.is_file():
            return "is no file"
        if path.stat().st_size > LARGEST_FILE:
            return f"is larger than {LARGEST_FILE >> 20} MiB"
        entry = json_object(path.read_text(encoding="utf-8", errors="replace"), constant=lambda _: None)
    except OSError as error:
        return error.strerror or str(error)
    try:
        content = msgspec.convert(entry, _File)
    except msgspec.ValidationError as error:
        return f"is no file of the probe, or not a complete one: {error}"
    if entry is None or entry.get("version") != 1:
        return f"is of version {(entry or {}).get('version')}, which is not known here"
    return _rank_file(f"{path.parent.name}/{path.name}", content)


def _rank_file(name: str, content: _File) -> RankFile:
    ranks, chunks = content.ranks or {}, [chunk or _Chunk() for chunk in content.chunks]
    parameters = [parameter for chunk in chunks for parameter in chunk.parameters or ()]
    complete = all(chunk.parameters is not None for chunk in chunks)  # a part of them is no count
    return RankFile(
        file=name,
        rank=content.rank,
        world=_count(ranks.get("world")),
        places={kind: place for kind in _PLACES if (place := _count(ranks.get(kind))) is not None},
        settings={key: value for key, value in (content.settings or {}).items() if not isinstance(value, dict | list)},
        parameters=parameters if parameters and complete else None,
        layers=[number for chunk in chunks for number in chunk.layers],
        steps=content.steps,
        never_read=[key for keys in content.never_read.values() for key in keys] if content.never_read else None,
        faults=content.faults[:_MOST_TEXTS],
        own_time_s=content.probe_time_total_s,
    )


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 2**53 else None
