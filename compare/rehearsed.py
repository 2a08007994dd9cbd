"""The test that rehearsals compute the same thing: losses and gradient norms, step by step, from equal weights. Pure.

In one layout and precision, on one machine, by one code of the model, they are bit-equal, or something is not the same.
Two codes of one model round otherwise: by how much is said of each pair (compare/codes.py). In two layouts sums are
taken in another order: they stay in the band of that rounding, which benchmarks/rounding.py has measured with the
embedded engine for every size that may differ (rounding.jsonl), or they are apart. What cannot be tested is not known,
and never equal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from msgspec import Struct

from compare.codes import Pair, What, code_of, pair_of, precision_of, share
from compare.curve import Finding, Traced
from compare.draws import FAMILY_ERROR, PAIRS, drawn_apart
from compare.losses import FAR_SHARE
from conf.errors import some
from conf.facts import read_lines
from metrics import shown
from metrics.repeats import gathered
from parsers import Record
from parsers.assemble import same
from parsers.read_back import Batch, ReadBack, Tensor
from parsers.record import numbered
from parsers.software import software

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
MARGIN = 4.0
"""A band is so many times the largest difference that was measured: few models and seeds are not the worst."""
_UNIT = 2.0**-24
"""The unit roundoff of float32, in which norms are kept."""
SUMMED = 8 * _UNIT
"""By which share a norm may differ whose sum, or those that its tensor is made of, are taken in another order. Where a
band was measured to be 0, another processor, on which the ranks of one layout have more threads, had 1.01 units."""
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


@cache
def machine_names() -> Mapping[str, tuple[str, ...]]:
    """Return the facts that decide how a CPU rounds, and the names that records have for each."""
    return {"host": ("host",), "torch": software()["torch"].names}


def trained(runs: Sequence[Traced]) -> bool:
    """Return whether the runs made steps: those that play ranks of a layout have no loss, and say so."""
    return not any("loss" in run.run.record.not_rehearsed for run in runs)


def strictly(runs: Sequence[Traced]) -> Iterator[tuple[str, Finding]]:
    """Yield each check of rehearsals by its name, in the order of a step."""
    yield "readings", compare_readings(runs)
    yield "initialisation", compare_draws(runs)
    yield "first_weights", compare_tensors(runs, "first_weights")
    yield "inputs", compare_inputs(runs)
    yield "loss", compare_series(runs, "loss")
    yield "first_gradients", compare_tensors(runs, "first_gradients")
    yield "grad_norm", compare_series(runs, "grad_norm")
    yield "last_weights", compare_tensors(runs, "last_weights")


def compare_series(runs: Sequence[Traced], what: What) -> Finding:
    """Compare losses or gradient norms of rehearsals: of each seed those of all runs with the first's."""
    known = {id(run): series(run.run.record, what) for run in runs}
    if silent := next((run for run in runs if not known[id(run)]), None):
        return Finding("unknown", f"{silent.name} reports no {'loss' if what == 'loss' else 'gradient norm'}")
    return _first([_two(*pair, what, *(known[id(run)] for run in pair)) for pair in pairs_of(runs)])


def compare_validations(runs: Sequence[Traced], strict: bool) -> Finding | None:
    """Compare the losses of validations after the same iterations, of each seed those of all runs with the first's;
    None: nobody validates. strict: of rehearsals, bit for bit, or in the band of the losses. Of others, which begin
    with weights of their own, only what is far off is called apart."""
    known = {id(run): validated(run.run.record) for run in runs}
    if not any(known.values()):
        return None
    if silent := next((run for run in runs if not known[id(run)]), None):
        return Finding("unknown", f"{silent.name} reports no validation")
    pairs = [(pair, _as_printed(*(known[id(run)] for run in pair))) for pair in pairs_of(runs)]
    return _first([(_added_up if strict else _far)(*pair, *two) for pair, two in pairs])


def validated(record: Record) -> dict[int, float]:
    """Return the last step before each validation that is made in training → its loss. Megatron's stacks add one at the
    end, on further samples."""
    every, points = record.setting("eval_interval"), dict[int, float]()
    for point in record.validations:
        inside = point.iteration is not None and (type(every) is not int or point.iteration % every == 0)
        if inside and point.split == "valid" and point.loss is not None:
            points.setdefault((point.iteration or 1) - 1, point.loss)
    return points


