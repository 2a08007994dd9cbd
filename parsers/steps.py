"""The steps of a run while its log is read: the last ones may still change."""

from __future__ import annotations

from collections.abc import Sequence

from parsers.record import Step


class StepLog:
    """Steps in ascending order. last_number: the number of the last one, -1 before the first."""

    def __init__(self) -> None:
        self.last_number = -1
        self._steps: list[Step] = []

    @property
    def first(self) -> Step | None:
        """The first step, None before there is one."""
        return self._steps[0] if self._steps else None

    @property
    def last(self) -> Step | None:
        """The last step, None before there is one."""
        return self._steps[-1] if self._steps else None

    def latest(self, count: int) -> range:
        """Return the places of the last `count` steps, from the end: -1, -2, …"""
        return range(-1, -min(count, len(self._steps)) - 1, -1)

    def at(self, index: int) -> Step:
        """Return a step by its place from the end (-1 is the last)."""
        return self._steps[index]

    def append(self, step: Step) -> None:
        """Add the step that follows the last."""
        self._steps.append(step)
        self.last_number = step.step

    def replace(self, index: int, step: Step) -> None:
        """Put another description of the same step at `index`, counted as in `at`."""
        self._steps[index] = step

    def drop_from(self, step: int) -> None:
        """Take back all steps from number `step` on."""
        while self._steps and self._steps[-1].step >= step:
            self._steps.pop()
        self.last_number = self._steps[-1].step if self._steps else -1

    def frozen(self) -> Sequence[Step]:
        """Return the steps so far; appending later does not change what was returned."""
        return tuple(self._steps)
