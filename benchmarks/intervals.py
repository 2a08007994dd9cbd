"""Check that the 95 % intervals of compare/statistics.py cover the truth as often as they say, on simulated runs.

    python benchmarks/intervals.py                     all parts, ten minutes or more
    python benchmarks/intervals.py loss --pairs 20000  one part, closer
    python benchmarks/intervals.py warmup              error of the steady step time, for each way of truncation

Every run of a simulated pair of groups has a pace of its own (run-to-run spread, 0.5 %) and steps that depend on each
other (AR(1) noise of 1 %, warm-up left out). The truth is a ratio of 1.03. Peers, as used in the field: the interval
over all steps as if each were a measurement of its own, and a percentile bootstrap over the runs.

Also: how often the word is right where there is no difference, one of 3 % and one of 1 %, and how often the number of
runs that ours names does decide. And of the band of equal losses (compare/losses.py): how often equal stacks leave it,
and stacks three spreads between seeds apart, where a seed's own part is a shift of the curve, of each block alone, or
between the two; where blocks spread by halves, from 64 to 1, or have tails as Student's t with 4 degrees; and for
curves of so many steps, step by step.

And of the warm-up (metrics/step_times.py): runs of 50 to 500 steps with AR(1) noise of 1 %, a warm-up of none to 40
steps that is flat (compilation) or dies away (allocator, clocks), and now and then a slow step. The truth is the mean
that they were made of."""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from compare.losses import BLOCKS, RISK, Band, cuts, leaves
from compare.statistics import ratio_of
from metrics import find_warmup
from metrics.repeats import t_quantile

STEPS, RUN, STEP = 50, 0.005, 0.01
TRUTH = 1.03
Array = Any
_STEPS = (3, 20, 200)
_SHIFT = 3.0
NOISE, AR, SLOW_SHARE, SLOW = 0.01, 0.6, 0.01, 1.3
WAYS: dict[str, Callable[[Sequence[float]], int]] = {
    "by MSER (ours)": lambda times: find_warmup(times).count,
    "the first step": lambda times: 1,
    "the first 2": lambda times: 2,
    "the first 10": lambda times: 10,
    "a tenth": lambda times: len(times) // 10,
    "the first half": lambda times: len(times) // 2,
}


def wandering(noise: np.random.Generator, shape: tuple[int, ...], steps: int, ar: float) -> Array:
    """Return AR(1) noise of spread 1, (*shape, steps)."""
    values, state = np.empty((*shape, steps)), noise.normal(0, 1, shape)
    for i in range(steps):
        values[..., i] = state
        state = ar * state + noise.normal(0, math.sqrt(1 - ar**2), shape)
    return values


_FALLING = 0.5 ** np.arange(BLOCKS - 1)
# What seeds add to the mean losses of the blocks, (pair, seed, block), of spread 1 on average.
_Kind = Callable[[np.random.Generator, tuple[int, int, int]], Array]
_KINDS: dict[str, _Kind] = {
    "independent": lambda noise, shape: noise.normal(0, 1, shape),
    "wandering": lambda noise, shape: wandering(noise, shape[:2], shape[2], 0.8),
    "mixed": lambda noise, shape: (noise.normal(0, 1, shape) + noise.normal(0, 1, (*shape[:2], 1))) / math.sqrt(2),
    "shifted": lambda noise, shape: np.repeat(noise.normal(0, 1, (*shape[:2], 1)), shape[2], axis=2),
    "falling": lambda noise, shape: noise.normal(0, 1, shape) * _FALLING / math.sqrt(np.mean(_FALLING**2)),
    "heavy": lambda noise, shape: noise.standard_t(4, shape) / math.sqrt(2),
}


def simulated(noise: np.random.Generator, pairs: int, runs: int, ar: float, ratio: float) -> tuple[Array, Array]:
    """Return step times of two groups, (pairs, runs, steps) each; the second is `ratio` times the first."""
    paces = [noise.normal(0, RUN, (pairs, runs, 1)) + STEP * wandering(noise, (pairs, runs), STEPS, ar) for _ in "ab"]
    return np.exp(paces[0]), ratio * np.exp(paces[1])


