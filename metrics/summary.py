"""The metrics of a run. To add one: a function from Basis to Quantity, and its line in one of the tables."""

from __future__ import annotations

from typing import Any

from metrics.basis import Basis, Metric, Metrics, basis
from metrics.downtime import STOPS
from metrics.energy import ENERGY
from metrics.memory import MEMORY
from metrics.quantity import Quantity
from metrics.speed import SPEED
from metrics.utilisation import WORK
from parsers.record import Record


def summarise(record: Record) -> dict[str, Quantity]:
    """Return every metric of METRICS; its value is None where the record does not say enough.

    An estimate keeps its own summary. That of any other record is not trusted: without its steps it has no figures.
    """
    known = basis(record)
    figures = {name: metric(known) for name, metric in METRICS.items()}
    if record.provenance != "estimated" or record.steps:
        return figures
    return {**figures, **{name: Quantity.from_json(entry) for name, entry in record.summary.items()}}


def summary_json(record: Record) -> dict[str, dict[str, Any]]:
    """Return `summarise` as Record.summary has it."""
    return {name: quantity.to_json() for name, quantity in summarise(record).items()}


def _loss_at(place: int) -> Metric:
    def metric(basis: Basis) -> Quantity:
        steps = basis.record.steps
        return Quantity.of(steps[place].loss if steps else None, "nats/token", "log")

    return metric


LOSS: Metrics = {"loss_first": _loss_at(0), "loss_last": _loss_at(-1)}
METRICS: Metrics = {**SPEED, **WORK, **MEMORY, **ENERGY, **LOSS, **STOPS}
