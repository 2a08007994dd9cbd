"""What would change the answer: the price at which an option breaks even, and what moves its total. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from metrics.bill import Bill, Terms, bill
from metrics.options import Option
from metrics.price import Prices
from metrics.quantity import Quantity, weakest
from metrics.repeats import exp

SWING = 0.2
GOODPUT = (0.90, 0.98)


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Up to `price` for a GPU-hour `option` is cheaper than `rival` at its price."""

    option: str
    rival: str
    price: Quantity


@dataclass(frozen=True, slots=True)
class Swing:
    """What `cause` does to an option's total: its lowest and highest value."""

    cause: str
    low: Quantity
    high: Quantity

    @property
    def width(self) -> float:
        return (self.high.value or 0.0) - (self.low.value or 0.0)


def break_evens(asked: Sequence[Option], terms: Terms) -> tuple[BreakEven, ...]:
    """Every option against the cheapest of the others. An option needs a speed, its rival a total: at which price I
    would win can be told without knowing mine."""
    bills = {option.label: bill(option, terms) for option in asked}
    totals = {label: found["total"].value for label, found in bills.items()}
    cheapest = sorted((value, label) for label, value in totals.items() if value is not None)[:2]
    found = []
    for label, mine in bills.items():
        rival = next((other for _, other in cheapest if other != label), None)
        if rival is not None and mine["gpu_hours"].value is not None:
            found.append(BreakEven(label, rival, break_even(mine, bills[rival])))
    return tuple(found)


def break_even(mine: Bill, theirs: Bill) -> Quantity:
    """The price of a GPU-hour at which both totals are equal: what the rival costs, less my electricity, an hour.

    The interval takes the two speeds as independent: their half-widths in the logarithm add as squares.
    """
    hours, total, price = mine["gpu_hours"], theirs["total"], mine["price"]
    source = weakest(hours.source, total.source, "computed")
    if hours.value is None or total.value is None:
        return Quantity(None, price.unit, source, note="one of the totals is unknown")
    electricity = mine["electricity"].value or 0.0 if "electricity" in mine else 0.0
    level, own = total.value / hours.value, electricity / hours.value
    if level <= own:
        return Quantity(None, price.unit, source, note="at no price: its electricity alone costs more")
    halves = [_half_width(hours), _half_width(total)]
    known = [half for half in halves if half is not None]
    if len(known) < len(halves):
        return Quantity(level - own, price.unit, source, note="no interval: too few runs")
    half = math.hypot(*known)
    return Quantity(level - own, price.unit, source, (level * exp(-half) - own, level * exp(half) - own))


def _half_width(quantity: Quantity) -> float | None:
    if quantity.interval is None or quantity.interval[0] <= 0:
        return None
    return math.log(quantity.interval[1] / quantity.interval[0]) / 2


def swings(option: Option, terms: Terms) -> tuple[Swing, ...]:
    """What moves the total, the strongest first. Empty where the total is unknown."""
    total = bill(option, terms)["total"]
    if total.value is None:
        return ()
    found = []
    for cause, changed in _changes(option, terms):
        totals = sorted((bill(o, c)["total"] for o, c in changed), key=lambda found: found.value or 0.0)
        found.append(Swing(cause, totals[0], totals[-1]))
    return tuple(sorted(found, key=lambda swing: -swing.width))


def _changes(option: Option, terms: Terms) -> Iterator[tuple[str, list[tuple[Option, Terms]]]]:
    down, up = 1 - SWING, 1 + SWING
    percent = f"±{100 * SWING:g} %"
    yield f"price {percent}", [(option, replace(terms, prices=_scaled(terms, by))) for by in (down, up)]
    low, high = (replace(terms, goodput=share) for share in GOODPUT)
    yield f"goodput {100 * GOODPUT[0]:g} to {100 * GOODPUT[1]:g} %", [(option, low), (option, high)]
    speed = option.tokens_per_s_per_gpu
    if speed.interval is not None:
        ends = [replace(speed, value=end, interval=None) for end in speed.interval]
        yield "speed, over its interval", [(replace(option, tokens_per_s_per_gpu=end), terms) for end in ends]
    if terms.power_price is not None:
        both = [replace(terms, power_price=terms.power_price * by) for by in (down, up)]
        yield f"power price {percent}", [(option, changed) for changed in both]
        powers = [option.power_w_per_gpu.times(by, "W/GPU") for by in (down, up)]
        yield f"power drawn {percent}", [(replace(option, power_w_per_gpu=power), terms) for power in powers]


def _scaled(terms: Terms, by: float) -> Prices:
    amounts = {name: amount * by for name, amount in terms.prices.per_gpu_hour.items()}
    return replace(terms.prices, per_gpu_hour=amounts)
