"""Files of text: find them, and read them in blocks of whole lines, in bounded memory, from any position on."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import stat
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any, cast

from conf.archives import limit_unpacked
from conf.errors import InputError, Problem, listed
from corpora.tokenizers import EXTRA

FORMATS: Mapping[str, tuple[str, ...]] = {
    "jsonl": (".jsonl", ".json", ".ndjson"),
    "text": (".txt", ".text", ".md", ".rst"),
    "parquet": (".parquet",),
}
PACKED = (".gz", ".zst")
BLOCK_BYTES = 2**19
"""Text that a process gets at a time: a seventh of a second of work."""
LONGEST_BYTES = 2**26
"""A document that is longer is dropped: a library needs up to 270 times as much memory for it."""
LARGE_BYTES = 2**22
"""Blocks of more are tokenized one at a time, whatever the number of processes: each is one long document or few."""


@dataclass(frozen=True, slots=True)
class File:
    """An input. path: as typed, or found in a folder that was. form: of FORMATS."""

    path: str
    form: str
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Position:
    """How far an input is read. offset: bytes of its unpacked text, or rows; line: the number of the next one, from 1.
    packed: bytes of the file itself."""

    offset: int = 0
    line: int = 1
    packed: int = 0


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of an input. form: jsonl, lines, rows (bytes or None each), document, or dropped: then `content` is the
    reason. line: of its first record. after: where the next block begins."""

    path: str
    form: str
    content: Any
    line: int
    after: Position

    @property
    def is_large(self) -> bool:
        """Return whether it needs much memory to be tokenized."""
        size = sum(len(row or b"") for row in self.content) if self.form == "rows" else len(self.content)
        return size > LARGE_BYTES


@dataclass(frozen=True, slots=True)
class End:
    """The end of an input, with its sha256."""

    file: File
    sha256: str


def find(typed: Sequence[str], form: str) -> tuple[list[File], list[str]]:
    """Return the inputs, those of a folder in the order of their paths, and the files of folders that are left out.
    form: of FORMATS, or auto: by the end of the name. InputError: every one that cannot be read."""
    files, others, problems = list[File](), list[str](), list[Problem]()
    for name in typed:
        root = Path(name)
        try:
            if root.is_dir():
                inside, skipped = _inside(root, form)
                files += inside
                others += skipped
            else:
                files.append(_file(root, _form(root, form)))
        except InputError as error:
            problems += error.problems
    paths = [file.path for file in files]
    if twice := sorted({path for path in paths if paths.count(path) > 1}) if len({*paths}) < len(paths) else []:
        problems.append(Problem(twice[0], "is given twice", hint="name each file once"))
    if problems:
        raise InputError(*problems)
    return files, others


def _inside(root: Path, form: str) -> tuple[list[File], list[str]]:
    """Return the texts of a folder, and what else is in it. A link to a folder is among the others: it may lead back.
    InputError: a text or a folder in it cannot be read, or there is no text."""
    files, others, problems = list[File](), list[str](), list[Problem]()

    def refuse(error: OSError) -> None:
        problems.append(_unreadable(error))

    for folder, names, inside in os.walk(root, onerror=refuse):
        names[:] = sorted(name for name in names if not name.startswith("."))
        others += [str(path) for name in names if (path := Path(folder, name)).is_symlink()]
        for name in sorted(inside):
            path = Path(folder, name)
            try:
                known = _form(path, form)
            except InputError:
                if not name.startswith("."):
                    others.append(str(path))
                continue
            try:
                files.append(_file(path, known))
            except InputError as error:
                problems += error.problems
    if not (files or problems):
        allowed = listed([*sum(FORMATS.values(), ()), *PACKED])
        problems = [Problem(str(root), "no text is in this folder", f"{len(others)} other files", allowed)]
    if problems:
        raise InputError(*problems)
    return sorted(files, key=lambda file: Path(file.path).parts), others


def _file(path: Path, form: str) -> File:
    """Return an input. InputError: it cannot be read, or not a second time, as after a kill."""
    try:
        about = path.stat()
        if stat.S_ISREG(about.st_mode):
            path.open("rb").close()
    except OSError as error:
        raise InputError(_unreadable(error)) from error
    if not stat.S_ISREG(about.st_mode):
        what = "is no regular file: a pipe, a socket and a device cannot be read again after a kill"
        raise InputError(Problem(str(path), what, hint="save its text as a file first"))
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        hint = "rename it: the manifest names it"
        raise InputError(Problem(ascii(str(path)), "has a name that is not UTF-8", hint=hint)) from error
    return File(str(path), form, about.st_size, about.st_mtime_ns)


