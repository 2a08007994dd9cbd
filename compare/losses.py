"""The test that losses are equivalent at equal tokens. Pure.

The tokens that all runs saw are cut into eight blocks, the first of which, where a loss falls fastest, is left out; a
run's value is its mean loss in a block, a seed's that of its runs. Groups whose means stay in the band that another
seed's losses stay in are equal: two seeds on one side give a band, and a wide one; three on each a usable one. Without
any, the spread is not known: then only what is far off is called apart, a block whose means differ by more than five
times the scatter from step to step, and by more than 1 %. Rehearsals are compared step by step (compare/rehearsed.py).

The band: the spread s is that between the seeds of a group, pooled over groups and blocks, with d degrees of freedom,
one a seed beyond the first of its group. A group is apart where its mean leaves ±k s sqrt(1/n + 1/m) around the
baseline's (n and m seeds) in any block. How large k must be depends on how the blocks hang together, which a few seeds
do not show: with three seeds on each side it is about 3, and 5.6 where one block spreads much more than the next. So k
comes from the data: the difference and the d contrasts within the groups are, if stacks are equal, d + 1 draws of one
normal distribution, and any rotation of them was as likely. k is what all but 4 % of random rotations stay under
(Ø. Langsrud, Rotation tests, Statistics and Computing 15, 2005), which is exact for normal seeds, however blocks depend
on each other and whatever their spreads are. 4 and not 5: seeds need not be normal, and the spreads of two groups need
not be quite equal. They may differ twofold where both have as many seeds, which the audit requires; two seeds against
five of half their spread would be called apart in 19 of 100.

benchmarks/intervals.py loss: false alarms, and the differences that are detected. Where both sides have the same seeds,
and so the same batches, there are fewer alarms."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise

from compare.curve import Finding, Traced
from metrics import shown
from metrics.repeats import gathered

Means = Sequence[Sequence[float]]  # of each seed, of each block
RISK = 0.04
_ROTATIONS = 5_000
BLOCKS, _LEFT_OUT, _FEWEST = 8, 1, 4
FAR, FAR_SHARE = 5.0, 0.01


def compare_losses(labels: Sequence[str], runs: Sequence[Traced], baseline: str | None) -> Finding:
    """Compare the losses of all runs that count with the baseline's group (None: the first). labels: of the groups."""
    if broken := _broken(runs):
        return broken
    silent = next((run for run in runs if not any(map(math.isfinite, run.curve.loss))), None)
    if silent is not None:
        return Finding("unknown", f"{silent.name} reports no loss")
    steps, series = _aligned(runs)
    if not steps:
        return Finding("unknown", "the runs report no loss of the same step")
    if _bit_equal(runs, series, len(labels)):
        return Finding("equal", f"bit-equal over {len(steps)} steps, seed by seed")
    if len(labels) < 2:
        return Finding("unknown", "one group of runs only")
    blocks = cuts(len(steps))
    begins = [steps[first] for first, _ in blocks]
    means = _by_seed(runs, [[statistics.fmean(values[a:b]) for a, b in blocks] for values in series])
    base = next((label for label in labels if label == baseline), labels[0])
    if any(len(group) > 1 for group in means.values()):
        band = Band(list(means.values()), len(labels) - 1)
        if band.spread:
            return _in_band(means, base, band, begins)
    return _not_far(means, base, max(_scatter(values[blocks[0][0] :]) for values in series), begins)


def _in_band(means: Mapping[str, Means], base: str, band: Band, begins: Sequence[int]) -> Finding:
    """Return whether the others' means stay in the band around the baseline's."""
    widest, text = 0.0, ""
    for label, pair in ((label, (means[base], theirs)) for label, theirs in means.items() if label != base):
        half, apart = band.half_width(*pair), gaps(*pair)
        if (block := leaves(*pair, half)) is not None:
            what = f"{_where(label, base, apart, block, begins)}; the band of the seeds is ±{shown(half, 3)}"
            return Finding("apart", what, begins[block])
        gap = max(map(abs, apart))
        if gap / half >= widest:
            widest, text = gap / half, f"at most {shown(gap, 3)} nats/token apart, in a band of ±{shown(half, 3)}"
    return Finding("equal", f"{text} from the spread between seeds ({band.degrees + len(means)} seeds)")


def _not_far(means: Mapping[str, Means], base: str, scatter: float, begins: Sequence[int]) -> Finding:
    """Return whether the others' means are far off the baseline's, where the spread between seeds is not known."""
    levels = [statistics.fmean(block) for block in zip(*means[base], strict=True)]
    largest, level = 0.0, 0.0
    for label, apart in ((label, gaps(means[base], theirs)) for label, theirs in means.items() if label != base):
        for block, (gap, loss) in enumerate(zip(apart, levels, strict=True)):
            if abs(gap) > max(FAR * scatter, FAR_SHARE * abs(loss)):
                where = _where(label, base, apart, block, begins)
                return Finding("apart", f"{where}; losses scatter by {shown(scatter, 2)} between steps", begins[block])
            if abs(gap) >= largest:
                largest, level = abs(gap), loss
    share = f" ({shown(100 * largest / abs(level), 2)} %)" if level else ""
    what = f"at most {shown(largest, 3)} nats/token{share} apart, with no spread between seeds to compare it with"
    return Finding("unknown", f"{what}; two seeds on a side give a band, three on each a narrow one")


def _where(label: str, base: str, apart: Sequence[float], block: int, begins: Sequence[int]) -> str:
    """Return where a group's loss leaves the baseline's, and how far apart the two end."""

    def away(gap: float) -> str:
        return f"{shown(abs(gap), 3)} nats/token {'above' if gap > 0 else 'below'}"

    text = f"{label} is {away(apart[block])} {base} in the block from step {begins[block]}"
    return text if block == len(apart) - 1 else f"{text}, {away(apart[-1])} it in the last"


