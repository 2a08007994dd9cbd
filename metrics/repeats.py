"""Figures of several runs of one thing: the geometric mean over runs and its interval. The run is the unit."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from metrics.quantity import Quantity, weakest

ENOUGH = 3
"""Repeats from which an interval is given."""
_CONFIDENCE = 0.95


def mean_of(values: Sequence[float]) -> tuple[float, tuple[float, float] | None]:
    """The geometric mean of positive run means, and its 95 % interval where there are enough."""
    logs = [math.log(value) for value in values]
    centre = statistics.fmean(logs)
    if len(logs) < ENOUGH or statistics.variance(logs) == 0:
        return math.exp(centre), None
    half = t_quantile(len(logs) - 1) * math.sqrt(statistics.variance(logs) / len(logs))
    return math.exp(centre), (math.exp(centre - half), math.exp(centre + half))


def pooled(found: Sequence[Quantity]) -> Quantity:
    """One figure of several runs. Unknown where one run does not know: the mean of the others would be selected."""
    first = found[0]
    source = weakest(*(quantity.source for quantity in found))
    values = [float(q.value) for q in found if q.value is not None and q.value > 0 and q.unit == first.unit]
    if len(values) < len(found):
        note = next((q.note for q in found if q.value is None and q.note), "")
        return Quantity(None, first.unit, source, note=note)
    mean, interval = mean_of(values)
    return Quantity(mean, first.unit, source, interval, first.note)


def t_quantile(degrees: float) -> float:
    """Student's t for a two-sided 95 % interval."""
    from scipy.special import stdtrit  # scipy.stats.t.ppf, without the half second that importing scipy.stats takes

    return float(stdtrit(degrees, 0.5 + _CONFIDENCE / 2))
