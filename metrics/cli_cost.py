"""`python -m metrics cost RUN…` and `energy RUN…`: what training on so many tokens takes, on each option."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from conf.errors import InputError, Problem, command, listed
from metrics.bill import Bill, Embodied, Terms, bill, owned
from metrics.carbon import intensity
from metrics.options import Option, options
from metrics.price import EXAMPLE, Prices, from_experiment, from_overrides, joined, read_capex, read_prices
from metrics.quantity import Quantity, shown
from metrics.whatif import BreakEven, Swing, break_evens, swings
from parsers import Run, find_runs
from parsers.find import copies
from parsers.storage import dumps
from parsers.terminal import plain

_EXAMPLE = """python -m metrics cost runs/ --tokens 15e12 --price 'mi355x=3.10,b200=4.75 USD/gpu-hour' --pue 1.25
python -m metrics cost runs/ price.usd_per_gpu_hour.mi355x=3.10
python -m metrics cost runs/ --capex 'mi355x=28000 USD/gpu' --years 4 --utilisation 0.7 --power-price 0.09
python -m metrics energy runs/ --tokens 15e12 --pue 1.25 --carbon FRA"""
_OF_ENERGY = ("tokens_per_s_per_gpu", "gpu_hours", "days", "power_w_per_gpu", "energy_", "tokens_per_wh", "carbon_")
_BAR = 40
_PRICE = "price."


@command
def main(argv: Sequence[str] | None = None) -> int:
    """argv: `cost` or `energy` and what follows. 0: printed; 2: bad input."""
    asked = _parser().parse_args(argv)
    runs = find_runs([name for name in asked.runs if not name.startswith(_PRICE)])
    if problems := tuple(copies(runs)):  # a copy is no repeat
        raise InputError(*problems)
    found = options(runs)
    if not found:
        hint = "python -m metrics RUN tells their state"
        raise InputError(Problem(listed(asked.runs), "has no run that completed with a speed", hint=hint))
    terms = _terms(asked, runs)
    bills = [(option, _shown(bill(option, terms), asked.what)) for option in found]
    evens = break_evens(found, terms) if asked.what == "cost" else ()
    if asked.json:
        print(dumps(_object(terms, bills, evens), indent=1))
    elif asked.csv:
        _write_csv(bills)
    else:
        print(plain("\n".join(_lines(terms, bills, evens)), keep="\n"))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m metrics",
        description="What training on so many tokens takes, at the speed that was measured.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=("cost", "energy"))
    parser.add_argument("runs", nargs="+", metavar="RUN", help="runs, or price.usd_per_gpu_hour.HARDWARE=AMOUNT")
    add = parser.add_argument
    add("--tokens", type=float, default=1e12, help="to train on (default: a trillion)")
    add("--price", help=f"'mi355x=3.10 USD/gpu-hour', a YAML file, or an example of conf/price (default: {EXAMPLE})")
    add("--capex", help="'mi355x=28000 USD/gpu': bought instead, a GPU with its share of host and network")
    add("--years", type=float, default=4.0, help="that what is bought works (default: 4)")
    add("--utilisation", type=float, default=1.0, help="share of those years that it works (default: 1)")
    add("--power-price", type=float, help="of a kWh, in the currency of the price; adds electricity to the cost")
    add("--pue", type=float, default=1.0, help="power usage effectiveness of the building (default: 1)")
    add("--host-share", type=float, default=0.0, help="hosts and network, as a share of the GPUs' power (default: 0)")
    add("--goodput", type=float, default=1.0, help="share of the time that makes progress (default: 1)")
    add("--carbon", help="gCO2e/kWh, or a country (USA, FRA)")
    add("--embodied-kg", type=float, help="CO2e of making one GPU with its share of the host, over --years")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="every figure with unit, source and interval")
    form.add_argument("--csv", action="store_true", help="for a spreadsheet: option, figure, value, unit, source, …")
    return parser


def _terms(asked: argparse.Namespace, runs: Sequence[Run]) -> Terms:
    _refuse(asked)
    prices = _prices(asked, runs)
    embodied = None
    if asked.embodied_kg is not None:
        embodied = Embodied(kg_per_gpu=asked.embodied_kg, years=asked.years, utilisation=asked.utilisation)
    more = {"carbon": intensity(asked.carbon)} if asked.carbon else {}
    return Terms(
        tokens=asked.tokens,
        prices=prices,
        power_price=asked.power_price,
        pue=asked.pue,
        host_share=asked.host_share,
        goodput=asked.goodput,
        embodied=embodied,
        **more,
    )


def _refuse(asked: argparse.Namespace) -> None:
    """Figures without sense, all of them."""
    inf = float("inf")
    allowed: dict[str, tuple[Any, float, float, str]] = {
        "--tokens": (asked.tokens, 1.0, inf, "1 or more, e.g. 15e12"),
        "--years": (asked.years, 0.01, 100.0, "0.01 to 100"),
        "--utilisation": (asked.utilisation, 0.001, 1.0, "above 0, at most 1"),
        "--power-price": (asked.power_price, 0.0, inf, "0 or more"),
        "--pue": (asked.pue, 1.0, 10.0, "1 or more: 1 is a building that needs nothing for itself"),
        "--host-share": (asked.host_share, 0.0, 10.0, "0 or more; an H100 node draws 0.2 to 0.3"),
        "--goodput": (asked.goodput, 0.001, 1.0, "above 0, at most 1"),
        "--embodied-kg": (asked.embodied_kg, 0.0, inf, "0 or more"),
    }
    problems = [
        Problem(name, "is out of range", f"{value:g}", text)
        for name, (value, low, high, text) in allowed.items()
        if value is not None and not (low <= value <= high and value < inf)
    ]
    typed = any(name.startswith(_PRICE) for name in asked.runs)
    prices = {"--capex": asked.capex, "--price": asked.price, "price.…": typed}
    if len(given := [name for name, value in prices.items() if value]) > 1:
        problems.append(Problem(listed(given), "exclude each other", hint="bought or rented, written in one way"))
    if asked.capex and asked.power_price is None:
        what = "needs --power-price: what is bought draws power that nobody else pays"
        problems.append(Problem("--capex", what, hint="--power-price 0.09; 0 to leave it out"))
    if problems:
        raise InputError(*problems)


def _prices(asked: argparse.Namespace, runs: Sequence[Run]) -> Prices:
    """The command line's, else those that the runs were started with, else the example."""
    written = from_overrides([name for name in asked.runs if name.startswith(_PRICE)])
    if asked.capex:
        return owned(read_capex(asked.capex), asked.years, asked.utilisation)
    if asked.price:
        return read_prices(asked.price)
    known = [(where, found) for run in runs for where, found in [_of_run(run)] if found]
    return written or joined(known) or read_prices(EXAMPLE)


