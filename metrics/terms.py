"""The terms on which a training is paid for, as KEY=VALUE of `metrics cost`, `metrics energy` and `compare`: tokens,
prices, power, and CO2 of a kilowatt-hour.

A GPU-hour costs what the user says, else a dated example of ours, which is marked as assumed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import Any

from conf.arguments import Arguments, Key, between, positive
from conf.compose import CONF, choices
from conf.errors import InputError, Problem, closest, listed
from conf.freeze import frozen, number
from conf.vocabulary import read_yaml
from metrics.bill import NO_CARBON, Prices, Terms, hours_at_work, owned
from metrics.quantity import Quantity
from parsers import Run
from parsers.storage import experiment_of

EXAMPLE = "oracle"
_PER_HOUR = "_per_gpu_hour"
_UNITS: Mapping[str, tuple[str, ...]] = {_PER_HOUR: ("/gpu-hour", "/gpu-h", "/gpuh"), "_per_gpu": ("/gpu", "")}
_MOST_PRICE = 1e12  # of any currency, also to buy: 300,000 dollars are 3e10 of the smallest unit in use
_HINT = "price.usd_per_gpu_hour.mi355x=3.10, or price=FILE like conf/price/oracle.yaml"
_SHARE = "above 0, at most 1 or 100%"
_BUILDING = "1 or more: 1 is a building that needs nothing for itself"
_MORE = "0 or more"
_HOST = "0 or more; an H100 node draws 0.2 to 0.3"
_CARBON_UNIT = "gCO2e/kWh"
_CURRENCIES = CONF / "tables" / "currencies.txt"
_CODECARBON = Path("data") / "private_infra" / "global_energy_mix.json"


@dataclass(frozen=True)
class _Countries:
    """A table of conf/carbon."""

    g_co2e_per_kwh: Mapping[str, float]
    date: str
    source: str


def _amounts(table: str) -> list[str]:
    return [f"{table}.{name}" for name in choices("hardware")]


def intensity(text: str) -> Quantity:
    """Read a number (the user's own, in gCO2e/kWh) or a country's ISO code (USA, FRA) of conf/carbon, else of
    codecarbon where that is installed. InputError: neither."""
    try:
        value = number(text, (_CARBON_UNIT, "gCO2/kWh", "g/kWh"))
    except ValueError:
        if text.strip()[:1].isdigit():
            raise
        return _country(text.strip().upper())
    if value < 0:
        raise InputError(Problem("carbon", "is not a carbon intensity", text, "0 gCO2e/kWh or more", "carbon=FRA"))
    return Quantity(value, _CARBON_UNIT, "given")


def _of_kwh(text: str) -> Quantity:
    """Read a price of electricity; its unit is USD/kWh or the like, empty where none is typed. Raises ValueError."""
    match = re.search(r"[A-Za-z]{3}/kWh$", text.strip(), re.IGNORECASE)
    unit = match[0] if match else "USD/kWh"
    price = between(0, 1e6, "0 to 1,000,000", unit)(text)
    return Quantity(price, f"{unit[:3].upper()}/kWh" if match else "", "given")


def _table() -> _Countries:
    table: _Countries = frozen(_Countries, read_yaml(CONF / "carbon" / "countries.yaml"), "conf/carbon/countries.yaml")
    return table


def _countries() -> tuple[str, ...]:
    return tuple(_table().g_co2e_per_kwh)


def _country(code: str) -> Quantity:
    table = _table()
    ours = {name: (grams, table.date, table.source.split(",")[0]) for name, grams in table.g_co2e_per_kwh.items()}
    more = {} if code in ours else _codecarbon()
    known = {**more, **ours}
    if code not in known:
        near = closest(code, sorted(known))
        hint = near or "yours, carbon=120" + ("" if more else "; pip install codecarbon knows 200 more")
        raise InputError(Problem("carbon", "no such country in the tables", code, listed(sorted(known)), hint))
    grams, date, source = known[code]
    return Quantity(grams, _CARBON_UNIT, "assumed", note=f"{code}, average of {date}: {source}")


def _codecarbon() -> Mapping[str, tuple[float, object, str]]:
    """Read codecarbon's table without importing it: that takes seconds and looks for GPUs. Empty if not installed."""
    spec = find_spec("codecarbon")
    places = list(spec.submodule_search_locations or []) if spec else []
    files = [file for place in places if (file := Path(place) / _CODECARBON).is_file()]
    countries = json.loads(files[0].read_text(encoding="utf-8")) if files else {}
    known = {code: (country.get("carbon_intensity"), country["year"]) for code, country in countries.items()}
    return {code: (grams, year, f"codecarbon's {_CODECARBON.name}") for code, (grams, year) in known.items() if grams}


def _examples() -> list[str]:
    """Return the names of our prices: `price=none`, of a launch, has none."""
    return [name for name in choices("price") if name != "none"]


@cache
def _example(name: str) -> Prices:
    return _from_file(CONF / "price" / f"{name}.yaml", example=True)


def read_prices(text: str) -> Prices:
    """Read the prices behind `price=`: a name of conf/price or a YAML file. InputError: neither, or unfit."""
    return _example(text) if text in _examples() else _from_file(Path(text))


def typed_prices(entries: Mapping[str, str], group: str = "price", per: str = _PER_HOUR) -> Prices | None:
    """Read the entries typed behind `price.`: {"usd_per_gpu_hour.mi355x": "3.10"}; None where there are none.

    group, per: `capex` and `_per_gpu`, whose amounts are of a GPU, not of an hour. InputError: no such key, two
    currencies, no such hardware, no positive amount, or one in another unit."""
    tables: dict[str, dict[str, str]] = {}
    for key, amount in entries.items():
        table, _, hardware = key.partition(".")
        if not table.endswith(per) or not hardware or "." in hardware:
            hint = f"{group}.usd{per}.mi355x={'3.10' if per == _PER_HOUR else '28000'}"
            raise InputError(Problem(f"{group}.{key}", "no such key", "", f"{group}.usd{per}.HARDWARE=AMOUNT", hint))
        tables.setdefault(table, {})[hardware] = amount
    return _from_group(tables, group, per)


def from_experiment(group: Mapping[str, Any], where: str) -> Prices | None:
    """Return the prices of a run, from `price` of its experiment; None where it has none. An example of ours that the
    run was launched with (`price=oracle`) stays an example."""
    prices = _from_group(group, where)
    if prices is None or prices.source is None:
        return prices
    examples = map(read_prices, _examples())
    tables = [ours.per_gpu_hour for ours in examples if ours.source == prices.source]
    return replace(prices, example=any(table.items() & prices.per_gpu_hour.items() for table in tables))


def joined(prices_by_place: Sequence[tuple[str, Prices]]) -> Prices | None:
    """Join the prices of several runs into one table; where one run has a price of the user's, our examples do not
    count. InputError: two currencies, or two prices of one GPU."""
    counted = [(where, prices) for where, prices in prices_by_place if not prices.example] or prices_by_place
    if not counted:
        return None
    first = counted[0][1]
    amounts: dict[str, float] = {}
    problems = []
    for where, prices in counted:
        if prices.currency != first.currency:
            problems.append(Problem(where, "another currency than the first run's", prices.currency, first.currency))
        for name, amount in prices.per_gpu_hour.items():
            if amounts.setdefault(name, amount) != amount:
                what = f"another price of {name} than another run's"
                problems.append(Problem(where, what, str(amount), str(amounts[name]), _HINT))
    if problems:
        raise InputError(*problems)
    texts = [{getattr(prices, name) for _, prices in counted if getattr(prices, name)} for name in ("date", "source")]
    date, source = (listed(sorted(known)) or None for known in texts)
    return Prices(first.currency, amounts, date, source, first.example)


def _from_file(path: Path, example: bool = False) -> Prices:
    import yaml

    try:
        entry = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        what = "is not a price file that can be read" if isinstance(error, OSError) else "is not valid YAML"
        raise InputError(Problem("price", what, str(path), listed(_examples()), _HINT)) from None
    group = entry.get("price", entry) if isinstance(entry, Mapping) else {}
    prices = _from_group(group, f"price {path}") if isinstance(group, Mapping) else None
    if prices is None:
        what = "has no prices with a currency"
        raise InputError(Problem(f"price {path}", what, allowed=f"usd{_PER_HOUR}: {{b200: 4.75}}", hint=_HINT))
    return replace(prices, example=example)


def _from_group(group: Mapping[str, Any], where: str, per: str = _PER_HOUR) -> Prices | None:
    tables = {k: v for k, v in group.items() if str(k).endswith(per) and isinstance(v, Mapping) and v}
    if len(tables) > 1:
        what = "is in two currencies; none is converted here"
        raise InputError(Problem(where, what, listed(sorted(tables)), hint="all prices in one currency"))
    if not tables:
        return None
    date, source = (None if group.get(k) is None else " ".join(str(group[k]).split()) for k in ("date", "source"))
    ((key, amounts),) = tables.items()
    currency = key.removesuffix(per).upper()
    return Prices(currency, _checked(currency, amounts, where, _UNITS[per]), date, source)


def _checked(currency: str, amounts: Mapping[str, Any], where: str, units: Sequence[str]) -> Mapping[str, float]:
    """Return the amounts as numbers. InputError: all that is wrong."""
    devices, hourly = choices("hardware"), units is _UNITS[_PER_HOUR]
    per, example = (f"price.{currency}{_PER_HOUR}", "3.10") if hourly else (f"capex.{currency}_per_gpu", "28000")
    problems: list[Problem] = []
    checked: dict[str, float] = {}
    if currency not in (known := _CURRENCIES.read_text(encoding="utf-8").partition("\n")[2].split()):
        what = "prices in a currency that is not known" if currency else "prices without a currency"
        allowed = "usd, eur …, a code of ISO 4217, before _per_gpu"
        problems.append(Problem(where, what, currency.lower(), allowed, closest(currency, known) or _HINT))
    for name, amount in amounts.items():
        if name not in devices:
            near = closest(name, devices)
            problems.append(Problem(where, "no such hardware", name, listed(devices), near))
            continue
        try:
            checked[name] = positive(*(f"{currency}{unit}" for unit in units))(str(amount))
        except ValueError:  # true and false, too
            unit = f"{currency}{units[0]}"
            what = f"the price of {name} is not a positive number of {unit}"
            problems.append(Problem(where, what, str(amount), f"above 0, in {unit}", f"{per.lower()}.{name}={example}"))
            continue
        if checked[name] > _MOST_PRICE:
            what = f"the price of {name} is beyond all that money is"
            allowed = f"at most {_MOST_PRICE:g} {currency}{units[0]}"
            problems.append(Problem(where, what, str(amount), allowed, f"{per.lower()}.{name}={example}"))
    if problems:
        raise InputError(*problems)
    return checked


_OFFERED = (None, EXAMPLE, _examples)
_hourly, _bought = (partial(_amounts, f"usd{per}") for per in _UNITS)
_HOSTS = "hosts and network: a share of the GPUs' power; of TDP 20 to 29 % in MLPerf's power logs (default: 0)"
KEYS = (
    Key("tokens", "to train on (default: 1T)", between(1, inf, "1 or more", "tokens"), 1e12, "15T"),
    Key("price", f"of a GPU-hour: in conf/price, or a YAML file (default: {EXAMPLE})", read_prices, *_OFFERED),
    Key("price.*", "the same, yours, for each GPU", str, None, "price.usd_per_gpu_hour.mi355x=3.10", _hourly),
    Key("capex.*", "bought instead: a GPU, its host and network", str, None, "capex.usd_per_gpu.mi355x=28000", _bought),
    Key("years", "that bought hardware works (default: 4)", between(0.01, 100, "0.01 to 100", "years"), 4.0, "5"),
    Key("utilisation", "share of those years that it works (default: 1)", between(0.001, 1, _SHARE), 1.0, "70%"),
    Key("power_price", "of a kWh, in the price's currency; adds electricity", _of_kwh, None, "0.09"),
    Key("pue", "power usage effectiveness of the building (default: 1)", between(1, 10, _BUILDING), 1.0, "1.25"),
    Key("host_share", _HOSTS, between(0, 10, _HOST), 0.0, "25%"),
    Key(
        "goodput",
        "share of the time that makes progress (default: 1, a plan: by failures)",
        between(0.001, 1, _SHARE),
        None,
        "96%",
    ),
    Key("carbon", "gCO2e/kWh, or a country (USA, FRA)", intensity, NO_CARBON, "FRA", _countries),
    Key("embodied_kg", "CO2e of making one GPU, its host's share included", between(0, inf, _MORE, "kg"), None, "1500"),
)
OLD: Mapping[str, str] = {
    "--price": "price.usd_per_gpu_hour.mi355x=3.10, or price=oracle, or price=FILE.yaml",
    "--capex": "capex.usd_per_gpu.mi355x=28000",
}


def left_at_nothing(arguments: Arguments) -> list[str]:
    """Return a warning about what a bill leaves out where the user typed neither."""
    left = {"host_share": "hosts and network (host_share=25%)", "pue": "the building (pue=1.25)"}
    missing = [what for name, what in left.items() if name not in arguments.typed]
    return [f"energy and CO2 are without {' and '.join(missing)}"] if missing else []


def terms_of(arguments: Arguments, runs: Sequence[Run]) -> Terms:
    """Return the terms on the command line, for these runs. InputError: keys that contradict each other, bad prices."""
    problems = []
    typed_prices(arguments["capex.*"], "capex", "_per_gpu")  # a wrong amount is said before what else it needs
    given = [name.rstrip(".*") for name in ("capex.*", "price", "price.*") if arguments[name]]
    if len(given) > 1:
        problems.append(Problem(listed(given), "exclude each other", hint="bought or rented, written in one way"))
    if arguments["capex.*"] and arguments["power_price"] is None:
        what = "needs power_price: what is bought draws power that nobody else pays"
        problems.append(Problem("capex", what, hint="power_price=0.09; 0 to leave it out"))
    if problems:
        raise InputError(*problems)
    embodied_kg, hours = arguments["embodied_kg"], hours_at_work(arguments["years"], arguments["utilisation"])
    if embodied_kg is not None:
        embodied_kg /= hours
    plain = {name: arguments[name] for name in ("tokens", "pue", "host_share", "carbon")}
    own = arguments["goodput"]
    goodput = {} if own is None else {"goodput": own, "own_goodput": True}
    prices, power = _prices(arguments, runs), arguments["power_price"] or Quantity(None, "", "given")
    if power.unit not in ("", f"{prices.currency}/kWh"):
        what = "another currency than the prices'"
        raise InputError(Problem("power_price", what, power.unit, f"{prices.currency}/kWh"))
    stated = hours if {"years", "utilisation"} & arguments.typed else None
    return Terms(
        prices=prices,
        embodied_kg_per_gpu_hour=embodied_kg,
        working_hours=stated,
        power_price=power.value,
        **plain,
        **goodput,
    )


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
