"""Whether losses are equivalent at equal tokens. Pure.

The measure is what another seed does. The tokens that all runs saw are cut into eight blocks, the first of which, where
a loss falls fastest, is left out; a run's value is its mean loss in a block. The spread s is that between the seeds of
a group, pooled over groups and blocks, with d degrees of freedom, one a seed beyond the first of its group. A group is
apart where its mean leaves the band of ±k s sqrt(1/n + 1/m) around the baseline's (n and m seeds) in any block. k is
the larger of Student's t with d degrees, which holds where a seed shifts a whole curve, and the normal quantile with
Bonferroni's correction for the blocks, which holds where blocks are independent; both two-sided at 5 % together for all
groups. In simulation equal stacks are called apart in 0 to 8 of 100 comparisons (benchmarks/intervals.py loss), in
fewer where both sides have the same seeds, as they share their batches; a shift of 2.1 seed spreads is found by three
seeds on each side in 8 of 10.

Two seeds on one side give a band, and a wide one (k = 12.7); three on each a usable one (k = 2.8). Without any, the
spread is not known: then only what is far off is called apart, a block whose means differ by more than five times the
scatter from step to step, and by more than 1 %. Rehearsals from equal weights are held to rounding.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise

from compare.found import Found, Traced
from compare.groups import Side
from metrics import shown

BLOCKS, _LEFT_OUT, _FEWEST = 8, 1, 4
_RISK = 0.05
FAR, FAR_SHARE = 5.0, 0.01
_ROUNDING = 1e-5  # the smallest wrong setting that was tried, a weight decay, is 2e-5 of a loss away
_LAYOUT = (
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size"),
    *("context_parallel_size", "expert_model_parallel_size", "data_parallel_size", "num_micro_batches"),
)
Means = Sequence[Sequence[float]]  # of each seed, of each block


def losses(held: Sequence[Side], runs: Sequence[Traced], baseline: str | None = None) -> Found:
    """Of all runs that have a say, against the baseline's group (None: the first)."""
    if found := _broken(runs):
        return found
    silent = next((run for run in runs if not any(map(math.isfinite, run.curve.loss))), None)
    if silent is not None:
        return Found("unknown", f"{silent.name} tells no loss")
    steps, series = _aligned(runs)
    if not steps:
        return Found("unknown", "the runs tell no loss of the same step")
    labels = [side.label for side in held]
    base = baseline if baseline in labels else labels[0]
    if _bit_equal(runs, series, len(labels)):
        return Found("equal", f"bit-equal over {len(steps)} steps, seed by seed")
    if len(labels) < 2:
        return Found("unknown", "one group of runs only")
    if _from_equal_weights(runs) and (gap := _gap(runs, steps, series)):
        return gap
    cuts = _cuts(len(steps))
    means = _by_seed(runs, [[statistics.fmean(values[a:b]) for a, b in cuts] for values in series])
    band = Band(list(means.values()), len(labels) - 1)
    others = [label for label in labels if label != base]
    if band.spread:
        return _in_band(means, base, others, band, [steps[a] for a, _ in cuts])
    scatter = max(_scatter(values[cuts[0][0] :]) for values in series)
    return _not_far(means, base, others, scatter, [steps[a] for a, _ in cuts])


class Band:
    """spread: between seeds; None where no group has two, or they do not differ. degrees: of freedom."""

    def __init__(self, groups: Sequence[Means], pairs: int = 1) -> None:
        self.degrees = sum(len(group) - 1 for group in groups)
        squares = [
            (len(g) - 1) * statistics.variance(block) for g in groups if len(g) > 1 for block in zip(*g, strict=True)
        ]
        blocks = len(groups[0][0])
        variance = math.fsum(squares) / (self.degrees * blocks) if self.degrees else 0.0
        self.spread = math.sqrt(variance) if variance else None
        self._risk, self._blocks = _RISK / max(pairs, 1), blocks

    def half_width(self, first: int, second: int) -> float:
        """Around the mean of so many seeds, for that of so many others."""
        from scipy.special import ndtri, stdtrit

        shifted = float(stdtrit(self.degrees, 1 - self._risk / 2))
        independent = float(ndtri(1 - self._risk / 2 / self._blocks))
        return max(shifted, independent) * (self.spread or 0.0) * math.sqrt(1 / first + 1 / second)


def leaves(first: Means, second: Means, half: float) -> tuple[int, float] | None:
    """The first block in which the means of two groups are further apart than `half`, and by how much."""
    gaps = _gaps(first, second)
    return next(((block, gap) for block, gap in enumerate(gaps) if abs(gap) > half), None)


def _gaps(first: Means, second: Means) -> list[float]:
    """Of the second against the first, block by block."""
    return [statistics.fmean(b) - statistics.fmean(a) for a, b in zip(zip(*first), zip(*second), strict=True)]  # noqa: B905


