"""`python -m metrics RUN…`: the figures of each run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from conf.errors import command
from metrics.quantity import Quantity
from metrics.summary import summarise, summary_json
from parsers import Run, differences, find_runs
from parsers.storage import dumps
from parsers.terminal import plain


@command
def main(argv: Sequence[str] | None = None) -> int:
    """0: printed; 2: bad input."""
    parser = argparse.ArgumentParser(prog="python -m metrics", description="The figures of training runs.")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run directories, directories above them, globs")
    parser.add_argument("--json", action="store_true", help="every figure with unit, source and interval")
    options = parser.parse_args(argv)
    runs = find_runs(options.runs)
    if options.json:
        print(dumps([_object(run) for run in runs], indent=1))
    else:
        print("\n\n".join(_table(run) for run in runs))
    return 0


def _object(run: Run) -> dict[str, Any]:
    record = run.record
    known = {"path": run.path, "id": record.id, "status": record.status}
    unlike = [asdict(difference) for difference in differences(record.requested, record.effective)]
    return {**known, "differences": unlike, "metrics": summary_json(record)}


def _table(run: Run) -> str:
    record = run.record
    head = f"{run.path} ({record.name}, {record.provenance}, {record.status})"
    rows = [f"{name:<22} {_cell(quantity)}" for name, quantity in summarise(record).items()]
    rows += [f"{'difference':<22} {item}" for item in differences(record.requested, record.effective)]
    return plain("\n".join([head, *rows]), keep="\n")


def _cell(quantity: Quantity) -> str:
    return f"{quantity!s:<28} {quantity.source}" if quantity.value is not None else str(quantity)
