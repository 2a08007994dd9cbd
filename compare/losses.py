"""Whether losses are equivalent at equal tokens. Pure.

The tokens that all runs saw are cut into eight blocks, the first of which, where a loss falls fastest, is left out; a
run's value is its mean loss in a block, a seed's that of its runs. Groups whose means stay in the band that another
seed's losses stay in (compare/band.py) are equal: two seeds on one side give a band, and a wide one; three on each a
usable one. Without any, the spread is not known: then only what is far off is called apart, a block whose means differ
by more than five times the scatter from step to step, and by more than 1 %. Rehearsals from equal weights are held to
rounding.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise

from compare.band import Band, Means, gaps, leaves
from compare.found import Found, Traced
from compare.groups import Side
from metrics import shown

BLOCKS, _LEFT_OUT, _FEWEST = 8, 1, 4
FAR, FAR_SHARE = 5.0, 0.01
_ROUNDING = 1e-5  # the smallest wrong setting that was tried, a weight decay, is 2e-5 of a loss away
_LAYOUT = (
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size"),
    *("context_parallel_size", "expert_model_parallel_size", "data_parallel_size", "num_micro_batches"),
)


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
    blocks = cuts(len(steps))
    means = _by_seed(runs, [[statistics.fmean(values[a:b]) for a, b in blocks] for values in series])
    others = [label for label in labels if label != base]
    repeated = any(len(group) > 1 for group in means.values())
    if repeated and (band := Band(list(means.values()), len(others))).spread:
        return _in_band(means, base, others, band, [steps[a] for a, _ in blocks])
    scatter = max(_scatter(values[blocks[0][0] :]) for values in series)
    return _not_far(means, base, others, scatter, [steps[a] for a, _ in blocks])


def _in_band(means: Mapping[str, Means], base: str, others: Sequence[str], band: Band, begins: Sequence[int]) -> Found:
    largest, said = 0.0, ""
    for label in others:
        half, found = band.half_width(means[base], means[label]), gaps(means[base], means[label])
        if (block := leaves(means[base], means[label], half)) is not None:
            what = f"{_lies(label, base, found, block, begins)}; the band of the seeds is ±{shown(half, 3)}"
            return Found("apart", what, begins[block])
        gap = max(map(abs, found))
        if gap / half >= largest:
            largest, said = gap / half, f"at most {shown(gap, 3)} nats/token apart, in a band of ±{shown(half, 3)}"
    return Found("equal", f"{said} from the spread between seeds ({band.degrees + len(means)} seeds)")


def _not_far(
    means: Mapping[str, Means], base: str, others: Sequence[str], scatter: float, begins: Sequence[int]
) -> Found:
    largest, level = 0.0, 0.0
    levels = [statistics.fmean(block) for block in zip(*means[base], strict=True)]
    for label in others:
        found = gaps(means[base], means[label])
        for block, (gap, loss) in enumerate(zip(found, levels, strict=True)):
            if abs(gap) > max(FAR * scatter, FAR_SHARE * abs(loss)):
                what = (
                    f"{_lies(label, base, found, block, begins)}; losses scatter by {shown(scatter, 2)} between steps"
                )
                return Found("apart", what, begins[block])
            if abs(gap) >= largest:
                largest, level = abs(gap), loss
    share = f" ({shown(100 * largest / abs(level), 2)} %)" if level else ""
    more = "two seeds on a side give a band, three on each a narrow one"
    return Found(
        "unknown",
        f"at most {shown(largest, 3)} nats/token{share} apart, with no spread between seeds to hold it against; {more}",
    )


def _lies(label: str, base: str, found: Sequence[float], block: int, begins: Sequence[int]) -> str:
    """Where a group's loss leaves the baseline's, and where it ends."""
    said = f"{label} is {_away(found[block])} {base} in the block from step {begins[block]}"
    return said if block == len(found) - 1 else f"{said}, {_away(found[-1])} it in the last"


def _away(gap: float) -> str:
    return f"{shown(abs(gap), 3)} nats/token {'above' if gap > 0 else 'below'}"


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


def cuts(steps: int) -> list[tuple[int, int]]:
    """Where blocks begin and end; the first left out where there are enough."""
    blocks = min(BLOCKS, steps)
    found = [(steps * i // blocks, steps * (i + 1) // blocks) for i in range(blocks)]
    return found[_LEFT_OUT:] if blocks >= _FEWEST else found


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
