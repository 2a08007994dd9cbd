"""Make options to train on out of runs, and the bill of each: GPU-hours, days, money, energy and CO2; the price or
power at which an option breaks even, and what moves its total the most. Pure.

An option is the repeats of one experiment on one kind of GPU, as pooled figures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from msgspec.structs import replace as changed

from conf.machine import Machine
from conf.vocabulary import short_names
from metrics.peak import device_of
from metrics.quantity import IMPOSSIBLE, Quantity, weakest
from metrics.repeats import FACTS, SEED, distinct_names, exp, experiment_key, gathered, pooled, requested_of
from metrics.rules import gpus_of
from metrics.summary import summarise
from parsers import Run
from parsers.record import Record

TRILLION = 1e12
NO_CARBON = Quantity(None, "gCO2e/kWh", "assumed", note="no carbon given")
NO_TARGET = Quantity(None, "s", "log", note="no target")
_HOURS_A_YEAR = 8760
SWING = 0.2
GOODPUT = (0.90, 0.98)
MONEY, ENERGY = "total", "energy_kwh"
"""Figures of a bill whose causes can be examined."""
Bill = Mapping[str, Quantity]


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One side of a bill. gpus: devices that the runs used. A package may be two devices; prices and power prices are
    of packages. energy_j_per_token: of the GPUs alone. It is pooled by itself, for speed and power of a run depend on
    each other. time_to_train_s: to the target of a benchmark."""

    label: str
    runs: int
    hardware: str | None
    gpus: int | None
    devices_per_package: int
    tokens_per_s_per_gpu: Quantity
    power_w_per_gpu: Quantity
    energy_j_per_token: Quantity
    time_to_train_s: Quantity = NO_TARGET


def options(runs: Sequence[Run]) -> tuple[Option, ...]:
    """Return an option for each set of repeats that completed, in the order of first runs; none of a rehearsal."""
    counted = (r for r in (run.record for run in runs) if r.status == "completed" and r.provenance != "rehearsed")
    repeats = gathered((experiment_key(record), record) for record in counted)
    labels: dict[tuple[str, ...], str] = {}
    for label, keys in gathered((_label(first), key) for key, (first, *_) in repeats.items()).items():
        names = distinct_names(len(keys), _columns([repeats[key][0] for key in keys]))
        labels |= {key: f"{label} ({name})" if name else label for key, name in zip(keys, names, strict=True)}
    return tuple(option_of(labels[key], records, [*map(summarise, records)]) for key, records in repeats.items())


def _label(first: Record) -> str:
    device = device_of(first)
    hardware = device.name if device else first.hardware
    place = f"{hardware or 'unknown GPU'} ×{gpus_of(first) or '?'}"
    return f"{first.name} {place}" + (" (estimated)" if first.provenance == "estimated" else "")


def _columns(alike: Sequence[Record]) -> Iterator[list[str]]:
    """Yield what may set options of one label apart, as each was requested: sizes, facts, then all other settings."""
    requests, shorts = [requested_of(record) for record in alike], short_names()
    yield from ([f"{short}{request.get(name)}" for request in requests] for name, short in shorts.items())
    yield from ([f"{name}={getattr(record, name)}" for record in alike] for name in FACTS)
    others = sorted({name for request in requests for name in request} - {*shorts, SEED})
    yield from ([f"{name}={request.get(name)}" for request in requests] for name in others)


def option_of(label: str, records: Sequence[Record], figures: Sequence[Mapping[str, Quantity]]) -> Option:
    """Return the option that repeats of one experiment make. figures: `summarise` of each."""
    first, device = records[0], device_of(records[0])

    def pool(name: str, unit: str) -> Quantity:
        missing = Quantity(None, unit, "assumed", note=f"no {name}")  # an estimate may lack a metric altogether
        return pooled([known.get(name, missing) for known in figures])

    speed = pool("tokens_per_s_per_gpu", "tokens/s/GPU")
    power, energy = pool("power_w_per_gpu", "W/GPU"), pool("energy_j_per_token", "J/token")
    if energy.value is None:  # as in an estimate, which has a speed alone
        energy = energy_at(speed, power)
    return Option(
        label=label,
        runs=len(records),
        hardware=device.name if device else first.hardware,
        gpus=gpus_of(first),
        devices_per_package=device.devices_per_package if device else 1,
        tokens_per_s_per_gpu=speed,
        power_w_per_gpu=power,
        energy_j_per_token=energy,
        time_to_train_s=pool("time_to_train_s", "s"),
    )


def energy_at(speed: Quantity, power: Quantity) -> Quantity:
    """Return the energy of a token on a GPU of this speed and power."""
    return speed.under(1.0, "J/token").times(power.value, "J/token", power.source, power.note)


