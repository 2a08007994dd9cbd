"""`python -m parsers LOG…`: what a log says, as a table or JSON, and as a record with -o."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from conf.errors import InputError, Problem, command
from parsers import DIALECTS, Ending, Parsed, Record, assemble, differences, judge, looked_for, parse, write
from parsers.record import step_to_json, to_json
from parsers.storage import dumps
from parsers.terminal import plain

_SHOWN_SETTINGS = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "data_parallel_size",
    "world_size",
    "micro_batch_size",
    "global_batch_size",
    "seq_length",
    "num_layers",
    "hidden_size",
    "params_dtype",
    "train_iters",
    "lr",
    "seed",
)


@command
def main(argv: Sequence[str] | None = None) -> int:
    """0: read, whatever became of the run; 2: bad input."""
    options = _options(argv)
    records = [imported(Path(log), options.dialect) for log in options.logs]
    for record, directory in zip(records, _directories(options), strict=True):
        if directory is not None:
            _write(record, directory)
    _print(records, options.json)
    return 0


def imported(log: Path, dialect: str | None = None) -> Record:
    """The record of a log that was brought from elsewhere. InputError: not readable, or no training log (a dialect
    that is forced takes any text: a run that died at its start tells why, and no more)."""
    parsed = parse(log, dialect)
    if parsed.dialect is None and not (parsed.steps or parsed.facts):
        hint = "give the file that the training program's own output went to"
        what = f"is no training log ({parsed.lines} lines read)"
        raise InputError(Problem(str(log), what, allowed="; ".join(looked_for()), hint=hint))
    return assemble(parsed, judge(Ending(), parsed), _about(log, parsed))


def _about(log: Path, parsed: Parsed) -> Record:
    # By content: a copy of the log elsewhere is the same run, another log of the same name is not.
    content = repr((parsed.lines, parsed.steps[:1], parsed.steps[-1:], parsed.tail)).encode("utf-8", "replace")
    identity = f"{log.stem}-{sha256(content).hexdigest()[:10]}"
    return Record(
        id=identity, name=log.stem, provenance="imported", status="unknown", log=log.name, framework=parsed.framework
    )


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m parsers", description="Read training logs into records.")
    parser.add_argument("logs", nargs="+", metavar="LOG")
    parser.add_argument("-o", dest="output", metavar="DIR", help="write run.json and steps.jsonl there")
    parser.add_argument("--dialect", choices=sorted(DIALECTS), help="do not find it out from the content")
    parser.add_argument("--json", action="store_true", help="the records with their steps")
    return parser.parse_args(argv)


def _directories(options: argparse.Namespace) -> list[Path | None]:
    """Where each record goes: DIR itself for one log, DIR/NAME for several, which must then differ in name."""
    if options.output is None:
        return [None] * len(options.logs)
    base, stems = Path(options.output), [Path(log).stem for log in options.logs]
    if len(set(stems)) < len(stems):
        what = "several logs have one name, so their records would overwrite each other"
        raise InputError(Problem("-o", what, found=", ".join(options.logs), hint="one call a log"))
    return [base] if len(stems) == 1 else [base / stem for stem in stems]


def _write(record: Record, directory: Path) -> None:
    try:
        write(record, directory)
    except OSError as error:
        raise InputError(Problem(str(directory), "cannot be written", error.strerror or str(error))) from error


def _print(records: Sequence[Record], as_json: bool) -> None:
    if as_json:
        print(dumps([_with_steps(record) for record in records], indent=1))
        return
    for record in records:
        for label, text in rows(record):
            print(f"{label:<29} {plain(text)}".rstrip())
        print()


def _with_steps(record: Record) -> dict[str, Any]:
    return {**to_json(record), "steps": [step_to_json(step) for step in record.steps]}


def rows(record: Record) -> Iterator[tuple[str, str]]:
    """What is shown of a record, each with its label."""
    yield "log", record.log or "unknown"
    yield "status", record.status if record.cause is None else f"{record.status}: {record.cause}"
    yield "framework", " ".join(part for part in (record.framework, record.framework_version) if part) or "unknown"
    yield "steps", str(len(record.steps))
    for label, index in (("first step", 0), ("last step", -1)):
        if record.steps:
            step = record.steps[index]
            loss, seconds = _or_unknown(step.loss), _or_unknown(step.step_time_s)
            yield label, f"iteration {step.iteration}, loss {loss}, step time {seconds} s (line {step.line})"
    for name in _SHOWN_SETTINGS:
        reading = record.effective.get(name)
        if reading is not None:
            yield name, f"{reading.value} (line {reading.line})"
    for difference in differences(record.requested, record.effective):
        yield "difference", str(difference)
    for note in record.notes:
        yield "note", note


def _or_unknown(value: float | None) -> str:
    return "unknown" if value is None else f"{value:g}"
