"""A record on disk: run.json and steps.jsonl, replaced as one or not at all, and refused with a reason when unfit."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace as replaced
from functools import lru_cache, partial
from itertools import islice, pairwise
from operator import lt
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import asdict, fields, replace

from conf.arguments import program
from conf.errors import InputError, Problem, listed
from conf.locks import beside
from conf.secret import in_texts, under
from parsers.long_steps import LongSteps
from parsers.record import LARGEST, SCHEMA_VERSION, Reading, Record, RunFile, Step, Steps, StepsFile, columns, rows
from parsers.text import writable

RUN_FILE = "run.json"
STEPS_FILE = "steps.jsonl"
_TOGETHER = 1000  # steps that are encoded at once
_OF_GROUP = 0o640  # a record holds lines of a log
_NONE_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_KEPT = 4  # files whose steps stay in memory
_BLOCK = 1 << 25  # bytes of a steps.jsonl that are read at once: its steps take more

# Version n -> the function that makes version n + 1 of an object of version n.
# 2: provenance may be planned.
UPGRADES: Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]] = {1: lambda entry: {**entry, "schema_version": 2}}
_STEPS = msgspec.json.Decoder(Step)
T = TypeVar("T")


def write(record: Record, directory: Path) -> None:
    """Write the record below `directory`, creating it. Steps first: a run.json never speaks of steps not yet there.
    It is readable by its owner's group at most, and secrets are blotted out by their shape.
    What could not be read again (an integer beyond 64 bits, a count below zero) is left out, and a note says so.

    OSError passes through (a full disk); the older files then stay as they were."""
    directory.mkdir(parents=True, exist_ok=True)
    lines = _Lines(record.steps)
    replace_file(directory / STEPS_FILE, lines)
    about = replace(run_file(record), steps_file=lines.written())
    shown = in_texts(msgspec.to_builtins(_readable(about, lines.left_out), enc_hook=_other))
    replace_file(directory / RUN_FILE, dumps(shown, indent=1) + "\n", most=_OF_GROUP)


def keep_runs(records: Iterable[tuple[Record, Path]]) -> None:
    """Raise InputError, of all directories at once, where a record that is no run's own would replace one of another
    kind, or of another run: an estimate replaces an estimate, what a log is parsed to what one was parsed to. A
    rehearsed log that has grown is of one name, which a run of the launcher does not share."""
    problems: list[Problem] = []
    for record, directory in records:
        if _size(path := directory / RUN_FILE) is None:
            continue
        content, hint = _content(path), f"another directory: -o {directory}-{record.provenance}"
        try:
            there = _record(content, path)
        except InputError as error:
            problems += (replaced(one, hint=f"{hint}; or remove {path}") for one in error.problems)
            continue
        of_kind = there.provenance == record.provenance
        if not of_kind or (there.provenance == "rehearsed" and there.name != record.name):
            other = f"already, which one that is {record.provenance} does not replace"
            what = f"has a record {'of another run' if of_kind else other}"
            found = f"{there.provenance}, {there.status}: {there.id}"
            problems.append(Problem(str(directory), what, found, "a directory without a record, or its like", hint))
    if problems:
        raise InputError(*problems)


def read(directory: Path) -> Record:
    """Read the record in `directory`; without a steps.jsonl it has no steps. InputError: unreadable, foreign, newer, or
    its steps are not those that were written."""
    record = read_lazily(directory)
    return replace(record, steps=tuple(record.steps))


def read_lazily(directory: Path) -> Record:
    """Read all but the steps, which are read when somebody looks at them; an InputError of theirs comes then, but for
    a file of another size than was written."""
    path, steps = directory / RUN_FILE, directory / STEPS_FILE
    record = _without_secrets(_record(_content(path), path))
    if record.status == "running" and (beside(directory) / RUN_FILE).is_file():
        return read_lazily(beside(directory))
    # of a run that goes on, the steps may be written at this moment
    written = None if record.status == "running" else record.steps_file
    size = _size(steps)
    if written is not None and size != (written.bytes if written.count or size is not None else None):
        raise InputError(_not_as_written(steps, written))
    return replace(record, steps_file=None, steps=() if size is None else StoredSteps(steps, written))


def _size(path: Path) -> int | None:
    """Return the bytes of a file; None where there is none. InputError: nobody can tell."""
    try:
        return path.stat().st_size
    except OSError as error:
        if error.errno in _NONE_THERE:
            return None
        raise InputError(Problem(str(path), "cannot be read", str(error))) from error


def _not_as_written(path: Path, written: StepsFile, there: str = "") -> Problem:
    """Return the problem of steps that are not those of the run.json beside them. there: what they are instead; else
    how many lines there are."""
    what = f"is not as {RUN_FILE} beside it was written: it may be cut, or of another run"
    hint = f"copy the run again, complete; or {_anew(path)}"
    return Problem(str(path), what, there or _lines_there(path, written), _stated(written), hint)


def _anew(path: Path) -> str:
    """Return how to make a record again, beside that of `path`: what a log says does not replace a run's own."""
    return f"make the record anew, in another directory: {program('parse')} LOG -o {path.parent}-imported"


