"""Ratios, intervals and words, held against scipy.stats."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from compare.statistics import mean_of, ratio_of, t_quantile, word_of

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


@given(values, values)
def test_turned_round_everything_is_turned_round(first: list[float], second: list[float]) -> None:
    there, back = ratio_of(first, second, "higher"), ratio_of(second, first, "higher")
    assert there.ratio * back.ratio == pytest.approx(1)
    if there.interval is not None and back.interval is not None:
        assert there.interval[0] * back.interval[1] == pytest.approx(1)
        assert there.interval[0] <= there.ratio <= there.interval[1]


@given(values, values, st.floats(0.1, 10))
def test_a_change_of_unit_changes_no_word(first: list[float], second: list[float], factor: float) -> None:
    scaled = ratio_of([v * factor for v in first], [v * factor for v in second], "higher")
    assert scaled.ratio == pytest.approx(ratio_of(first, second, "higher").ratio)


@pytest.mark.parametrize(
    ("interval", "higher", "lower"),
    [
        ((1.03, 1.10), "faster", "slower"),
        ((1.001, 1.05), "faster", "slower"),
        ((0.90, 0.97), "slower", "faster"),
        ((0.985, 1.015), "same", "same"),
        ((1.001, 1.019), "same", "same"),
        ((0.98, 1.02), "same", "same"),
        ((0.97, 1.01), "undecided", "undecided"),
        ((0.99, 1.3), "undecided", "undecided"),
    ],
)
def test_words(interval: tuple[float, float], higher: str, lower: str) -> None:
    assert word_of(interval, "higher") == higher
    assert word_of(interval, "lower") == lower


def test_too_few_runs_have_a_ratio_and_no_interval() -> None:
    one = ratio_of([2.0], [1.0], "higher")
    assert (one.ratio, one.interval, one.word) == (2.0, None, "undecided")
    assert "one run each" in one.reason
    few = ratio_of([2.0, 2.1, 2.2], [1.0, 1.1], "higher")
    assert few.interval is None
    assert "3 and 2" in few.reason


def test_no_spread_is_no_certainty() -> None:
    copies = ratio_of([2.0] * 3, [1.0] * 3, "higher")
    assert (copies.interval, copies.word) == (None, "undecided")
    assert ratio_of([2.0] * 3, [1.0, 1.01, 1.02], "higher").word == "faster"


def test_spread_too_small_for_floating_point_squares() -> None:
    tiny = ratio_of([2.0, 2.0, 2.0000000000000004], [1.0, 1.0, 1.0], "higher")
    assert tiny.word == "faster"


@pytest.mark.parametrize("degrees", [1, 2, 2.5, 10, 1000])
def test_the_quantile_is_scipys(degrees: float) -> None:
    assert t_quantile(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), rel=1e-12)


def test_the_mean_of_a_group() -> None:
    assert mean_of([4.0])[1] is None
    assert mean_of([1.0, 1.0, 1.0])[1] is None
    centre, interval = mean_of([1.0, 2.0, 4.0])
    assert centre == pytest.approx(2.0)
    assert interval is not None
    assert interval[0] * interval[1] == pytest.approx(4.0)
