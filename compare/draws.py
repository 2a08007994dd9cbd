"""The test that two stacks draw their first weights from the same distributions. Pure.

What is compared is what ranks read of each tensor before equal weights are put in its place: its number of elements,
mean, deviation and extremes. Of two draws from one distribution these differ by chance: what is farther apart than
that is another initialisation. The bounds hold exactly for normal draws of any number of elements. Those of lighter
tails (truncated, uniform) vary less, so that no bound is passed by chance."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from statistics import NormalDist

from metrics import shown
from parsers.read_back import Tensor

FAMILY_ERROR = 1e-6
"""The probability that chance alone makes an alarm in as many pairs as PAIRS."""
PAIRS = 40
_TESTS = 3  # of each tensor: mean, deviation, extremes
_BEYOND = 5.0
"""So many elements are expected beyond the least extreme that counts as one of a normal distribution's."""


def drawn_apart(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the name of each tensor that is drawn otherwise, and how: "a deviation of 0.01 against 0.02 (2 times)"."""
    common = [name for name in ours if name in theirs and ours[name].shape == theirs[name].shape]
    level = FAMILY_ERROR / (PAIRS * _TESTS * max(1, len(common)))
    found = {name: next(_differences(ours[name], theirs[name], level), "") for name in common}
    return {name: text for name, text in found.items() if text}


def _differences(one: Tensor, other: Tensor, level: float) -> Iterator[str]:
    """Yield in what two draws differ by more than chance. level: the probability that one test fails by chance."""
    if one.checksum == other.checksum is not None:
        return
    known = [[v for v in (t.mean, t.std, t.least, t.most) if v is not None] for t in (one, other)]
    if any(len(numbers) < 4 for numbers in known):
        yield "nan or inf in one of them"
        return
    (mean, std, least, most), (mean2, std2, least2, most2) = known
    count = math.prod(one.shape)
    if std == 0 or std2 == 0 or count < 2:  # a constant is not drawn
        if (least, most) != (least2, most2):
            yield f"{_interval(least, most)} against {_interval(least2, most2)}"
        return
    if abs(math.log(std2 / std)) > deviation_limit(count, level):
        times = shown(max(std, std2) / min(std, std2), 3)
        yield f"a deviation of {shown(std, 3)} against {shown(std2, 3)} ({times} times)"
    error = math.sqrt((std**2 + std2**2) / (count - 1))
    if abs(mean2 - mean) > mean_limit(count, level) * error:
        yield f"a mean of {shown(mean, 3)} against {shown(mean2, 3)} at a deviation of {shown(std, 3)}"
    extremes = [max(high - mid, mid - low) / deviation for mid, deviation, low, high in known]
    below, above = extreme_limits(count, level)
    if min(extremes) < below and max(extremes) > above:
        first, second = (shown(extreme, 3) for extreme in extremes)
        yield f"extremes of {first} against {second} deviations: one of them is cut off"


def _interval(least: float, most: float) -> str:
    return f"{least:g} everywhere" if least == most else f"{least:g} to {most:g}"


def deviation_limit(count: int, level: float) -> float:
    """Return by how much the logarithms of the deviations of two normal draws of `count` elements differ with at most
    this probability: of s1² / s2², which has the F distribution with n = count - 1 and n degrees of freedom, Chernoff's
    bound is P(s1 / s2 > exp(t)) <= cosh(t) ** -n."""
    return math.acosh((2 / level) ** (1 / (count - 1)))


def mean_limit(count: int, level: float) -> float:
    """Return by how many standard errors the means of two normal draws of `count` elements differ with at most this
    probability: of Student's t with n = 2 (count - 1) degrees of freedom P(|t| > z) <= (1 + z² / n) ** (-n / 2), as
    P(|z| > u) <= exp(-u² / 2) of a normal z."""
    n = 2 * (count - 1)
    return math.sqrt(n * ((1 / level) ** (2 / n) - 1))


def extreme_limits(count: int, level: float) -> tuple[float, float]:
    """Return, in deviations, below which extreme a draw of `count` elements is no normal one, and above which it is no
    draw of a distribution that is cut off below that. Beyond the first limit `log(1 / level)` more elements are
    expected than beyond the second: a distribution that ends behind the second has one in between but with a
    probability of `level`. 0, inf: too few elements to tell."""
    beyond = _BEYOND + math.log(1 / level)
    if beyond >= count:
        return 0.0, math.inf
    normal = NormalDist()
    return normal.inv_cdf(1 - beyond / count / 2), normal.inv_cdf(1 - _BEYOND / count / 2)
