"""The command that makes records of logs: what metrics finds impossible in one stands in its notes."""

from __future__ import annotations

from collections.abc import Sequence

from conf.errors import command
from metrics.summary import with_impossible
from parsers.cli import PARSE, parse

__all__ = ["PARSE", "main"]


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Return 0: read, whatever became of the runs; 2: bad input."""
    return parse(argv, with_impossible)