def _in_band(means: Mapping[str, Means], base: str, others: Sequence[str], band: Band, begins: Sequence[int]) -> Found:
    largest, said = 0.0, ""
    for label in others:
        half = band.half_width(len(means[base]), len(means[label]))
        if (left := leaves(means[base], means[label], half)) is not None:
            what = f"{label} is {shown(left[1], 3)} nats/token from {base} in the block from step {begins[left[0]]}"
            return Found("apart", f"{what}; the band of the seeds is ±{shown(half, 3)}", begins[left[0]])
        gap = max(map(abs, _gaps(means[base], means[label])))
        if gap / half >= largest:
            largest, said = gap / half, f"at most {shown(gap, 3)} nats/token apart, in a band of ±{shown(half, 3)}"
    return Found("equal", f"{said} from the spread between seeds ({band.degrees + len(means)} seeds)")


def _not_far(
    means: Mapping[str, Means], base: str, others: Sequence[str], scatter: float, begins: Sequence[int]
) -> Found:
    largest, level = 0.0, 0.0
    for label in others:
        levels = [statistics.fmean(block) for block in zip(*means[base], strict=True)]
        for begin, gap, loss in zip(begins, _gaps(means[base], means[label]), levels, strict=True):
            if abs(gap) > max(FAR * scatter, FAR_SHARE * abs(loss)):
                what = f"{label} is {shown(gap, 3)} nats/token from {base} in the block from step {begin}"
                return Found("apart", f"{what}; losses scatter by {shown(scatter, 2)} from step to step", begin)
            if abs(gap) >= largest:
                largest, level = abs(gap), loss
    share = f" ({shown(100 * largest / abs(level), 2)} %)" if level else ""
    more = "two seeds on a side give a band, three on each a narrow one"
    return Found(
        "unknown",
        f"at most {shown(largest, 3)} nats/token{share} apart, with no spread between seeds to hold it against; {more}",
    )


def _broken(runs: Sequence[Traced]) -> Found | None:
    """A loss that is nan or inf in one run and a number in another."""
    for run in runs:
        for step in run.curve.broken:
            others = (other for other in runs if step not in other.curve.broken and step in other.curve.steps)
            if (other := next(others, None)) is not None:
                return Found("apart", f"nan or inf in {run.name} at step {step}, a number in {other.name}", step)
    return None


def _aligned(runs: Sequence[Traced]) -> tuple[Sequence[int], list[Sequence[float]]]:
    """The steps (of the first run) at which all tell a loss after equal tokens, and each run's losses there. Where a
    run does not tell its tokens, by step."""
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


def _cuts(count: int) -> list[tuple[int, int]]:
    """Where blocks begin and end; the first left out where there are enough."""
    blocks = min(BLOCKS, count)
    cuts = [(count * i // blocks, count * (i + 1) // blocks) for i in range(blocks)]
    return cuts[_LEFT_OUT:] if blocks >= _FEWEST else cuts


def _by_seed(runs: Sequence[Traced], means: Sequence[Sequence[float]]) -> dict[str, Means]:
    """Of each group its seeds' means: runs of one seed are one. A run that does not tell its seed stands for itself."""
    found: dict[str, dict[object, list[Sequence[float]]]] = {}
    for place, (run, values) in enumerate(zip(runs, means, strict=True)):
        seed = ("run", place) if run.seed is None else run.seed
        found.setdefault(run.label, {}).setdefault(seed, []).append(values)
    return {
        label: [[statistics.fmean(block) for block in zip(*same, strict=True)] for same in seeds.values()]
        for label, seeds in found.items()
    }


def _bit_equal(runs: Sequence[Traced], series: Sequence[Sequence[float]], sides: int) -> bool:
    """Whether the losses of every seed are the same numbers on every side, each of which has it."""
    by_seed: dict[object, list[tuple[str, Sequence[float]]]] = {}
    for run, values in zip(runs, series, strict=True):
        by_seed.setdefault(run.seed, []).append((run.label, values))
    return all(
        len({label for label, _ in found}) == sides
        and len(found) > 1
        and all(values == found[0][1] for _, values in found)
        for found in by_seed.values()
    )


def _from_equal_weights(runs: Sequence[Traced]) -> bool:
    """Whether all are rehearsals of one layout and seed that began with the same weights: then no rounding is left that
    could part them by more than _ROUNDING, and a loss that parts tells of a setting."""
    records = [run.run.record for run in runs]
    if any(record.provenance != "rehearsed" or record.environment.get("equal_init") is None for record in records):
        return False
    kept = [[record.environment["equal_init"], *(record.setting(name) for name in _LAYOUT)] for record in records]
    return all(values == kept[0] for values in kept)


def _gap(runs: Sequence[Traced], steps: Sequence[int], series: Sequence[Sequence[float]]) -> Found | None:
    """The first step at which one is further from the first run than rounding."""
    for place, step in enumerate(steps):
        first = series[0][place]
        for run, values in zip(runs[1:], series[1:], strict=True):
            if abs(values[place] - first) > _ROUNDING * abs(first):
                what = f"{run.name} is {shown(values[place] - first, 3)} nats/token from {runs[0].name} at step {step}"
                return Found("apart", f"{what}, though both are rehearsed from the same weights", step)
    return None


def _scatter(values: Sequence[float]) -> float:
    """Of single steps, from the differences between neighbours, which a slow trend hardly touches (J. von Neumann,
    1941)."""
    apart = [(b - a) ** 2 for a, b in pairwise(values)]
    return math.sqrt(statistics.fmean(apart) / 2) if apart else 0.0
