"""A bar for what takes longer than a second, on a terminal alone; it goes away again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

from conf.plain import terminal

Progress = Callable[[int, int], None]
"""Called with how many are done, of how many."""
_AFTER_S = 1.0


def silent(done: int, total: int) -> None:
    """Draw nothing."""


@contextmanager
def shown(what: str, stream: IO[str]) -> Iterator[Progress]:
    """Draw a bar on `stream` where that is a terminal."""
    if not stream.isatty():
        yield silent
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    started = time.monotonic()
    # No thread of its own: worker processes are forked meanwhile.
    with Bar(console=Console(file=terminal(stream)), transient=True, auto_refresh=False) as bar:
        task = bar.add_task(what, visible=False)

        def report(done: int, total: int) -> None:
            late = time.monotonic() - started > _AFTER_S
            bar.update(task, completed=done, total=total, visible=late, refresh=late)

        yield report
