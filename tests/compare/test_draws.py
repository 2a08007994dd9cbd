"""Test that initialisations differ by what their draws cannot be by chance, and by nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from compare import draws
from compare.draws import deviation_limit, drawn_apart, extreme_limits, mean_limit
from parsers.read_back import Tensor
from tests.compare.made import compared, drawn, read_back, toy

Numbers = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Numbers]


def normal(rng: np.random.Generator, count: int) -> Numbers:
    return rng.standard_normal(count)


def cut(rng: np.random.Generator, count: int) -> Numbers:
    """Draw from a normal distribution that is cut off at three deviations."""
    many: Numbers = rng.standard_normal(count + count // 50 + 100)
    return many[np.abs(many) < 3][:count]


def uniform(rng: np.random.Generator, count: int) -> Numbers:
    return rng.uniform(-(3**0.5), 3**0.5, count)


def tensor(values: Numbers) -> Tensor:
    """Return what a rank reads of a tensor."""
    mean, std, least, most = (float(one) for one in (values.mean(), values.std(), values.min(), values.max()))
    return Tensor(shape=values.shape, mean=mean, std=std, least=least, most=most)


def apart(one: Numbers, other: Numbers) -> str:
    return drawn_apart({"w": tensor(one)}, {"w": tensor(other)}).get("w", "")


@pytest.mark.parametrize("draw", [normal, cut, uniform])
@pytest.mark.parametrize("count", [2, 16, 512, 20_000])
def test_two_draws_of_one_distribution_are_never_apart(draw: Draw, count: int) -> None:
    rng = np.random.default_rng(7)
    assert {apart(draw(rng, count), draw(rng, count)) for _ in range(200)} == {""}


@pytest.mark.parametrize("count", [4, 40, 400])
def test_chance_passes_a_limit_no_more_often_than_it_may(count: int) -> None:
    """At a level of 5 %, where it can be counted."""
    rng, pairs, level = np.random.default_rng(11), 4000, 0.05
    one, other = rng.standard_normal((2, pairs, count))
    deviations = np.abs(np.log(one.std(1) / other.std(1))) > deviation_limit(count, level)
    error = np.sqrt((one.var(1) + other.var(1)) / (count - 1))
    means = np.abs(one.mean(1) - other.mean(1)) > mean_limit(count, level) * error
    for passed in (deviations, means):
        assert 0 < passed.sum() <= level * pairs


def test_the_limits_are_those_of_the_normal_distribution_where_there_are_many_elements() -> None:
    level = 1e-9
    assert mean_limit(10**6, level) == pytest.approx(math.sqrt(-2 * math.log(level)), rel=1e-4)
    assert deviation_limit(10**6, level) == pytest.approx(math.sqrt(2 * math.log(2 / level) / 10**6), rel=1e-4)
    below, above = extreme_limits(16_384, level)
    assert 3 < below < above < 4
    assert extreme_limits(20, level) == (0.0, math.inf)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda values: 2 * values, " times)"),
        (lambda values: 1.1 * values, " times)"),
        (lambda values: values + 0.1, "a mean of "),
        (lambda values: 0 * values + 1, "against 1 everywhere"),
        (lambda values: np.clip(values, -3, 3), "one of them is cut off"),
    ],
)
def test_another_initialisation_is_apart(change: Callable[[Numbers], Numbers], says: str) -> None:
    rng = np.random.default_rng(3)
    assert says in apart(normal(rng, 128 * 128), change(normal(rng, 128 * 128)))


def test_other_constants_are_apart() -> None:
    assert apart(np.ones(128), np.zeros(128)) == "1 everywhere against 0 everywhere"
    assert apart(np.ones(1), np.ones(1)) == ""
    assert drawn_apart({"w": Tensor(shape=(2,), checksum=1)}, {"w": tensor(np.ones(2))}) == {
        "w": "nan or inf in one of them"
    }


def test_an_alarm_by_chance_is_rarer_the_more_tensors_there_are() -> None:
    def levels(count: int) -> float:
        seen: list[float] = []
        one = {str(n): tensor(np.arange(8.0)) for n in range(count)}
        with pytest.MonkeyPatch.context() as patch:

            def none(one: Tensor, other: Tensor, level: float) -> Iterator[str]:
                seen.append(level)
                return iter(())

            patch.setattr(draws, "_differences", none)
            drawn_apart(one, one)
        return draws.PAIRS * sum(3 * level for level in seen)

    assert levels(1) == pytest.approx(draws.FAMILY_ERROR) == levels(50)


def test_an_initialisation_that_equal_weights_hide_is_named() -> None:
    first = toy("a", framework="nemo")
    twice = replace(toy("b", framework="primus"), read_back=read_back(drawn=drawn(2.0, "qkv")))
    audit = compared(first, twice).audit
    assert audit.verdict.word == "not comparable" and audit.parting is not None
    assert audit.parting.part == "first weights"
    assert "a deviation of 0.0200 against 0.0400 (2.00 times)" in audit.verdict.texts[0]
    assert "decoder.layers.0.self_attention.linear_qkv.weight" in audit.verdict.texts[0]


def test_what_a_stack_draws_is_not_known_where_nobody_read_it() -> None:
    silent = replace(toy("b", framework="primus"), read_back=read_back(drawn={}))
    audit = compared(toy("a", framework="nemo"), silent).audit
    assert audit.verdict.word == "cannot tell"
    assert any("no reading of the weights that its stack draws" in text for text in audit.verdict.texts)
