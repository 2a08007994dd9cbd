"""`python -m metrics RUN…`: the figures of each run; `cost`, `energy`: what training on so many tokens takes, on each
option; `check`, `flops`: see metrics/check.py."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from msgspec.structs import replace as changed

from conf.arguments import Arguments, Command, program
from conf.errors import InputError, Main, Problem, command, listed
from conf.plain import plain
from metrics import quoted
from metrics.bill import ENERGY, MONEY, Bill, BreakEven, Option, Terms, bill, break_evens, options, swings
from metrics.check import LeastMemory, check_with, flops
from metrics.published import Beside, beside
from metrics.quantity import IMPOSSIBLE, Quantity, shown
from metrics.summary import summarise
from metrics.terms import KEYS, OLD, left_at_nothing, terms_of
from parsers import Run, differences
from parsers.find import FILTERS, SKIP, WHERE, copies, filter_keys, find_and_warn
from parsers.storage import dumps
from parsers.text import cell

_OF_MONEY = ("price", "gpus", "total", "cost_to_target", "cost_per_trillion_tokens", "tokens_per_currency")
_BAR = 40
_LONG_NOTE = 60  # characters; a longer one is said once
COST = Command(
    name="metrics cost",
    summary="What training on so many tokens takes, at the measured speed: money, GPU-hours, energy and CO2.",
    words="RUN…",
    words_help=WHERE,
    keys=(*KEYS, *quoted.KEYS),
    others=FILTERS,
    known=filter_keys,
    switches={
        "--json": "every figure with unit, source and interval",
        "--csv": "for a spreadsheet: option, figure, value, unit, source, …",
        **SKIP,
    },
    examples=(
        "runs/ tokens=15T price.usd_per_gpu_hour.mi355x=3.10 price.usd_per_gpu_hour.b200=4.75 pue=1.25",
        "runs/ capex.usd_per_gpu.mi355x=28000 years=4 utilisation=70% power_price=0.09",
        "model=llama31_8b gpus=8 tokens_per_s_per_gpu.mi355x=13k tokens_per_s_per_gpu.b200=16k host_share=25% pue=1.25",
    ),
    old=OLD,
)
ENERGY_COMMAND = replace(
    COST,
    name="metrics energy",
    summary="What training on so many tokens takes: energy and CO2 alone.",
    examples=("runs/ tokens=15T pue=1.25 carbon=FRA",),
)


@command
def cost(argv: Sequence[str] | None = None) -> int:
    """Print what a training costs. 0: printed; 2: bad input."""
    return _print(COST, argv, MONEY)


@command
def energy(argv: Sequence[str] | None = None) -> int:
    """Print the energy of a training. 0: printed; 2: bad input."""
    return _print(ENERGY_COMMAND, argv, ENERGY)


def _print(called: Command, argv: Sequence[str] | None, of: str) -> int:
    arguments = called.parse(argv)
    typed = quoted.options_of(arguments)
    runs = () if typed else _runs(called, arguments)
    ways = tuple(option for option, _ in typed) or options(runs)
    if not ways:
        hint = f"{program('metrics')} RUN shows their state"
        raise InputError(Problem(listed(arguments.rest), "has no run that completed with a speed", hint=hint))
    terms, odd = terms_of(arguments, runs), left_at_nothing(arguments)
    published = {option.label: about for option, about in typed}
    bills = [
        (option, {name: q for name, q in bill(option, terms).items() if of == MONEY or name not in _OF_MONEY})
        for option in ways
    ]
    evens = break_evens(ways, terms, of)
    if "--json" in arguments.switches:
        about = [published.get(option.label, Beside()).to_json() for option in ways]
        print(dumps(_object(terms, bills, evens, of, about) | {"warnings": odd}, indent=1))
    elif "--csv" in arguments.switches:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(("option", "runs", "figure", "value", "unit", "source", "low", "high", "note"))
        for option, name, q in ((option, *row) for option, figures in bills for row in figures.items()):
            ends = q.interval or (None, None)
            writer.writerow(map(cell, (option.label, option.runs, name, q.value, q.unit, q.source, *ends, q.note)))
    else:
        lines = {label: about.lines for label, about in published.items()}
        first, *rest = _lines(terms, bills, evens, of, lines)
        print(plain("\n".join([first, *(f"warning: {text}" for text in odd), *rest]), keep="\n"))
    return 0


def _runs(called: Command, arguments: Arguments) -> Sequence[Run]:
    """Return the runs that the arguments name. InputError: none, or a copy of one, which is no repeat."""
    runs = find_and_warn(arguments.rest, arguments.switches, other_keys=called.names)
    if problems := tuple(copies(runs)):
        raise InputError(*problems)
    return runs


def _lines(
    terms: Terms,
    bills: Sequence[tuple[Option, Bill]],
    evens: Sequence[BreakEven],
    of: str,
    published: Mapping[str, Sequence[str]],
) -> list[str]:
    lines = [
        f"{terms.tokens:g} tokens, goodput {100 * terms.goodput:g} %, PUE {terms.pue:g}, "
        f"hosts {100 * terms.host_share:g} % of the GPUs' power"
    ]
    for option, figures in bills:
        counted = f"{option.runs} run{'s' if option.runs > 1 else ''}" if option.runs else "given"
        lines += ["", f"{option.label} ({counted})", *(f"  {line}" for line in published.get(option.label, ()))]
        lines += [f"  {name:<26} {_figure(quantity)}" for name, quantity in _said_once(figures)]
    if evens:
        lines += ["", "break-even"]
        wins = "costs less than" if of == MONEY else "takes less energy than"
        lines += [f"  {even.option} {wins} {even.rival} {_even(even.up_to)}" for even in evens]
        runs = any(option.runs for option, _ in bills)
        lines += [f"  not audited here: {program('compare')} says whether these runs may be compared"] if runs else []
    for option, figures in bills:
        lines += _sensitivity(option, figures, terms, of)
    return lines


def _said_once(figures: Mapping[str, Quantity]) -> Iterator[tuple[str, Quantity]]:
    """Yield figures by name; why many of them are impossible, and a long note, stand beside the first."""
    said = set[str]()
    for name, quantity in figures.items():
        impossible = quantity.missing == IMPOSSIBLE
        again = quantity.note in said and (impossible or len(quantity.note) > _LONG_NOTE)
        yield (
            name,
            changed(quantity, note=f"{IMPOSSIBLE}, as above" if impossible else "as above") if again else quantity,
        )
        said.add(quantity.note)


def _even(level: Quantity) -> str:
    if level.value is None:
        return level.note
    ends = _ends(level) or f" ({level.note})"
    return f"up to {shown(level.value)} {level.unit}{ends}"


def _figure(quantity: Quantity) -> str:
    if quantity.value is None:
        return quantity.note if quantity.missing == IMPOSSIBLE else f"unknown: {quantity.note}".rstrip(": ")
    figure = f"{shown(quantity.value)} {quantity.unit}{_ends(quantity)}"
    return f"{figure:<44} {quantity.source:<9} {quantity.note}".rstrip()


def _ends(quantity: Quantity) -> str:
    interval = quantity.interval
    return f" ({shown(interval[0])} to {shown(interval[1])})" if interval else ""


def _sensitivity(option: Option, figures: Bill, terms: Terms, of: str) -> list[str]:
    total, moved = figures[of], swings(option, terms, of)
    if not total.value or not moved:
        return []
    lines = ["", f"what moves {option.label}: {shown(total.value)} {total.unit}"]
    ends = [(s.cause, (s.low.value or 0.0) / total.value - 1, (s.high.value or 0.0) / total.value - 1) for s in moved]
    widest = max(max(-low, high) for _, low, high in ends) or 1.0
    for cause, low, high in ends:
        left, right = (round(_BAR / 2 * max(0.0, change) / widest) for change in (-low, high))
        bar = f"{'█' * left:>{_BAR // 2}}│{'█' * right:<{_BAR // 2}}"
        lines.append(f"  {cause:<26} {bar} {100 * low:+.1f} to {100 * high:+.1f} %")
    return lines


def _object(
    terms: Terms,
    bills: Sequence[tuple[Option, Bill]],
    evens: Sequence[BreakEven],
    of: str,
    published: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    known = {name: getattr(terms, name) for name in ("tokens", "power_price", "pue", "host_share", "goodput")}
    listed_options = [
        {
            "option": option.label,
            "runs": option.runs,
            **about,
            "figures": {name: quantity.to_json() for name, quantity in figures.items()},
            "sensitivity": [
                {"cause": swing.cause, "low": swing.low.to_json(), "high": swing.high.to_json()}
                for swing in swings(option, terms, of)
            ],
        }
        for (option, figures), about in zip(bills, published, strict=True)
    ]
    level = "price" if of == MONEY else "power_w_per_gpu"
    evens_json = [{"option": even.option, "rival": even.rival, level: even.up_to.to_json()} for even in evens]
    return {**known, "options": listed_options, "sensitivity_of": of, "break_even": evens_json}


COMMANDS: Mapping[str, Main] = {"cost": cost, "energy": energy, "flops": flops}
ABOUT = {
    "cost": "money, GPU-hours, energy and CO2 of a training, break-even, sensitivity",
    "energy": "energy and CO2 alone",
    "check": "whether a published figure is physically possible",
    "flops": "a model's FLOPs in every convention; TFLOP/s converted between them",
}
"""Purposes of the commands; `check` is made by main_with."""
METRICS = Command(
    name="metrics",
    summary="The figures of training runs: throughput, MFU, memory, energy, spread, loss.",
    words="RUN…",
    words_help=WHERE,
    others=FILTERS,
    known=filter_keys,
    switches={"--json": "every figure with unit, source and interval", **SKIP},
    more="\n".join(
        ["more, each with --help (a directory of such a name is ./cost):"]
        + [f"  {name:<8}{text}" for name, text in ABOUT.items()]
    ),
)


def main_with(least_memory: LeastMemory) -> Main:
    """Return `metrics`, whose `check` judges claims of memory by what a GPU must hold, which is given from outside."""
    commands = {**COMMANDS, "check": check_with(least_memory)}

    @command
    def main(argv: Sequence[str] | None = None) -> int:
        """Return 0: printed; 1: an impossible claim; 2: bad input; 3: a claim that cannot be judged."""
        words = list(sys.argv[1:] if argv is None else argv)
        return commands[words[0]](words[1:]) if words and words[0] in commands else _figures(words)

    return main


def _figures(words: Sequence[str]) -> int:
    """Print the figures of each run."""
    arguments = METRICS.parse(words)
    runs = find_and_warn(arguments.rest, arguments.switches)
    if "--json" in arguments.switches:
        rows = []
        for path, record in ((run.path, run.record) for run in runs):
            unlike = differences(record.requested, record.effective)
            about = {"path": path, "id": record.id, "status": record.status, "differences": unlike}
            figures = summarise(record)
            as_json = {name: quantity.to_json() for name, quantity in figures.items()}
            rows.append({**about, "metrics": as_json, **beside(record, figures).to_json()})
        print(dumps(rows, indent=1))
    else:
        print("\n\n".join(map(_table, runs)))
    return 0


def _table(run: Run) -> str:
    """Return the figures of a run as people read them (FLOPs short), each with its source and its note."""
    record = run.record
    lines, figures = [f"{run.path} ({record.name}, {record.provenance}, {record.status})"], summarise(record)
    for name, figure in ((name, quantity.readable()) for name, quantity in _said_once(figures)):
        short = figure.value is not None and figure.unit == "FLOP/token"
        text = f"{figure.value:.4e} {figure.unit}" if short else str(figure)
        source = figure.source if figure.value is not None else ""
        lines.append(f"{name:<30} {text:<28} {source:<9} {figure.note}".rstrip())
    lines += [f"{'published':<30} {line}" for line in beside(record, figures).lines]
    lines += [f"{'difference':<30} {item}" for item in differences(record.requested, record.effective)]
    return plain("\n".join(lines), keep="\n")
