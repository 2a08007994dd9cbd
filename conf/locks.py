"""Beside the directory of a run: its lock, which the launcher holds as long as it lives, also across nodes, and its
record where the directory could not be written any more."""

from __future__ import annotations

from pathlib import Path
from typing import IO

BESIDE = ".record"


def lock_of(directory: Path) -> Path:
    """Return where the lock of the run in `directory` is."""
    return directory.parent / f".{directory.name}.lock"


def beside(directory: Path) -> Path:
    """Return the directory of the record of a run whose own `directory` could not be written in the end."""
    return directory.with_name(f"{directory.name}{BESIDE}")


def take(lock: IO[str]) -> bool:
    """Return whether nobody else held `lock`; it is ours then, until it is closed."""
    import fcntl  # of Unix: records are read on other systems, too

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_held(directory: Path) -> bool:
    """Return whether a launcher is at work in `directory`. A copy has no lock beside it: nobody works there."""
    try:
        import fcntl

        with lock_of(directory.resolve()).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except (OSError, ImportError):  # held; or a file system or a machine without such locks: then nobody knows
        return True
    return False