def _unreadable(error: OSError) -> Problem:
    return Problem(str(error.filename), "cannot be read", error.strerror or str(error))


def _form(path: Path, form: str) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes[-1:] and suffixes[-1] in PACKED:
        suffixes.pop()
    if form != "auto":
        return form
    for known, ends in FORMATS.items():
        if suffixes and suffixes[-1] in ends:
            return known
    allowed = listed([*sum(FORMATS.values(), ()), *PACKED])
    raise InputError(Problem(str(path), "of which format?", path.name, allowed, "format=jsonl, text or parquet"))


def read(file: File, field: str, by_line: bool, start: Position) -> Iterator[Block | End]:
    """Yield the blocks of an input from `start` on, and its end. InputError: it is damaged, or has no such field."""
    with _damaged(file):
        if file.form == "parquet":
            yield from _rows(file, field, start)
            return
        with Path(file.path).open("rb", buffering=0) as raw:
            hashing = _Hashing(raw)
            stream = _unpacked(file, hashing)
            if file.form == "text" and not by_line:
                yield from _document(file, stream, start, hashing)
            else:
                yield from _lines(file, stream, start, hashing)
            hashing.drain()
            yield End(replace(file, size=hashing.read_bytes), hashing.digest.hexdigest())


class _damaged:  # noqa: N801  a context manager; a generator inside must not swallow GeneratorExit
    def __init__(self, file: File) -> None:
        self.file = file

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, OSError | EOFError | zlib.error) or type(error).__module__.startswith("pyarrow"):
            why = str(getattr(error, "strerror", None) or error).splitlines()[0]
            hint = "copy it again, and remove PREFIX.partial, which was begun with this one"
            raise InputError(Problem(self.file.path, "is damaged, or cannot be read", why, hint=hint)) from error


class _Hashing(io.RawIOBase):
    """A file that hashes what is read of it."""

    def __init__(self, raw: IO[bytes] | io.FileIO) -> None:
        self.raw, self.digest, self.read_bytes = raw, hashlib.sha256(), 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self.raw.readinto(buffer)  # type: ignore[union-attr]
        self.digest.update(memoryview(buffer)[:count])
        self.read_bytes += count
        return int(count)

    def drain(self) -> None:
        while self.read(BLOCK_BYTES):
            pass


def _unpacked(file: File, hashing: _Hashing) -> IO[bytes]:
    if file.path.lower().endswith(".gz"):
        return cast(IO[bytes], gzip.GzipFile(fileobj=cast(IO[bytes], hashing)))
    if file.path.lower().endswith(".zst"):
        arrow = _arrow("pyarrow")
        return cast(IO[bytes], arrow.CompressedInputStream(arrow.PythonFile(hashing, mode="r"), "zstd"))
    return cast(IO[bytes], hashing)


def _arrow(module: str) -> Any:
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError as error:
        raise InputError(Problem("INPUT", "pyarrow reads .parquet and .zst, and is not here", hint=EXTRA)) from error


def _pieces(file: File, stream: IO[bytes], start: int, hashing: _Hashing) -> Iterator[bytes]:
    """Yield what is behind the first `start` bytes; a mark of byte order in front of all is left out. InputError: it
    unpacks to more than conf.archives allows."""
    left, size = start, 0
    first = stream.read(BLOCK_BYTES).removeprefix(b"\xef\xbb\xbf")
    for piece in chain([first], iter(partial(stream.read, BLOCK_BYTES), b"")):
        size += len(piece)
        limit_unpacked(file.path, hashing.read_bytes, size)
        behind = piece[left:]
        left -= len(piece) - len(behind)
        if behind:
            yield behind