def _as_printed(ours: Mapping[int, float], theirs: Mapping[int, float]) -> tuple[dict[int, float], dict[int, float]]:
    """Return both with seven digits at each step where one of them was printed with no more."""

    def rounded(loss: float) -> float:
        return float(f"{loss:.6E}")

    printed = {step for step in ours.keys() & theirs.keys() if any(rounded(v[step]) == v[step] for v in (ours, theirs))}
    one, other = ({step: rounded(v[step]) if step in printed else v[step] for step in v} for v in (ours, theirs))
    return one, other


def _added_up(first: Traced, run: Traced, ours: Mapping[int, float], theirs: Mapping[int, float]) -> Finding:
    """Return how two validations of rehearsals compare. Stacks add up the same losses of micro-batches in float32 in
    unlike orders: Megatron batch by batch, Primus one after the other (primus/backends/megatron/training/evaluator.py
    of v26.5.1). Two sums of n positive numbers are within 2 n roundings of each other, and two roundings to seven
    digits within one of the last."""
    found, record = _two(first, run, "loss", ours, theirs), first.run.record
    sizes = [record.setting(name) for name in ("eval_iters", "global_batch_size", "micro_batch_size")]
    if found.state != "apart" or not all(type(size) is int for size in sizes):
        return found
    terms = sizes[0] * sizes[1] // sizes[2]
    largest = max(gap(ours[step], theirs[step]) for step in ours)
    digit = max(10.0 ** (math.floor(math.log10(loss)) - 6) / loss for loss in (*ours.values(), *theirs.values()))
    if [*differing(record, run.run.record)] or not largest <= 2 * terms * _UNIT + digit:
        return found
    return Finding(
        "equal", f"at most {shown(largest, 2)} of it apart, as sums of {terms} losses in another order may be"
    )


def _far(first: Traced, run: Traced, ours: Mapping[int, float], theirs: Mapping[int, float]) -> Finding:
    steps = sorted(ours.keys() & theirs.keys())
    if not steps:
        return Finding("unknown", f"{first.name} and {run.name} validate after no iteration that is the same")
    gaps = {step: theirs[step] - ours[step] for step in steps}
    if not any(gaps.values()):
        return Finding("equal", f"bit-equal after {len(steps)} iterations")
    step = next((s for s in steps if abs(gaps[s]) > FAR_SHARE * abs(ours[s])), None)
    largest = step if step is not None else max(steps, key=lambda s: abs(gaps[s]))
    where = f"{run.name} is {shown(gaps[largest], 3)} nats/token from {first.name} after iteration {largest + 1}"
    return Finding("apart", where, step) if step is not None else Finding("unknown", f"at most: {where}")


_AGAIN = "rehearse it again"
ALWAYS_READ = ("objects", "process")
"""Members of ReadBack that a rehearsal of any stack has: without them nobody knows what ran."""
SWITCHES = "Switches"
"""The object that every stack has."""
TENSORS: Mapping[str, tuple[str, What | None]] = {
    "first_weights": ("weights before the first step", None),
    "first_gradients": ("gradients of the first step", "gradient"),
    "last_weights": ("weights after the last step", "weight"),
}
"""Members of ReadBack by name of their check, in words, and the band of their norms; without one they are equal in any
layout."""
INPUTS = ("tokens", "labels", "position_ids", "loss_mask", "attention_mask", "masked")
"""Members of Batch that are equal in any layout; in one layout the order of the micro-batches is, too."""


def compare_tensors(runs: Sequence[Traced], name: str) -> Finding:
    """Compare the weights or gradients of rehearsals, a member of TENSORS, with those of the first of each seed."""
    words, what = TENSORS[name]
    for run in runs:
        if not getattr(read_of(run.run.record), name):
            return Finding("unknown", f"{run.name} has no reading of the {words}: {_AGAIN}")
    return _first([_tensors(first, run, name, words, what) for first, run in pairs_of(runs)])


