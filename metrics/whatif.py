"""Compute the price or power at which an option breaks even, and what moves its total the most. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from metrics.bill import Bill, Option, Terms, bill
from metrics.quantity import Quantity, Source, weakest
from metrics.repeats import exp

SWING = 0.2
GOODPUT = (0.90, 0.98)
MONEY, ENERGY = "total", "energy_kwh"
"""Figures of a bill whose causes can be examined."""


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Up to `up_to`, its price of a GPU-hour or its power, `option` takes less than `rival` at its own."""

    option: str
    rival: str
    up_to: Quantity


@dataclass(frozen=True, slots=True)
class Swing:
    """The effect of `cause` on a figure of an option: its lowest and highest value."""

    cause: str
    low: Quantity
    high: Quantity

    @property
    def width(self) -> float:
        return (self.high.value or 0.0) - (self.low.value or 0.0)


def break_evens(options: Sequence[Option], terms: Terms, of: str = MONEY) -> tuple[BreakEven, ...]:
    """Compare every option with the one of the others that takes least. An option needs a speed, its rival a total; its
    own price or power may be unknown."""
    bills = {option.label: bill(option, terms) for option in options}
    known = sorted((value, label) for label, figures in bills.items() if (value := figures[of].value) is not None)
    evens = []
    for option in options:
        rival = next((label for _, label in known[:2] if label != option.label), None)
        if rival is not None and bills[option.label]["gpu_hours"].value is not None:
            meet = break_even if of == MONEY else power_break_even
            evens.append(BreakEven(option.label, rival, meet(option, bills[rival], terms)))
    return tuple(evens)


def break_even(option: Option, theirs: Bill, terms: Terms) -> Quantity:
    """Return the price of a GPU-hour at which both totals are equal: of the rival's total, less my electricity."""
    mine, total = bill(option, terms), theirs[MONEY]
    hours, unit = mine["gpu_hours"], mine["price"].unit
    source = weakest(hours.source, total.source, "computed")
    if hours.value is None or total.value is None:
        return Quantity(None, unit, source, note="one of the totals is unknown")
    electricity = mine["electricity"].value or 0.0 if "electricity" in mine else 0.0
    level, own = total.value / hours.value, electricity / hours.value
    if level <= own:
        return Quantity(None, unit, source, note="at no price: its electricity alone costs more")
    return _of_both(level, own, unit, source, (hours, total))


def power_break_even(option: Option, theirs: Bill, terms: Terms) -> Quantity:
    """Return the mean power of one of my GPUs at which both take the same energy, W."""
    one_watt = replace(option, energy_j_per_token=option.tokens_per_s_per_gpu.under(1.0, "J/token"))
    mine, kwh = bill(one_watt, terms)[ENERGY], theirs[ENERGY]
    source = weakest(mine.source, kwh.source, "computed")
    if not mine.value or kwh.value is None:
        return Quantity(None, "W/GPU", source, note="one of the energies is unknown")
    return _of_both(kwh.value / mine.value, 0.0, "W/GPU", source, (mine, kwh))


def _of_both(level: float, own: float, unit: str, source: Source, both: Sequence[Quantity]) -> Quantity:
    """Return `level` less `own`. The two are taken as independent: logarithmic half-widths add as squares."""
    ends = [quantity.interval for quantity in both if quantity.interval and quantity.interval[0] > 0]
    if len(ends) < len(both):
        return Quantity(level - own, unit, source, note="no interval: too few runs")
    half = math.hypot(*(math.log(high / low) / 2 for low, high in ends))
    return Quantity(level - own, unit, source, (level * exp(-half) - own, level * exp(half) - own))


def swings(option: Option, terms: Terms, of: str = MONEY) -> tuple[Swing, ...]:
    """Return what moves a figure of the bill, the strongest first. Empty where the figure is unknown."""
    if bill(option, terms)[of].value is None:
        return ()
    swings_of = []
    for cause, changed in _changes(option, terms):
        ends = sorted((bill(o, on)[of] for o, on in changed), key=lambda end: end.value or 0.0)
        swings_of.append(Swing(cause, ends[0], ends[-1]))
    return tuple(sorted((swing for swing in swings_of if swing.width > 0), key=lambda swing: -swing.width))


def _changes(option: Option, terms: Terms) -> Iterator[tuple[str, list[tuple[Option, Terms]]]]:
    down, up = 1 - SWING, 1 + SWING
    percent = f"±{100 * SWING:g} %"
    prices = terms.prices
    amounts = [{name: amount * by for name, amount in prices.per_gpu_hour.items()} for by in (down, up)]
    scaled = [replace(terms, prices=replace(prices, per_gpu_hour=table)) for table in amounts]
    yield f"price {percent}", [(option, changed) for changed in scaled]
    low, high = (replace(terms, goodput=share) for share in GOODPUT)
    yield f"goodput {100 * GOODPUT[0]:g} to {100 * GOODPUT[1]:g} %", [(option, low), (option, high)]
    speed, joules = option.tokens_per_s_per_gpu, option.energy_j_per_token
    if speed.interval is not None:
        yield "speed, over its interval", [(_at_speed(option, end), terms) for end in speed.interval]
    if terms.power_price is not None:
        both = [replace(terms, power_price=terms.power_price * by) for by in (down, up)]
        yield f"power price {percent}", [(option, changed) for changed in both]
    drawn = [joules.times(by, joules.unit, note=joules.note) for by in (down, up)]
    yield f"power drawn {percent}", [(replace(option, energy_j_per_token=energy), terms) for energy in drawn]


def _at_speed(option: Option, speed: float) -> Option:
    """Return the option at another speed, its GPUs drawing as much power as before."""
    was, joules = option.tokens_per_s_per_gpu, option.energy_j_per_token
    energy = replace(joules.times((was.value or 0.0) / speed, joules.unit, note=joules.note), interval=None)
    return replace(option, tokens_per_s_per_gpu=replace(was, value=speed, interval=None), energy_j_per_token=energy)
