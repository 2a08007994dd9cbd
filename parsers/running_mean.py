"""The steps behind a sliding mean: NeMo's train_step_timing is one of the last `window` steps (nemo/utils/timers.py,
NamedTimer with reduction "mean" and buffer_size; nemo/utils/exp_manager.py, StepTimingParams: 1 by default)."""

from __future__ import annotations

import math
from collections import deque

_PRECISE_ENOUGH = 0.01
"""A recovered time is told where what the digits leave open is below this share of it."""


class SlidingMean:
    """Feed it the means of consecutive steps from the first that the timer saw; it tells each step's own value.

    window: None where the log does not tell. The second mean may prove that it is 1, whatever was said: a mean over at
    least the first two cannot be below half the first.
    """

    def __init__(self, window: int | None) -> None:
        self.window = window
        self._values: deque[float] = deque(maxlen=max(1, window or 1))
        self._errors: deque[float] = deque(maxlen=max(1, window or 1))
        self._first: float | None = None
        self._count = 0

    def take(self, mean: float, digits: int) -> float | None:
        """The step's own time; None where the digits do not allow to tell it. digits: of the printed mean."""
        self._count += 1
        if self._count > 2 and (self.window is None or self.window <= 1):
            return mean if self.window is not None else None
        error = half_a_digit(mean, digits)
        if self._count == 2 and self._first is not None and 2 * (mean + error) < self._first:
            self.window = 1
        if self._count == 1:
            self._first = mean - error
        if self._count == 1 or (self.window is not None and self.window <= 1):
            self._keep(mean, error)
            return mean  # a mean of one
        return None if self.window is None else self._recovered(mean, error, self.window)

    def _recovered(self, mean: float, error: float, window: int) -> float | None:
        count = min(self._count, window)
        others, slack = list(self._values)[-(count - 1) :], list(self._errors)[-(count - 1) :]
        value = count * mean - math.fsum(others)
        doubt = count * error + math.fsum(slack)
        if count == window and self._count > window:
            # The oldest of the window before leaves, all others stay: its error alone comes with it.
            doubt = min(doubt, 2 * count * error + self._errors[0])
        self._keep(value, doubt)
        return value if value > 0 and doubt <= _PRECISE_ENOUGH * value else None

    def _keep(self, value: float, error: float) -> None:
        self._values.append(value)
        self._errors.append(error)


def half_a_digit(value: float, digits: int) -> float:
    """How far a number that was printed with so many significant digits can be off."""
    return 0.5 * 10.0 ** (math.floor(math.log10(abs(value))) - digits + 1) if value else 0.0
