"""What a GPU costs for an hour: the user's own price, else a dated example of ours, which is marked as assumed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from conf.compose import CONF, choices
from conf.errors import InputError, Problem, closest, listed
from metrics.quantity import Quantity

EXAMPLE = "oracle"
_KEY = "_per_gpu_hour"
_UNIT = "/gpu-hour"
_HINT = "--price 'mi355x=3.10,b200=4.75 USD/gpu-hour', or a file like conf/price/oracle.yaml"


@dataclass(frozen=True, slots=True)
class Prices:
    """Amounts of `currency` for one GPU (package) and hour, by hardware name. example: ours, not the user's. unit:
    what they are for, where that is no hour but the GPU itself."""

    currency: str
    per_gpu_hour: Mapping[str, float] = field(default_factory=dict)
    date: str | None = None
    source: str | None = None
    example: bool = False
    unit: str = _UNIT

    def of(self, hardware: str | None) -> Quantity:
        """The price of one GPU of this hardware; unknown where there is none."""
        unit, amount = f"{self.currency}{self.unit}", self.per_gpu_hour.get(hardware or "")
        if amount is None:
            return Quantity(None, unit, "assumed", note=f"no price of {hardware or 'unknown hardware'}")
        told = " ".join(part for part in (self.date, self.source) if part)
        if self.example:
            return Quantity(amount, unit, "assumed", note=f"an example, not your price: {told}")
        return Quantity(amount, unit, "computed", note=f"yours{': ' if told else ''}{told}")


def read_prices(text: str, where: str = "--price") -> Prices:
    """Prices as a user gives them: `mi355x=3.10,b200=4.75 USD/gpu-hour`, a YAML file, or a name of conf/price.

    InputError: no currency, no such hardware, an amount that is none; all of them at once.
    """
    if text in choices("price"):
        return _from_file(CONF / "price" / f"{text}.yaml", where, example=True)
    if "=" not in text:
        return _from_file(Path(text), where)
    return _typed(text, where, (_UNIT, "/gpu-h", "/gpuh"))


def read_capex(text: str, where: str = "--capex") -> Prices:
    """What GPUs cost to buy: `mi355x=28000,b200=40000 USD/gpu`. Raises as `read_prices`."""
    return _typed(text, where, ("/gpu",))


def _typed(text: str, where: str, units: Sequence[str]) -> Prices:
    amounts, _, unit = text.strip().rpartition(" ")
    ending = next((ending for ending in units if unit.lower().endswith(ending)), None)
    currency = unit[: -len(ending)].upper() if ending else ""
    pairs = [pair.partition("=") for pair in (amounts if ending else text).split(",") if pair.strip()]
    if 0 < sum(bool(sign) for _, sign, _ in pairs) < len(pairs):
        raise InputError(Problem(where, "is no HARDWARE=AMOUNT, or has a decimal comma", text, hint=_HINT))
    if any(amount.strip().lower().endswith(tuple(units)) for _, _, amount in pairs):
        raise InputError(Problem(where, "has a currency behind each price; one stands behind all", text, hint=_HINT))
    about = Prices(currency, unit=units[0])
    return _checked(about, {name.strip(): amount.strip() for name, _, amount in pairs}, where)


def from_overrides(overrides: Sequence[str]) -> Prices | None:
    """Prices written as everywhere in conf/: `price.usd_per_gpu_hour.mi355x=3.10`; None where there are none."""
    found: dict[str, dict[str, str]] = {}
    for override in overrides:
        key, _, amount = override.partition("=")
        parts = key.split(".")
        if len(parts) != 3 or parts[0] != "price" or not parts[1].endswith(_KEY):
            raise InputError(Problem(override, "no such key", allowed=f"price.usd{_KEY}.HARDWARE=AMOUNT", hint=_HINT))
        found.setdefault(parts[1].removesuffix(_KEY).upper(), {})[parts[2]] = amount
    if len(found) > 1:
        raise InputError(Problem("price", "is in two currencies; none is converted here", listed(sorted(found))))
    return next((_checked(Prices(currency), amounts, "price") for currency, amounts in found.items()), None)


def from_experiment(entry: Mapping[str, Any], where: str) -> Prices | None:
    """The prices in the experiment.yaml of a run; None where it has none. An example that was launched with
    (`price=oracle`) stays one."""
    group = entry.get("price")
    found = _from_group(group, where, example=False) if isinstance(group, Mapping) else None
    return None if found is None else replace(found, example=_is_ours(found))


def _is_ours(found: Prices) -> bool:
    """Some amounts of it, and its source, are those of a file in conf/price."""
    if found.source is None:
        return False
    examples = [read_prices(name) for name in choices("price") if name != "none"]
    same = [ours.per_gpu_hour.items() & found.per_gpu_hour.items() for ours in examples if ours.source == found.source]
    return any(same)


def joined(found: Sequence[tuple[str, Prices]]) -> Prices | None:
    """One table of what several runs were told; where one was told a price of the user's, our examples do not count.
    InputError: two currencies, or two prices of one GPU."""
    counted = [(where, prices) for where, prices in found if not prices.example] or found
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
    told = [{getattr(prices, name) for _, prices in counted if getattr(prices, name)} for name in ("date", "source")]
    date, source = (listed(sorted(texts)) or None for texts in told)
    return Prices(first.currency, amounts, date, source, first.example)


def _from_file(path: Path, where: str, example: bool = False) -> Prices:
    import yaml

    try:
        entry = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        what = "names no price file that can be read" if isinstance(error, OSError) else "is no YAML"
        raise InputError(Problem(where, what, str(path), listed(choices("price")), _HINT)) from None
    group = entry.get("price", entry) if isinstance(entry, Mapping) else {}
    found = _from_group(group, f"{where} {path}", example) if isinstance(group, Mapping) else None
    if found is None:
        what = "has no prices with a currency"
        raise InputError(Problem(f"{where} {path}", what, allowed=f"usd{_KEY}: {{b200: 4.75}}", hint=_HINT))
    return found


def _from_group(group: Mapping[str, Any], where: str, example: bool) -> Prices | None:
    tables = {k: v for k, v in group.items() if str(k).endswith(_KEY) and isinstance(v, Mapping) and v}
    if len(tables) > 1:
        raise InputError(Problem(where, "is in two currencies; none is converted here", listed(sorted(tables))))
    date, source = (None if group.get(k) is None else " ".join(str(group[k]).split()) for k in ("date", "source"))
    for key, amounts in tables.items():
        about = Prices(key.removesuffix(_KEY).upper(), {}, date, source, example)
        return _checked(about, amounts, where)
    return None


def _checked(about: Prices, amounts: Mapping[str, Any], where: str) -> Prices:
    """`about` with these amounts, once they are sound."""
    problems, currency = [], about.currency
    if not (len(currency) == 3 and currency.isascii() and currency.isalpha()):
        allowed = f"USD{about.unit}, EUR{about.unit} …, after the prices"
        hint = _HINT if about.unit == _UNIT else f"'mi355x=28000 USD{about.unit}'"
        problems.append(Problem(where, "prices without a currency", currency, allowed, hint))
    for name, amount in amounts.items():
        if name not in choices("hardware"):
            near = closest(name, choices("hardware"))
            problems.append(Problem(where, "no such hardware", name, listed(choices("hardware")), near))
        elif not _positive(amount):
            problems.append(Problem(where, f"the price of {name} is not a positive number", str(amount), hint=_HINT))
    if not amounts:
        problems.append(Problem(where, "names no price", hint=_HINT))
    if problems:
        raise InputError(*problems)
    return replace(about, per_gpu_hour={name: float(amount) for name, amount in amounts.items()})


def _positive(amount: Any) -> bool:
    try:
        return not isinstance(amount, bool) and 0 < float(amount) < math.inf
    except (TypeError, ValueError):
        return False