def _broken(runs: Sequence[Traced]) -> Finding | None:
    """Return where a loss is nan or inf in one run and a number in another."""
    for run in runs:
        for step in run.curve.broken:
            others = (other for other in runs if step not in other.curve.broken and step in other.curve.steps)
            if (other := next(others, None)) is not None:
                return Finding("apart", f"nan or inf in {run.name} at step {step}, a number in {other.name}", step)
    return None


def _aligned(runs: Sequence[Traced]) -> tuple[Sequence[int], list[Sequence[float]]]:
    """Return the steps (of the first run) at which all report a loss after equal tokens, and each run's losses there.
    Where a run does not report its tokens, by step."""
    by_tokens = all(run.curve.tokens and min(run.curve.tokens) >= 0 for run in runs)
    keys = [run.curve.tokens if by_tokens else run.curve.steps for run in runs]
    series: list[Sequence[float]] = [run.curve.loss for run in runs]
    if all(key == keys[0] for key in keys) and all(all(map(math.isfinite, values)) for values in series):
        return runs[0].curve.steps, series
    known = [
        {key: loss for key, loss in zip(k, values, strict=True) if math.isfinite(loss)}
        for k, values in zip(keys, series, strict=True)
    ]
    common = set(known[0]).intersection(*known[1:])
    places = [(key, step) for key, step in zip(keys[0], runs[0].curve.steps, strict=True) if key in common]
    return [step for _, step in places], [[losses_[key] for key, _ in places] for losses_ in known]


def cuts(steps: int) -> list[tuple[int, int]]:
    """Return where blocks begin and end; the first is left out where there are enough."""
    blocks = min(BLOCKS, steps)
    bounds = [(steps * i // blocks, steps * (i + 1) // blocks) for i in range(blocks)]
    return bounds[_LEFT_OUT:] if blocks >= _FEWEST else bounds


def _by_seed(runs: Sequence[Traced], means: Sequence[Sequence[float]]) -> dict[str, Means]:
    """Return each group's means by seed: runs of one seed are one. A run that does not report its seed counts alone."""
    seeds = [("run", place) if run.seed is None else run.seed for place, run in enumerate(runs)]
    by_label = gathered((run.label, one) for run, one in zip(runs, zip(seeds, means, strict=True), strict=True))
    return {
        label: [[statistics.fmean(block) for block in zip(*same, strict=True)] for same in gathered(known).values()]
        for label, known in by_label.items()
    }


def _bit_equal(runs: Sequence[Traced], series: Sequence[Sequence[float]], sides: int) -> bool:
    """Return whether the losses of every seed are the same numbers on every side, each of which has it."""
    by_seed = gathered((run.seed, (run.label, values)) for run, values in zip(runs, series, strict=True))
    return all(
        len({label for label, _ in same}) == sides and len(same) > 1 and all(values == same[0][1] for _, values in same)
        for same in by_seed.values()
    )


def _scatter(values: Sequence[float]) -> float:
    """Return the scatter of single steps, by neighbours, which a slow trend hardly touches (J. von Neumann, 1941)."""
    apart = [(b - a) ** 2 for a, b in pairwise(values)]
    return math.sqrt(statistics.fmean(apart) / 2) if apart else 0.0


class Band:
    """The band that equal stacks' losses stay in. spread: between seeds; None where no group has two, or they do not
    differ. degrees: of freedom. comparisons: how many groups are compared with the baseline, which share the risk."""

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
        if self.spread is None:
            return
        # Of every random rotation its part in the difference, and what it brings there from the groups.
        rows = np.linalg.qr(rows, "r")  # as few rows as blocks: how all others turn is one number
        random = np.random.RandomState(0)  # whose stream is frozen (NEP 19): one report everywhere
        own, others = random.standard_normal((_ROTATIONS, 1)), random.standard_normal((_ROTATIONS, len(rows)))
        rest = self.degrees - len(rows)
        squares = own**2 + (others**2).sum(1, keepdims=True)
        length = np.sqrt(squares + random.chisquare(rest, (_ROTATIONS, 1)) if rest else squares)
        # a column each: of a few blocks over thousands of rotations, numpy adds columns many times as fast as rows
        self._own, self._brought = (own / length).T, np.ascontiguousarray((others @ rows / length).T)

    def half_width(self, first: Means, second: Means) -> float:
        """Return half the band around the first group's mean for the second's. Without a spread there is no band."""
        import numpy as np

        error = math.sqrt(1 / len(first) + 1 / len(second))
        difference = np.array(gaps(first, second)) / error
        turned = (self._own * difference[:, None] + self._brought) ** 2
        left = self._squares + difference @ difference - turned.sum(0)  # within the groups, after the rotation
        largest = turned.max(0) / np.maximum(left, np.finfo(float).tiny)
        factor = math.sqrt(float(np.quantile(largest, 1 - self._risk)) * self.degrees * self._blocks)
        return factor * (self.spread or 0.0) * error


def leaves(first: Means, second: Means, half: float) -> int | None:
    """Return the first block in which the means of two groups are further apart than `half`."""
    return next((block for block, gap in enumerate(gaps(first, second)) if abs(gap) > half), None)


def gaps(first: Means, second: Means) -> list[float]:
    """Return the second group's means less the first's, block by block."""
    return [statistics.fmean(b) - statistics.fmean(a) for a, b in zip(zip(*first), zip(*second), strict=True)]  # noqa: B905
