"""A training from its first token to its last, on each of several candidates: the layout that a search finds, what
failures and checkpoints leave of its speed, the bill, and how both go on with more GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import exp, expm1, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from conf.check import divisors
from conf.errors import blamed
from conf.mlperf import benchmarks
from conf.resolve import Experiment
from conf.schema import Request
from conf.shapes import count
from conf.vocabulary import read_yaml
from estimate.experiment import columns_of
from estimate.figures import Estimate, duration, gpus_of
from estimate.fitted import Parameters
from estimate.jobs import GB, Jobs
from estimate.predict import predict
from estimate.search import Search
from metrics.bill import Bill, Terms, bill, hours_at_work
from metrics.quantity import Quantity, shown

TABLE = Path(__file__).with_name("training_plan.yaml")
MOST_GPUS = 100_000
_HOUR_S = 3600.0
_STATE_BYTES = 14  # of a parameter in a checkpoint: bf16, its fp32 copy, two moments; 12 where parameters are fp32


class Interruptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Unexpected interruptions of a published training."""

    count: int
    days: float
    gpus: int
    source: str

    @property
    def mtbf_gpu_hours(self) -> float:
        """Return the GPU-hours between two of them."""
        return self.gpus * self.days * 24 / self.count


class Storage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The storage of a published cluster."""

    bytes_per_s: float
    gpus: int
    source: str


class Embodied(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """CO2 of making GPUs with their boards, kg by hardware, and of a GPU's share of its host; the years of work over
    which both are spread."""

    board_kg_per_gpu: dict[str, float]
    host_kg_per_gpu: float
    years: float
    source: str


class Assumptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table. restart_s: from a failure to the first step behind it."""

    interruptions: Interruptions
    storage: Storage
    restart_s: float
    embodied: Embodied