def _lines_there(path: Path, written: StepsFile) -> str:
    try:
        lines = [line for line in _bytes(path).split(b"\n") if line]
    except FileNotFoundError:
        return "it is missing"
    except OSError as error:
        return str(error.strerror)
    return f"{len(lines):,} lines" if len(lines) != written.count else "as many lines, and other bytes"


def _stated(written: StepsFile) -> str:
    return _counted(written.count, written.first, written.last) if written.count else _counted(0)


def _counted(count: int, *ends: int | None) -> str:
    """Return how many steps there are, and where they begin and end."""
    return f"{count:,} steps" + (f", {ends[0]} to {ends[-1]}" if ends else "")


_RECORDS = msgspec.json.Decoder(RunFile)
_DIGITS_AS_0, _LONG = bytes(ord("0") if chr(code).isdecimal() else ord(" ") for code in range(256)), b"0" * 19
"""A table of bytes.translate, and what then may be of a number that `_object` refuses."""
_READINGS: dict[tuple[Any, ...], Reading] = {}
_MOST = 100_000  # readings that are kept


def _record(content: bytes, path: Path) -> Record:
    """Return the record in the content of a run.json of any version: nearly all are of this one, and plain."""
    if _LONG not in content.translate(_DIGITS_AS_0):
        with suppress(msgspec.MsgspecError, RecursionError, UnicodeError):
            return Record(**asdict(_RECORDS.decode(content)))
    return record_of(_object(_text(content, path), str(path)), str(path))


def _without_secrets(record: Record) -> Record:
    """Return a record, which anybody may have written, without secrets. Of ten thousand runs most readings are alike,
    and shared."""
    known = _READINGS.get
    try:
        effective = {
            name: known((name, type(one.value), one.value, one.line, one.file)) or _known(name, one)
            for name, one in record.effective.items()
        }
    except TypeError:  # one is a list
        effective = {name: _known(name, one) for name, one in record.effective.items()}
    dumped = effective if record.dumped == record.effective else in_texts(record.dumped)
    without: Record = in_texts(replace(record, effective={}, dumped={}))
    return replace(without, effective=effective, dumped=dumped)


def _known(name: str, reading: Reading) -> Reading:
    """Return a reading without secrets, the same one for all records that have it."""
    if len(_READINGS) > _MOST:
        _READINGS.clear()
    key = (name, type(reading.value), reading.value, reading.line, reading.file)
    try:
        return _READINGS.setdefault(key, replace(reading, value=under(name, reading.value)))
    except TypeError:  # a list
        return replace(reading, value=in_texts(reading.value))


def record_of(entry: dict[str, Any], where: str) -> Record:
    """Return the record that an object of any version is, without steps. InputError: it is none, or newer."""
    return Record(**asdict(_fitting(upgrade(entry, where), RunFile, where)))


class StoredSteps(Sequence[Step]):
    """The steps in a file, read when they are first looked at; only those of the last few files stay in memory.
    A file that cannot be used is reported then, by an InputError. written: what it must be; None: not known."""

    def __init__(self, path: Path, written: StepsFile | None = None) -> None:
        self._path, self.written = path, written

    def __len__(self) -> int:
        return len(self.loaded())

    def __iter__(self) -> Iterator[Step]:
        return iter(self.loaded())

    def __getitem__(self, index: Any) -> Any:
        return self.loaded()[index]

    def column(self, name: str) -> Sequence[Any]:
        """Return a field of every step."""
        return columns(self.loaded(), name)[0]

    def rows(self, *names: str) -> Iterator[tuple[Any, ...]]:
        """Yield the fields `names` of one step after the other."""
        return rows(self.loaded(), *names)

    def loaded(self) -> Sequence[Step]:
        """Return the steps themselves."""
        try:
            stat = self._path.stat()
        except OSError as error:  # it was there before
            raise InputError(Problem(str(self._path), "cannot be read", str(error))) from error
        return _kept(self._path, self.written, (stat.st_mtime_ns, stat.st_size, stat.st_ino))


