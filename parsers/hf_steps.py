"""Which step a line of the Hugging Face Trainer belongs to: its dictionaries do not say.

Told by, in this order: the epoch, where the steps of one are known and its two digits leave one step; the progress bars
before and after (a bar drawn before has at most this step, one drawn after at least this); the tokens seen, once a step
is known; else the order of the lines.
"""

from __future__ import annotations

import math

_HALF = 0.005
"""The trainer rounds the epoch to two digits (Trainer.log); newer ones print more, which this allows for."""


class StepFinder:
    """Feed it what the log tells, in the log's order; `find` gives a step from 1 and whether it is only the order."""

    def __init__(self) -> None:
        self.last = 0
        self.per_epoch: float | None = None
        self._bar = 0
        self._tokens_per_step: float | None = None

    def bar(self, count: int) -> None:
        """A training bar at so many steps."""
        self._bar = max(self._bar, count)

    def find(
        self, epoch: float | None, tokens: float | None, bar_before: int, bar_after: int | None
    ) -> tuple[int, bool]:
        """The step, and whether it is by order alone."""
        low = max(self.last + 1, bar_before)
        step = self._by_epoch(epoch, low)
        if step is None and bar_after == low:
            step = low
        if step is None and tokens is not None and self._tokens_per_step:
            ratio = tokens / self._tokens_per_step
            step = int(ratio) if ratio == int(ratio) and ratio >= low else None
        by_order = step is None
        self.last = step if step is not None else self.last + 1
        if not by_order and tokens:
            self._tokens_per_step = tokens / self.last
        return self.last, by_order

    @property
    def seen(self) -> int:
        """What the last bar showed."""
        return self._bar

    def _by_epoch(self, epoch: float | None, low: int) -> int | None:
        if epoch is None or self.per_epoch is None:
            return None
        first = math.ceil((epoch - _HALF) * self.per_epoch)
        last = math.floor((epoch + _HALF) * self.per_epoch)
        return first if first == last and first >= low else None
