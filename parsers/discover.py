"""Training logs below a folder, recognised by their content: which have steps, which have none or the same, and why."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from parsers.dialects import DIALECTS
from parsers.importers import is_record
from parsers.reader import Parser
from parsers.scan import read_blocks
from parsers.segment import Parsed
from parsers.storage import RUN_FILE, STEPS_FILE

MANY_FILES = 20_000
_HEAD, _LOOK = 4096, 8 << 20
_PASSED_FOLDERS = (".git", "node_modules", "__pycache__", ".venv", "site-packages", "attempts")
_OURS = {RUN_FILE, STEPS_FILE}
_NOTHING, _EMPTY, _BINARY, _JSON = "nothing of training in it", "empty", "binary", "a JSON document"
_KINDS = {
    b"\x89PNG": "an image",
    b"\xff\xd8\xff": "an image",
    b"PK\x03\x04": "an archive",
    b"\x7fELF": "a program",
    b"%PDF": "a document",
}
_OTHERS = {_NOTHING, _EMPTY, _BINARY, _JSON, *_KINDS.values()}
_COMPARED = 3


@dataclass(frozen=True, slots=True)
class Found:
    """A file that holds a training log."""

    path: Path
    dialect: str
    changed_s: float


@dataclass(frozen=True, slots=True)
class Passed:
    """A file that was passed over, and why."""

    path: Path
    why: str


def discover(folders: Sequence[Path]) -> tuple[list[Found], list[Passed]]:
    """Return the logs below `folders`, newest first, and what was passed over: first what speaks of training (a copy, a
    log without steps), then all other files."""
    heads: list[tuple[Found, Parsed, int]] = []
    passed: list[Passed] = []
    for path in _files(folders, passed):
        head = _looked_at(path, passed)
        if head is not None:
            heads.append(head)
    taken = _without_copies(heads, passed)
    passed.sort(key=lambda other: other.why in _OTHERS)
    return sorted(taken, key=lambda log: log.changed_s, reverse=True), passed


def _files(folders: Sequence[Path], passed: list[Passed]) -> Iterator[Path]:
    seen = 0
    for folder in folders:
        for directory, inner, names in os.walk(folder):
            inner[:] = sorted(name for name in inner if name not in _PASSED_FOLDERS)
            for name in sorted(names):
                seen += 1
                if seen > MANY_FILES:
                    passed.append(Passed(Path(directory), f"more than {MANY_FILES} files; the rest was not looked at"))
                    return
                yield Path(directory) / name


def _looked_at(path: Path, passed: list[Passed]) -> tuple[Found, Parsed, int] | None:
    """Read the first megabytes of a file. Return its log; None where it is passed over."""
    try:
        facts = path.stat()
        why = _why_not(path)
        if why is None:
            parsed = _head(path)
            why = None if parsed.steps else "no steps in it" if parsed.dialect else _NOTHING
            if why is None:
                return Found(path, parsed.dialect or "our own marks", facts.st_mtime), parsed, facts.st_size
        if why == "a record":
            return Found(path, why, facts.st_mtime), Parser(DIALECTS[0]).result(), facts.st_size
    except (OSError, ValueError) as error:
        why = f"cannot be read: {error}"
    passed.append(Passed(path, why))
    return None


def _why_not(path: Path) -> str | None:
    if not path.is_file():
        return "no file"
    if path.name in _OURS:
        return "a record of ours"
    with path.open("rb") as stream:
        head = stream.read(_HEAD)
    if not head:
        return _EMPTY
    kind = next((kind for magic, kind in _KINDS.items() if head.startswith(magic)), None)
    if kind is None and is_record(head):
        return "a record"
    if kind is None and head.split(b"\n", 1)[0].strip() in (b"{", b"["):
        return _JSON
    unpacked = head.startswith(b"\x1f\x8b")
    if kind is None and not unpacked and head.count(b"\0") > len(head) // 8:
        return _BINARY
    return kind


def _head(path: Path) -> Parsed:
    parser, size = Parser(), 0
    for block in read_blocks(path):
        parser.feed_bytes(block)
        size += len(block)
        if size >= _LOOK:
            break
    return parser.finish()[0]


def _without_copies(heads: list[tuple[Found, Parsed, int]], passed: list[Passed]) -> list[Found]:
    """Return the largest of the files with the same steps: ranks and sinks write files of their own."""
    taken: dict[object, Found] = {}
    for log, parsed, _ in sorted(heads, key=lambda head: -head[2]):
        # With their times: a repeat of a run has the same losses, and is another run.
        first = tuple((step.step, step.loss, step.lr, step.step_time_s) for step in parsed.steps[:_COMPARED])
        key: object = first if any(loss is not None for _, loss, _, _ in first) else log.path
        other = taken.setdefault(key, log)
        if other is not log:
            passed.append(Passed(log.path, f"the same steps as {other.path}"))
    return list(taken.values())