def with_steps(record: Record) -> Record:
    """Return the record with its steps as they are looked at field by field, again and again."""
    steps = record.steps.loaded() if isinstance(record.steps, StoredSteps) else record.steps
    return replace(record, steps=steps if isinstance(steps, LongSteps) else Steps(steps))


@lru_cache(maxsize=_KEPT)
def _kept(path: Path, written: StepsFile | None, _: tuple[int, ...]) -> Sequence[Step]:
    return read_steps(path, written)


def read_steps(path: Path, written: StepsFile | None = None) -> Sequence[Step]:
    """Read a steps.jsonl, a long one block by block. written: what it must be, where that is known.
    InputError: it is not, or the first line that cannot be used, and why."""
    if (_size(path) or 0) > _BLOCK:
        return _read_long(path, written)
    content = _content(path)
    if written is not None and hashlib.sha256(content).hexdigest() != written.sha256:
        raise InputError(_not_as_written(path, written))
    steps = tuple(_steps_of(content, path))
    if written is not None:
        _check_ends(steps, path, written)
    return steps


def _read_long(path: Path, written: StepsFile | None) -> Sequence[Step]:
    if written is not None:
        digest = hashlib.sha256()
        for block in _blocks(path):
            digest.update(block)
        if digest.hexdigest() != written.sha256:
            raise InputError(_not_as_written(path, written))
    steps, first_line = LongSteps(), 1
    for block in _blocks(path):
        steps.extend(_steps_of(block, path, first_line, steps[-1].step if steps else None))
        first_line += block.count(b"\n")
    if written is not None:
        _check_ends(steps, path, written)
    return steps


def _blocks(path: Path) -> Iterator[bytes]:
    """Yield a file in pieces of whole lines. InputError: it cannot be read."""
    try:
        _refuse_endless(path)
        with path.open("rb") as stream:
            while block := stream.read(_BLOCK):
                yield block + stream.readline()
    except OSError as error:
        raise InputError(Problem(str(path), "cannot be read", str(error))) from error


def _steps_of(content: bytes, path: Path, first_line: int = 1, before: int | None = None) -> list[Step]:
    """Return the steps in whole lines of a steps.jsonl. before: the step that the first must follow."""
    try:
        steps = _STEPS.decode_lines(content)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        steps = []
    if len(steps) != content.rstrip().count(b"\n") + 1:  # unfit, or values that msgspec does not read (see `_object`)
        steps = list(_line_by_line(_text(content, path), path, first_line))
    at = [*([] if before is None else [before]), *(step.step for step in steps)]
    if not all(map(lt, at, at[1:])):
        place = next(place for place in range(1, len(at)) if at[place] <= at[place - 1])
        lines = [number for number, line in enumerate(content.split(b"\n"), start=first_line) if line.strip()]
        what = f"step {at[place]} after step {at[place - 1]}: steps ascend"
        raise InputError(Problem(f"{path}:{lines[place - (before is not None)]}", what, hint=_anew(path)))
    return steps


def _check_ends(steps: Sequence[Step], path: Path, written: StepsFile) -> None:
    ends = (steps[0].step, steps[-1].step) if steps else ()
    if (own := _counted(len(steps), *ends)) != _stated(written):
        raise InputError(_not_as_written(path, written, own))


def _line_by_line(text: str, path: Path, first_line: int) -> Iterator[Step]:
    for number, line in enumerate(text.split("\n"), start=first_line):
        if line:
            where = f"{path}:{number}"
            entry = _object(line, where)
            if isinstance(metrics := entry.get("metrics"), dict):  # nan was written as null: not measured
                entry["metrics"] = {name: value for name, value in metrics.items() if value is not None}
            yield _fitting(entry, Step, where)


def _fitting(entry: dict[str, Any], kind: type[T], where: str) -> T:
    """Return `entry` as a `kind`. InputError: the first value that does not fit, with its path in the object."""
    try:
        return msgspec.convert(entry, kind)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at ")
        place = path.strip("`").removeprefix("$").removeprefix(".")
        raise InputError(Problem(f"{where}: {place}" if place else where, what)) from error


