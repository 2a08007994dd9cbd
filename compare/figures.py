"""What a comparison shows of each run and group. To add a figure: its line here, and its metric in metrics/."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from compare.statistics import Better


@dataclass(frozen=True, slots=True)
class Figure:
    """A metric that is shown. better: the direction of its word, None for no word."""

    metric: str
    title: str
    better: Better | None
    pooled: Literal["geometric", "mean", "max"]


FIGURES = (
    Figure("tokens_per_s", "tokens/s", "higher", "geometric"),
    Figure("tokens_per_s_per_gpu", "tokens/s/GPU", "higher", "geometric"),
    Figure("step_time_mean_s", "step time", "lower", "geometric"),
    Figure("peak_memory_bytes", "peak memory", None, "max"),
    Figure("loss_last", "last loss", None, "mean"),
)
