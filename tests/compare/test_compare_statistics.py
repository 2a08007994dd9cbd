"""Ratios, intervals and words, compared with scipy.stats."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from compare.statistics import Ratio, ratio_of, word_of
from metrics.repeats import mean_of, t_quantile

values = st.lists(st.floats(0.01, 1000), min_size=3, max_size=12)


@pytest.mark.filterwarnings("ignore:Precision loss")
@given(values, values)
def test_the_interval_is_welchs(first: list[float], second: list[float]) -> None:
    ratio = ratio_of(first, second, "higher")
    logs = [math.log(v) for v in first], [math.log(v) for v in second]
    assume(max(map(statistics.stdev, logs)) > 1e-6)  # below, scipy itself loses precision
    interval = stats.ttest_ind(*logs, equal_var=False).confidence_interval(0.95)
    assert ratio.interval is not None
    assert [math.log(end) for end in ratio.interval] == pytest.approx([interval.low, interval.high], rel=1e-6, abs=1e-9)
    assert math.log(ratio.ratio) == pytest.approx(sum(interval) / 2, abs=1e-9)


@given(values, values, st.floats(0.1, 10))
def test_turned_round_or_in_another_unit_it_is_the_same(first: list[float], second: list[float], unit: float) -> None:
    there, back = ratio_of(first, second, "higher"), ratio_of(second, first, "higher")
    assert there.ratio * back.ratio == pytest.approx(1)
    if there.interval is not None and back.interval is not None:
        assert there.interval[0] * back.interval[1] == pytest.approx(1)
        assert there.interval[0] <= there.ratio <= there.interval[1]
    scaled = ratio_of([v * unit for v in first], [v * unit for v in second], "higher")
    assert scaled.ratio == pytest.approx(there.ratio)


def test_words() -> None:
    for interval, higher, lower in (
        ((1.03, 1.10), "faster", "slower"),
        ((1.001, 1.05), "faster", "slower"),
        ((0.90, 0.97), "slower", "faster"),
        ((0.985, 1.015), "same", "same"),
        ((1.001, 1.019), "same", "same"),
        ((1 / 1.02, 1.02), "same", "same"),
        ((0.98, 1.02), "undecided", "undecided"),
        ((0.97, 1.01), "undecided", "undecided"),
        ((0.99, 1.3), "undecided", "undecided"),
    ):
        assert (interval, word_of(interval, "higher"), word_of(interval, "lower")) == (interval, higher, lower)
    assert word_of((0.985, 1.015), "higher", difference=0.01) == "undecided", "what matters is the user's"
    assert word_of((0.96, 1.04), "higher", difference=0.05) == "same"


def test_where_there_is_no_interval() -> None:
    one, few = ratio_of([2.0], [1.0], "higher"), ratio_of([2.0, 2.1, 2.2], [1.0, 1.1], "higher")
    copies = ratio_of([2.0] * 3, [1.0] * 3, "higher")
    assert [(r.interval, r.word) for r in (one, few, copies)] == [(None, "undecided")] * 3
    assert (one.ratio, "one run each" in one.reason, "3 and 2" in few.reason) == (2.0, True, True)
    assert ratio_of([2.0] * 3, [1.0, 1.01, 1.02], "higher").word == "faster"
    tiny = ratio_of([2.0, 2.0, 2.0000000000000004], [1.0, 1.0, 1.0], "higher")
    assert tiny.word == "faster", "a spread too small for floating-point squares"


def test_the_mean_and_the_quantile() -> None:
    for degrees in (1, 2, 2.5, 10, 1000):
        assert t_quantile(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), rel=1e-12)
    assert (mean_of([4.0])[1], mean_of([1.0, 1.0, 1.0])[1]) == (None, None)
    centre, interval = mean_of([1.0, 2.0, 4.0])
    assert centre == pytest.approx(2.0)
    assert interval is not None and interval[0] * interval[1] == pytest.approx(4.0)


def spread_around(centre: float, count: int, noise: float) -> list[float]:
    """So many values with exactly this spread, whose logarithms have this mean."""
    logs = [math.log(centre) + noise * (2 * i / (count - 1) - 1) for i in range(count)]
    scale = noise / statistics.stdev(logs)
    return [math.exp(math.log(centre) + (log - math.log(centre)) * scale) for log in logs]


@pytest.mark.parametrize(("ratio", "noise"), [(1.0, 0.02), (1.015, 0.02), (1.05, 0.05), (1.03, 0.02)])
def test_so_many_runs_would_decide_and_one_fewer_would_not(ratio: float, noise: float) -> None:
    """Runs with the same ratio and spread: the number named is the smallest that does it."""

    def over(count: int) -> Ratio:
        return ratio_of(spread_around(ratio, count, noise), spread_around(1, count, noise), "higher")

    result = over(3)
    assert result.word == "undecided"
    needed = result.runs_to_decide
    assert needed is not None and needed > 3
    assert f"about {needed} runs a side would decide" in result.reason
    assert (over(needed).word == "undecided", over(needed - 1).word) == (False, "undecided")


def test_where_no_number_of_runs_is_named() -> None:
    assert ratio_of([1.1] * 3, [1.0, 1.001, 0.999], "higher").runs_to_decide is None  # decided
    assert ratio_of([1.1], [1.0], "higher").runs_to_decide is None  # no spread is known
    assert ratio_of([1.1, 1.11], [1.0, 1.01], "higher").runs_to_decide == 3
    hopeless = ratio_of([0.1, 1.0, 10.0], [0.11, 1.0, 9.0], "higher")
    assert (hopeless.runs_to_decide, hopeless.reason.endswith("not even 1000 runs a side would decide")) == (None, True)


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    """benchmarks/intervals.py does it at length, with steps that depend on each other."""
    noise = random.Random(3)
    covered = 0
    for _ in range(600):
        sides = [[math.exp(noise.gauss(0, 0.01)) for _ in range(4)] for _ in range(2)]
        interval = ratio_of(*sides, "higher").interval
        covered += interval is not None and interval[0] <= 1 <= interval[1]
    assert 0.92 < covered / 600 < 0.98
