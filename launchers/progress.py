"""Progress of a run for a person: a bar on a terminal, a plain line now and then elsewhere. All on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

PLAIN_EVERY_S = 2.0
OnStep = Callable[[int, float | None, float | None], None]


@contextmanager
def shown(title: str, iterations: int, tokens_per_step: int) -> Iterator[OnStep]:
    """Show a run; call what is given at the end of each step with its iteration, from 1, its loss and its seconds."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"))
    bar = Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty())
    task = bar.add_task(title, total=iterations, state="starting")
    first_step_at: float | None = None
    printed = time.monotonic()

    def plain(text: str) -> None:
        if bar.disable:
            print(f"{title}: {text}", file=sys.stderr, flush=True)

    def step(iteration: int, loss: float | None, step_time_s: float | None) -> None:
        nonlocal first_step_at, printed
        now = time.monotonic()
        parts = [f"step {iteration}/{iterations}"]
        parts += [] if loss is None else [f"loss {loss:.4f}"]
        parts += [f"{tokens_per_step / step_time_s:,.0f} tokens/s"] if step_time_s else []
        if first_step_at is None:
            first_step_at = now  # the first step carries the start-up: no rate from it
        elif iteration > 1:
            pace = (now - first_step_at) / (iteration - 1)
            parts.append(f"ETA {(iterations - iteration) * pace:.0f} s")
        bar.update(task, completed=iteration, state=", ".join(parts))
        if now - printed > PLAIN_EVERY_S or iteration in (1, iterations):
            plain(", ".join(parts))
            printed = now

    plain("starting")
    with bar:
        yield step
