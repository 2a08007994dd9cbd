"""`python -m metrics RUN…`: the figures of each run directory."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from conf.errors import UserError
from metrics.quantity import Quantity
from metrics.summary import summarise, summary_json
from parsers import Record, read
from parsers.storage import RUN_FILE, dumps


def main(argv: Sequence[str] | None = None) -> int:
    """0: printed; 2: bad input."""
    parser = argparse.ArgumentParser(prog="python -m metrics", description="The figures of training runs.")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run directory, or its run.json")
    parser.add_argument("--json", action="store_true", help="every figure with unit, source and interval")
    options = parser.parse_args(argv)
    try:
        records = [read(_directory(Path(run))) for run in options.runs]
    except UserError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    if options.json:
        print(dumps([{"id": r.id, "status": r.status, "metrics": summary_json(r)} for r in records], indent=1))
    else:
        print("\n\n".join(_table(record) for record in records))
    return 0


def _directory(path: Path) -> Path:
    return path.parent if path.name == RUN_FILE else path


def _table(record: Record) -> str:
    head = f"{record.name} ({record.provenance}, {record.status})"
    rows = [f"{name:<22} {_cell(quantity)}" for name, quantity in summarise(record).items()]
    return "\n".join([head.encode("utf-8", "replace").decode(), *rows])


def _cell(quantity: Quantity) -> str:
    return f"{quantity!s:<28} {quantity.source}" if quantity.value is not None else str(quantity)