def coverage(pairs: int, runs: int, ar: float) -> tuple[float, float, float]:
    """Return in %: ours, over all steps as if independent, and a percentile bootstrap over runs."""
    noise = np.random.default_rng((runs, int(100 * ar)))
    sides = simulated(noise, pairs, runs, ar, TRUTH)
    truth, means = math.log(TRUTH), [side.mean(axis=2) for side in sides]
    intervals = (ratio_of(b, a, "lower").interval for a, b in zip(*(mean.tolist() for mean in means), strict=True))
    ours = [ends is not None and ends[0] <= TRUTH <= ends[1] for ends in intervals]
    logs = [np.log(side).reshape(pairs, -1) for side in sides]
    half = t_quantile(2 * runs * STEPS - 2) * np.sqrt(sum(log.var(axis=1, ddof=1) / log.shape[1] for log in logs))
    naive = abs(logs[1].mean(axis=1) - logs[0].mean(axis=1) - truth) <= half
    drawn = noise.integers(0, runs, (2, min(pairs, 1000), 400, runs))
    a, b = (np.take_along_axis(np.log(m[:1000, None]), d, 2).mean(axis=2) for m, d in zip(means, drawn, strict=True))
    low, high = np.quantile(b - a, (0.025, 0.975), axis=1)
    boot = (low <= truth) & (truth <= high)
    return 100 * float(np.mean(ours)), 100 * float(np.mean(naive)), 100 * float(np.mean(boot))


def words(pairs: int, runs: int, ratio: float) -> str:
    """Return the shares of the words, and how often an undecided pair is decided by the runs that ours names."""
    noise = np.random.default_rng((runs, int(1000 * ratio)))
    first, second = (group.mean(axis=2) for group in simulated(noise, pairs, runs, 0.6, ratio))
    judged = [ratio_of(b, a, "lower") for a, b in zip(first.tolist(), second.tolist(), strict=True)]
    counts = Counter(one.word for one in judged)
    named = [one.runs_to_decide for one in judged if one.runs_to_decide is not None]
    planned = []
    for needed in [count for count in named if count <= 200][:300]:
        a, b = (group.mean(axis=2)[0].tolist() for group in simulated(noise, 1, needed, 0.6, ratio))
        planned.append(ratio_of(b, a, "lower").word != "undecided")
    shares = ", ".join(f"{word} {100 * count / pairs:.0f} %" for word, count in sorted(counts.items()))
    if not planned:
        return shares
    return f"{shares}; undecided ones name {np.median(named):.0f} runs, which decide {100 * np.mean(planned):.0f} %"


def curves(noise: np.random.Generator, shape: tuple[int, int, int], steps: int) -> Array:
    """Return mean losses of the blocks of curves of so many steps, in spreads of the means: a shift of each seed, as
    large as the noise of one step, and AR(1) noise."""
    loss = wandering(noise, shape[:2], steps, 0.9) + noise.normal(0, 1, (*shape[:2], 1))
    means = np.stack([loss[:, :, a:b].mean(axis=2) for a, b in cuts(steps)], axis=2)
    return means / means.std()


def apart(first: Array, second: Array) -> float:
    """Return in how many of 100 pairs of groups, (pair, seed, block) each, one is called apart from the other."""
    pairs = zip(first.tolist(), second.tolist(), strict=True)
    return 100 * float(np.mean([leaves(*sides, Band(sides).half_width(*sides)) is not None for sides in pairs]))


