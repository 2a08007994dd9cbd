"""Help tests with real processes: patience, and which processes a test has started."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

PATIENCE_S = 300.0  # for what takes seconds on an idle machine: no test fails for one that is ten times slower
MARK = "TENSORPRIMAT_TESTS"  # variable of the environment, inherited in any session or process group


def wait_until(condition: Callable[[], object], reason: str, limit_s: float = PATIENCE_S) -> None:
    """Return as soon as `condition()` is true.

    Raises:
        AssertionError: it is still false after `limit_s` seconds."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s:.0f} s: {reason}"
        time.sleep(0.05)


def started_processes() -> dict[int, str]:
    """Return the command line of every live process that a test of this process has started, by process id."""
    mark = f"{MARK}={os.getpid()}".encode()
    alive = {}
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile, or is another user's
            if mark in (directory / "environ").read_bytes().split(b"\0"):
                alive[int(directory.name)] = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return alive
