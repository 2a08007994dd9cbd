"""Plans as records: what would run, by the request and what is declared; nothing ran, and nothing is measured."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from conf.arguments import program
from conf.errors import InputError, Problem
from conf.vocabulary import switched_off, vocabulary
from parsers.record import Reading, Record, Run
from parsers.storage import RUN_FILE, read_lazily, record_of

RECORD = "record"
"""The key under which a printed plan has its record."""


def as_planned(record: Record, written: Mapping[str, Any] | None = None) -> Record:
    """Return a record of what a run is to be: effective is what was requested, with what is declared. written: settings
    that nobody requests, as the plan has them."""
    settings = {**(written or {}), **record.requested, **{d.key: d.value for d in record.declared}}
    off = dict.fromkeys({*switched_off(settings)} - record.requested.keys())
    known = {name: Reading(value, 1) for name, value in {**settings, **off}.items() if _is_setting(name)}
    return replace(record, provenance="planned", status="unknown", effective=known, steps=())


def _is_setting(name: str) -> bool:
    return name in vocabulary() and vocabulary()[name].dump


def is_plan(path: Path) -> bool:
    """Return whether a file, or a pipe, may hold plans and no record."""
    return path.is_fifo() or (path.is_file() and path.suffix == ".json" and path.name != RUN_FILE)


def read_plans(path: Path) -> tuple[Run, ...]:
    """Return the plans that `launch … dry_run=true --json` printed into a file, or the one of a run, by its plan.json.
    InputError: it is neither, or of a version that is not known here."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(Problem(str(path), "cannot be read as a plan", str(error), hint=_how())) from error
    if isinstance(content, dict) and {"argv", "files"} <= content.keys():
        return (_of_run(path),)
    return tuple(_printed(path, content))


def _of_run(path: Path) -> Run:
    """Return the plan of the run whose plan.json this is: its request stands in the record beside it."""
    if not (path.parent / RUN_FILE).is_file():
        raise InputError(Problem(str(path), f"there is no {RUN_FILE} beside it, which has the request", hint=_how()))
    return Run(str(path), as_planned(read_lazily(path.parent)))


def _printed(path: Path, content: Any) -> Iterator[Run]:
    rows = content if isinstance(content, list) else [content]
    if not rows or not all(isinstance(row, dict) and isinstance(row.get(RECORD), dict) for row in rows):
        older = any(isinstance(row, dict) and "plan" in row for row in rows)
        what = "is a plan of an older version, without its record" if older else "is not a plan"
        foreign = "" if older else f"; a record of another tool: {program('parse')} {path} -o DIR"
        raise InputError(Problem(str(path), what, hint=f"{_how()}{foreign}"))
    for number, row in enumerate(rows, start=1):
        where = f"{path}:{number}" if len(rows) > 1 else str(path)
        yield Run(where, record_of(row[RECORD], where))


def _how() -> str:
    return f"{program('launch')} model=llama platform=nvidia dry_run=true --json > plan.json"
