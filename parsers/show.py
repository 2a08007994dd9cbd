"""Records on stdout: a table, JSON with the steps, CSV of the steps; and the steps of a log that is still written."""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from conf.errors import InputError, Problem
from conf.vocabulary import vocabulary
from parsers.assemble import differences
from parsers.reader import Parser
from parsers.record import STEP_FIELDS, Power, Record, Step, Validation
from parsers.segment import Parsed
from parsers.storage import dumps, run_file
from parsers.text import cell, plain

_MANY = 5
_EVERY_S = 0.5
_BLOCK = 1 << 20


def table(records: Sequence[Record]) -> None:
    """Print a table for each record."""
    for record in records:
        for label, text in rows(record):
            print(f"{label:<37} {plain(text)}".rstrip())
        print()


def as_json(records: Sequence[Record]) -> None:
    """Print a list of the records with their steps, as JSON."""
    out = sys.stdout
    out.write("[")
    for index, record in enumerate(records):
        head = dumps(run_file(record), indent=1)
        out.write(",\n" if index else "\n")
        out.write(head[: head.rindex("}")].rstrip() + ',\n "steps": [')
        for number, step in enumerate(record.steps):
            out.write((",\n  " if number else "\n  ") + dumps(step))
        out.write("\n ]\n}")
    out.write("\n]\n")


def as_csv(records: Sequence[Record]) -> None:
    """Print a line a step, of all records under one another, as CSV; an empty cell is unknown."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["log", "run", *STEP_FIELDS])
    for record in records:
        for step in record.steps:
            writer.writerow([cell(record.log), cell(record.id), *_cells(step)])


def _cells(step: Step) -> Iterator[str]:
    for value in (getattr(step, name) for name in STEP_FIELDS):
        if isinstance(value, tuple):
            yield cell(" ".join(value))
        else:
            yield "" if value is None else dumps(value) if isinstance(value, Mapping) else str(cell(value))


def rows(record: Record) -> Iterator[tuple[str, str]]:
    """Yield what the table shows of a record, each with its label."""
    yield "log", record.log or "unknown"
    yield "status", record.status if record.cause is None else f"{record.status}: {record.cause}"
    yield "framework", " ".join(part for part in (record.framework, record.framework_version) if part) or "unknown"
    if record.dialects:
        yield "read as", ", ".join(record.dialects)
    device = record.environment.get("device_name")
    if record.hardware or device or record.vendor:
        yield "hardware", str(record.hardware or device or record.vendor)
    yield "steps", str(len(record.steps))
    for label, index in (("first step", 0), ("last step", -1)):
        if record.steps:
            yield label, _step(record.steps[index])
    yield from _settings(record)
    for point in record.validations[-_MANY:]:
        yield f"{point.split} loss", _validation(point)
    seconds = [stall.seconds for stall in record.stalls if stall.seconds is not None]
    if record.stalls:
        yield "stalls", f"{len(record.stalls)}, {sum(seconds):.1f} s where their time is reported"
    for power in record.power:
        yield "energy", _power(power)
    for difference in differences(record.requested, record.effective):
        yield "difference", str(difference)
    for note in record.notes:
        yield "note", note


def _step(step: Step) -> str:
    name = f"step {step.step} (counted)" if step.iteration is None else f"iteration {step.iteration}"
    return f"{name}, loss {_or_unknown(step.loss)}, step time {_or_unknown(step.step_time_s)} s (line {step.line})"


def _settings(record: Record) -> Iterator[tuple[str, str]]:
    for name in (name for name, setting in vocabulary().items() if setting.shown):
        if name in record.effective:
            yield name, f"{record.effective[name].value} (line {record.effective[name].line})"
        elif name in record.given:
            yield name, f"{record.given[name]} (given)"


def _validation(point: Validation) -> str:
    at = point.iteration if point.iteration is not None else None if point.step is None else point.step + 1
    return f"{_or_unknown(point.loss)} after iteration {'unknown' if at is None else at} (line {point.line})"


def _power(power: Power) -> str:
    who = "a node" if power.kind == "node" else f"{power.gpus or 'all'} {power.kind}s"
    numbers = (power.energy_counter_j, power.energy_integrated_j, power.mean_power_w, power.seconds)
    counter, integrated, watts, seconds = map(_or_unknown, numbers)
    return f"{counter} J counted, {integrated} J integrated, {watts} W mean, {who}, {seconds} s ({power.source})"


def _or_unknown(value: float | None) -> str:
    return "unknown" if value is None else f"{value:g}"


def follow(path: Path, dialect: str | None = None, until_done: bool = False) -> Parsed:
    """Print the steps of a growing log until Ctrl-C, or until the framework says that it is done; return the run.

    A log that is replaced or cut short is read anew. InputError: it cannot be read."""
    parser, offset, shown = Parser(dialect), 0, 0
    try:
        while True:
            if path.stat().st_size < offset:
                parser, offset, shown = Parser(dialect), 0, 0
            grown = _read_on(path, offset, parser)
            if grown > offset:
                offset = grown
                for step in parser.result().steps:
                    if step.line > shown:
                        print(_step_line(step), flush=True)
                        shown = step.line
            if until_done and parser.result().completed:
                break
            time.sleep(_EVERY_S)
    except KeyboardInterrupt:
        print(file=sys.stderr)
    except OSError as error:
        raise InputError(Problem(str(path), "cannot be read", error.strerror or str(error))) from error
    return parser.finish()[-1]


def _read_on(path: Path, offset: int, parser: Parser) -> int:
    with path.open("rb") as stream:
        stream.seek(offset)
        while block := stream.read(_BLOCK):
            offset += len(block)
            parser.feed_bytes(block)
    return offset


def _step_line(step: Step) -> str:
    number = step.step + 1 if step.iteration is None else step.iteration
    seconds = "" if step.step_time_s is None else f", {step.step_time_s:g} s"
    return plain(f"iteration {number}: loss {_or_unknown(step.loss)}{seconds}")
