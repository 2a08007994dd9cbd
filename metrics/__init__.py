"""Records to numbers: every number with its unit and its source.

Not here: comparing runs with each other (compare/)."""

from metrics.quantity import Quantity, Source, shown
from metrics.step_times import Warmup, find_warmup
from metrics.summary import METRICS, summarise, summary_json

__all__ = ["METRICS", "Quantity", "Source", "Warmup", "find_warmup", "shown", "summarise", "summary_json"]
