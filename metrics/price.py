"""What a GPU costs for an hour: the user's own price, else a dated example of ours, which is marked as assumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from conf.arguments import number
from conf.compose import CONF, choices
from conf.errors import InputError, Problem, closest, listed
from metrics.quantity import Quantity

EXAMPLE = "oracle"
_PER_HOUR = "_per_gpu_hour"
_UNITS: Mapping[str, tuple[str, ...]] = {_PER_HOUR: ("/gpu-hour", "/gpu-h", "/gpuh"), "_per_gpu": ("/gpu",)}
_HINT = "price.usd_per_gpu_hour.mi355x=3.10, or price=FILE like conf/price/oracle.yaml"


@dataclass(frozen=True, slots=True)
class Prices:
    """Amounts of `currency` for one GPU (package) and hour, by hardware name. example: ours, not the user's."""

    currency: str
    per_gpu_hour: Mapping[str, float] = field(default_factory=dict)
    date: str | None = None
    source: str | None = None
    example: bool = False

    def of(self, hardware: str | None) -> Quantity:
        """Return the price of one GPU of this hardware; unknown where there is none."""
        unit, amount = f"{self.currency}/gpu-hour", self.per_gpu_hour.get(hardware or "")
        if amount is None:
            return Quantity(None, unit, "assumed", note=f"no price of {hardware or 'unknown hardware'}")
        about = " ".join(part for part in (self.date, self.source) if part)
        if self.example:
            return Quantity(amount, unit, "assumed", note=f"an example, not your price: {about}")
        return Quantity(amount, unit, "computed", note=f"yours{': ' if about else ''}{about}")


def read_prices(text: str) -> Prices:
    """Read the prices behind `price=`: a name of conf/price or a YAML file. InputError: neither, or unfit."""
    return _example(text) if text in choices("price") else _from_file(Path(text))


@cache
def _example(name: str) -> Prices:
    return _from_file(CONF / "price" / f"{name}.yaml", example=True)


def typed_prices(entries: Mapping[str, str], group: str = "price", per: str = _PER_HOUR) -> Prices | None:
    """Read the entries typed behind `price.`: {"usd_per_gpu_hour.mi355x": "3.10"}; None where there are none.

    group, per: `capex` and `_per_gpu`, whose amounts are of a GPU, not of an hour.

    Raises:
        InputError: no such key, two currencies, no such hardware, no positive amount, or one in another unit.
    """
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
    examples = [read_prices(name) for name in choices("price") if name != "none"]
    alike = [ours for ours in examples if ours.source == prices.source]
    ours = any(example.per_gpu_hour.items() & prices.per_gpu_hour.items() for example in alike)
    return replace(prices, example=ours)


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
        what = "names no price file that can be read" if isinstance(error, OSError) else "is no YAML"
        raise InputError(Problem("price", what, str(path), listed(choices("price")), _HINT)) from None
    group = entry.get("price", entry) if isinstance(entry, Mapping) else {}
    prices = _from_group(group, f"price {path}") if isinstance(group, Mapping) else None
    if prices is None:
        what = "has no prices with a currency"
        raise InputError(Problem(f"price {path}", what, allowed=f"usd{_PER_HOUR}: {{b200: 4.75}}", hint=_HINT))
    return replace(prices, example=example)


def _from_group(group: Mapping[str, Any], where: str, per: str = _PER_HOUR) -> Prices | None:
    tables = {k: v for k, v in group.items() if str(k).endswith(per) and isinstance(v, Mapping) and v}
    if len(tables) > 1:
        raise InputError(Problem(where, "is in two currencies; none is converted here", listed(sorted(tables))))
    date, source = (None if group.get(k) is None else " ".join(str(group[k]).split()) for k in ("date", "source"))
    for key, amounts in tables.items():
        currency = key.removesuffix(per).upper()
        return Prices(currency, _checked(currency, amounts, where, _UNITS[per]), date, source)
    return None


def _checked(currency: str, amounts: Mapping[str, Any], where: str, units: Sequence[str]) -> Mapping[str, float]:
    """Return the amounts as numbers. InputError: all that is wrong."""
    devices = choices("hardware")
    problems: list[Problem] = []
    checked: dict[str, float] = {}
    if not (len(currency) == 3 and currency.isascii() and currency.isalpha()):
        problems.append(Problem(where, "prices without a currency", currency, "usd, eur …, before _per_gpu", _HINT))
    for name, amount in amounts.items():
        if name not in devices:
            near = closest(name, devices)
            problems.append(Problem(where, "no such hardware", name, listed(devices), near))
            continue
        try:
            checked[name] = number(str(amount), [f"{currency}{unit}" for unit in units])
        except ValueError:  # true and false, too
            checked[name] = 0.0
        if not checked[name] > 0:
            allowed = f"above 0, in {currency}{units[0]}"
            problems.append(Problem(where, f"the price of {name} is not a positive number", str(amount), allowed))
    if problems:
        raise InputError(*problems)
    return checked
