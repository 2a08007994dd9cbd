"""Progress of a run for a person: a bar on a terminal, a plain line now and then elsewhere. All on stderr."""

from __future__ import annotations

import sys
import time
from contextlib import AbstractContextManager
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

PLAIN_EVERY_S = 2.0


class Shown(AbstractContextManager["Shown"]):
    """Progress of one run of `iterations` steps with `tokens_per_step` tokens each."""

    def __init__(self, title: str, iterations: int, tokens_per_step: int) -> None:
        self.title, self.iterations, self.tokens_per_step = title, iterations, tokens_per_step
        self.started = self.printed = time.monotonic()
        self.first_step_at: float | None = None
        self.bar: Progress | None = None
        if sys.stderr.isatty():
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"))
            self.bar = Progress(*columns, console=Console(stderr=True), transient=False)
            self.task = self.bar.add_task(title, total=iterations, state="starting")

    def __enter__(self) -> Shown:
        if self.bar:
            self.bar.start()
        else:
            print(f"{self.title}: starting", file=sys.stderr, flush=True)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self.bar:
            self.bar.stop()

    def step(self, iteration: int, loss: float | None, step_time_s: float | None) -> None:
        """Show that a step has ended. `iteration` counts from 1."""
        now = time.monotonic()
        text = self._text(iteration, loss, step_time_s, now)
        if self.bar:
            self.bar.update(self.task, completed=iteration, state=text)
        elif now - self.printed > PLAIN_EVERY_S or iteration in (1, self.iterations):
            print(f"{self.title}: {text}", file=sys.stderr, flush=True)
            self.printed = now

    def _text(self, iteration: int, loss: float | None, step_time_s: float | None, now: float) -> str:
        parts = [f"step {iteration}/{self.iterations}"]
        if loss is not None:
            parts.append(f"loss {loss:.4f}")
        if step_time_s:
            parts.append(f"{self.tokens_per_step / step_time_s:,.0f} tokens/s")
        if self.first_step_at is None:
            self.first_step_at = now  # the first step carries the start-up: no rate from it
        elif iteration > 1:
            pace = (now - self.first_step_at) / (iteration - 1)
            parts.append(f"ETA {(self.iterations - iteration) * pace:.0f} s")
        return ", ".join(parts)