def losses(pairs: int) -> None:
    """Print how often equal stacks are called apart, and stacks three seed spreads apart."""
    made: dict[str, _Kind] = {**_KINDS, **{f"{steps} steps": partial(curves, steps=steps) for steps in _STEPS}}
    error = 100 * 1.96 * math.sqrt(RISK * (1 - RISK) / pairs)
    print(f"band of losses, {pairs} pairs: equal stacks called apart, in % (± {error:.1f}; required: at most 5)")
    print(f"    / with a shift of {_SHIFT:g} spreads between seeds, {pairs // 8} pairs")
    print(f"{'seeds a side':<12}" + "".join(f"{name:>14}" for name in made))
    worst = 0.0
    for first, second in ((2, 1), (2, 2), (3, 3), (5, 5), (10, 10)):
        cells = []
        for name, curve in made.items():
            noise = np.random.default_rng((first, second, len(name)))
            sides = [curve(noise, (pairs, seeds, BLOCKS - 1)) for seeds in (first, second)]
            wrong = apart(*sides)
            right = apart(sides[0][: pairs // 8], sides[1][: pairs // 8] + _SHIFT)
            worst = max(worst, wrong)
            cells.append(f"{f'{wrong:.1f} / {right:.0f}':>14}")
        print(f"{f'{first} and {second}':<12}" + "".join(cells), flush=True)
    print(f"at most {worst:.1f} %")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = {"ratio": (ratios, 1), "loss": (losses, 2), "warmup": (warmup, 16)}  # one pair of so many
    parser.add_argument("part", nargs="?", choices=parts)
    parser.add_argument("--pairs", type=int, default=8000)
    options = parser.parse_args()
    for simulate, each in [parts[options.part]] if options.part else parts.values():
        simulate(options.pairs // each)


def step_times(seed: int) -> tuple[list[float], float]:
    """Return the step times of one run, and the steady mean that they are made of (slow steps among them)."""
    noise = np.random.default_rng(seed)
    count = int(noise.choice((50, 100, 200, 500)))
    warm, height = min(int(noise.choice((0, 0, 1, 5, 10, 20, 40))), count // 3), noise.uniform(0.1, 5)
    at, flat = np.arange(count), noise.random() < 0.5
    extra = np.where(at < warm, height * (1.0 if flat else 2.7 ** (-4 * at / max(warm, 1))), 0.0)
    slow = np.where(noise.random(count) < SLOW_SHARE, SLOW, 1.0)
    times = (1 + NOISE * wandering(noise, (), count, AR) + extra) * slow
    return times.tolist(), 1 + SLOW_SHARE * (SLOW - 1)


def warmup(runs: int) -> None:
    """Print the median, 95th of 100 and worst error of the steady step time, for each way to leave the warm-up out."""
    print(f"error of the steady step time over {runs} simulated runs, in %")
    print(f"{'':<22}{'median':>8}{'p95':>8}{'worst':>8}")
    made = [*map(step_times, range(runs))]
    for name, way in WAYS.items():
        errors = [100 * abs(np.mean(times[way(times) :]) / truth - 1) for times, truth in made]
        print(f"{name:<22}{np.median(errors):>8.2f}{np.quantile(errors, 0.95):>8.2f}{max(errors):>8.1f}")


def ratios(pairs: int) -> None:
    """Print coverage, and the words."""
    error = 100 * 1.96 * math.sqrt(0.95 * 0.05 / pairs)
    print(f"coverage of the 95 % interval of a ratio, {pairs} pairs (± {error:.1f}), {STEPS} steps a run")
    print(f"{'runs a side':>11}{'AR(1)':>7}{'ours %':>9}{'over steps %':>14}{'bootstrap %':>13}")
    worst = []
    for runs in (3, 5, 10):
        for ar in (0.0, 0.6, 0.95):
            ours, naive, boot = coverage(pairs, runs, ar)
            worst.append(ours)
            print(f"{runs:>11}{ar:>7}{ours:>9.1f}{naive:>14.1f}{boot:>13.1f}")
    print(f"ours: {min(worst):.1f} to {max(worst):.1f} %; required: 93 to 97 %\n\nwords, AR(1) 0.6")
    for ratio in (1.0, 1.01, 1.03):
        for runs in (3, 5, 10):
            print(f"true ratio {ratio}, {runs:>2} runs a side: {words(pairs // 4, runs, ratio)}")


if __name__ == "__main__":
    main()
