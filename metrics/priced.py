"""What a training would take at one run's own speed, on the user's terms: figures like those that `summarise` makes."""

from __future__ import annotations

from collections.abc import Mapping

from metrics.bill import Terms, bill
from metrics.options import option_of
from metrics.quantity import Quantity
from parsers.record import Record

# In a bill, and among the figures of a run, whose energy_j_per_token is its GPUs' alone.
_NAMES: Mapping[str, str] = {
    "days": "training_days",
    "gpu_hours": "training_gpu_hours",
    "energy_kwh": "training_energy_kwh",
    "carbon_t": "training_carbon_t",
    "carbon_total_t": "training_carbon_total_t",
    "price": "price",
    "total": "training_cost",
    "cost_per_trillion_tokens": "cost_per_trillion_tokens",
    "tokens_per_currency": "tokens_per_currency",
}
_NOT_ASKED = {"carbon_total_t": Quantity(None, "tCO2e", "assumed", note="no --embodied-kg given")}


def priced(record: Record, figures: Mapping[str, Quantity], terms: Terms) -> dict[str, Quantity]:
    """`figures` (of `summarise`), and with them money, time, energy and CO2 of a training on `terms`."""
    found = {**_NOT_ASKED, **bill(option_of(record.name, [record], [figures]), terms)}
    return {**figures, **{name: found[key] for key, name in _NAMES.items()}}
