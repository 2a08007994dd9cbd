"""The figures of each run and group. To add a figure: its line here, and its metric in metrics/."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from compare.statistics import Better, Word
from metrics.quantity import Quantity
from metrics.repeats import arithmetic_mean_of, mean_of

Part = Literal["speed", "utilisation", "memory", "energy", "cost", "time lost", "loss"]
Pooled = Literal["geometric", "mean", "max", "min"]


class Figure(Struct, frozen=True):
    """A metric that is shown. better: the direction of its word, None for no word. pooled: what repeats become, their
    mean with an interval, or the largest or smallest of them. part: of the report. table: in the terminal's, too."""

    metric: str
    title: str
    part: Part
    better: Better | None
    pooled: Pooled = "geometric"
    table: bool = False


SPEED, COST = "tokens_per_s_per_gpu", "cost_per_trillion_tokens"
FIGURES = (
    Figure("tokens_per_s", "tokens/s", "speed", "higher", table=True),
    Figure(SPEED, "tokens/s/GPU", "speed", "higher", table=True),
    Figure("step_time_mean_s", "step time", "speed", "lower", table=True),
    Figure("step_time_median_s", "median step time", "speed", "lower"),
    Figure("step_time_p95_s", "95th of 100 step times", "speed", "lower"),
    Figure("step_time_p99_s", "99th of 100 step times", "speed", "lower"),
    Figure("step_time_tail", "tail of step times", "speed", None),
    Figure("step_time_jitter_percent", "jitter of step times", "speed", None, "mean"),
    Figure("training_days", "training time", "speed", "lower"),
    Figure("tflops_per_gpu", "TFLOP/s/GPU", "utilisation", None),
    Figure("tflops_per_gpu_framework", "TFLOP/s/GPU, as the framework counts", "utilisation", None),
    Figure("mfu_percent", "MFU", "utilisation", "higher", table=True),
    Figure("mfu_achievable_percent", "MFU of the achievable rate", "utilisation", "higher"),
    Figure("hfu_percent", "HFU", "utilisation", None),
    Figure("peak_memory_bytes", "peak memory", "memory", None, "max", table=True),
    Figure("peak_memory_allocated_bytes", "peak memory, allocated", "memory", None, "max"),
    Figure("peak_memory_reserved_bytes", "peak memory, reserved", "memory", None, "max"),
    Figure("peak_memory_device_bytes", "peak memory, by the device", "memory", None, "max"),
    Figure("peak_memory_percent", "share of device memory", "memory", None, "max"),
    Figure("memory_headroom_bytes", "headroom of device memory", "memory", None, "min"),
    Figure("power_w_per_gpu", "power per GPU", "energy", None),
    Figure("energy_j_per_token", "energy", "energy", "lower", table=True),
    Figure("tokens_per_wh", "tokens per Wh", "energy", "higher"),
    Figure("training_energy_kwh", "energy of the training", "energy", "lower"),
    Figure("training_carbon_t", "CO2 of the training", "energy", "lower"),
    Figure("training_carbon_total_t", "CO2 with the making of the GPUs", "energy", "lower"),
    Figure("price", "price of a GPU-hour", "cost", None),
    Figure(COST, "cost", "cost", "lower", table=True),
    Figure("tokens_per_currency", "tokens for the money", "cost", "higher"),
    Figure("training_gpu_hours", "GPU-hours of the training", "cost", "lower"),
    Figure("training_cost", "cost of the training", "cost", "lower"),
    Figure("goodput_percent", "goodput", "time lost", None, "mean"),  # no word: slow steps hide a long start
    Figure("stall_time_s", "stalls", "time lost", None, "mean"),
    Figure("restarts", "restarts", "time lost", None, "max"),
    Figure("loss_last", "last loss", "loss", None, "mean", table=True),
)
TITLES = {figure.metric: figure.title for figure in FIGURES}
_WORDS: Mapping[Part, tuple[Word, Word]] = {
    "speed": ("faster", "slower"),
    "cost": ("cheaper", "dearer"),
}


def worded(figure: Figure, word: Word) -> Word:
    """Return faster and slower in the figure's own words: a cost is cheaper or dearer."""
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
    values = [float(q.value) for q in quantities if q.value is not None]
    note = (
        first.note
        if all(q.note == first.note for q in quantities)
        else f"of {len(quantities)} runs; the first: {first.note}"
    )
    if figure.pooled in ("max", "min"):
        return Quantity.of(max(values) if figure.pooled == "max" else min(values), first.unit, first.source, note)
    if figure.pooled == "geometric" and min(values) <= 0:
        return Quantity(None, first.unit, first.source, note="not above zero in every run")
    mean, interval = mean_of(values) if figure.pooled == "geometric" else arithmetic_mean_of(values)
    return Quantity(mean, first.unit, first.source, interval, note)
