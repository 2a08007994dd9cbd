"""The figures of each run and group, in the order of figures.jsonl, their words, and what repeats come to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

from compare.statistics import Better, Word
from conf.facts import read_lines
from metrics.quantity import Quantity
from metrics.repeats import arithmetic_mean_of, mean_of, predicted

Part = Literal["speed", "utilisation", "memory", "energy", "cost", "time lost", "loss"]
Pooled = Literal["geometric", "mean", "max", "min"]


class Figure(Struct, frozen=True, forbid_unknown_fields=True):
    """A metric that is shown: a line of figures.jsonl. part: of the report. better: the direction of its word, if any.
    pooled: what repeats become, their geometric mean with an interval or another; a mean is geometric, too, where all
    are above zero. table: in the terminal's, too."""

    metric: str
    title: str
    part: Part
    better: Better | None = None
    pooled: Pooled = "geometric"
    table: bool = False


SPEED, COST = "tokens_per_s_per_gpu", "cost_per_trillion_tokens"
FIGURES = read_lines(Path(__file__).with_name("figures.jsonl"), Figure)
TITLES = {figure.metric: figure.title for figure in FIGURES}
_WORDS: Mapping[Part, tuple[Word, Word]] = {"speed": ("faster", "slower"), "cost": ("cheaper", "more expensive")}


def worded(figure: Figure, word: Word) -> Word:
    """Return faster and slower in the figure's own words: a cost is cheaper or more expensive."""
    better, worse = _WORDS.get(figure.part, ("better", "worse"))
    return {"faster": better, "slower": worse}.get(word, word)


def pool(figure: Figure, quantities: Sequence[Quantity]) -> Quantity:
    """Return the figure of a group out of its runs'. Unknown where one run does not know: a mean over the others would
    be of a selection; or where they differ in unit or source."""
    first = quantities[0]
    unknown = next((q for q in quantities if q.value is None), None)
    if unknown is not None:
        return Quantity(None, first.unit, first.source, note=unknown.note)
    if any((q.unit, q.source) != (first.unit, first.source) for q in quantities):
        note = "the repeats have it in other units, or from other sources"
        return Quantity(None, first.unit, first.source, note=note)
    if (prediction := predicted(quantities)) is not None:
        return prediction
    values = [float(q.value) for q in quantities if q.value is not None]
    alike = all(q.note == first.note for q in quantities)
    note = first.note if alike else f"of {len(quantities)} runs; the first: {first.note}"
    if figure.pooled in ("max", "min"):
        return Quantity.of(max(values) if figure.pooled == "max" else min(values), first.unit, first.source, note)
    if figure.pooled == "geometric" and min(values) <= 0:
        return Quantity(None, first.unit, first.source, note="not above zero in every run")
    mean, interval = mean_of(values) if min(values) > 0 else arithmetic_mean_of(values)
    if interval and interval[0] < 0 <= min(values):  # of a jitter of 0 in one run
        interval = None
    return Quantity(mean, first.unit, first.source, interval, note)
