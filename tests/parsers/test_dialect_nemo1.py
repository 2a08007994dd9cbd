"""NeMo 1: a bar that is redrawn, DLLogger's exact line behind it, and a running mean for a step time."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsers.dialects.nemo1 import SlidingMean
from parsers.record import Validation
from tests.parsers.helpers import read, steps_of


def bar(step: int, drawn: int, time: str = "", rest: str = "", loss: str = "2.600") -> str:
    timing = f", train_step_timing in s={time}" if time else ""
    return (
        f"Epoch 0: :   0%|          | {drawn}/6030 [1:03:17<317:00:58, v_num=, reduced_train_loss={loss}, "
        f"global_step={step}.0, consumed_samples={step * 8 + 8}.0{timing}{rest}]"
    )


def test_a_validation_point() -> None:
    stated = "Epoch 0, global step 100: 'val_loss' reached 1.42065 (best 1.42065)"
    text = "\n".join([bar(99, 110), bar(99, 110, rest=", val_loss=1.420"), stated])
    points = [event for event in read("nemo1", text) if isinstance(event, Validation)]
    assert [(point.step, point.loss) for point in points] == [(99, 1.42065)]


def test_a_redraw_is_no_step() -> None:
    assert [
        step.step
        for step in steps_of("nemo1", "\n".join([bar(4, 5), bar(4, 6), bar(5, 6), bar(5, 6), bar(5, 7), bar(6, 7)]))
    ] == [4, 5, 6]


def test_which_step_a_bar_shows() -> None:
    for text, step, iteration, samples in (
        (bar(6023, 6024), 6023, 6023, 48192),
        (bar(50, 50), 49, 50, 408),  # logged after the count
        (bar(2000, 2000).replace("2000.0", "2e+3").replace("16008.0", "1.28e+6"), 1999, 2000, None),  # rounded
        (bar(7, 9).replace("Epoch 0", "Epoch 3"), 7, 7, 64),
        ("Epoch 1: : 8it [00:04,  4.36s/it, v_num=d3c7, reduced_train_loss=0.674, global_step=7.000]", 7, 7, None),
        (bar(2000, 2001) + "dation DataLoader 0: : 51it [00:20,  2.53it/s]", 2000, 2000, 16008),
        ("[A^M" + bar(6023, 6024) + "[rank: 1] Monitored metric val_loss did not improve", 6023, 6023, 48192),
    ):
        (found,) = steps_of("nemo1", text)
        assert (found.step, found.iteration, found.consumed_samples) == (step, iteration, samples)


def test_a_step_that_is_rounded_is_none_of_that_number() -> None:
    drawn = (bar(205000, 205001), bar(205001, 205003), bar(205002, 205003), bar(205002, 205004))
    texts = [re.sub(r"global_step=[\d.]+", "global_step=2.05e+5", text) for text in drawn]
    texts = [text.replace("train_loss=", f"train_loss={n}") for text, n in zip(texts, (1, 2, 3, 3), strict=True)]
    found = steps_of("nemo1", "\n".join([bar(204999, 205000), *texts]))
    assert [(step.iteration, step.numbered) for step in found] == [(204999, True), *[(None, False)] * 3]


def test_a_time_whose_window_is_unknown_is_no_step_time() -> None:
    (found,) = steps_of("nemo1", bar(6023, 6024, "2.590"))
    assert (found.step_time_s, found.metrics["step_time_s_running_mean"]) == (None, 2.59)


def test_the_second_mean_may_prove_that_there_is_no_window() -> None:
    own = steps_of("nemo1", "\n".join(bar(k, k + 1, time) for k, time in enumerate(["44.90", "4.680", "4.710"])))
    assert [step.step_time_s for step in own] == [44.9, 4.68, 4.71]
    assert [step.interval_steps for step in own][1:] == [1, 1]
    mean = steps_of("nemo1", "\n".join(bar(k, k + 1, time) for k, time in enumerate(["44.90", "24.80", "18.10"])))
    assert [step.step_time_s for step in mean] == [44.9, None, None]


def test_three_digits_are_too_few_to_recover_from_a_large_first_step() -> None:
    mean = SlidingMean(5)
    assert mean.take(44.9, 3) == 44.9
    assert [mean.take(value, 3) for value in (24.8, 18.1, 14.7, 12.7, 4.68)] == [None] * 5


@given(st.lists(st.floats(0.1, 60.0), min_size=1, max_size=60), st.integers(1, 8))
def test_every_step_behind_an_exact_mean_is_recovered(own: list[float], window: int) -> None:
    sliding = SlidingMean(window)
    for index, value in enumerate(own):
        last = own[max(0, index - window + 1) : index + 1]
        found = sliding.take(sum(last) / len(last), 14)
        if sliding.window == window:  # a mean below half the first proves that there is no window
            assert found == pytest.approx(value, rel=1e-6)


@given(st.integers(2, 8), st.integers(0, 1000))
def test_what_is_recovered_from_rounded_means_is_within_its_bound(window: int, seed: int) -> None:
    chance = random.Random(seed)
    own = [chance.uniform(0.9, 1.1) for _ in range(30)]
    sliding = SlidingMean(window)
    for index, value in enumerate(own):
        last = own[max(0, index - window + 1) : index + 1]
        mean = float(f"{sum(last) / len(last):.5g}")
        found = sliding.take(mean, 5)
        assert found is None or found == pytest.approx(value, rel=0.011)


def test_a_gap_forgets_the_window() -> None:
    lines = [bar(k, k + 1, f"{time:.3f}") for k, time in [(0, 5.0), (1, 5.0), (7, 5.0), (8, 5.0)]]
    assert [step.step_time_s for step in steps_of("nemo1", "\n".join(lines))] == [5.0, None, None, None]


def test_a_bar_without_a_step_number_counts_where_loss_and_rate_are_new() -> None:
    def batch(epoch: int, drawn: int, rest: str) -> str:
        return f"a_training/0 [default0]:Epoch {epoch}: 100%|██████████| {drawn}/3 [00:04<00:00,  0.64it/s, {rest}]"

    one, two = ("reduced_train_loss=1.220, tps=707.0, lr=1.82e-5", "reduced_train_loss=0.767, tps=5391.0, lr=3.64e-5")
    text = "\n".join([batch(0, 3, one), batch(0, 0, one), batch(1, 1, one), batch(1, 2, one), batch(1, 3, two)])
    found = steps_of("nemo1", text)
    assert [(step.step, step.loss, step.lr, step.flags) for step in found] == [
        (0, 1.22, 1.82e-05, ("step:by_order",)),
        (1, 0.767, 3.64e-05, ("step:by_order",)),
    ]
