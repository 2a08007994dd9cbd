"""A record on disk: run.json and steps.jsonl, replaced whole or not at all, and refused with a reason when unfit."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from conf.errors import InputError, Problem
from parsers.conform import violations
from parsers.record import SCHEMA_VERSION, Record, Step, from_json, step_from_json, step_to_json, to_json

RUN_FILE = "run.json"
STEPS_FILE = "steps.jsonl"

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
    run_file = directory / RUN_FILE
    entry = _object(_text(run_file), str(run_file))
    entry = upgrade(entry, where=str(run_file))
    _refuse(entry, "run.schema.json", str(run_file))
    steps_file = directory / STEPS_FILE
    return from_json(entry, _steps(steps_file) if steps_file.exists() else ())


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
    return json.dumps(_finite(value), allow_nan=False, indent=indent, default=str)


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


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(Problem(str(path), "cannot be read", str(error))) from error


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        entry = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InputError(Problem(where, "is not JSON", str(error))) from error
    if not isinstance(entry, dict):
        raise InputError(Problem(where, "is not a JSON object", type(entry).__name__))
    return entry


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _steps(path: Path) -> Iterator[Step]:
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if not line:
            continue
        where = f"{path}:{number}"
        entry = _object(line, where)
        _refuse(entry, "steps.schema.json", where)
        yield step_from_json(entry)


def _refuse(entry: dict[str, Any], schema_name: str, where: str) -> None:
    problems = tuple(Problem(f"{where}: {v.path}", v.rule, v.found) for v in violations(entry, schema(schema_name)))
    if problems:
        raise InputError(*problems)
