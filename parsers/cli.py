"""`python -m parsers LOG…`: what logs say, as tables, JSON or CSV, and as records with --save or -o."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path

from conf.arguments import Arguments, Command, Key
from conf.errors import InputError, Problem, UserError, command
from parsers import DIALECTS, Ending, Parsed, Record, assemble, judge, marks, show, write
from parsers.dialects import load
from parsers.discover import discover
from parsers.given import given_keys, given_of, with_given
from parsers.importers import is_record, read_record
from parsers.power import with_power
from parsers.probe import FOLDER, with_probe
from parsers.progress import shown
from parsers.reader import Parser
from parsers.scan import STDIN, read_blocks, size_of
from parsers.show import follow, rows
from parsers.text import plain

__all__ = ["imported", "main", "rows"]

_SKIPPED_SHOWN = 20
PARSE = Command(
    name="parse",
    summary="Read training logs of any framework into records.",
    words="[LOG…]",
    words_help="a log, a folder (its logs are recognised by content; default: this one), or -",
    keys=(
        Key("power", "power samples of the run", Path, example="power.csv"),
        Key("dialect", "read as this dialect, whatever the content", choices=lambda: sorted(DIALECTS), example="hf"),
    ),
    others="what the log does not say: model=llama31_8b hardware=h100 and any setting, marked as given",
    known=given_keys,
    switches={
        "--json": "the records with their steps",
        "--csv": "the steps",
        "--save": "write records to runs/imported/ID, for compare",
        "--follow": "print the steps of a growing log as they come",
    },
    output="write run.json and steps.jsonl there",
    examples=("train.log", "train.log --save model=llama31_8b hardware=h100", "train.log power=power.csv --json"),
)


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Return 0: read, whatever became of the runs; 2: bad input."""
    arguments = PARSE.parse(argv)
    given = given_of(arguments.others, PARSE.names)
    named, dialect, switches = [Path(text) for text in arguments.words], arguments["dialect"], arguments.switches
    folders = [path for path in named if path.is_dir()] or ([] if named else [Path()])
    logs = [path for path in named if not path.is_dir()]
    if folders:
        logs += _discovered(folders)
    if "--follow" in switches:
        if len(logs) != 1:
            raise InputError(Problem("--follow", "takes one log", found=f"{len(logs)} logs"))
        follow(logs[0], dialect)
        return 0
    read = _all(logs, dialect)
    if arguments["power"] is not None:
        read = [with_power(record, arguments["power"], alone=len(read) == 1) for record in read]
    records = [with_given(record, given) for record in read]
    for record, directory in zip(records, _directories(arguments, records), strict=True):
        if directory is not None:
            _write(record, directory)
    if "--csv" in switches:
        show.as_csv(records)
    elif "--json" in switches:
        show.as_json(records)
    else:
        show.table(records)
    return 0


def imported(log: Path, dialect: str | None = None) -> Record:
    """Return the record of the last run in a log from elsewhere. InputError: not readable, or no log."""
    return imported_all(log, dialect)[-1]


def imported_all(
    log: Path, dialect: str | None = None, progress: Callable[[int], None] = lambda size: None
) -> tuple[Record, ...]:
    """Return the records of a log, one a run. InputError: not readable, or no training log (a dialect that is forced
    takes any text: a run that died at its start says why, and no more)."""
    parser, first = Parser(dialect), True
    for block in read_blocks(log):
        if first and dialect is None and is_record(block):
            return (read_record(log),)
        first = False
        parser.feed_bytes(block)
        progress(len(block))
    runs = parser.finish()
    if dialect is None and not any(run.dialect or run.steps or run.facts for run in runs):
        hint = "give the file that the training program's own output went to, or add its dialect (parsers/README.md)"
        what = f"is not a training log ({runs[-1].lines} lines read)"
        raise InputError(Problem(str(log), what, allowed=_looked_for(), hint=hint))
    records = [_record(log, run, index, len(runs)) for index, run in enumerate(runs, start=1)]
    if log != STDIN:  # a run directory of ours, in which the last run wrote last
        records[-1] = with_probe(records[-1], log.parent / FOLDER)
    return tuple(records)


def _looked_for() -> str:
    """Return what betrays a training log, a line a dialect."""
    return "".join(f"\n      {text}" for text in (*(load(name).looks_for for name in DIALECTS), marks.LOOKS_FOR))


def _record(log: Path, run: Parsed, index: int, count: int) -> Record:
    # By content: a copy of the log elsewhere is the same run, another log of the same name is not.
    first, last = (run.steps[0], run.steps[-1]) if run.steps else (None, None)
    content = repr((run.lines, len(run.steps), first, last, run.tail)).encode("utf-8", "replace")
    name = log.stem if log != STDIN else "stdin"
    which = () if count == 1 else (f"run {index} of {count} in this log, from line {run.first_line} on",)
    about = Record(
        id=f"{name}-{sha256(content).hexdigest()[:10]}",
        name=name if count == 1 else f"{name}-run{index}",
        provenance="rehearsed" if run.facts.get("stand_in") else "imported",
        status="unknown",
        notes=which,
        log=log.name,
        framework=run.framework,
    )
    code = run.facts.get("exit_code")
    return assemble(run, judge(Ending(exit_code=code if type(code) is int else None), run), about)


def _all(logs: Sequence[Path], dialect: str | None) -> list[Record]:
    """Return the records of all logs. InputError: every one that cannot be read, together."""
    records: list[Record] = []
    problems: list[Problem] = []
    size, done = sum(map(size_of, logs)), 0
    with shown("reading", sys.stderr) as report:

        def progress(count: int) -> None:
            nonlocal done
            done += count
            report(done, size)

        for log in logs:
            try:
                records += imported_all(log, dialect, progress)
            except UserError as error:
                problems += error.problems
    if problems:
        raise InputError(*problems)
    return records


def _discovered(folders: Sequence[Path]) -> list[Path]:
    logs, skipped = discover(folders)
    lines = [f"took {log.path} ({log.dialect})" for log in logs]
    lines += [f"skipped {other.path}: {other.why}" for other in skipped[:_SKIPPED_SHOWN]]
    if len(skipped) > _SKIPPED_SHOWN:
        lines.append(f"skipped {len(skipped) - _SKIPPED_SHOWN} more files")
    for line in lines:
        print(plain(line), file=sys.stderr)
    if not logs:
        where = ", ".join(str(folder) for folder in folders)
        hint = "name the file that the training program's own output went to"
        raise InputError(Problem(where, "has no training log", allowed=_looked_for(), hint=hint))
    return [log.path for log in logs]


def _directories(arguments: Arguments, records: Sequence[Record]) -> list[Path | None]:
    """Return where each record goes: DIR itself for one, DIR/NAME for several, which must then differ in name."""
    if "--save" in arguments.switches:
        return [Path("runs") / "imported" / record.id for record in records]
    base, names = arguments.output, [record.name for record in records]
    if base is None:
        return [None] * len(records)
    if len(set(names)) < len(names):
        what = "several logs have one name, so their records would overwrite each other"
        raise InputError(Problem("-o", what, found=", ".join(names), hint="one call a log, or --save"))
    return [base] if len(names) == 1 else [base / name for name in names]


def _write(record: Record, directory: Path) -> None:
    try:
        write(record, directory)
    except OSError as error:
        raise InputError(Problem(str(directory), "cannot be written", error.strerror or str(error))) from error
    print(f"wrote {directory}", file=sys.stderr)
