"""The test that rehearsals compute the same thing: losses and gradient norms, step by step, from equal weights. Pure.

In one layout and precision, on one machine, they are bit-equal, or something is not the same. In two layouts sums are
taken in another order: they stay in the band of that rounding, which benchmarks/rounding.py has measured with the
embedded engine for every size that may differ (rounding.jsonl), or they are apart. What cannot be tested is not known,
and never equal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from compare.curve import Finding, Traced
from conf.facts import read_lines
from metrics import shown
from metrics.repeats import gathered
from parsers import Record
from parsers.assemble import same
from parsers.record import numbered

What = Literal["loss", "grad_norm", "gradient", "weight"]
_UNITS: Mapping[str, str] = {"loss": " nats/token"}
SIZES = {
    "TP": ("tensor_model_parallel_size", "sequence_parallel"),
    "PP": ("pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size"),
    "CP": ("context_parallel_size",),
    "DP": ("data_parallel_size",),
    "EP": ("expert_model_parallel_size",),
    "MBS": ("micro_batch_size",),
}
"""A size in which layouts may differ, and the settings by which they do."""
_PRECISION = ("params_dtype", "fp8", "fp4", "accumulate_allreduce_grads_in_fp32")
_MACHINE = ("host", "torch")
MARGIN = 4.0
"""A band is so many times the largest difference that was measured: few models and seeds are not the worst."""
_ONE_NUMBER = 2.0**-22
"""Two last bits of float32, relative: some stacks keep a gradient norm in it, others in float64."""
BEGIN_EQUAL = "cannot tell: each stack drew its own first weights; begin with equal ones (equal_init=true)"


class Rounding(Struct, frozen=True, forbid_unknown_fields=True):
    """A line of rounding.jsonl. differs: what of the layout, a key of SIZES. largest: relative differences of `what`
    up to each step, from 0. precision: params_dtype."""

    precision: str
    differs: str
    what: What
    largest: tuple[float, ...]
    source: str


ROUNDING = read_lines(Path(__file__).with_name("rounding.jsonl"), Rounding)


def trained(runs: Sequence[Traced]) -> bool:
    """Return whether the runs made steps: those that play ranks of a layout have no loss, and say so."""
    return not any("loss" in run.run.record.not_rehearsed for run in runs)


def compare_series(runs: Sequence[Traced], what: What) -> Finding:
    """Compare losses or gradient norms of rehearsals: of each seed those of all runs with the first's."""
    known = {id(run): series(run.run.record, what) for run in runs}
    if silent := next((run for run in runs if not known[id(run)]), None):
        return Finding("unknown", f"{silent.name} reports no {'loss' if what == 'loss' else 'gradient norm'}")
    by_seed = gathered((run.seed, run) for run in runs).values()
    pairs = [(same_[0], run) for same_ in by_seed for run in same_[1:]]
    findings = [_two(*pair, what, *(known[id(run)] for run in pair)) for pair in pairs]
    for state in ("apart", "unknown"):
        if those := [one for one in findings if one.state == state]:
            return min(those, key=lambda one: math.inf if one.step is None else one.step)
    if not findings:
        return Finding("unknown", "no two runs of one seed")
    return next((one for one in findings if not one.reason.startswith("bit-equal")), findings[0])


def series(record: Record, what: What) -> dict[int, float]:
    """Return step → value; nan where nan or inf was printed."""
    values = {s.step: math.nan if what in s.nonfinite else getattr(s, what) for s in numbered(record.steps)}
    return {step: value for step, value in values.items() if value is not None}


def _two(first: Traced, run: Traced, what: What, ours: Mapping[int, float], theirs: Mapping[int, float]) -> Finding:
    steps = sorted(ours.keys() & theirs.keys())
    if not steps or ours.keys() != theirs.keys():
        return Finding("unknown", f"{first.name} and {run.name} do not report it of the same steps")
    gaps = [(step, gap(ours[step], theirs[step])) for step in steps]
    exact = _ONE_NUMBER if what == "grad_norm" else 0.0
    parts = next((step for step, share in gaps if not share <= exact), None)
    if parts is None:
        alike = "bit-equal" if not any(share for _, share in gaps) else "equal to the last digits of float32"
        return Finding("equal", f"{alike} over {len(steps)} steps, seed by seed")
    records = first.run.record, run.run.record
    if (step := next((step for step, share in gaps if math.isnan(share)), None)) is not None:
        return Finding("apart", f"nan or inf in one of {first.name} and {run.name} at step {step}", step)
    where = (
        f"{run.name} is {shown(theirs[parts] - ours[parts], 3)}{_UNITS.get(what, '')} from {first.name} at step {parts}"
    )
    if why := _no_band(*records):
        return Finding("unknown", f"{where}; {why}", parts)
    return _banded(records, what, gaps, where, parts)


