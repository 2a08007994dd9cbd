"""Compute the price or power at which an option breaks even, and what moves its total the most. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from metrics.bill import Option, Terms, bill
from metrics.quantity import Quantity, weakest
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
            evens.append(BreakEven(option.label, rival, _level(option, bills[rival][of], terms, of)))
    return tuple(evens)


def _level(option: Option, theirs: Quantity, terms: Terms, of: str) -> Quantity:
    """Return the price of a GPU-hour at which both totals are equal: of the rival's total, less my electricity; else
    the mean power of one of my GPUs at which both take the same energy, W."""
    own, unit = 0.0, "W/GPU"
    if of == MONEY:
        mine = bill(option, terms)
        each, unit = mine["gpu_hours"], mine["price"].unit
        if "electricity" in mine and each.value:
            own = (mine["electricity"].value or 0.0) / each.value
    else:
        one_watt = option.tokens_per_s_per_gpu.under(1.0, "J/token")
        each = bill(replace(option, energy_j_per_token=one_watt), terms)[ENERGY]
    source = weakest(each.source, theirs.source, "computed")
    if not each.value or theirs.value is None:
        what = "totals" if of == MONEY else "energies"
        return Quantity(None, unit, source, note=f"one of the {what} is unknown")
    level = theirs.value / each.value
    if of == MONEY and level <= own:
        return Quantity(None, unit, source, note="at no price: its electricity alone costs more")
    ends = [quantity.interval for quantity in (each, theirs) if quantity.interval and quantity.interval[0] > 0]
    if len(ends) < 2:
        return Quantity(level - own, unit, source, note="no interval: too few runs")
    # The two are taken as independent: logarithmic half-widths add as squares.
    half = math.hypot(*(math.log(high / low) / 2 for low, high in ends))
    return Quantity(level - own, unit, source, (level * exp(-half) - own, level * exp(half) - own))


def swings(option: Option, terms: Terms, of: str = MONEY) -> tuple[Swing, ...]:
    """Return what moves a figure of the bill, the strongest first. Empty where the figure is unknown."""
    if bill(option, terms)[of].value is None:
        return ()
    ends = {
        cause: sorted((bill(o, on)[of] for o, on in changed), key=lambda end: end.value or 0.0)
        for cause, changed in _changes(option, terms)
    }
    moved = [swing for cause, (low, high) in ends.items() if (swing := Swing(cause, low, high)).width > 0]
    return tuple(sorted(moved, key=lambda swing: -swing.width))


def _changes(option: Option, terms: Terms) -> Iterator[tuple[str, list[tuple[Option, Terms]]]]:
    speed, joules, both = option.tokens_per_s_per_gpu, option.energy_j_per_token, (1 - SWING, 1 + SWING)
    percent = f"±{100 * SWING:g} %"
    table = terms.prices.per_gpu_hour
    prices = [replace(terms.prices, per_gpu_hour={name: each * by for name, each in table.items()}) for by in both]
    yield f"price {percent}", [(option, replace(terms, prices=changed)) for changed in prices]
    low, high = GOODPUT
    yield f"goodput {100 * low:g} to {100 * high:g} %", [(option, replace(terms, goodput=share)) for share in GOODPUT]
    if speed.interval is not None:
        yield "speed, over its interval", [(_at_speed(option, end), terms) for end in speed.interval]
    if terms.power_price is not None:
        yield f"power price {percent}", [(option, replace(terms, power_price=terms.power_price * by)) for by in both]
    drawn = [joules.times(by, joules.unit, note=joules.note) for by in both]
    yield f"power drawn {percent}", [(replace(option, energy_j_per_token=energy), terms) for energy in drawn]


def _at_speed(option: Option, speed: float) -> Option:
    """Return the option at another speed, its GPUs drawing as much power as before."""
    was, joules = option.tokens_per_s_per_gpu, option.energy_j_per_token
    energy = replace(joules.times((was.value or 0.0) / speed, joules.unit, note=joules.note), interval=None)
    return replace(option, tokens_per_s_per_gpu=replace(was, value=speed, interval=None), energy_j_per_token=energy)