def _tensors(first: Traced, run: Traced, name: str, words: str, what: What | None) -> Finding:
    records = first.run.record, run.run.record
    ours, theirs = (getattr(read_of(record), name) for record in records)
    if alone := sorted(ours.keys() ^ theirs.keys()):
        return Finding("apart", f"{words}: {some(alone)} in one of {first.name} and {run.name} alone", 0)
    within = 0.0 if what is None else tolerance(*records, what)
    apart = unlike(ours, theirs, within, tolerance(*records, "bias") if what == "weight" else None)
    if not apart:
        codes = pair_of(*records) if within else None
        between = f" between {codes.names}" if codes else ""
        how = "bit-equal" if within == 0 else f"norms within {shown(within, 2)} of rounding{between}"
        return Finding("equal", f"{how}, of {len(ours)} parameters")
    if within == math.inf or (why := _no_band(*records)):
        reason = why if within != math.inf else _not_measured(records)
        return Finding("unknown", f"the {words} differ; {reason}", 0)
    return Finding("apart", f"the {words} differ between {first.name} and {run.name} in {some(apart)}", 0)


def unlike(
    ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], within: float = 0.0, biases: float | None = None
) -> list[str]:
    """Return the names of tensors that differ: in any bit, or their norms by a share where two layouts round, those of
    biases by another if it is given. What cannot be compared differs."""

    def differ(one: Tensor, other: Tensor, within: float) -> bool:
        if within == 0 and None not in (one.checksum, other.checksum):
            return one.checksum != other.checksum
        return None in (one.norm, other.norm) or not gap(one.norm or 0.0, other.norm or 0.0) <= within

    own = within if biases is None else biases
    bands = {name: own if name.endswith(".bias") else within for name in ours}
    return [name for name, tensor in ours.items() if name in theirs and differ(tensor, theirs[name], bands[name])]


def compare_readings(runs: Sequence[Traced]) -> Finding:
    """Compare what was read of rehearsals at all: of what one has no reading, nobody can say that it is the same."""
    reads = [read_of(run.run.record) for run in runs]
    several = any(pair_of(runs[0].run.record, run.run.record) for run in runs)
    of_one_code = ("first_outputs",) if several else ()  # two codes have other modules
    kinds = [
        name
        for name in ReadBack.__struct_fields__
        if name in ALWAYS_READ or (name not in of_one_code and any(getattr(read, name) for read in reads))
    ]
    for run, read in zip(runs, reads, strict=True):
        absent = [name for name in kinds if not getattr(read, name)]
        absent += [SWITCHES] if read.objects and SWITCHES not in read.objects else []
        if absent:
            return Finding(
                "unknown", f"{run.name} has no reading of {some(absent)}, which every rehearsal has: {_AGAIN}"
            )
    return Finding("equal", f"{', '.join(kinds)} of all")


def compare_draws(runs: Sequence[Traced]) -> Finding:
    """Compare the distributions from which rehearsals drew their first weights, before equal ones were put in."""
    if silent := next((run for run in runs if not read_of(run.run.record).drawn), None):
        return Finding(
            "unknown", f"{silent.name} has no reading of the weights that its stack draws: rehearse it again"
        )
    return _first([_draws(*pair) for pair in pairs_of(runs)])


def _draws(first: Traced, run: Traced) -> Finding:
    ours, theirs = (read_of(one.run.record).drawn for one in (first, run))
    if not ours.keys() & theirs.keys():
        return Finding("unknown", f"{first.name} and {run.name} draw no tensor of the same name")
    if apart := drawn_apart(ours, theirs):
        name, how = next(iter(apart.items()))
        return Finding("apart", f"{first.name} and {run.name} draw {some([*apart])} otherwise: {name} with {how}")
    error = f"a false alarm in {PAIRS} pairs has a probability of {FAMILY_ERROR:g}"
    return Finding("equal", f"means, deviations and extremes of {len(ours)} tensors within sampling error ({error})")


def compare_inputs(runs: Sequence[Traced]) -> Finding:
    """Compare what the models of rehearsals were given, and which targets count, step by step."""
    for run in runs:
        if not read_of(run.run.record).batches:
            return Finding("unknown", f"{run.name} has no reading of its batches: {_AGAIN}")
    return _first([_inputs(first, run) for first, run in pairs_of(runs)])


