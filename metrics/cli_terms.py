"""On which terms a job is paid for: options that `metrics cost`, `metrics energy` and `compare` share."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conf.errors import InputError, Problem, listed
from metrics.bill import Embodied, Terms, owned
from metrics.carbon import intensity
from metrics.price import EXAMPLE, Prices, from_experiment, from_overrides, joined, read_capex, read_prices
from parsers import Run

_PRICE = "price."


def add_terms(parser: argparse._ActionsContainer) -> None:
    """Tokens, prices, power and carbon as options of `parser`."""
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


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """What was typed as RUN…, and the prices among it (price.usd_per_gpu_hour.mi355x=3.10)."""
    return [w for w in words if not w.startswith(_PRICE)], [w for w in words if w.startswith(_PRICE)]


def terms_of(asked: argparse.Namespace, runs: Sequence[Run], overrides: Sequence[str] = ()) -> Terms:
    """The terms that `add_terms` and the prices `overrides` name, for these runs. InputError."""
    _refuse(asked, overrides)
    prices = _prices(asked, runs, overrides)
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


def _refuse(asked: argparse.Namespace, overrides: Sequence[str]) -> None:
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
    prices = {"--capex": asked.capex, "--price": asked.price, "price.…": overrides}
    if len(given := [name for name, value in prices.items() if value]) > 1:
        problems.append(Problem(listed(given), "exclude each other", hint="bought or rented, written in one way"))
    if asked.capex and asked.power_price is None:
        what = "needs --power-price: what is bought draws power that nobody else pays"
        problems.append(Problem("--capex", what, hint="--power-price 0.09; 0 to leave it out"))
    if problems:
        raise InputError(*problems)


def _prices(asked: argparse.Namespace, runs: Sequence[Run], overrides: Sequence[str]) -> Prices:
    """The command line's, else those that the runs were started with, else the example."""
    written = from_overrides(overrides)
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
        entry = yaml.safe_load(_price_lines(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):  # a record needs no experiment beside it
        return str(path), None
    return str(path), from_experiment(entry, str(path)) if isinstance(entry, dict) else None


def _price_lines(text: str) -> str:
    """The part of an experiment.yaml that speaks of prices: to parse all of it takes 20 ms, a thousand times."""
    found = re.search(r"^price:.*\n(?:[ #].*\n|\n)*", f"{text}\n", re.MULTILINE)
    return found.group() if found else ""
