"""The band that equal stacks' losses stay in, from what another seed does. Pure.

A run is its mean losses in a few blocks of steps. The spread s is that between the seeds of a group, pooled over groups
and blocks, with d degrees of freedom, one a seed beyond the first of its group. A group is apart where its mean leaves
±k s sqrt(1/n + 1/m) around the baseline's (n and m seeds) in any block. How large k must be depends on how the blocks
hang together, which a few seeds do not tell: with three seeds on each side it is about 3, and 5.6 where one block
spreads much more than the next. So k is asked of the data: the difference and the d contrasts within the groups are, if
stacks are equal, d + 1 draws of one normal distribution, and any rotation of them was as likely. k is what all but 4 %
of random rotations stay under (Ø. Langsrud, Rotation tests, Statistics and Computing 15, 2005), which is exact for
normal seeds, however blocks depend on each other and whatever their spreads are. 4 and not 5: seeds need not be normal,
and the spreads of two groups need not be quite equal. They may differ twofold where both have as many seeds, which the
audit asks for; two seeds against five of half their spread would be called apart in 19 of 100.

benchmarks/intervals.py loss: false alarms, and the differences that are found. Where both sides have the same seeds,
and so the same batches, there are fewer alarms.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

Means = Sequence[Sequence[float]]  # of each seed, of each block
RISK = 0.04
_ROTATIONS = 5_000


class Band:
    """spread: between seeds; None where no group has two, or they do not differ. degrees: of freedom. comparisons: how
    many groups are held against the baseline, which share the risk."""

    def __init__(self, groups: Sequence[Means], comparisons: int = 1) -> None:
        import numpy as np

        # Each seed of a group against the mean of those before it: independent, and all of the group's spread.
        counts = [np.arange(1, len(group))[:, None] for group in groups]
        within = [
            (np.cumsum(group, 0)[:-1] / i - np.asarray(group)[1:]) * np.sqrt(i / (i + 1))
            for group, i in zip(groups, counts, strict=True)
        ]
        rows = np.concatenate(within)
        self.degrees, self._blocks = rows.shape
        self._squares = float((rows**2).sum())
        self.spread = math.sqrt(self._squares / rows.size) if self._squares else None
        self._risk = RISK / max(comparisons, 1)
        if self.spread:
            self._turn(rows)

    def _turn(self, rows: Any) -> None:
        """Of every random rotation its part in the difference, and what it brings there from within the groups."""
        import numpy as np

        rows = np.linalg.qr(rows, "r")  # as few rows as blocks: how all others turn is one number
        random = np.random.RandomState(0)  # whose stream is frozen (NEP 19): one report everywhere
        own, others = random.standard_normal((_ROTATIONS, 1)), random.standard_normal((_ROTATIONS, len(rows)))
        rest = self.degrees - len(rows)
        squares = own**2 + (others**2).sum(1, keepdims=True)
        length = np.sqrt(squares + random.chisquare(rest, (_ROTATIONS, 1)) if rest else squares)
        self._own, self._brought = own / length, others @ rows / length

    def half_width(self, first: Means, second: Means) -> float:
        """Around the mean of the first group, for that of the second. Without a spread there is no band."""
        import numpy as np

        error = math.sqrt(1 / len(first) + 1 / len(second))
        difference = np.array(gaps(first, second)) / error
        turned = (self._own * difference + self._brought) ** 2
        left = self._squares + difference @ difference - turned.sum(1)  # within the groups, after the rotation
        largest = turned.max(1) / np.maximum(left, np.finfo(float).tiny)
        factor = math.sqrt(float(np.quantile(largest, 1 - self._risk)) * self.degrees * self._blocks)
        return factor * (self.spread or 0.0) * error


def leaves(first: Means, second: Means, half: float) -> int | None:
    """The first block in which the means of two groups are further apart than `half`."""
    return next((block for block, gap in enumerate(gaps(first, second)) if abs(gap) > half), None)


def gaps(first: Means, second: Means) -> list[float]:
    """Of the second group's means against the first's, block by block."""
    return [statistics.fmean(b) - statistics.fmean(a) for a, b in zip(zip(*first), zip(*second), strict=True)]  # noqa: B905
