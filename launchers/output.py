"""The output of a run on its way to its log, in a thread of its own. Bytes go to the log as they come; only lines of a
usual length are looked at for live progress, so that no output is slow to read."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import IO

BLOCK = 1 << 16
LONGEST = 1 << 14
"""No step line is longer, in bytes: a longer line goes to the log alone."""
TAIL = 1 << 12
IN_A_PIPE = 16 << 20
"""A pipe holds less, in bytes: what comes beyond it, after every process of a run has ended, is of another one."""


class Output:
    """Copies `stream` to `log` until it ends. heard_at: when the last bytes came, or were written (time.monotonic).
    has_stepped: whether on_line has returned true. failure: what ended the copying: a full disk, a fault in on_line."""

    def __init__(self, stream: IO[bytes], log: IO[bytes], on_line: Callable[[str], bool | None]) -> None:
        self.heard_at = time.monotonic()
        self.has_stepped = False
        self.failure: Exception | None = None
        self._stream, self._log, self._on_line = stream, log, on_line
        self._line, self._tail = b"", b""  # the line that has not ended, and the last bytes
        self._bytes, self._writing = 0, False
        self._thread = threading.Thread(target=self._copy, daemon=True)
        self._thread.start()

    def last_line(self) -> str:
        """Return the last line that is not blank; of a progress bar, which returns its carriage, its last state."""
        lines = self._tail.decode("utf-8", "replace").replace("\r", "\n").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def drain(self, quiet_s: float, stuck_s: float) -> str | None:
        """Wait, when all processes of the run have ended, until their output is in the log; return what is given up.
        quiet_s: how long for a byte; stuck_s: how long for a disk that takes none."""
        end = self._bytes + IN_A_PIPE
        while self._thread.is_alive() and self._bytes < end:
            before = self._bytes
            self._thread.join(quiet_s)
            if self._bytes == before and not self._writing:
                break
            if self._writing and time.monotonic() - self.heard_at > stuck_s:
                return f"the log may lack its end: it could not be written within {stuck_s:.0f} s"
        held = "the log may lack its end: a process that outlives the run holds its output"
        return held if self._thread.is_alive() else None

    def _copy(self) -> None:
        try:
            while block := os.read(self._stream.fileno(), BLOCK):
                self.heard_at, self._writing = time.monotonic(), True
                self._bytes += len(block)
                self._tail = (self._tail + block)[-TAIL:]
                _write(self._log, block)
                self._look(block)
                self.heard_at, self._writing = time.monotonic(), False
            self._look(b"", ended=True)
        except Exception as e:  # noqa: BLE001 - re-raised by execute()
            self.failure = e
        finally:
            self._writing = False

    def _look(self, block: bytes, ended: bool = False) -> None:
        *lines, rest = (self._line + block).split(b"\n")
        for line in [*(line + b"\n" for line in lines), *([rest] if ended and rest else [])]:
            if len(line) <= LONGEST and self._on_line(line.decode("utf-8", "replace")):
                self.has_stepped = True
        self._line = rest[: LONGEST + 1]  # one byte more tells that it is too long


def _write(log: IO[bytes], block: bytes) -> None:
    """Write all of `block`: without a buffer a file may take a part of it."""
    view = memoryview(block)
    while view:
        view = view[log.write(view) :]
