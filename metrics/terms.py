"""The terms on which a training is paid for, as KEY=VALUE of `metrics cost`, `metrics energy` and `compare`: tokens,
prices, power, and CO2 of a kilowatt-hour."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from math import inf
from pathlib import Path

from conf.arguments import Arguments, Key, between, number
from conf.compose import CONF
from conf.errors import InputError, Problem, closest, listed
from metrics.bill import Terms, hours_at_work, owned
from metrics.price import EXAMPLE, Prices, from_experiment, joined, read_prices, typed_prices
from metrics.quantity import Quantity
from parsers import Run
from parsers.storage import experiment_of

_SHARE = "above 0, at most 1 or 100%"
_BUILDING = "1 or more: 1 is a building that needs nothing for itself"
_MORE = "0 or more"
_HOST = "0 or more; an H100 node draws 0.2 to 0.3"
_CARBON_UNIT = "gCO2e/kWh"
_CODECARBON = Path("data") / "private_infra" / "global_energy_mix.json"


def intensity(text: str) -> Quantity:
    """Read a number (the user's own, in gCO2e/kWh) or a country's ISO code (USA, FRA) of conf/carbon, else of
    codecarbon where that is installed. InputError: neither."""
    try:
        value = number(text, (_CARBON_UNIT,))
    except ValueError:
        return _country(text.strip().upper())
    if value < 0:
        raise InputError(Problem("carbon", "is no carbon intensity", text, "0 gCO2e/kWh or more"))
    return Quantity(value, _CARBON_UNIT, "computed", note="yours")


def _country(code: str) -> Quantity:
    import yaml

    table = yaml.safe_load((CONF / "carbon" / "countries.yaml").read_text(encoding="utf-8"))
    if code in table["g_co2e_per_kwh"]:
        note = f"{code}, average of {table['date']}: {table['source'].split(',')[0]}"
        return Quantity(table["g_co2e_per_kwh"][code], _CARBON_UNIT, "assumed", note=note)
    more = _codecarbon()
    if code in more:
        value, year = more[code]
        note = f"{code}, average of {year}: codecarbon's {_CODECARBON.name}"
        return Quantity(value, _CARBON_UNIT, "assumed", note=note)
    known = sorted({*table["g_co2e_per_kwh"], *more})
    hint = closest(code, known) or "yours, carbon=120" + ("" if more else "; pip install codecarbon knows 200 more")
    raise InputError(Problem("carbon", "no such country in the tables", code, listed(known), hint))


def _codecarbon() -> Mapping[str, tuple[float, int]]:
    """Read codecarbon's table without importing it: that takes seconds and looks for GPUs. Empty if not installed."""
    spec = find_spec("codecarbon")
    places = list(spec.submodule_search_locations or []) if spec else []
    files = [file for place in places if (file := Path(place) / _CODECARBON).is_file()]
    if not files:
        return {}
    countries = json.loads(files[0].read_text(encoding="utf-8"))
    return {code: (c["carbon_intensity"], c["year"]) for code, c in countries.items() if c.get("carbon_intensity")}


KEYS = (
    Key("tokens", "to train on (default: 1T)", between(1, inf, "1 or more", "tokens"), 1e12, "15T"),
    Key("price", f"of a GPU-hour: in conf/price, or a YAML file (default: {EXAMPLE})", read_prices, None, EXAMPLE),
    Key("price.*", "the same, yours, for each GPU", example="price.usd_per_gpu_hour.mi355x=3.10"),
    Key("capex.*", "bought instead: a GPU, its host and network", example="capex.usd_per_gpu.mi355x=28000"),
    Key("years", "that bought hardware works (default: 4)", between(0.01, 100, "0.01 to 100", "years"), 4.0, "5"),
    Key("utilisation", "share of those years that it works (default: 1)", between(0.001, 1, _SHARE), 1.0, "70%"),
    Key("power_price", "of a kWh, in the price's currency; adds electricity", between(0, inf, _MORE), None, "0.09"),
    Key("pue", "power usage effectiveness of the building (default: 1)", between(1, 10, _BUILDING), 1.0, "1.25"),
    Key("host_share", "hosts and network: a share of the GPUs' power (default: 0)", between(0, 10, _HOST), 0.0, "25%"),
    Key("goodput", "share of the time that makes progress (default: 1)", between(0.001, 1, _SHARE), 1.0, "96%"),
    Key("carbon", "gCO2e/kWh, or a country (USA, FRA)", intensity, None, "FRA"),
    Key("embodied_kg", "CO2e of making one GPU, its host's share included", between(0, inf, _MORE, "kg"), None, "1500"),
)
OLD: Mapping[str, str] = {
    "--price": "price.usd_per_gpu_hour.mi355x=3.10, or price=oracle, or price=FILE.yaml",
    "--capex": "capex.usd_per_gpu.mi355x=28000",
}


def terms_of(arguments: Arguments, runs: Sequence[Run]) -> Terms:
    """Return the terms on the command line, for these runs. InputError: keys that contradict each other, bad prices."""
    if problems := [*_contradictions(arguments)]:
        raise InputError(*problems)
    embodied_kg = arguments["embodied_kg"]
    if embodied_kg is not None:
        embodied_kg /= hours_at_work(arguments["years"], arguments["utilisation"])
    plain = {name: arguments[name] for name in ("tokens", "power_price", "pue", "host_share", "goodput")}
    carbon = {"carbon": arguments["carbon"]} if arguments["carbon"] else {}
    return Terms(prices=_prices(arguments, runs), embodied_kg_per_gpu_hour=embodied_kg, **plain, **carbon)


def _contradictions(arguments: Arguments) -> Iterator[Problem]:
    given = [name.rstrip(".*") for name in ("capex.*", "price", "price.*") if arguments[name]]
    if len(given) > 1:
        yield Problem(listed(given), "exclude each other", hint="bought or rented, written in one way")
    if arguments["capex.*"] and arguments["power_price"] is None:
        what = "needs power_price: what is bought draws power that nobody else pays"
        yield Problem("capex", what, hint="power_price=0.09; 0 to leave it out")


def _prices(arguments: Arguments, runs: Sequence[Run]) -> Prices:
    """Return the command line's prices, else those that the runs were started with, else the example."""
    capex = typed_prices(arguments["capex.*"], "capex", "_per_gpu")
    if capex is not None:
        return owned(capex, arguments["years"], arguments["utilisation"])
    typed: Prices | None = arguments["price"] or typed_prices(arguments["price.*"])
    if typed is not None:
        return typed
    files = [(run.path, str(Path(run.path) / "experiment.yaml")) for run in runs]
    launched = [(file, from_experiment(experiment_of(path, "price"), file)) for path, file in files]
    return joined([(file, prices) for file, prices in launched if prices]) or read_prices(EXAMPLE)