class Checkpoints(NamedTuple):
    """Checkpoints of a training. save_s: of one checkpoint, in which nothing is trained. goodput: the share of the
    time that makes progress."""

    mtbf_s: float
    save_s: float
    interval_s: float
    goodput: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A training on one candidate. figures: of a bill, with the goodput that failures leave. to_target: the time to
    the target of a benchmark, unknown where nobody published how many samples it takes."""

    estimate: Estimate
    checkpoints: Checkpoints
    figures: Bill
    to_target: Quantity


class Point(NamedTuple):
    """A number of GPUs on a scaling curve: tokens/s/GPU of the steps, and with what failures leave."""

    gpus: int
    tokens_per_s_per_gpu: float
    goodput: float
    global_batch_size: int

    @property
    def tokens_per_s(self) -> float:
        """Return those of all GPUs that make progress."""
        return self.gpus * self.tokens_per_s_per_gpu * self.goodput


@cache
def assumptions() -> Assumptions:
    """Return the table. ConfigError: it is not as its head says."""
    with blamed(f"estimate/{TABLE.name}", "cannot be used"):
        return msgspec.convert(read_yaml(TABLE), Assumptions, strict=False)


def checkpoints(state_bytes: float, gpus: int, known: Assumptions | None = None) -> Checkpoints:
    """Return how a training on `gpus` saves itself best: every sqrt(2 C M) seconds, of a checkpoint that takes C and
    failures M apart (Young 1974, CACM 17(9); Daly 2006, FGCS 22(3)). Goodput by Daly's model of failures at random
    times: t / (M exp(R/M) (exp((t + C)/M) - 1)), of an interval t and a restart R."""
    table = known or assumptions()
    mtbf_s = table.interruptions.mtbf_gpu_hours * _HOUR_S / gpus
    save_s = state_bytes / (table.storage.bytes_per_s * gpus / table.storage.gpus)
    interval_s = sqrt(2 * save_s * mtbf_s)
    goodput = interval_s / (mtbf_s * exp(table.restart_s / mtbf_s) * expm1((interval_s + save_s) / mtbf_s))
    return Checkpoints(mtbf_s, save_s, interval_s, goodput)


def state_bytes(e: Experiment | Request) -> float:
    """Return the bytes of a checkpoint, each parameter and state once."""
    parts = count(e.model)
    half = e.precision.params_dtype == "bfloat16"
    return float((_STATE_BYTES if half else 12) * (parts.total + parts.mtp))


def plans(found: Search, terms: Terms) -> tuple[Plan, ...]:
    """Return the training on the best layout of each candidate that was searched, the best first. A goodput that
    `terms` state counts in place of ours."""
    return tuple(plan_of(one.estimate, terms) for one in sorted(found.of_each, key=lambda one: one.score))


def goodput_of(terms: Terms) -> Callable[[Request], float]:
    """Return what gives the share of a training's time that makes progress: the user's own, or what failures leave."""
    if terms.own_goodput:
        return lambda _: terms.goodput
    return lambda request: _saved(request, request.world_size).goodput


def _saved(of: Experiment | Request, world_size: int) -> Checkpoints:
    return checkpoints(state_bytes(of), -(-world_size // of.hardware.devices_per_package))


def plan_of(estimate: Estimate, terms: Terms) -> Plan:
    """Return the training of one prediction."""
    e = estimate.experiment
    saved = _saved(e, e.layout.world_size)
    goodput = terms.goodput if terms.own_goodput else saved.goodput
    table, made = assumptions().embodied, terms.embodied_kg_per_gpu_hour
    board_kg = table.board_kg_per_gpu.get(e.hardware.name) if made is None else None
    hours = terms.working_hours or hours_at_work(table.years, 1.0)
    if board_kg is not None:
        made = (board_kg + table.host_kg_per_gpu) / hours
    figures = dict(bill(estimate.option, replace(terms, goodput=goodput, embodied_kg_per_gpu_hour=made)))
    if board_kg is not None and "carbon_embodied_t" in figures:
        said = f"{board_kg:g} kg of a GPU with its board, published, and {table.host_kg_per_gpu:g} of its host, assumed"
        note = f"{said}, over {shown(hours)} hours at work (estimate/training_plan.yaml)"
        figures["carbon_embodied_t"] = msgspec.structs.replace(figures["carbon_embodied_t"], note=note)
    return Plan(estimate=estimate, checkpoints=saved, figures=figures, to_target=_to_target(estimate, goodput))


def _to_target(estimate: Estimate, goodput: float) -> Quantity:
    """Return the days to the target of the pretraining benchmark of this model, by the samples that published runs took
    at the batch nearest to this one; else why they are unknown."""
    e, speed = estimate.experiment, estimate.figures["tokens_per_s_per_gpu"]
    model, length, batch = e.model.name, e.training.seq_length, e.training.global_batch_size
    of_model = [one for one in benchmarks().values() if one.conf_model == model and one.task == "pretraining"]
    lengths = sorted({one.seq_length for one in of_model if one.seq_length})
    one = next((one for one in of_model if one.seq_length == length), None)
    known = one.samples_to_target if one else {}
    nearest = min(known, key=lambda size: abs(np.log(size / batch)), default=0)
    if one and 0.5 <= nearest / batch <= 2:
        took = f"{known[nearest]:,} samples as runs of MLPerf took at batch {nearest:,}, without evaluations"
        note = f"{one.model}: to {one.target}, {took}; {one.dataset}"
        return speed.under(known[nearest] * length / goodput / e.layout.world_size / 86400, "days", note)
    if one and known:
        batches = f"{min(known):,} to {max(known):,}" if len(known) > 1 else f"{nearest:,}"
        why = f"a batch of {batch:,} is beyond a factor of 2 of those that runs of MLPerf had, {batches}"
        why = f"{why}: training.global_batch_size={nearest}"
    elif one:
        why = f"nobody published how many samples {model} takes to the {one.target} of MLPerf"
    elif lengths:
        why = f"MLPerf trains {model} at {lengths[0]:,} tokens a sequence: training.seq_length={lengths[0]}"
    else:
        why = f"MLPerf trains no {model} to a target"
    return Quantity(None, "days", speed.source, note=why)


def scaling(
    e: Experiment, weak: bool, parameters: Parameters | None = None, goodput: float | None = None
) -> tuple[Point, ...]:
    """Return the curve from the GPUs of `e` to MOST_GPUS: weak with as many sequences a GPU, doubling DP, the last a
    part of that; strong with the batch of `e`, on all multiples of its GPUs over which it divides. The layout stays.
    goodput: the user's own, at any number of GPUs; None: by failures."""
    layout, batch = e.layout, e.training.global_batch_size
    columns = columns_of(e)
    most = max(MOST_GPUS // layout.world_size, 1)
    times = sorted({most} | {2**n for n in range(18) if 2**n <= most})
    if not weak:
        unit = layout.pipeline_model_parallel_size if (layout.virtual_pipeline_model_parallel_size or 1) > 1 else 1
        times = [n for n in divisors(layout.num_micro_batches // unit) if n <= most]
    factors = np.array(times, dtype=float)
    batches = batch * factors if weak else np.full(len(times), float(batch))
    grown = {"data_parallel_size": layout.data_parallel_size * factors, "global_batch_size": batches}
    jobs = Jobs(**{name: np.asarray(value) for name, value in columns.items()} | grown)
    seconds = predict(jobs, parameters).step_time_s
    return tuple(
        _point(e, n, (float(size), float(s)), goodput) for n, size, s in zip(times, batches, seconds, strict=True)
    )


def _point(e: Experiment, times: int, work: tuple[float, float], own: float | None) -> Point:
    """Return the point of `times` as many GPUs. work: sequences of a step, and its seconds."""
    batch, seconds = work
    gpus = e.layout.world_size * times
    speed = batch * e.training.seq_length / seconds / gpus
    return Point(gpus, speed, _saved(e, gpus).goodput if own is None else own, int(batch))


_FIGURES = (
    *("gpu_hours", "days", "price", "electricity", "total", "energy_mwh"),
    *("carbon_t", "carbon_embodied_t", "carbon_total_t"),
)
_COLUMN = 24


def lines(made: Sequence[Plan], terms: Terms) -> Iterator[str]:
    """Yield the plans as people read them, and the scaling of the best."""
    for plan in made:
        e, saved = plan.estimate.experiment, plan.checkpoints
        yield f"{e.model.name} on {gpus_of(e)}, {e.layout}: {terms.tokens:g} tokens"
        yield f"  {'goodput':<{_COLUMN}}{_goodput(saved, terms)}"
        yield from (f"  {name:<{_COLUMN}}{_figure(plan.figures[name])}" for name in _FIGURES if name in plan.figures)
        if "carbon_t" in plan.figures and "carbon_embodied_t" not in plan.figures:
            unknown = f"unknown: nobody states what making one {e.hardware.name} took; embodied_kg="
            yield f"  {'carbon_embodied_t':<{_COLUMN}}{unknown}"
        yield f"  {'time to a target loss':<{_COLUMN}}{_figure(plan.to_target)}"
        yield ""
    for weak in (True, False):
        points = scaling(made[0].estimate.experiment, weak, made[0].estimate.parameters, _own_goodput(terms))
        batch = "the batch grows with the GPUs" if weak else f"{points[0].global_batch_size:,} sequences a step"
        yield f"{'weak' if weak else 'strong'} scaling of the first, {batch}"
        yield f"  {'GPUs':>8} {'tokens/s/GPU':>13} {'goodput':>8} {'tokens/s that progress':>23} {'efficiency':>11}"
        first = points[0].tokens_per_s / points[0].gpus
        for point in points:
            share = 100 * point.tokens_per_s / point.gpus / first
            speeds = (
                f"{shown(point.tokens_per_s_per_gpu):>13} {100 * point.goodput:>6.1f} % {shown(point.tokens_per_s):>23}"
            )
            yield f"  {point.gpus:>8,} {speeds} {share:>9.1f} %"
        if not weak and 2 * points[-1].gpus <= MOST_GPUS:
            yield "  this batch divides over no more GPUs in this layout: a larger training.global_batch_size does"
        yield ""
    yield from _sources()


def _own_goodput(terms: Terms) -> float | None:
    return terms.goodput if terms.own_goodput else None


def _goodput(saved: Checkpoints, terms: Terms) -> str:
    if terms.own_goodput:
        return f"{100 * terms.goodput:g} % as given"
    every = f"a failure every {duration(saved.mtbf_s)}, a checkpoint of {duration(saved.save_s)}"
    return f"{100 * saved.goodput:.1f} %: {every} every {duration(saved.interval_s)}"


def _sources() -> Iterator[str]:
    table = assumptions()
    hours, rate = table.interruptions.mtbf_gpu_hours, table.storage.bytes_per_s / table.storage.gpus / GB
    yield f"failures: {shown(hours)} GPU-hours between two: {table.interruptions.source}"
    yield f"checkpoints: {shown(rate, 3)} GB/s a GPU, assumed: {table.storage.source}"
    yield f"interval: sqrt(2 C M) (Young 1974; Daly 2006); a restart of {table.restart_s:g} s is assumed"


def _figure(quantity: Quantity) -> str:
    if quantity.value is None:
        return f"unknown: {quantity.note}".rstrip(": ")
    low, high = quantity.interval or (None, None)
    ends = f" ({shown(low, 3)} to {shown(high, 3)})" if quantity.interval else ""
    return f"{f'{quantity}{ends}':<43} {quantity.note}".rstrip()


def to_json(made: Sequence[Plan], terms: Terms) -> dict[str, Any]:
    """Return plans and the scaling of the first as plain data."""
    first, own = made[0].estimate, _own_goodput(terms)
    plans_ = [
        {
            "layout": str(plan.estimate.experiment.layout),
            "hardware": plan.estimate.experiment.hardware.name,
            "gpus": plan.estimate.experiment.layout.world_size,
            "checkpoints": plan.checkpoints._asdict(),
            "figures": {name: quantity.to_json() for name, quantity in plan.figures.items()},
            "to_target": plan.to_target.to_json(),
        }
        for plan in made
    ]
    curves = {
        name: [point._asdict() for point in scaling(first.experiment, name == "weak", first.parameters, own)]
        for name in ("weak", "strong")
    }
    return {"plans": plans_, "scaling": curves, "assumptions": msgspec.to_builtins(assumptions())}
