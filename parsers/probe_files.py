"""What the probe left of each rank (launchers/ranks/rehearsal/tprimat_probe.py), read as a stranger's input: sizes
bounded, types checked, and what is wrong is told, never raised."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from parsers.text import json_object

LARGEST_FILE = 64 << 20
MOST_FILES = 8192
_MOST_TEXTS = 200
_PLACES = ("tensor", "pipeline", "data", "context", "expert")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter, or a rank's part of it. name: in the whole model. shape: on this rank. whole: elements in the
    whole model. decays: by weight decay; None is not told."""

    name: str
    shape: tuple[int, ...]
    whole: int
    decays: bool | None


@dataclass(frozen=True, slots=True)
class ProbedStep:
    """One optimizer step. rates: each parameter group's learning rate. forwards, samples: of this rank, since the step
    before. tokens: the sum of the hashes of its samples, modulo 2**52. loss_sum: of the mean losses of its `losses`
    micro-batches."""

    rates: tuple[float | None, ...]
    forwards: int | None
    samples: int | None
    tokens: int | None
    loss_sum: float | None = None
    losses: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFile:
    """A rank's file. world: number of ranks. places: this one's index among those that split the same thing. layers:
    global numbers from 1. never_read: names that were set, by who takes them silently. own_time_s: what
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
    """The files of `folder`, by rank, and what is wrong with those that cannot be used."""
    found: dict[int, RankFile] = {}
    wrong: list[str] = []
    try:
        paths = sorted(folder.glob("rank*.json"))
    except OSError as error:
        return [], [f"{folder.name}: {error.strerror}"]
    if len(paths) > MOST_FILES:
        wrong.append(f"{len(paths)} files; the first {MOST_FILES} are read")
    for path in paths[:MOST_FILES]:
        told = _read(path)
        if isinstance(told, str):
            wrong.append(f"{path.name}: {told}")
        else:
            found[told.rank] = told
    return [found[rank] for rank in sorted(found)], wrong[:_MOST_TEXTS]


def _read(path: Path) -> RankFile | str:
    """The file, or why it cannot be used."""
    try:
        if not path.is_file():
            return "is no file"
        if path.stat().st_size > LARGEST_FILE:
            return f"is larger than {LARGEST_FILE >> 20} MiB"
        entry = json_object(path.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        return error.strerror or str(error)
    if entry is None or _count(entry.get("rank")) is None:
        return "is no file of the probe, or not a whole one"
    if entry.get("version") != 1:
        return f"is of version {entry.get('version')}, which is not known here"
    ranks, chunks = _object(entry.get("ranks")), _list(entry.get("chunks"))
    return RankFile(
        file=f"{path.parent.name}/{path.name}",
        rank=entry["rank"],
        world=_count(ranks.get("world")),
        places={name: place for name in _PLACES if (place := _count(ranks.get(name))) is not None},
        settings={name: value for name, value in _object(entry.get("settings")).items() if _is_scalar(value)},
        parameters=_parameters(chunks),
        layers=[n for chunk in chunks for n in _list(_object(chunk).get("layers")) if _count(n) is not None],
        steps=[_step(_object(row)) for row in _list(entry.get("steps"))],
        never_read=list(_never_read(sources)) if (sources := _object(entry.get("never_read"))) else None,
        own_time_s=own_time_s if _is_number(own_time_s := entry.get("probe_time_total_s")) else None,
        faults=[text for text in _list(entry.get("faults")) if isinstance(text, str)][:_MOST_TEXTS],
    )


def _parameters(chunks: Sequence[Any]) -> list[Parameter] | None:
    """None where one cannot be read: a part of them is no count."""
    found = []
    for chunk in chunks:
        rows = _object(chunk).get("parameters")
        if not isinstance(rows, list):
            return None
        for row in rows:
            parameter = _parameter(row)
            if parameter is None:
                return None
            found.append(parameter)
    return found or None


def _parameter(row: Any) -> Parameter | None:
    if not isinstance(row, list) or len(row) < 4:
        return None
    name, shape, whole, decays = row[:4]
    if not isinstance(name, str) or not isinstance(shape, list) or len(shape) > 8 or _count(whole) is None:
        return None
    if any(_count(size) is None for size in shape) or not (decays is None or isinstance(decays, bool)):
        return None
    return Parameter(name, tuple(shape), whole, decays)


def _step(row: Mapping[str, Any]) -> ProbedStep:
    rates = (group[0] if isinstance(group, list) and group else None for group in _list(row.get("groups")))
    return ProbedStep(
        rates=tuple(float(rate) if _is_number(rate) else None for rate in rates),
        forwards=_count(row.get("forwards")),
        samples=_count(row.get("samples")),
        tokens=_count(row.get("tokens_checksum")),
        loss_sum=float(row["loss_sum"]) if _is_number(row.get("loss_sum")) else None,
        losses=_count(row.get("losses")) or None,
    )


def _never_read(sources: Mapping[str, Any]) -> Iterator[str]:
    for names in sources.values():
        yield from [name for name in _list(names) if isinstance(name, str)][:_MOST_TEXTS]


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _count(value: Any) -> int | None:
    """A whole number from 0 below 2**53: a larger one would not survive as a JSON number elsewhere."""
    return value if type(value) is int and 0 <= value < 2**53 else None


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, str | bool | int | float)
