"""`python -m parsers LOG…`: what logs say, as tables, JSON or CSV, and as records with --save or -o."""

from __future__ import annotations

import csv
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from conf.arguments import Arguments, Command, Key
from conf.errors import InputError, Problem, UserError, command, listed, writing
from conf.plain import plain
from conf.vocabulary import vocabulary
from parsers import DIALECTS, Ending, Parsed, Record, assemble, exports, judge, write
from parsers.assemble import differences
from parsers.dialects import load
from parsers.given import given_keys, given_of, with_given
from parsers.importers import is_record, read_record
from parsers.power import with_power
from parsers.probe import FOLDER, with_probe
from parsers.progress import shown
from parsers.reader import Parser
from parsers.record import STEP_FIELDS, Power, Step, Validation
from parsers.scan import STDIN, read_blocks, size_of
from parsers.storage import RUN_FILE, STEPS_FILE, dumps, keep_runs, run_file
from parsers.text import cell
from parsers.unread import SOURCES, is_python, looks_like, not_supported
from parsers.unwrap import encoding_of
from parsers.values import real

_SKIPPED_SHOWN = 20
MANY_FILES = 20_000
_HEAD, _LOOK = 4096, 8 << 20
_PASSED_FOLDERS = (".git", "node_modules", "__pycache__", ".venv", "site-packages", "attempts")
_OURS = {RUN_FILE, STEPS_FILE}
_NOTHING, _EMPTY, _BINARY, _JSON = "nothing of training in it", "empty", "binary", "a JSON document"
_SOURCE = "source, configuration or documentation"
_KINDS = {
    b"\x89PNG": "an image",
    b"\xff\xd8\xff": "an image",
    b"PK\x03\x04": "an archive",
    b"\x7fELF": "a program",
    b"%PDF": "a document",
}
_OTHERS = {_NOTHING, _EMPTY, _BINARY, _JSON, _SOURCE, *_KINDS.values()}
_HINT = "the file that the training program's own output went to; the formats are listed in parsers/README.md"
_COMPARED = 3
_MANY = 5
_EVERY_S = 0.5
_BLOCK = 1 << 20
PARSE = Command(
    name="parse",
    summary="Read training logs of any framework into records.",
    words="[LOG…]",
    words_help="a log, a folder (its logs are recognised by content; default: this one), or -",
    keys=(
        Key("power", "power samples of the run", Path, example="power.csv"),
        Key(
            "dialect", "read as this dialect, whatever the content", choices=lambda: sorted(DIALECTS), example="nanogpt"
        ),
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
    return parse(argv)


def parse(argv: Sequence[str] | None, judged: Callable[[Record], Record] = lambda record: record) -> int:
    """Return the same. judged: returns a record with what those find in it whom nothing here imports."""
    arguments = PARSE.parse(argv)
    given = given_of(arguments.others, PARSE.names)
    named, dialect, switches = [Path(text) for text in arguments.words], arguments["dialect"], arguments.switches
    folders = [path for path in named if path.is_dir()] or ([] if named else [Path()])
    logs = [path for path in named if not path.is_dir()]
    if folders:
        logs += _discovered(folders)
    if "--follow" in switches:
        more = {*switches, *arguments.typed, *given, "-o" if arguments.output else "--follow"} - {"--follow", "dialect"}
        if len(logs) != 1 or more:
            found = listed([*logs[:_MANY], *sorted(more)])
            raise InputError(Problem("--follow", "takes one log, and nothing but dialect= beside it", found))
        follow(logs[0], dialect)
        return 0
    read = _all(logs, dialect)
    if arguments["power"] is not None:
        read = [with_power(record, arguments["power"], alone=len(read) == 1) for record in read]
    records = [judged(record) for record in _with_given(read, given)]
    places = zip(records, _directories(arguments, records), strict=True)
    written = [(record, directory) for record, directory in places if directory is not None]
    keep_runs(written)
    for record, directory in written:
        _write(record, directory)
    if "--csv" in switches:
        as_csv(records)
    elif "--json" in switches:
        as_json(records)
    else:
        table(records)
    return 0


def imported(log: Path, dialect: str | None = None) -> Record:
    """Return the record of the last run in a log from elsewhere. InputError: not readable, or no log."""
    return imported_all(log, dialect)[-1]


def imported_all(
    log: Path, dialect: str | None = None, progress: Callable[[int], None] = lambda size: None
) -> tuple[Record, ...]:
    """Return the records of a log, one a run. InputError: not readable, or no training log (a dialect that is forced
    takes any text: a run that died at its start says why, and no more)."""
    if dialect is None and log != STDIN and exports.kind_of(log) is not None:
        kept = exports.read_all(log)
        return tuple(_record(log, run, index, len(kept)) for index, run in enumerate(kept, start=1))
    parser, head, size = Parser(dialect), b"", 0
    for block in read_blocks(log):
        if not size and dialect is None and is_record(block):
            return (read_record(log),)
        if dialect is None and size < _LOOK and (what := not_supported(block)) is not None:
            raise InputError(Problem(str(log), what))
        head, size = head or block, size + len(block)
        parser.feed_bytes(block)
        progress(len(block))
    runs = parser.finish()
    known = any(run.dialect or run.steps or run.facts or _crashed(run) for run in runs)
    if dialect is None and (is_python(head) or not known):
        what = f"is not a training log that is known here; it looks like {looks_like(head, runs[-1].lines)}"
        raise InputError(Problem(str(log), what, hint=_HINT))
    records = [_record(log, run, index, len(runs)) for index, run in enumerate(runs, start=1)]
    if log != STDIN:  # a run directory of ours, in which the last run wrote last
        records[-1] = with_probe(records[-1], log.parent / FOLDER)
    return tuple(records)


def _crashed(run: Parsed) -> bool:
    """Return whether a run ended in a fault before its first step: a trainer's, or where none is known torch's."""
    faults = run.faults
    torch = run.dialect or faults.death or any("torch" in line for line in run.tail)
    return not run.steps and bool(torch and (faults.root or faults.death or faults.out_of_memory))


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
        started_at=str(run.facts["started_at"]) if "started_at" in run.facts else None,
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


def _with_given(records: Sequence[Record], given: Mapping[str, Any]) -> list[Record]:
    """Return the records with what was given of all. InputError: every contradiction of every log, together."""
    made, problems = list[Record](), list[Problem]()
    for record in records:
        try:
            made.append(with_given(record, given))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(*problems)
    return made


def _discovered(folders: Sequence[Path]) -> list[Path]:
    logs, skipped = discover(folders)
    lines = [f"parsed {log.path} ({log.dialect})" for log in logs]
    lines += [f"skipped {other.path}: {other.why}" for other in skipped[:_SKIPPED_SHOWN]]
    if len(skipped) > _SKIPPED_SHOWN:
        lines.append(f"skipped {len(skipped) - _SKIPPED_SHOWN} more files")
    for line in lines:
        print(plain(line), file=sys.stderr)
    if not logs:
        where = ", ".join(str(folder) for folder in folders)
        known = dict.fromkeys(load(name).looks_for.partition(":")[0] for name in DIALECTS)
        raise InputError(Problem(where, "has no training log that is known here", allowed=f"of {listed([*known])}"))
    return [log.path for log in logs]


def _directories(arguments: Arguments, records: Sequence[Record]) -> list[Path | None]:
    """Return where each record goes: DIR itself for one, DIR/NAME for several, which must then differ in name."""
    if "--save" in arguments.switches:
        if arguments.output is not None:
            raise InputError(Problem("-o", "beside --save, which writes to runs/imported", str(arguments.output)))
        return [Path("runs") / "imported" / record.id for record in records]
    base, names = arguments.output, [record.name for record in records]
    if base is None:
        return [None] * len(records)
    if len(set(names)) < len(names):
        what = "several logs have one name, so their records would overwrite each other"
        raise InputError(Problem("-o", what, found=", ".join(names), hint="one call a log, or --save"))
    return [base] if len(names) == 1 else [base / name for name in names]


def _write(record: Record, directory: Path) -> None:
    with writing(directory):
        write(record, directory)
    print(f"wrote {directory}", file=sys.stderr)


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
        yield "hardware" if record.hardware or device else "vendor", str(record.hardware or device or record.vendor)
    yield "steps", str(len(record.steps))
    for label, index in (("first step", 0), ("last step", -1)):
        if record.steps:
            yield label, _step(record.steps[index])
    yield from _settings(record)
    for point in record.validations[-_MANY:]:
        yield point.split if point.loss is None and point.metrics else f"{point.split} loss", _validation(point)
    yield from _result(record)
    seconds = [stall.seconds for stall in record.stalls if stall.seconds is not None]
    if record.stalls:
        yield "stalls", f"{len(record.stalls)}, {sum(seconds):.1f} s where their time is reported"
    for power in record.power:
        yield "energy", _power(power)
    for difference in differences(record.requested, record.effective):
        yield "difference", str(difference)
    for note in record.notes:
        yield "note", note


def _result(record: Record) -> Iterator[tuple[str, str]]:
    """Yield what a run to a target took."""
    for label, fact, unit in (
        ("time to train", "mlperf_time_to_train_s", "s"),
        ("samples to the target", "mlperf_samples_to_target", "samples"),
    ):
        if (amount := real(record.environment.get(fact))) is not None:
            yield label, f"{amount:,.10g} {unit}"


def _step(step: Step) -> str:
    name = f"step {step.step} (counted)" if step.iteration is None else f"iteration {step.iteration}"
    name = name if step.numbered else "no step number printed"
    return f"{name}, loss {_loss(step)}, step time {_or_unknown(step.step_time_s, ' s')} (line {step.line})"


def _settings(record: Record) -> Iterator[tuple[str, str]]:
    for name in (name for name, setting in vocabulary().items() if setting.shown):
        if name in record.effective:
            yield name, f"{record.effective[name].value} (line {record.effective[name].line})"
        elif name in record.given:
            yield name, f"{record.given[name]} (given)"


def _validation(point: Validation) -> str:
    at = point.iteration if point.iteration is not None else None if point.step is None else point.step + 1
    others = listed([f"{name} {_or_unknown(value)}" for name, value in point.metrics.items() if point.loss is None])
    return f"{others or _or_unknown(point.loss)} after iteration {'unknown' if at is None else at} (line {point.line})"


def _power(power: Power) -> str:
    who = "a node" if power.kind == "node" else f"{power.gpus or 'all'} {power.kind}s"
    numbers = (power.energy_counter_j, power.energy_integrated_j, power.mean_power_w, power.seconds)
    counter, integrated, watts, seconds = map(_or_unknown, numbers)
    return f"{counter} J counted, {integrated} J integrated, {watts} W mean, {who}, {seconds} s ({power.source})"


def _loss(step: Step) -> str:
    """Return the loss of a step as text; one that is printed as NaN or an infinity is not unknown."""
    return "NaN or infinite" if "loss" in step.nonfinite else _or_unknown(step.loss)


def _or_unknown(value: float | None, unit: str = "") -> str:
    return "unknown" if value is None else f"{value:g}{unit}"


def follow(path: Path, dialect: str | None = None) -> None:
    """Print the steps of a growing log until Ctrl-C; one that is replaced or cut short is read anew. InputError: it
    cannot be read."""
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
            time.sleep(_EVERY_S)
    except KeyboardInterrupt:
        print(file=sys.stderr)
    except OSError as error:
        raise InputError(Problem(str(path), "cannot be read", error.strerror or str(error))) from error


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
    return plain(f"iteration {number}: loss {_loss(step)}{seconds}")


@dataclass(frozen=True, slots=True)
class Log:
    """A file that holds a training log. begins: its first steps, by which copies are known, with their times: a repeat
    of a run has the same losses, and is another run. losses: of an export, by step."""

    path: Path
    dialect: str
    changed_s: float
    size: int
    begins: tuple[tuple[Any, ...], ...] = ()
    losses: Mapping[int, float | None] | None = None


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file that was skipped, and why. crashed: a log that ends in a fault before its first step."""

    path: Path
    why: str
    crashed: Log | None = None


def discover(folders: Sequence[Path]) -> tuple[list[Log], list[Skipped]]:
    """Return the logs below `folders`, newest first, and what was skipped: first what speaks of training (a copy, a
    log without steps), then all other files. Without any steps below them, what crashed before its first one counts."""
    skipped: list[Skipped] = []
    results = [_looked_at(path) for path in _files(folders, skipped)]
    logs = [result for result in results if isinstance(result, Log)]
    skipped += [result for result in results if isinstance(result, Skipped)]
    taken: dict[object, Log] = {}  # of the files with the same steps the largest: ranks and sinks write their own
    for log in sorted(logs, key=lambda log: -log.size):
        other = taken.setdefault(log.begins if any(loss is not None for _, loss, *_ in log.begins) else log.path, log)
        if other is not log:
            skipped.append(Skipped(log.path, f"the same steps as {other.path}"))
    for key, export in [(key, log) for key, log in taken.items() if log.losses]:
        same = next((log for log in taken.values() if _logged(log, export)), None)
        if same is not None:
            skipped.append(Skipped(taken.pop(key).path, f"the same run as {same.path}"))
    if not taken:
        crashed = [other.crashed for other in skipped if other.crashed is not None]
        crashed = [log for log in crashed if log.dialect in DIALECTS] or crashed
        taken = {log.path: log for log in crashed}
        skipped = [other for other in skipped if other.path not in taken]
    skipped.sort(key=lambda other: other.why in _OTHERS)
    return sorted(taken.values(), key=lambda log: log.changed_s, reverse=True), skipped


def _logged(log: Log, export: Log) -> bool:
    """Return whether a log and a tracker's export, one below the other's folder, are of one run: a log's losses have
    fewer digits."""
    steps = [(step, loss) for step, loss, *_ in log.begins if step is not None and loss is not None]
    near = log.path.parent in export.path.parents or export.path.parent in log.path.parents
    if log.losses is not None or not near or len(steps) < 2:
        return False
    others = [(loss, (export.losses or {}).get(step)) for step, loss in steps]
    return all(other is not None and math.isclose(loss, other, rel_tol=1e-3) for loss, other in others)


def _files(folders: Sequence[Path], skipped: list[Skipped]) -> Iterator[Path]:
    seen = 0
    for folder in folders:
        for directory, inner, names in os.walk(folder):
            inner[:] = sorted(name for name in inner if name not in _PASSED_FOLDERS)
            kept = exports.kind_of(Path(directory))
            if kept is not None:  # one run: its directory stands for its files
                yield Path(directory)
                inner[:] = [] if kept != "tensorboard" else inner
                names = [name for name in names if kept == "tensorboard" and not name.startswith(exports.EVENTS)]
            for name in sorted(names):
                seen += 1
                if seen > MANY_FILES:
                    why = f"more than {MANY_FILES} files; the rest was not looked at"
                    skipped.append(Skipped(Path(directory), why))
                    return
                yield Path(directory) / name


def _looked_at(path: Path) -> Log | Skipped:
    """Return the log in a file, by its first megabytes, or why it is none."""
    try:
        stat, kept = path.stat(), exports.kind_of(path) is not None
        why = None if kept else _why_not(path)
        if why == "a record":
            return Log(path, why, stat.st_mtime, stat.st_size)
        if why is None:
            parsed = (exports.read_all(path) if kept else _begin(path))[0]
            begins = [(step.step, step.loss, step.lr, step.step_time_s) for step in parsed.steps[:_COMPARED]]
            if parsed.steps:  # exports have no times of steps, and say when the run began
                known = (*begins, (None, None, parsed.facts.get("started_at")))
                losses = {step.step: step.loss for step in parsed.steps} if kept else None
                return Log(path, parsed.dialect or "our own marks", stat.st_mtime, stat.st_size, known, losses)
            why = "no steps in it" if parsed.dialect else _NOTHING
            if _crashed(parsed):
                return Skipped(path, why, Log(path, parsed.dialect or "a traceback", stat.st_mtime, stat.st_size))
    except UserError as error:
        why = " ".join(filter(None, (error.problems[0].what, error.problems[0].found)))
    except (OSError, ValueError) as error:
        why = f"cannot be read: {error}"
    return Skipped(path, why)


def _begin(path: Path) -> tuple[Parsed, ...]:
    """Return the runs in the first megabytes of a log. InputError: of a trainer that is not supported."""
    parser, size = Parser(), 0
    for block in read_blocks(path):
        if (what := not_supported(block)) is not None:
            raise InputError(Problem(str(path), what))
        parser.feed_bytes(block)
        size += len(block)
        if size >= _LOOK:
            break
    return parser.finish()


def _why_not(path: Path) -> str | None:
    if not path.is_file():
        return "no file"
    if path.name in _OURS:
        return "a record of ours"
    if path.suffix.lower() in SOURCES:
        return _SOURCE
    with path.open("rb") as stream:
        head = stream.read(_HEAD)
    if not head:
        return _EMPTY
    kind = next((kind for magic, kind in _KINDS.items() if head.startswith(magic)), None)
    if kind is not None or head.startswith(b"\x1f\x8b"):
        return kind
    if is_record(head):
        return "a record"
    if head.split(b"\n", 1)[0].strip() in (b"{", b"[") and b'"log_history": [' not in head:
        return _JSON
    return _BINARY if head.count(b"\0") > len(head) // 8 and encoding_of(head) is None else None