def _inputs(first: Traced, run: Traced) -> Finding:
    ours, theirs = (by_step(one.run.record) for one in (first, run))
    common, members = sorted(ours.keys() & theirs.keys()), inputs_of(first.run.record, run.run.record)
    for step, name in product(common, members):
        if known_apart(getattr(ours[step], name), getattr(theirs[step], name)):
            return Finding("apart", f"{name} of {first.name} and {run.name} differ at step {step}", step)
    if not common:
        return Finding("unknown", f"{first.name} and {run.name} report no input of the same step")
    pairs = {name: (getattr(ours[common[0]], name), getattr(theirs[common[0]], name)) for name in members}
    known = [name for name, pair in pairs.items() if None not in pair]
    if alone := [name for name, (one, other) in pairs.items() if (one is None) != (other is None)]:
        return Finding("unknown", f"{some(alone)} of {first.name} or {run.name} were not read: {_AGAIN}")
    if not known:
        return Finding("unknown", f"{first.name} and {run.name} report no input")
    return Finding("equal", f"{', '.join(known)} of {len(common)} steps")


def inputs_of(first: Record, second: Record) -> tuple[str, ...]:
    """Return the members of Batch that must be equal in two rehearsals."""
    return INPUTS if [*differing(first, second)] else (*INPUTS, "order")


def by_step(record: Record) -> dict[int, Batch]:
    """Return the batches of a record by their step."""
    return {batch.step: batch for batch in read_of(record).batches}


def known_apart(one: Any, other: Any) -> bool:
    """Return whether two values are known, and differ."""
    return one is not None and other is not None and not same(one, other)


def read_of(record: Record) -> ReadBack:
    """Return what was read of a rehearsal; nothing where its record is of before."""
    return record.read_back or ReadBack()


def pairs_of(runs: Sequence[Traced]) -> list[tuple[Traced, Traced]]:
    """Return each run with the first of its seed, and where that has another code, with the first that has its own:
    it is bit-equal with that one."""
    pairs = []
    for alike in gathered((run.seed, run) for run in runs).values():
        codes = gathered((code_of(run.run.record), run) for run in alike).values()
        pairs += [(alike[0], run) for run in alike[1:]]
        pairs += [(of_code[0], run) for of_code in codes if of_code[0] is not alike[0] for run in of_code[1:]]
    return pairs


def _first(findings: Sequence[Finding]) -> Finding:
    """Return the finding that decides: of what parts the earliest, else what is not known, else what is not exact."""
    for state in ("apart", "unknown"):
        if those := [one for one in findings if one.state == state]:
            return min(those, key=lambda one: math.inf if one.step is None else one.step)
    inexact = (one for one in findings if not one.reason.startswith("bit-equal"))
    return next(inexact, findings[0] if findings else Finding("unknown", "no two runs of one seed"))


def series(record: Record, what: What) -> dict[int, float]:
    """Return step → value; nan where nan or inf was printed."""
    values = {s.step: math.nan if what in s.nonfinite else getattr(s, what) for s in numbered(record.steps)}
    return {step: value for step, value in values.items() if value is not None}


def _two(first: Traced, run: Traced, what: What, ours: Mapping[int, float], theirs: Mapping[int, float]) -> Finding:
    steps = sorted(ours.keys() & theirs.keys())
    if not steps or ours.keys() != theirs.keys():
        return Finding("unknown", f"{first.name} and {run.name} do not report it of the same steps")
    gaps = [(step, gap(ours[step], theirs[step])) for step in steps]
    parts = next((step for step, part in gaps if part != 0), None)
    if parts is None:
        return Finding("equal", f"bit-equal over {len(steps)} steps, seed by seed")
    records = first.run.record, run.run.record
    if (step := next((step for step, part in gaps if math.isnan(part)), None)) is not None:
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
    sizes, machines, codes = [*differing(*records)], _unlike(records, [*machine_names()]), pair_of(*records)
    if not sizes and not machines and codes is None:
        return Finding("apart", f"{where}, though both are rehearsed from the same weights in one layout", parts)
    bands = [_band(records[0], size, what) for size in sizes or (() if codes else SIZES)]
    of_codes = {step: share(*records, what, series(records[0], "loss").get(step)) for step, _ in gaps}
    if None in bands[: len(sizes)] or math.inf in of_codes.values():
        return Finding("unknown", f"{where}; {_not_measured(records)}", parts)
    by_step = [
        (step, part, of_codes[step] + MARGIN * sum(_at(band, step) for band in bands if band)) for step, part in gaps
    ]
    causes = [*sizes, *([codes.names] if codes else [])] or machines
    if out := next((one for one in by_step if one[1] > one[2]), None):
        step, part, band = out
        what_ = f"{shown(part, 2)} of it at step {step}; rounding between {' and '.join(causes)} parts"
        return Finding("apart", f"{where}: {what_} at most {shown(band, 2)}", step)
    if machines:
        beside = f"two machines, or versions of torch, round otherwise ({', '.join(machines)})"
        return Finding("unknown", f"{where}; {beside}: rehearse both on one", parts)
    _, part, band = max(by_step, key=lambda one: one[1])
    text = f"at most {shown(part, 2)} of it apart, in a band of {shown(band, 2)}"
    sources = [_said(codes, records, what)] if codes else []
    if sizes:
        sources.append(f"of rounding between {' and '.join(sizes)} ({MARGIN:g} × measured, benchmarks/rounding.py)")
    return Finding("equal", f"{text} {' and '.join(sources)}")


