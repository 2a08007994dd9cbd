"""Outlive a launcher that is killed by what nobody can handle, and end what it had started: ranks that print nothing
would go on for ever. The guard is a process of its own, which waits for the end of a pipe that only the launcher holds.

Standard library only: the guard is started by this file. It knows a run's processes by a variable of theirs (Linux)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

GRACE_S = 8.0
_DONE = b"."
_HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@contextmanager
def guarded(mark: str, more: Sequence[str] = ()) -> Iterator[None]:
    """Have the processes whose environment has `mark` (NAME=VALUE) ended, and the command `more` run, should this
    process be killed."""
    if sys.platform != "linux":
        yield
        return
    argv = (sys.executable, "-ISB", __file__, mark, *more)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(argv, start_new_session=True, **pipes) as guard:  # type: ignore[call-overload]
        try:
            yield
        finally:
            with suppress(BrokenPipeError):  # somebody has ended it
                guard.communicate(_DONE)


def main(mark: str, *more: str) -> None:
    """Wait for the launcher's end; unless it said that all is done, end the run."""
    for number in _HEARD:
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.buffer.read(1) == _DONE:
        return
    if more:
        with suppress(OSError):
            subprocess.run(more, stdin=subprocess.DEVNULL, check=False)
    deadline = time.monotonic() + GRACE_S
    _send(marked(mark), signal.SIGTERM)
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    _send(left, signal.SIGKILL)


def marked(mark: str) -> list[int]:
    """Return the processes whose environment has NAME=VALUE."""
    found, word = [], mark.encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it ended meanwhile, or is another user's
            if word in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def _send(processes: Sequence[int], number: signal.Signals) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)


if __name__ == "__main__":
    main(*sys.argv[1:])