def _banded(
    records: tuple[Record, Record], what: What, gaps: Sequence[tuple[int, float]], where: str, parts: int
) -> Finding:
    """Return whether what parts at step `parts` stays within rounding. gaps: relative, by step."""
    sizes, machines = [*differing(*records)], _unlike(records, _MACHINE)
    if not sizes and not machines:
        return Finding("apart", f"{where}, though both are rehearsed from the same weights in one layout", parts)
    bands = [_band(records[0], size, what) for size in sizes or SIZES]
    if unknown := next((size for size, band in zip(sizes, bands, strict=False) if band is None), None):
        return Finding("unknown", f"{where}; no rounding was measured between two {unknown} in this precision", parts)
    by_step = [(step, share, MARGIN * sum(_at(band, step) for band in bands if band)) for step, share in gaps]
    if out := next((one for one in by_step if one[1] > one[2]), None):
        step, share, band = out
        what_ = f"{shown(share, 2)} of it at step {step}; rounding between {' and '.join(sizes or machines)} parts"
        return Finding("apart", f"{where}: {what_} at most {shown(band, 2)}", step)
    if machines:
        beside = f"two machines, or versions of torch, round otherwise ({', '.join(machines)})"
        return Finding("unknown", f"{where}; {beside}: rehearse both on one", parts)
    _, share, band = max(by_step, key=lambda one: one[1])
    between = f"of rounding between {' and '.join(sizes)}"
    text = f"at most {shown(share, 2)} of it apart, in a band of {shown(band, 2)} {between}"
    return Finding("equal", f"{text} ({MARGIN:g} × measured, benchmarks/rounding.py)")


def _no_band(first: Record, second: Record) -> str:
    """Return why nothing is known of how far two runs may part; empty where it is."""
    seeds = [record.environment.get("equal_init") for record in (first, second)]
    if None in seeds or seeds[0] != seeds[1]:
        return BEGIN_EQUAL
    if precision := _unlike((first, second), _PRECISION):
        return f"two precisions round otherwise ({', '.join(precision)})"
    if "CP" in differing(first, second):
        return "context parallelism is not rehearsed: a rank attends to its own part of the sequence alone"
    if "MBS" in differing(first, second) and all(record.setting("num_experts") for record in (first, second)):
        return "the balancing loss of experts is one of each micro-batch, and these are of two sizes"
    return ""


def differing(first: Record, second: Record) -> Iterator[str]:
    """Yield the sizes of the layout that two runs do not share."""
    for name, settings in SIZES.items():
        if _unlike((first, second), settings):
            yield name


def _unlike(records: tuple[Record, Record], names: Sequence[str]) -> list[str]:
    def of(record: Record, name: str) -> Any:
        known = record.environment.get(name) if name in _MACHINE else record.setting(name)
        return 1 if known in (None, False) else known

    return [name for name in names if not same(of(records[0], name), of(records[1], name))]


def _band(record: Record, differs: str, what: What) -> Rounding | None:
    key = (record.setting("params_dtype"), differs, what)
    return next((one for one in ROUNDING if (one.precision, one.differs, one.what) == key), None)


def _at(band: Rounding, step: int) -> float:
    """Return the largest difference up to a step; behind the last one measured it is that one's."""
    return band.largest[min(step, len(band.largest) - 1)]


def tolerance(first: Record, second: Record, what: What, step: int) -> float:
    """Return by which share `what` of two runs from equal weights may differ at a step: by nothing in one layout, but
    for a norm's last bits; inf where it was not measured."""
    exact = 0.0 if what == "loss" else _ONE_NUMBER
    bands = [_band(first, size, what) for size in differing(first, second)]
    return math.inf if None in bands else max(exact, MARGIN * sum(_at(band, step) for band in bands if band))


def gap(first: float, second: float) -> float:
    """Return the difference of two numbers as a share of the larger; nan where one of them is no number."""
    if first == second or (math.isnan(first) and math.isnan(second)):
        return 0.0
    return abs(second - first) / max(abs(first), abs(second))
