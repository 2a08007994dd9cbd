"""Records to numbers: every number with its unit and its source.

Not here: comparing runs with each other (compare/).
"""

from metrics.quantity import Quantity, Source, shown
from metrics.summary import METRICS, summarise, summary_json
from metrics.warmup import Warmup, find_warmup

__all__ = ["METRICS", "Quantity", "Source", "Warmup", "find_warmup", "shown", "summarise", "summary_json"]