def upgrade(entry: dict[str, Any], where: str) -> dict[str, Any]:
    """Return `entry` in the current schema version. InputError: its version is missing, or newer than this program."""
    version = entry.get("schema_version")
    if type(version) is not int:
        hint = f"records are written by {program('launch')} and by {program('parse')} LOG -o DIR"
        raise InputError(Problem(where, "is not a record of ours: it has no schema_version", hint=hint))
    while version in UPGRADES:
        entry = UPGRADES[version](entry)
        version += 1
    if version != SCHEMA_VERSION:
        hint = "update TensorPrimat" if version > SCHEMA_VERSION else ""
        known = listed([*UPGRADES, SCHEMA_VERSION])
        raise InputError(Problem(where, "schema version not known here", str(version), known, hint))
    return entry


def experiment_of(directory: str, part: str) -> Mapping[str, Any]:
    """Return a part of the experiment.yaml beside the record in `directory`, such as its price; empty where there is
    none that can be read. The lines of the part are parsed alone: of a thousand runs the rest takes seconds."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        text = Path(directory, "experiment.yaml").read_text(encoding="utf-8")
        match = re.search(rf"^{part}:.*\n(?:[ #].*\n|\n)*", text, re.MULTILINE)
        entry = yaml.load(match[0] if match else text, loader)
    except (OSError, ValueError, yaml.YAMLError):  # a record needs no experiment beside it; a name may be no UTF-8
        return {}
    value = entry.get(part) if isinstance(entry, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def run_file(record: Record) -> RunFile:
    """Return what run.json has of a record: all but the steps."""
    return RunFile(**{name: getattr(record, name) for name in RunFile.__struct_fields__})


def dumps(value: Any, indent: int = 0) -> str:
    """Return JSON of `value`, without `indent` on one line: nan, inf and what JSON has no number for as null, an object
    that it does not know as text."""
    return msgspec.json.format(encode(value), indent=indent).decode()


def pieces(entry: Mapping[str, Any], key: str, items: Iterable[Any]) -> Iterator[str]:
    """Yield the text of `dumps` with indent=1, and an end of line, of an object whose list under `key` has `items`,
    which are encoded one by one; in `entry` it is empty."""
    head, tail = dumps(entry, indent=1).split(f'\n "{key}": []', 1)
    yield f'{head}\n "{key}": ['
    first = True
    for item in items:
        yield ("" if first else ",") + dumps([item], indent=1)[1:-2].replace("\n", "\n ")
        first = False
    yield ("" if first else "\n ") + f"]{tail}\n"


def encode(value: Any) -> bytes:
    """Return compact JSON of `value`, as `dumps`."""
    try:
        return _ENCODER.encode(value)
    except (TypeError, ValueError, OverflowError):  # a lone surrogate, a key that is no text: rare
        return _ENCODER.encode(writable(msgspec.to_builtins(value, enc_hook=_other)))


def _other(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else str(value)


_ENCODER = msgspec.json.Encoder(enc_hook=_other)


class _Lines:
    """The lines of a steps.jsonl, made as they are iterated over, and what they were. left_out: how many steps and
    values could not have been read again, by name."""

    def __init__(self, steps: Iterable[Step]) -> None:
        self._steps, self._hash = steps, hashlib.sha256()
        self.count = self.bytes = 0
        self.first: int | None = None
        self.last: int | None = None
        self.left_out: Counter[str] = Counter()

    def __iter__(self) -> Iterator[bytes]:
        left = iter(self._steps)
        while some := list(islice(left, _TOGETHER)):
            lines, steps = self._readable(some)
            if steps:
                self.first, self.last = steps[0].step if self.first is None else self.first, steps[-1].step
            self.count += len(steps)
            self.bytes += len(lines)
            self._hash.update(lines)
            yield lines

    def written(self) -> StepsFile:
        digest = self._hash.hexdigest()
        return StepsFile(count=self.count, first=self.first, last=self.last, bytes=self.bytes, sha256=digest)

    def _readable(self, some: Sequence[Step]) -> tuple[bytes, Sequence[Step]]:
        last = -LARGEST - 1 if self.last is None else self.last
        try:
            lines = _ENCODER.encode_lines(some)
            at = [last, *(step.step for step in _STEPS.decode_lines(lines))]
            if all(before < after for before, after in pairwise(at)):
                return lines, some
        except (ValueError, OverflowError):  # msgspec's errors too; a lone surrogate, a number that none of ours is
            pass
        kept: list[Step] = []
        for step in some:
            entry = _within(encode(step))
            metrics = {name: number for name, number in entry["metrics"].items() if number is not None}
            entry, left_out = _fields({**entry, "metrics": metrics}, Step)
            left_out += [name for name, n in step.metrics.items() if name not in metrics and type(n) is int]
            if {"step", "line"} & {*left_out} or entry["step"] <= last:
                left_out = ["all of a step"]
            else:
                kept.append(msgspec.convert(entry, Step))
                last = kept[-1].step
            self.left_out.update(f"steps: {name}" for name in left_out)
        return _ENCODER.encode_lines(kept), kept


def _within(encoded: bytes) -> dict[str, Any]:
    """Return a JSON object of ours without numbers that `_object` refuses: they are null."""

    def fits(read: Callable[[str], Any], text: str) -> Any:
        try:
            return read(text)
        except ValueError:
            return None

    return dict(json.loads(encoded, parse_int=partial(fits, _integer), parse_float=partial(fits, _decimal)))


def _readable(about: RunFile, left_out: Counter[str]) -> dict[str, Any]:
    """Return run.json as `record_of` reads it, with a note of what was left out, of the steps too."""
    entry, more = _fields(_within(encode(about)), RunFile)
    if named := [*more, *(f"{name} ({count:,})" for name, count in sorted(left_out.items()))]:
        note = f"could not be recorded, as it is no number or text of a record: {listed(named)}"
        entry["notes"] = [*entry.get("notes", ()), note]
    return entry


def _fields(entry: Mapping[str, Any], kind: type[Any]) -> tuple[dict[str, Any], list[str]]:
    """Return `entry` as a `kind` can be read from it, and the names of the fields that lost something."""
    try:
        msgspec.convert(entry, kind)
        return dict(entry), []
    except msgspec.ValidationError:
        kept, left_out = dict(entry), []
    for field in fields(kind):
        if field.name in entry and not _fits(value := entry[field.name], field.type):
            left_out.append(field.name)
            kept[field.name] = parts = _parts(value, field.type)
            if not field.required and not _fits(parts, field.type):
                del kept[field.name]
    return kept, left_out


def _parts(value: Any, kind: Any) -> Any:
    """Return the elements or entries of `value` that fit one by one."""
    if isinstance(value, list):
        return [item for item in value if _fits([item], kind)]
    if isinstance(value, dict):
        return {name: item for name, item in value.items() if _fits({name: item}, kind)}
    return None


def _fits(value: Any, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def replace_file(path: Path, content: str | bytes | Iterable[bytes], most: int = 0o666) -> None:
    """Put `content` at `path` in one piece: whoever reads sees the old file or the new one. most: who may read and
    write it, as far as this process' umask lets them."""
    content = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as stream:
            os.fchmod(stream.fileno(), stat.S_IMODE(os.fstat(stream.fileno()).st_mode) & most)
            stream.writelines((content,) if isinstance(content, bytes) else content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _content(path: Path) -> bytes:
    try:
        return _bytes(path)
    except OSError as error:
        raise InputError(Problem(str(path), "cannot be read", str(error))) from error


def _bytes(path: Path) -> bytes:
    """Return what a file holds. OSError: as that of reading, or it is a device or a pipe, which may never end."""
    _refuse_endless(path)
    with open(path, "rb", buffering=0) as stream:  # noqa: PTH123 - of ten thousand files a Path's own takes a second
        return stream.read()


def _refuse_endless(path: Path) -> None:
    if not stat.S_ISREG(path.stat().st_mode):  # before it is opened: that of a pipe waits
        raise OSError(errno.EINVAL, "no regular file", str(path))


def _text(content: bytes, path: Path) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise InputError(Problem(str(path), "cannot be read", str(error))) from error


def _object(text: str, where: str) -> dict[str, Any]:
    """Return the JSON object in `text`, writable. Not by msgspec, which refuses the lone surrogates that earlier
    versions wrote, and reads integers of more than 64 bits. InputError: no JSON, no object, or such a number."""
    try:
        entry = json.loads(text, parse_constant=_no_constant, parse_int=_integer, parse_float=_decimal)
    except (ValueError, RecursionError) as error:
        raise InputError(Problem(where, "is not JSON", str(error))) from error
    if not isinstance(entry, dict):
        raise InputError(Problem(where, "is not a JSON object", type(entry).__name__))
    return dict(writable(entry))


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _integer(text: str) -> int:
    if len(text) <= 20 and -LARGEST <= (value := int(text)) <= LARGEST:
        return value
    raise ValueError(f"{text[:20]} is too large for a number of ours")


def _decimal(text: str) -> float:
    """Read a number; Python itself reads 1e999 as infinity."""
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:20]} is too large for a number of ours")
    return value
