"""`python -m metrics RUN…`: the figures of each run; `cost`, `energy`, `check`, `flops` are commands of their own."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module

from conf.arguments import Command
from conf.errors import command
from metrics.quantity import Quantity
from metrics.summary import summarise, summary_json
from parsers import Run, differences, find_runs
from parsers.find import FILTERS, WHERE, filter_keys
from parsers.storage import dumps
from parsers.text import plain

# Command, whose function has its name: the module that it is in, and its purpose.
COMMANDS: Mapping[str, tuple[str, str]] = {
    "cost": ("cost", "money, GPU-hours, energy and CO2 of a training, break-even, sensitivity"),
    "energy": ("cost", "energy and CO2 alone"),
    "check": ("check", "whether a published figure is physically possible"),
    "flops": ("check", "a model's FLOPs in every convention; TFLOP/s converted between them"),
}
METRICS = Command(
    name="metrics",
    summary="The figures of training runs: throughput, MFU, memory, energy, spread, loss.",
    words="RUN…",
    words_help=WHERE,
    others=FILTERS,
    known=filter_keys,
    switches={"--json": "every figure with unit, source and interval"},
    more="\n".join(
        ["more, each with --help (a directory of such a name is ./cost):"]
        + [f"  {name:<8}{text}" for name, (_, text) in COMMANDS.items()]
    ),
)


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Return 0: printed; 1: an impossible claim; 2: bad input; 3: a claim that cannot be judged."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in COMMANDS:
        module = import_module(f"{__package__}.{COMMANDS[words[0]][0]}")
        code: int = getattr(module, words[0])(words[1:])
        return code
    arguments = METRICS.parse(words)
    runs = find_runs(arguments.rest)
    if arguments.switches:
        rows = []
        for path, record in ((run.path, run.record) for run in runs):
            unlike = differences(record.requested, record.effective)
            about = {"path": path, "id": record.id, "status": record.status, "differences": unlike}
            rows.append({**about, "metrics": summary_json(record)})
        print(dumps(rows, indent=1))
    else:
        print("\n\n".join(map(_table, runs)))
    return 0


def _table(run: Run) -> str:
    record = run.record
    head = f"{run.path} ({record.name}, {record.provenance}, {record.status})"
    rows = [f"{name:<30} {_cell(quantity)}" for name, quantity in summarise(record).items()]
    rows += [f"{'difference':<30} {item}" for item in differences(record.requested, record.effective)]
    return plain("\n".join([head, *rows]), keep="\n")


def _cell(quantity: Quantity) -> str:
    """Return the figure as people read it (FLOPs short), its source and its note."""
    figure, source = quantity.readable(), quantity.source if quantity.value is not None else ""
    short = figure.value is not None and figure.unit == "FLOP/token"
    text = f"{figure.value:.4e} {figure.unit}" if short else str(figure)
    return f"{text:<28} {source:<9} {quantity.note}".rstrip()
