"""Training logs below a folder, recognised by their content: which have steps, which have none or the same, and why."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from parsers.importers import is_record
from parsers.reader import Parser
from parsers.scan import read_blocks
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
class Log:
    """A file that holds a training log. begins: its first steps, by which copies are known, with their times: a repeat
    of a run has the same losses, and is another run."""

    path: Path
    dialect: str
    changed_s: float
    size: int
    begins: tuple[tuple[float | None, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file that was skipped, and why."""

    path: Path
    why: str


def discover(folders: Sequence[Path]) -> tuple[list[Log], list[Skipped]]:
    """Return the logs below `folders`, newest first, and what was skipped: first what speaks of training (a copy, a
    log without steps), then all other files."""
    skipped: list[Skipped] = []
    results = [_looked_at(path) for path in _files(folders, skipped)]
    logs = [result for result in results if isinstance(result, Log)]
    skipped += [result for result in results if isinstance(result, Skipped)]
    taken: dict[object, Log] = {}  # of the files with the same steps the largest: ranks and sinks write their own
    for log in sorted(logs, key=lambda log: -log.size):
        other = taken.setdefault(log.begins if any(loss is not None for _, loss, *_ in log.begins) else log.path, log)
        if other is not log:
            skipped.append(Skipped(log.path, f"the same steps as {other.path}"))
    skipped.sort(key=lambda other: other.why in _OTHERS)
    return sorted(taken.values(), key=lambda log: log.changed_s, reverse=True), skipped


def _files(folders: Sequence[Path], skipped: list[Skipped]) -> Iterator[Path]:
    seen = 0
    for folder in folders:
        for directory, inner, names in os.walk(folder):
            inner[:] = sorted(name for name in inner if name not in _PASSED_FOLDERS)
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
        stat, why = path.stat(), _why_not(path)
        if why == "a record":
            return Log(path, why, stat.st_mtime, stat.st_size)
        if why is None:
            parser, size = Parser(), 0
            for block in read_blocks(path):
                parser.feed_bytes(block)
                size += len(block)
                if size >= _LOOK:
                    break
            parsed = parser.finish()[0]
            begins = ((step.step, step.loss, step.lr, step.step_time_s) for step in parsed.steps[:_COMPARED])
            if parsed.steps:
                return Log(path, parsed.dialect or "our own marks", stat.st_mtime, stat.st_size, tuple(begins))
            why = "no steps in it" if parsed.dialect else _NOTHING
    except (OSError, ValueError) as error:
        why = f"cannot be read: {error}"
    return Skipped(path, why)


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
    if kind is not None or head.startswith(b"\x1f\x8b"):
        return kind
    if is_record(head):
        return "a record"
    if head.split(b"\n", 1)[0].strip() in (b"{", b"["):
        return _JSON
    return _BINARY if head.count(b"\0") > len(head) // 8 else None