@dataclass(frozen=True, slots=True)
class Prices:
    """Amounts of `currency` for one GPU (package) and hour, by hardware name. example: ours, not the user's. spread:
    computed from the price of bought hardware."""

    currency: str
    per_gpu_hour: Mapping[str, float] = field(default_factory=dict)
    date: str | None = None
    source: str | None = None
    example: bool = False
    spread: bool = False

    def of(self, hardware: str | None) -> Quantity:
        """Return the price of one GPU of this hardware; unknown where there is none."""
        unit, amount = f"{self.currency}/gpu-hour", self.per_gpu_hour.get(hardware or "")
        if amount is None:
            return Quantity(None, unit, "assumed", note=f"no price of {hardware or 'unknown hardware'}")
        about = " ".join(part for part in (self.date, self.source) if part)
        if self.example:
            return Quantity(amount, unit, "assumed", note=f"an example, not your price: {about}")
        return Quantity(amount, unit, "computed" if self.spread else "given", note=about)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The terms on which a job is done.

    goodput: share of the time that makes progress at the measured speed; own_goodput: the user stated it. power_price:
    of a kWh, in the currency of `prices`; None: no electricity is added, as in most rents. host_share: what hosts and
    network draw beside the GPUs, as a share of the GPUs' power. pue: power usage effectiveness of the building.
    carbon: gCO2e/kWh. embodied_kg_per_gpu_hour: CO2 of making one GPU with its share of the host, spread over the hours
    that it will work. working_hours: those hours as the user states them.
    machines: what devices were measured to achieve."""

    tokens: float
    prices: Prices
    power_price: float | None = None
    pue: float = 1.0
    host_share: float = 0.0
    goodput: float = 1.0
    own_goodput: bool = False
    carbon: Quantity = NO_CARBON
    embodied_kg_per_gpu_hour: float | None = None
    working_hours: float | None = None
    machines: tuple[Machine, ...] = ()


def hours_at_work(years: float, utilisation: float) -> float:
    """Return the hours over which bought hardware is spread. utilisation: 0 to 1."""
    return years * _HOURS_A_YEAR * utilisation


def owned(capex: Prices, years: float, utilisation: float) -> Prices:
    """Return prices of bought hardware: its price spread over the hours that it works. utilisation: 0 to 1."""
    hours = hours_at_work(years, utilisation)
    how = f"bought for {years:g} years, {100 * utilisation:g} % of them at work; electricity apart"
    return Prices(
        capex.currency, {name: amount / hours for name, amount in capex.per_gpu_hour.items()}, None, how, spread=True
    )


def bill(option: Option, terms: Terms) -> Bill:
    """Return everything about the job on this option. A figure made of an unknown one is unknown."""
    working_s = terms.tokens / terms.goodput
    # Of packages: those are bought and rented.
    hours = option.tokens_per_s_per_gpu.under(working_s / 3600 / option.devices_per_package, "GPU-hours")
    hours = hours.times(1, "GPU-hours", "computed")
    # While the GPUs work on the job, stops included: they are paid for and draw power then, too.
    kwh_per_joule = working_s * (1 + terms.host_share) * terms.pue / 3.6e6
    kwh = option.energy_j_per_token.times(kwh_per_joule, "kWh", "computed", option.energy_j_per_token.note)
    speed = option.tokens_per_s_per_gpu
    if gpus := option.gpus:
        days = speed.under(working_s / 86400 / gpus, "days")
        packages = -(-gpus // option.devices_per_package)
        on = f"on {packages:,} GPU{'s' if packages > 1 else ''}{f' ({gpus:,} dies)' if gpus > packages else ''}"
        days = days.times(1, "days", "computed", on)
    else:
        days = Quantity(None, "days", speed.source, note="number of GPUs unknown")
    return {
        "tokens_per_s_per_gpu": speed,
        "gpu_hours": hours,
        "days": days,
        **_energy(option, terms, kwh),
        **_money(option, terms, hours, kwh),
        **_carbon(terms, hours, kwh),
    }


def _whose(terms: Terms, *notes: str) -> str:
    """Return whose energy a bill counts, for a run's own figures are of its GPUs at work alone; behind it `notes`."""
    host = f"hosts {100 * terms.host_share:g} % on top" if terms.host_share else "GPUs alone"
    lost = f", goodput {100 * terms.goodput:.3g} %" if terms.goodput < 1 else ""
    return "; ".join(filter(None, (f"{host}, PUE {terms.pue:g}{lost}", *notes)))


def _energy(option: Option, terms: Terms, kwh: Quantity) -> Bill:
    note = kwh.note if kwh.missing == IMPOSSIBLE else _whose(terms, kwh.note)
    return {
        "power_w_per_gpu": option.power_w_per_gpu,
        "energy_kwh": changed(kwh, note=note),
        "energy_mwh": kwh.times(1e-3, "MWh", note=note),
        "energy_j_per_token": (joules := kwh.times(3.6e6 / terms.tokens, "J/token", note=note)),
        "tokens_per_wh": joules.under(3600, "tokens/Wh", note),
    }