def _said(codes: Pair, records: tuple[Record, Record], what: What) -> str:
    """Return the tolerance of two codes in words, with its reason."""
    figure = codes.within[precision_of(*records)][what]
    unit = " nats/token" if what == "loss" else ""
    return f"of rounding between {codes.names} ({shown(figure, 2)}{unit}: {codes.reason})"


def _not_measured(records: tuple[Record, Record]) -> str:
    """Return between what of two runs no rounding was measured."""
    codes = pair_of(*records)
    unmeasured = codes is not None and precision_of(*records) not in codes.within
    sizes = [size for size in differing(*records) if _band(records[0], size, "loss") is None]
    causes = [*(f"two {size}" for size in sizes), *([codes.names] if codes and unmeasured else [])]
    return f"no rounding was measured between {' or '.join(causes)} in this precision"


def _no_band(first: Record, second: Record) -> str:
    """Return why nothing is known of how far two runs may part; empty where it is."""
    seeds = [record.environment.get("equal_init") for record in (first, second)]
    if None in seeds or seeds[0] != seeds[1]:
        return BEGIN_EQUAL
    if precision := _unlike((first, second), _PRECISION):
        return f"two precisions round otherwise ({', '.join(precision)})"
    if splits_sequences(first) or splits_sequences(second):
        return "context parallelism is not rehearsed: a rank attends to its own part of the sequence alone"
    if "MBS" in differing(first, second) and all(record.setting("num_experts") for record in (first, second)):
        return "the balancing loss of experts is one of each micro-batch, and these are of two sizes"
    return ""


def splits_sequences(record: Record) -> bool:
    """Return whether a run has context parallelism, which a rehearsal's attention leaves out, each stack in its way."""
    return record.setting("context_parallel_size") not in (None, 1)


def differing(first: Record, second: Record) -> Iterator[str]:
    """Yield the sizes of the layout that two runs do not share."""
    for name, settings in SIZES.items():
        if _unlike((first, second), settings):
            yield name


def _unlike(records: tuple[Record, Record], names: Sequence[str]) -> list[str]:
    def of(record: Record, name: str) -> Any:
        facts = (record.environment.get(fact) for fact in machine_names().get(name, ()))
        known = (
            next((fact for fact in facts if fact is not None), None)
            if name in machine_names()
            else record.setting(name)
        )
        return 1 if known in (None, False) else known

    return [name for name in names if not same(of(records[0], name), of(records[1], name))]


def _band(record: Record, differs: str, what: What) -> Rounding | None:
    key = (record.setting("params_dtype"), differs, what)
    return next((one for one in ROUNDING if (one.precision, one.differs, one.what) == key), None)


def _at(band: Rounding, step: int) -> float:
    """Return the largest difference up to a step; behind the last one measured it is that one's."""
    return band.largest[min(step, len(band.largest) - 1)]


def tolerance(first: Record, second: Record, what: What, step: int = 0) -> float:
    """Return by which share `what` of two runs from equal weights may differ at a step: by nothing in one layout and by
    one code; inf where it was not measured."""
    bands = [_band(first, size, "weight" if what == "bias" else what) for size in differing(first, second)]
    least = SUMMED if bands and what != "loss" else 0.0
    of_codes = share(first, second, what, series(first, "loss").get(step))
    layouts = math.inf if None in bands else MARGIN * sum(_at(band, step) for band in bands if band)
    return max(least, of_codes + layouts)


def gap(first: float, second: float) -> float:
    """Return the difference of two numbers as a share of the larger; nan where one of them is no number."""
    if first == second or (math.isnan(first) and math.isnan(second)):
        return 0.0
    return abs(second - first) / max(abs(first), abs(second))
