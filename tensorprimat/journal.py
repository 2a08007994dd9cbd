"""The journal of a matrix, on disk: runs/NAME/matrix.jsonl, and the lock of whoever works on it."""

from __future__ import annotations

import fcntl
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from conf.errors import InputError, Problem, writing
from conf.locks import is_held, lock_of, take
from conf.secret import for_group
from launchers import where
from launchers.matrix import Matrix, folded

JOURNAL = "matrix.jsonl"
CANCEL = "cancel"
_OF_ONE_NODE = re.compile(r"(?:^|,)(nolock|local_lock=(?:all|flock)|localflock)(?:,|$)")


class Journal:
    """The journal in `folder`. Lines are only ever added, each at once, and are on disk before anything follows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / JOURNAL

    def read(self) -> Matrix:
        """Return the state that the journal leads to; an empty one where there is none. InputError: it cannot be
        read."""
        if not self.path.exists():
            return Matrix()
        try:
            return folded(self.path.read_text(encoding="utf-8", errors="replace").splitlines())
        except OSError as error:
            raise InputError(Problem(str(self.path), "cannot be read", error.strerror or str(error))) from error

    def append(self, *events: dict[str, Any]) -> None:
        """Add `events`. InputError: it cannot be written."""
        if not events:
            return
        text = "".join(json.dumps({"at": where.now(), **event}) + "\n" for event in events)
        with writing(self.path), open(self.path, "ab+", opener=for_group) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if file.seek(0, os.SEEK_END):  # a kill or a full disk may have left its last line without an end
                file.seek(-1, os.SEEK_END)
                text = text if file.read(1) == b"\n" else "\n" + text
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())

    def state(self, run: str, attempt: int, state: str, cause: str | None = None, waits_for: str | None = None) -> None:
        """Add what became of one attempt of a run. InputError: it cannot be written."""
        why = {name: text for name, text in (("cause", cause), ("waits_for", waits_for)) if text}
        self.append({"event": "state", "run": run, "attempt": attempt, "state": state, **why})

    def is_cancelled_since(self, size: int) -> bool:
        """Return whether somebody cancelled the matrix since the journal had `size` bytes."""
        with self.path.open("rb") as file:
            file.seek(size)
            return b'"event": "%s"' % CANCEL.encode() in file.read()

    def runner(self) -> str | None:
        """Return who works on this matrix now, as `process PID on HOST`; None where nobody does."""
        return lock_of(self.path).read_text(encoding="utf-8") if is_held(self.path) else None

    @contextmanager
    def held(self) -> Iterator[int]:
        """Be the only one who works on this matrix, on any node; yield the descriptor of the lock, for processes that
        must keep it when we are killed. InputError: another one works on it, or nobody could know."""
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        if how := of_one_node(self.folder):
            what = f"its file system is mounted with {how}: a runner on another node would not be seen"
            print(f"warning: {self.folder}: {what}", file=sys.stderr)
        lock = lock_of(self.path)
        with writing(lock):
            file = lock.open("a+", encoding="utf-8")
        with file:
            self._take(file)
            yield file.fileno()

    def _take(self, file: IO[str]) -> None:
        try:
            taken = take(file)
        except OSError as error:
            what = "its file system has no locks: two runners at work on one matrix would not be seen"
            hint = "runs_dir=DIR on another file system"
            raise InputError(Problem(str(self.folder), what, error.strerror or "", hint=hint)) from error
        file.seek(0)
        if not taken:
            hint = "tprimat matrix status shows it; wait for it, or end it; name=OTHER is another matrix"
            raise InputError(Problem(str(self.folder), "another runner is at work on it", file.read(), hint=hint))
        with writing(self.folder):
            file.truncate()
            file.write(f"process {os.getpid()} on {os.uname().nodename}")
            file.flush()


def of_one_node(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str | None:
    """Return the option of the mount of `folder` by which its locks are not seen by other nodes, None without one."""
    if not mounts.exists():
        return None
    path, best = folder.resolve(), ("", "")
    for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines():
        before, _, after = line.partition(" - ")
        place = before.split()[4].replace("\\040", " ")
        if path.is_relative_to(place) and len(place) >= len(best[0]):
            best = (place, ",".join(after.split()[-1:]))
    match = _OF_ONE_NODE.search(best[1])
    return match[1] if match else None