def _money(option: Option, terms: Terms, hours: Quantity, kwh: Quantity) -> Bill:
    currency, price = terms.prices.currency, terms.prices.of(option.hardware)
    total = hours.times(price.value, currency, price.source, price.note)
    parts = {"price": price, "gpus": total}
    if terms.power_price is not None:
        parts["electricity"] = kwh.times(terms.power_price, currency, note=_whose(terms))
        total = total.plus(parts["electricity"])
    if option.gpus and option.time_to_train_s.value is not None:  # as sure as the number of GPUs in the speed
        packages, source = option.gpus / option.devices_per_package, option.tokens_per_s_per_gpu.source
        taken = option.time_to_train_s.times(packages / 3600, "GPU-hours", weakest("computed", source))
        parts["cost_to_target"] = taken.times(price.value, currency, price.source, price.note)
    guesses = [price.note if price.source == "assumed" else ""]
    guesses += [option.energy_j_per_token.note] if total.source == "assumed" and "electricity" in parts else []
    note = "; ".join(filter(None, guesses))
    total = changed(total, note=total.note or note)
    per_trillion = total.times(TRILLION / terms.tokens, f"{currency}/1e12 tokens", note=note)
    each = total.under(terms.tokens, f"tokens/{currency}", note)
    return {**parts, "total": total, "cost_per_trillion_tokens": per_trillion, "tokens_per_currency": each}


def _carbon(terms: Terms, hours: Quantity, kwh: Quantity) -> Bill:
    grams = terms.carbon
    factor, note = (None, grams.note) if grams.value is None else (grams.value / 1e6, _whose(terms, grams.note))
    tonnes = kwh.times(factor, "tCO2e", grams.source, note)
    if terms.embodied_kg_per_gpu_hour is None:
        return {"carbon_t": tonnes}
    made = hours.times(terms.embodied_kg_per_gpu_hour / 1000, "tCO2e", "assumed")
    return {"carbon_t": tonnes, "carbon_embodied_t": made, "carbon_total_t": tonnes.plus(made)}


# A figure of a bill, and its name among the figures of a run, whose energy_j_per_token is its GPUs' alone.
_NAMES: Mapping[str, str] = {
    "days": "training_days",
    "gpu_hours": "training_gpu_hours",
    "energy_kwh": "training_energy_kwh",
    "carbon_t": "training_carbon_t",
    "carbon_total_t": "training_carbon_total_t",
    "price": "price",
    "total": "training_cost",
    "cost_to_target": "cost_to_target",
    "cost_per_trillion_tokens": "cost_per_trillion_tokens",
    "tokens_per_currency": "tokens_per_currency",
}
_MISSING = {
    "carbon_total_t": Quantity(None, "tCO2e", "assumed", note="no embodied_kg given"),
    "cost_to_target": Quantity(None, "", "assumed", note="no target was reached, or the number of GPUs is unknown"),
}


def priced(record: Record, figures: Mapping[str, Quantity], terms: Terms) -> dict[str, Quantity]:
    """Return `figures` (of `summarise`) with money, time, energy and CO2 of a training on `terms` at their speed."""
    bill_of_run = {**_MISSING, **bill(option_of(record.name, [record], [figures]), terms)}
    return {**figures, **{name: bill_of_run[key] for key, name in _NAMES.items()}}


class BreakEven(NamedTuple):
    """Up to `up_to`, its price of a GPU-hour or its power, `option` takes less than `rival` at its own."""

    option: str
    rival: str
    up_to: Quantity


class Swing(NamedTuple):
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
        return Quantity(None, unit, source, note=f"one of the {'totals' if of == MONEY else 'energies'} is unknown")
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
        cause: sorted((bill(o, on)[of] for o, on in varied), key=lambda end: end.value or 0.0)
        for cause, varied in _changes(option, terms)
    }
    moved = [swing for cause, (low, high) in ends.items() if (swing := Swing(cause, low, high)).width > 0]
    return tuple(sorted(moved, key=lambda swing: -swing.width))


def _changes(option: Option, terms: Terms) -> Iterator[tuple[str, list[tuple[Option, Terms]]]]:
    speed, joules, both = option.tokens_per_s_per_gpu, option.energy_j_per_token, (1 - SWING, 1 + SWING)
    percent = f"±{100 * SWING:g} %"
    table = terms.prices.per_gpu_hour
    prices = [replace(terms.prices, per_gpu_hour={name: each * by for name, each in table.items()}) for by in both]
    yield f"price {percent}", [(option, replace(terms, prices=varied)) for varied in prices]
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
    energy = changed(joules.times((was.value or 0.0) / speed, joules.unit, note=joules.note), interval=None)
    return replace(option, tokens_per_s_per_gpu=changed(was, value=speed, interval=None), energy_j_per_token=energy)
