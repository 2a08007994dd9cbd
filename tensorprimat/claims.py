"""`tprimat metrics`: metrics/cli.py, whose `check` judges a claimed memory by estimate/memory.py."""

from __future__ import annotations

from estimate.least import least_memory
from metrics.cli import METRICS, main_with

__all__ = ["METRICS", "main"]
main = main_with(least_memory)
