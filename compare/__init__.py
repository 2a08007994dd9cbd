"""Records to a verdict: may they be compared, by how much do they differ, and how sure is that.

Not here: reading logs (parsers/), making numbers of steps (metrics/)."""

from compare.comparison import Comparison, compare, to_json
from compare.groups import Question
from parsers import Run, find_runs

__all__ = ["Comparison", "Question", "Run", "compare", "find_runs", "to_json"]