def _lines(file: File, stream: IO[bytes], start: Position, hashing: _Hashing) -> Iterator[Block]:
    """Yield blocks of whole lines; a line above LONGEST_BYTES is read past."""
    form = "jsonl" if file.form == "jsonl" else "lines"
    offset, line, held, size, too_long = start.offset, start.line, list[bytes](), 0, False

    def block(content: Any, lines: int, read_bytes: int, form: str = form) -> Block:
        nonlocal offset, line
        first, offset, line = line, offset + read_bytes, line + lines
        return Block(file.path, form, content, first, Position(offset, line, hashing.read_bytes))

    for piece in _pieces(file, stream, start.offset, hashing):
        cut = piece.rfind(b"\n") + 1
        if too_long or (not cut and size + len(piece) > LONGEST_BYTES):
            end = piece.find(b"\n") + 1
            held, size, too_long = [], size + (end or len(piece)), True
            if not end:
                continue
            yield block("too long", 1, size, "dropped")
            held, size, too_long, piece = [], 0, False, piece[end:]
            cut = piece.rfind(b"\n") + 1
        if cut:
            content = b"".join([*held, piece[:cut]])
            if form == "jsonl" and offset == 0:
                _refuse_array(file, content)
            yield block(content, content.count(b"\n"), len(content))
            held, size, piece = [], 0, piece[cut:]
        held.append(piece)
        size += len(piece)
    if too_long:
        yield block("too long", 1, size, "dropped")
    elif content := b"".join(held):
        if form == "jsonl" and offset == 0:
            _refuse_array(file, content)
        yield block(content, 1, len(content))


def _refuse_array(file: File, content: bytes) -> None:
    if content.lstrip()[:1] == b"[":
        hint = "write one object a line: jq -c '.[]'"
        raise InputError(Problem(f"{file.path}:1", "is an array of JSON", "[", "an object on each line", hint))


def _document(file: File, stream: IO[bytes], start: Position, hashing: _Hashing) -> Iterator[Block]:
    """Yield a file as one document."""
    if start.offset:
        return
    held, size = list[bytes](), 0
    for piece in _pieces(file, stream, 0, hashing):
        size += len(piece)
        held = [*held, piece] if size <= LONGEST_BYTES else []
    after = Position(max(size, 1), 2, hashing.read_bytes)
    if size > LONGEST_BYTES:
        yield Block(file.path, "dropped", "too long", 1, after)
    else:
        yield Block(file.path, "document", b"".join(held), 1, after)


def _rows(file: File, field: str, start: Position) -> Iterator[Block | End]:
    """Yield the rows of a column of Parquet; whole row groups in front of `start` are not read."""
    _arrow("pyarrow")
    with Path(file.path).open("rb", buffering=0) as raw:
        hashing = _Hashing(raw)
        hashing.drain()
    table = _arrow("pyarrow.parquet").ParquetFile(file.path)
    names = table.schema_arrow.names
    if field not in names:
        raise InputError(Problem(file.path, "has no such column", field, listed(names), "field=NAME"))
    type_ = table.schema_arrow.field(field).type
    kind = str(getattr(type_, "value_type", type_) if str(type_).startswith("dictionary<") else type_)
    if kind not in ("string", "large_string", "string_view", "binary", "large_binary", "binary_view"):
        raise InputError(Problem(file.path, f"column {field} is no text", kind, "string", "field=NAME"))
    groups, row = list[int](), 0
    for group in range(table.num_row_groups):
        rows = table.metadata.row_group(group).num_rows
        if groups or row + rows > start.offset:
            groups.append(group)
        else:
            row += rows
    # A text that stands in many rows is held once: a page of a dictionary and a page of zeros can stand for terabytes.
    parquet, checked, size = _arrow("pyarrow.parquet"), {"page_checksum_verification": True}, 0
    table = parquet.ParquetFile(file.path, read_dictionary=[field], **checked)
    for batch in table.iter_batches(batch_size=256, row_groups=groups, columns=[field], use_threads=False):
        column = batch.column(0)
        known = column.dictionary.cast("large_binary").to_pylist()
        texts = [None if at is None else known[at] for at in column.indices.to_pylist()]
        size += sum(len(text or b"") for text in texts)
        limit_unpacked(file.path, file.size, size)
        skipped = max(0, start.offset - row)
        row += len(texts)
        for part in _by_size(texts[skipped:]):
            first = row - len(texts) + skipped
            skipped += len(part)
            done = first + len(part)
            packed = file.size * done // max(1, table.metadata.num_rows)
            yield Block(file.path, "rows", part, first + 1, Position(done, done + 1, packed))
    yield End(replace(file, size=hashing.read_bytes), hashing.digest.hexdigest())


def _by_size(texts: list[bytes | None]) -> Iterator[list[bytes | None]]:
    part, size = list[bytes | None](), 0
    for text in texts:
        part.append(text)
        size += len(text or b"")
        if size >= BLOCK_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part
