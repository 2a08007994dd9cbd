"""A record on disk: run.json and steps.jsonl, replaced whole or not at all, and refused with a reason when unfit."""

from __future__ import annotations

import json
import math
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from conf.errors import InputError, Problem
from parsers.columns import columns
from parsers.conform import violations
from parsers.record import SCHEMA_VERSION, Record, Step, from_json, step_to_json, to_json
from parsers.stored_steps import Decoder, StoredSteps, at_once, by_line, decoder

RUN_FILE = "run.json"
STEPS_FILE = "steps.jsonl"
_LARGEST = 2**63 - 1  # as numpy and other readers of our files have it

# Version n -> the function that makes version n + 1 of an object of version n.
UPGRADES: Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}


def write(record: Record, directory: Path) -> None:
    """Write the record below `directory`, creating it. Steps first: a run.json never speaks of steps not yet there.

    OSError passes through (a full disk); the older files are then still whole.
    """
    directory.mkdir(parents=True, exist_ok=True)
    replace_file(directory / STEPS_FILE, (f"{dumps(step_to_json(step))}\n".encode() for step in record.steps))
    replace_file(directory / RUN_FILE, dumps(to_json(record), indent=1) + "\n")


def read(directory: Path) -> Record:
    """The record in `directory`. Without a steps.jsonl it has no steps. InputError: unreadable, foreign or newer."""
    record = read_lazily(directory)
    return replace(record, steps=tuple(record.steps))


def read_lazily(directory: Path) -> Record:
    """`read`, but for the steps, which are read when somebody looks at them; an InputError of theirs comes then."""
    run_file = directory / RUN_FILE
    entry = _object(_text(run_file), str(run_file))
    entry = upgrade(entry, where=str(run_file))
    _refuse(entry, "run.schema.json", str(run_file))
    steps_file = directory / STEPS_FILE
    return replace(from_json(entry), steps=StoredSteps(steps_file, read_steps) if steps_file.exists() else ())


def read_steps(path: Path) -> Sequence[Step]:
    """The steps in a steps.jsonl. InputError: the lines that cannot be used."""
    steps: Sequence[Step] | None = at_once(_bytes(path), _lines())
    if steps is None:
        steps = tuple(by_line(_text(path), lambda line, number: _step(line, f"{path}:{number}")))
    at = columns(steps, "step")[0]
    if not all(map(operator.lt, at, at[1:])):
        raise InputError(_unordered(path, at))
    return steps


def _unordered(path: Path, at: Sequence[int]) -> Problem:
    place = next(place for place in range(1, len(at)) if at[place] <= at[place - 1])
    line = [number for number, line in enumerate(_text(path).split("\n"), start=1) if line][place]
    what = f"step {at[place]} after step {at[place - 1]}: steps ascend"
    return Problem(f"{path}:{line}", what, hint="make the record anew: python -m parsers LOG -o DIR")


@cache
def _lines() -> Decoder:
    return decoder(schema("steps.schema.json"))


def _step(line: str, where: str) -> dict[str, Any]:
    entry = _object(line, where)
    _refuse(entry, "steps.schema.json", where)
    return entry


def upgrade(entry: dict[str, Any], where: str) -> dict[str, Any]:
    """`entry` in the current schema version. InputError where its version is missing or newer than this program."""
    version = entry.get("schema_version")
    if type(version) is not int:
        hint = "records are written by launch.py and by python -m parsers LOG -o DIR"
        raise InputError(Problem(where, "is no record of ours: it has no schema_version", hint=hint))
    while version in UPGRADES:
        entry = UPGRADES[version](entry)
        version += 1
    if version != SCHEMA_VERSION:
        hint = "update TensorPrimat" if version > SCHEMA_VERSION else ""
        raise InputError(Problem(where, "schema version not known here", str(version), f"1 to {SCHEMA_VERSION}", hint))
    return entry


def dumps(value: Any, indent: int | None = None) -> str:
    """JSON of `value`: ASCII (a lone surrogate from a log cannot break the writing), nan and inf as null."""
    try:
        return _encode(value) if indent is None else json.dumps(value, allow_nan=False, indent=indent, default=_other)
    except (TypeError, ValueError):  # a nan, an inf, a name that is no text: rare, and taken out one by one
        return json.dumps(_finite(value), allow_nan=False, indent=indent, default=str)


def _other(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else str(value)


_encode = json.JSONEncoder(allow_nan=False, default=_other).encode  # a line a step: made once


def replace_file(path: Path, content: str | bytes | Iterable[bytes]) -> None:
    """Put `content` at `path` in one piece: whoever reads sees the old file or the new one."""
    content = content.encode() if isinstance(content, str) else content
    parts = (content,) if isinstance(content, bytes) else content
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as stream:
            stream.writelines(parts)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@cache
def schema(name: str) -> Mapping[str, Any]:
    """A JSON Schema of this folder."""
    loaded: dict[str, Any] = json.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))
    return loaded


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(Problem(str(path), "cannot be read", str(error))) from error


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(Problem(str(path), "cannot be read", str(error))) from error


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        entry = json.loads(text, parse_constant=_no_constant, parse_int=_whole, parse_float=_decimal)
    except (ValueError, RecursionError) as error:
        raise InputError(Problem(where, "is not JSON", str(error))) from error
    if not isinstance(entry, dict):
        raise InputError(Problem(where, "is not a JSON object", type(entry).__name__))
    return entry


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _whole(text: str) -> int:
    if len(text) <= 20 and -_LARGEST <= (value := int(text)) <= _LARGEST:
        return value
    raise ValueError(f"{text[:20]} is too large for a number of ours")


def _decimal(text: str) -> float:
    """Python reads 1e999 as infinity."""
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:20]} is too large for a number of ours")
    return value


def _refuse(entry: dict[str, Any], schema_name: str, where: str) -> None:
    problems = tuple(Problem(f"{where}: {v.path}", v.rule, v.found) for v in violations(entry, schema(schema_name)))
    if problems:
        raise InputError(*problems)
