"""The metrics of a run. To add one: a function from Basis to Quantity, and its line in one of the tables."""

from __future__ import annotations

from typing import Any

from metrics.basis import Basis, Metrics, basis
from metrics.downtime import STOPS
from metrics.energy import ENERGY
from metrics.memory import MEMORY
from metrics.quantity import Quantity
from metrics.speed import SPEED
from metrics.utilisation import WORK
from parsers.record import Record


def summarise(record: Record) -> dict[str, Quantity]:
    """Every metric of METRICS; None where the record does not say enough.

    An estimate keeps the summary that it came with. Of any other record the summary is not believed: where its steps
    are lost, so are its figures.
    """
    known = basis(record)
    figures = {name: metric(known) for name, metric in METRICS.items()}
    if record.provenance != "estimated" or record.steps:
        return figures
    return {**figures, **{name: Quantity.from_json(entry) for name, entry in record.summary.items()}}


def summary_json(record: Record) -> dict[str, dict[str, Any]]:
    """`summarise`, as Record.summary keeps it."""
    return {name: quantity.to_json() for name, quantity in summarise(record).items()}


def _loss_first(basis: Basis) -> Quantity:
    steps = basis.record.steps
    return Quantity.of(steps[0].loss if steps else None, "nats/token", "log")


def _loss_last(basis: Basis) -> Quantity:
    steps = basis.record.steps
    return Quantity.of(steps[-1].loss if steps else None, "nats/token", "log")


LOSS: Metrics = {"loss_first": _loss_first, "loss_last": _loss_last}
METRICS: Metrics = {**SPEED, **WORK, **MEMORY, **ENERGY, **LOSS, **STOPS}
