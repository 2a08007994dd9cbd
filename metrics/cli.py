"""`python -m metrics RUN…`: the figures of each run; `cost`, `energy`, `check` and `flops` have files of their own."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from typing import Any

from conf.errors import command
from metrics.quantity import Quantity
from metrics.summary import summarise, summary_json
from parsers import Run, differences, find_runs
from parsers.storage import dumps
from parsers.terminal import plain

COMMANDS: Mapping[str, str] = {
    "cost": "metrics.cli_cost",
    "energy": "metrics.cli_cost",
    "check": "metrics.cli_check",
    "flops": "metrics.cli_check",
}
_MORE = """more: python -m metrics cost RUN…    money, GPU-hours, energy and CO2 of a training, break-even, sensitivity
      python -m metrics energy RUN…  energy and CO2 alone
      python -m metrics check …      whether a published figure is physically possible
      python -m metrics flops …      a model's FLOPs in every convention; TFLOP/s converted between them
each with --help; a directory of such a name is ./cost"""


@command
def main(argv: Sequence[str] | None = None) -> int:
    """0: printed; 1: an impossible claim; 2: bad input; 3: a claim that cannot be judged."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] in COMMANDS:
        code: int = import_module(COMMANDS[arguments[0]]).main(arguments)
        return code
    parser = argparse.ArgumentParser(
        prog="python -m metrics",
        description="The figures of training runs.",
        epilog=_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run directories, directories above them, globs")
    parser.add_argument("--json", action="store_true", help="every figure with unit, source and interval")
    options = parser.parse_args(arguments)
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
    rows = [f"{name:<30} {_cell(quantity)}" for name, quantity in summarise(record).items()]
    rows += [f"{'difference':<30} {item}" for item in differences(record.requested, record.effective)]
    return plain("\n".join([head, *rows]), keep="\n")


def _cell(quantity: Quantity) -> str:
    source = quantity.source if quantity.value is not None else ""
    return f"{_readable(quantity):<28} {source:<9} {quantity.note}".rstrip()


def _readable(quantity: Quantity) -> str:
    """FLOPs short."""
    known = quantity.readable()
    short = known.value is not None and known.unit == "FLOP/token"
    return f"{known.value:.4e} {known.unit}" if short else str(known)