def _of_run(run: Run) -> tuple[str, Prices | None]:
    import yaml

    path = Path(run.path) / "experiment.yaml"
    try:
        entry = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):  # a record needs no experiment beside it
        return str(path), None
    return str(path), from_experiment(entry, str(path)) if isinstance(entry, dict) else None


def _shown(found: Bill, what: str) -> Bill:
    return found if what == "cost" else {name: q for name, q in found.items() if name.startswith(_OF_ENERGY)}


def _lines(terms: Terms, bills: Sequence[tuple[Option, Bill]], evens: Sequence[BreakEven]) -> list[str]:
    lines = [
        f"{terms.tokens:g} tokens, goodput {100 * terms.goodput:g} %, PUE {terms.pue:g}, "
        f"hosts {100 * terms.host_share:g} % of the GPUs' power"
    ]
    for option, found in bills:
        lines += ["", f"{option.label} ({option.runs} run{'s' if option.runs > 1 else ''})"]
        lines += [f"  {name:<26} {_cell(quantity)}" for name, quantity in found.items()]
    if evens:
        lines += ["", "break-even"]
        lines += [f"  {even.option} beats {even.rival} up to {_even(even.price)}" for even in evens]
    if any("total" in found for _, found in bills):
        for option, _ in bills:
            lines += _sensitivity(option, terms)
    return lines


def _even(price: Quantity) -> str:
    if price.value is None:
        return price.note
    ends = f" ({shown(price.interval[0])} to {shown(price.interval[1])})" if price.interval else f" ({price.note})"
    return f"{shown(price.value)} {price.unit}{ends}"


def _cell(quantity: Quantity) -> str:
    if quantity.value is None:
        return f"unknown: {quantity.note}" if quantity.note else "unknown"
    ends = ""
    if quantity.interval is not None:
        ends = f" ({shown(quantity.interval[0])} to {shown(quantity.interval[1])})"
    return f"{f'{shown(quantity.value)} {quantity.unit}{ends}':<44} {quantity.source:<9} {quantity.note}".rstrip()


def _sensitivity(option: Option, terms: Terms) -> list[str]:
    total, found = bill(option, terms)["total"], swings(option, terms)
    if total.value is None or not found:
        return []
    lines = ["", f"what moves {option.label}: {shown(total.value)} {total.unit}"]
    ends = [(s.cause, (s.low.value or 0.0) / total.value - 1, (s.high.value or 0.0) / total.value - 1) for s in found]
    widest = max(max(-low, high) for _, low, high in ends) or 1.0
    for cause, low, high in ends:
        left, right = (round(_BAR / 2 * max(0.0, change) / widest) for change in (-low, high))
        bar = f"{'█' * left:>{_BAR // 2}}│{'█' * right:<{_BAR // 2}}"
        lines.append(f"  {cause:<26} {bar} {100 * low:+.1f} to {100 * high:+.1f} %")
    return lines


def _object(terms: Terms, bills: Sequence[tuple[Option, Bill]], evens: Sequence[BreakEven]) -> dict[str, Any]:
    known = {name: getattr(terms, name) for name in ("tokens", "power_price", "pue", "host_share", "goodput")}
    return {
        **known,
        "options": [
            {
                "option": option.label,
                "runs": option.runs,
                "figures": {name: quantity.to_json() for name, quantity in found.items()},
                "sensitivity": [_swing(swing) for swing in swings(option, terms)] if "total" in found else [],
            }
            for option, found in bills
        ],
        "break_even": [{**asdict(even), "price": even.price.to_json()} for even in evens],
    }


def _swing(swing: Swing) -> dict[str, Any]:
    return {"cause": swing.cause, "low": swing.low.to_json(), "high": swing.high.to_json()}


def _write_csv(bills: Sequence[tuple[Option, Bill]]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(("option", "runs", "figure", "value", "unit", "source", "low", "high", "note"))
    for option, found in bills:
        for name, q in found.items():
            ends = q.interval or (None, None)
            writer.writerow((plain(option.label), option.runs, name, q.value, q.unit, q.source, *ends, q.note))
