"""The metrics of a run. To add one: a function from Basis to Quantity, and its line in METRICS.

The source of a figure is that of the step times: ours where our mark stands at the steps, else the framework's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, pairwise
from statistics import harmonic_mean
from typing import Any

from msgspec.structs import replace

from conf.errors import listed, some
from conf.facts import precision_of
from conf.machine import Machine
from conf.schema import Hardware
from metrics.flops import CONVENTIONS, DEFAULT, Convention, Recompute, explaining, flops_per_token, recompute_of
from metrics.peak import (
    NO_POWER,
    achievable_tflops,
    causes_in_a_run,
    design_power,
    device_of,
    impossible,
    other_device,
    peak_tflops,
    utilisation,
    with_machines,
)
from metrics.quantity import IMPOSSIBLE, Quantity, Source, shown
from metrics.repeats import gathered
from metrics.rules import by_rules
from metrics.shape import Facts, ShapeOrMissing, facts_of, shape_from
from metrics.step_times import StepTimes, count, executed, find_warmup, step_times
from parsers.record import Power, Record, columns, rows
from parsers.values import real

# Kind of memory: what a step calls it (memory_kind), and names among its further numbers. From the most that is taken
# to the least: the device's own count includes other processes and libraries; the allocator reserves more than tensors
# use.
_KINDS: Mapping[str, tuple[str, ...]] = {
    "device": ("hip", "device", "rocm_memory_used_bytes", "hip_memory_used_bytes"),
    "reserved": ("reserved", "max_memory_reserved_bytes"),
    "allocated": ("allocated", "max_memory_allocated_bytes"),
}
STATED = "by the samples/s that the log states"
"""In the note of a speed that no step was timed for: what a stack leaves out of its own figure, only it knows."""
TO_TARGET = "by the samples to the target over the time to train without its evaluations"
_REACHED = ("samples_to_target", "time_to_train_s", "evaluation_s")
_TOTALS = ("hip_memory_total_bytes", "rocm_memory_total_bytes")
_GIB_BY_GB = 2**30 / 1e9
_DISAGREEMENT = 0.05  # between counter and integrated power: above it one of them is wrong, as Zeus reports


@dataclass(frozen=True)  # without slots: a cached property needs __dict__
class Basis:
    """The facts that the metrics of a run share. device: that it ran on; precision: of its matrix products; None where
    unknown. memory: the largest figure of each kind in the steps (allocated, max_memory_reserved_bytes …), in bytes.
    made: figures that others are made of, by their function."""

    record: Record
    times: StepTimes
    facts: Facts
    shape: ShapeOrMissing
    device: Hardware | None
    precision: str | None
    memory: Mapping[str, float]
    made: dict[Metric, Quantity] = field(default_factory=dict)

    @cached_property
    def rate(self) -> Quantity:
        """Return tokens/s, and in the note of which time, as `_sample_rate` has it."""
        rate, length = _sample_rate(self), count(self.record, "seq_length")
        return rate.times(length, "tokens/s", note=rate.note if length else "")


Metric = Callable[[Basis], Quantity]


def _once(metric: Metric) -> Metric:
    """Return `metric`, which is worked out once for each basis."""

    def of(basis: Basis) -> Quantity:
        if metric not in basis.made:
            basis.made[metric] = metric(basis)
        return basis.made[metric]

    return of


def summarise(record: Record, machines: Sequence[Machine] = ()) -> dict[str, Quantity]:
    """Return every metric of METRICS; its value is None where the record does not say enough. One figure above its
    device's peak is impossible, and then no figure of speed has a number: cost and compare have theirs from here.

    An estimate keeps its own summary. That of any other record is not trusted: without its steps it has no figures.
    What only MLPerf's rules make known is marked so. machines: what devices were measured to achieve."""
    ruled = by_rules(record)
    known = _figures(ruled.record, ruled.by_rule, machines)
    if not ruled.by_rule:
        return known
    figures = _figures(record, machines=machines)
    return {
        name: ruled.mark(name, q) if q.value is None or figures[name].value is None else figures[name]
        for name, q in known.items()
    }


def _figures(
    record: Record, by_rule: frozenset[str] = frozenset(), machines: Sequence[Machine] = ()
) -> dict[str, Quantity]:
    """Return `summarise` without rules. by_rule: settings in `given` that nobody stated, yet are sure."""
    facts = facts_of(record)
    facts = Facts(facts.settings, facts.requested - by_rule, facts.other_layers)
    precision, ranks = (
        precision_of(facts.settings),
        facts.settings.get("gpus_per_node") or facts.settings.get("world_size"),
    )
    device = with_machines(device_of(record), record, machines, ranks if isinstance(ranks, int) else 1)
    basis = Basis(record, step_times(record), facts, shape_from(facts), device, precision, _memory(record))
    figures = {name: metric(basis) for name, metric in METRICS.items()}
    if unused := other_device(record, machines):
        second = figures["mfu_achievable_percent"]
        figures["mfu_achievable_percent"] = replace(second, note="; ".join(filter(None, (second.note, unused))))
    if record.provenance == "estimated" and not record.steps:
        figures |= {name: Quantity.from_json(entry) for name, entry in record.summary.items()}
    return _possible(basis, figures)


def _possible(basis: Basis, figures: dict[str, Quantity]) -> dict[str, Quantity]:
    """Return `figures`: without numbers of speed where our TFLOP/s are impossible, or the framework's and ours unknown;
    without the framework's alone where ours are possible, for it may count otherwise."""
    device, precision, theirs = basis.device, basis.precision, "tflops_per_gpu_framework"
    known = {name: basis.facts.settings.get(name) or basis.record.given.get(name) for name in ("world_size", "model")}
    known = {"hardware": device and device.name, "precision": precision, **known}
    stated = listed([f"{name}={value}" for name, value in known.items() if value is not None])
    speed, per_token = figures["tokens_per_s_per_gpu"], figures["flops_per_token"].value  # also of printed speeds
    ours = speed.times(None if per_token is None else per_token / 1e12, "TFLOP/s/GPU")
    why = impossible("tflops_per_gpu", ours, device, precision, stated)
    alone = not why and ours.value is not None
    if not (why := why or impossible(theirs, figures[theirs], device, precision, stated)):
        return figures
    left = {theirs} if alone else {name for name in figures if not name.startswith(NOT_OF_SPEED)}
    return {name: Quantity(None, q.unit, q.source, note=why) if name in left else q for name, q in figures.items()}


def with_impossible(record: Record) -> Record:
    """Return `record` with a note on each figure that is impossible, and why; once where many have one reason."""
    figures = summarise(record).values() if device_of(record) is not None else ()
    return replace(record, notes=(*record.notes, *dict.fromkeys(q.note for q in figures if q.missing == IMPOSSIBLE)))


def summary_json(record: Record) -> dict[str, dict[str, Any]]:
    """Return `summarise` as Record.summary has it."""
    return {name: quantity.to_json() for name, quantity in summarise(record).items()}


def _time(of: Callable[[StepTimes], float | None], unit: str = "s", note: str = "") -> Metric:
    """Return the metric that is `of` the step times."""
    return lambda basis: Quantity.of(of(basis.times), unit, basis.times.clock, note)


def _tail(times: StepTimes) -> float | None:
    """Return how many times the median the slowest twentieth takes at least."""
    slow = times.slowest(20)
    return slow / times.median if slow and times.median else None


def counted_by(speed: Quantity) -> str:
    """Return how a speed was counted, by its note."""
    return next((way for way in (STATED, TO_TARGET) if way in speed.note), "by its steps")


def _tokens_per_s(basis: Basis) -> Quantity:
    if basis.rate.value is not None:
        return basis.rate
    printed, gpus = _printed(basis, "tokens_per_s_per_gpu"), count(basis.record, "world_size")
    return Quantity.of(None if printed is None or gpus is None else printed * gpus, "tokens/s", "log")


@_once
def _tokens_per_s_per_gpu(basis: Basis) -> Quantity:
    rate, gpus = basis.rate, count(basis.record, "world_size")
    if rate.value is not None and gpus is not None:
        return Quantity.of(rate.value / gpus, "tokens/s/GPU", rate.source, rate.note)
    printed = None if basis.times.ends else _printed(basis, "tokens_per_s_per_gpu")
    return Quantity.of(printed, "tokens/s/GPU", "log" if printed else basis.times.clock)


def _tokens_per_s_per_gpu_framework(basis: Basis) -> Quantity:
    return Quantity.of(_printed(basis, "tokens_per_s_per_gpu"), "tokens/s/GPU", "log")


def _sample_rate(basis: Basis) -> Quantity:
    """Return samples/s: of a result of MLPerf over the time to train without its evaluations; else over the wall time
    between two step ends, which is the harmonic mean of the steps' rates; where no step is timed, as the log states."""
    times, facts = basis.times, basis.record.environment
    reached, taken_s, evaluating_s = (real(facts.get(f"mlperf_{name}")) for name in _REACHED)
    if reached and taken_s and evaluating_s and evaluating_s < taken_s:
        return Quantity.of(reached / (taken_s - evaluating_s), "samples/s", "log", TO_TARGET)
    if times.samples is not None:
        return Quantity.of(times.samples / times.seconds, "samples/s", times.clock, _left_out(basis))
    stated = None if times.ends else _samples_per_s(basis).value
    return Quantity.of(stated, "samples/s", times.clock, "" if stated is None else STATED)


def _samples_per_s(basis: Basis) -> Quantity:
    """Return the rate that the log states from one evaluation to the next: the harmonic mean, as over equal work."""
    points = () if basis.record.provenance == "rehearsed" else basis.record.validations
    stated = [rate for point in points if (rate := point.metrics.get("samples_per_s")) is not None and rate > 0]
    return Quantity.of(harmonic_mean(stated) if stated else None, "samples/s", "log")


def _stated(fact: str, unit: str) -> Metric:
    """Return the metric that is a number of the log itself."""
    return lambda basis: Quantity.of(real(basis.record.environment.get(fact)), unit, "log")


def _printed(basis: Basis, rate: str) -> float | None:
    """Return a rate that the framework prints: the harmonic mean, as over equal work, of those above 0 without the
    warm-up. None of a rehearsal, which has no speed."""
    if basis.record.provenance == "rehearsed":
        return None
    times = [1 / value for value in executed(basis.record.steps, rate) if value is not None and value > 0]
    counted = times[find_warmup(times).count :]
    total = sum(counted)
    return len(counted) / total if total else None


def _warmup_steps(basis: Basis) -> Quantity:
    warmup, each = basis.times.warmup, basis.times.iterations_a_line
    known = warmup.count * each if each and basis.times.ends else None
    return Quantity.of(known, "steps", "computed", "" if known is None else warmup.reason)


def _counted_steps(basis: Basis) -> Quantity:
    known = basis.times.iterations if basis.times.ends else None
    return Quantity.of(known, "steps", "computed", "no step times reported" if known is None else _left_out(basis))


def _left_out(basis: Basis) -> str:
    count = basis.times.not_above_zero
    return f"left out: {count} interval{'s' if count > 1 else ''} of a clock that went back or stood" if count else ""


def _goodput(basis: Basis) -> Quantity:
    """Return steps that were kept, at their steady pace, over the wall time: start-up, warm-up, stalls and
    redone steps are lost. A short benchmark is mostly start-up; a long run shows what its stack is worth."""
    mean_s, wall_s, each = basis.times.mean, basis.record.wall_time_s, basis.times.iterations_a_line
    if mean_s is None or each is None or not wall_s:
        return Quantity(None, "%", basis.times.clock)
    kept = len({*columns(basis.record.steps, "step")[0]})  # a step that was redone after a restart made progress once
    useful_s = kept * each * mean_s
    if useful_s > wall_s:
        what = f"{shown(useful_s)} s of steps in {shown(wall_s)} s: one of the two is wrong"
        return Quantity(None, "%", basis.times.clock, note=what)
    return Quantity.of(100 * useful_s / wall_s, "%", basis.times.clock, f"of {shown(wall_s)} s from start to end")


def _stall_time(basis: Basis) -> Quantity:
    """Return the time that the log reports for checkpoints, evaluation and the like; unknown where it reports none."""
    timed = gathered((stall.kind, stall.seconds) for stall in basis.record.stalls if stall.seconds is not None)
    if not timed:
        return Quantity(None, "s", "log")
    by_kind = {kind: sum(seconds) for kind, seconds in timed.items()}
    parts = [f"{kind} {shown(by_kind[kind])} s" for kind in sorted(by_kind, key=lambda kind: -by_kind[kind])]
    unreported = sum(stall.seconds is None for stall in basis.record.stalls)
    parts += [f"{unreported} without a time"] if unreported else []
    return Quantity.of(sum(by_kind.values()), "s", "log", ", ".join(parts))


def _flops(basis: Basis, convention: Convention = DEFAULT, recompute: Recompute | None = None) -> Quantity:
    """Return one token's operations; assumed where a part of the shape was only requested and never read back, given
    where the user stated it."""
    known, length = basis.shape, count(basis.record, "seq_length")
    missing = [*known.missing, *([] if length else ["seq_length"])]
    if known.shape is None or length is None:
        return Quantity(None, "FLOP/token", "computed", note=f"unknown: {some(missing, 4)}")
    value = flops_per_token(known.shape, length, convention, recompute)
    if known.requested and basis.record.provenance in ("measured", "imported"):
        stated = {*known.requested} <= basis.record.given.keys()
        note = f"{convention.name}; {'given' if stated else 'not read back'}: {some(known.requested, 4)}"
        return Quantity.of(value, "FLOP/token", "given" if stated else "assumed", note)
    return Quantity.of(value, "FLOP/token", "computed", convention.name)


def _tflops(basis: Basis, convention: Convention = DEFAULT, recompute: Recompute | None = None) -> Quantity:
    """Return our tokens/s times our FLOPs; the note is the convention's, or names what is missing."""
    rate, gpus, per_token = basis.rate, count(basis.record, "world_size"), _flops(basis, convention, recompute)
    source: Source = rate.source if per_token.source == "computed" else per_token.source
    if per_token.value is None or rate.value is None or gpus is None:
        missing = per_token.note if per_token.value is None else "no speed"
        return Quantity(None, "TFLOP/s/GPU", source, note=missing)
    return Quantity.of(per_token.value * rate.value / gpus / 1e12, "TFLOP/s/GPU", source, per_token.note)


_our_tflops = _once(_tflops)


def _tflops_framework(basis: Basis) -> Quantity:
    """Return the framework's own figure, and which way of counting would explain its distance from ours."""
    printed, note = _printed(basis, "tflops_per_gpu"), ""
    ours, length, shape = _our_tflops(basis).value, count(basis.record, "seq_length"), basis.shape.shape
    if printed is not None and ours and shape is not None and length is not None:
        names = explaining(printed / ours, shape, length)
        by = f"as {' or '.join(names)} counts" if names else "by a way of counting that is none of ours"
        note = f"{shown(printed / ours)} × ours, {by}"
    return Quantity.of(printed, "TFLOP/s/GPU", "log", note)


def _share(basis: Basis, tflops: Quantity, peak: Callable[[Hardware | None, str | None], Quantity]) -> Quantity:
    device, precision = basis.device, basis.precision
    return utilisation(tflops, peak(device, precision), causes_in_a_run(device, precision))


def _hfu(basis: Basis) -> Quantity:
    """Return the utilisation with recomputed work. Unknown where the settings do not say what is recomputed."""
    again = recompute_of(basis.facts)
    if again is None:
        return Quantity(None, "%", basis.times.clock, note="unknown: what is recomputed")
    return _share(basis, _tflops(basis, CONVENTIONS["hardware"], again), peak_tflops)


def _memory(record: Record) -> Mapping[str, float]:
    if record.provenance == "rehearsed":  # at toy size, on the wrong machine
        return {}
    pairs = dict.fromkeys(rows(record.steps, "memory_kind", "memory_bytes"))  # of a run most are alike
    of_kinds = ((kind or "", size) for kind, size in pairs)
    metrics = (values for _, values in rows(record.steps, "step", "metrics") if values)
    named = dict.fromkeys(pair for values in metrics for pair in values.items() if "memory" in pair[0])
    reported = gathered(pair for pair in chain(of_kinds, named) if pair[1])  # without the vendor's library it is 0
    return {kind: max(values) for kind, values in reported.items()}


def _peak_memory(basis: Basis) -> Quantity:
    """Return the peak as the steps report it. The unit names the kind; mixed kinds give no number."""
    kinds = [kind for kind in basis.memory if "memory" not in kind]
    unit = f"bytes ({kinds[0]})" if len(kinds) == 1 and kinds[0] else "bytes"
    return Quantity.of(basis.memory[kinds[0]] if len(kinds) == 1 else None, unit, basis.times.clock)


def _peak_of(kind: str) -> Metric:
    return lambda basis: Quantity.of(_largest(basis, _KINDS[kind]), "bytes", basis.times.clock)


def _largest(basis: Basis, names: tuple[str, ...]) -> float | None:
    return max((basis.memory[name] for name in names if name in basis.memory), default=None)


def _fullest(basis: Basis) -> tuple[str, float | None]:
    """Return the most inclusive kind that was reported, and its peak; or why there is none."""
    for kind, names in _KINDS.items():
        if (peak := _largest(basis, names)) is not None:
            return kind, peak
    return "host memory" if _peak_memory(basis).value is not None else "no memory reported", None


@_once
def _device_memory(basis: Basis) -> Quantity:
    """Return the memory of one device by the driver or the log, else as an estimate and a launch have it."""
    reported = basis.record.environment.get("device_memory_bytes")
    if type(reported) is int and reported > 0:
        return Quantity.of(reported, "bytes", "log", "by the driver")
    if total := _largest(basis, _TOTALS):
        return Quantity.of(total, "bytes", "log", "by the log")
    room = basis.device.room_bytes if basis.device else None
    if basis.device is None or room is None:
        return Quantity(None, "bytes", "spec", note="device memory unknown")
    return Quantity.of(room, "bytes", "spec", basis.device.name)


@_once
def _memory_share(basis: Basis) -> Quantity:
    (kind, peak), room = _fullest(basis), _device_memory(basis)
    if peak is None or room.value is None:
        return Quantity(None, "%", basis.times.clock, note=kind if peak is None else room.note)
    share = 100 * peak / room.value
    note = f"{kind}, of {room.value / 1e9:,.1f} GB, {room.note}"
    if share > 100:
        rounded = room.source == "spec" and basis.device and basis.device.memory_visible_gib is None
        most = room.value * (_GIB_BY_GB if rounded else 1)  # data sheets say GB and mean GiB
        what = f"{IMPOSSIBLE if peak > most else 'unknown'}: {share:.0f} % {note}; check: the device, GB or GiB"
        return Quantity(None, "%", basis.times.clock, note=what)
    return Quantity.of(share, "%", basis.times.clock, note)


def _headroom(basis: Basis) -> Quantity:
    (kind, peak), room, share = _fullest(basis), _device_memory(basis), _memory_share(basis)
    if peak is None or room.value is None or share.value is None:
        return Quantity(None, "bytes", basis.times.clock, note=share.note)
    return Quantity.of(room.value - peak, f"bytes ({kind})", basis.times.clock, share.note)


@_once
def _power(basis: Basis) -> Quantity:
    """Return the mean power of one device, without host and building."""
    device, windows = basis.device, basis.record.power
    if basis.record.provenance in ("rehearsed", "planned"):
        return Quantity(None, "W/GPU", "assumed")
    if (measured := _measured_power(basis)).value is not None:
        return measured
    # A node's power includes its hosts and fans, and is not divided among the GPUs here.
    node = any(window.kind == "node" for window in windows)
    why = "only the node's power was measured" if node else NO_POWER
    return design_power(device, why)


def _measured_power(basis: Basis) -> Quantity:
    """Return the mean power of one device while it trained, W; by its own sensor, else by that of its board."""
    warmup, gpus = basis.times.warmup.count, count(basis.record, "world_size")
    # Zeus sums over all GPUs of the job without a count.
    of_the_job = [replace(w, gpus=gpus) if w.kind == "gpu" and w.gpus is None else w for w in basis.record.power]
    usable = [window for window in of_the_job if window.gpus and window.seconds and _energy_j(window) is not None]
    for kind in ("gpu", "board"):
        if chosen := [window for window in usable if window.kind == kind]:
            return _mean_power(_steady(chosen, warmup), warmup)
    return Quantity(None, "W/GPU", "measured")


def _steady(windows: Sequence[Power], warmup: int) -> list[Power]:
    """Return the windows after the warm-up where they do not overlap; else, or without steps, the longest."""
    placed = sorted((w for w in windows if _first(w) >= warmup and w.last_step is not None), key=_first)
    if placed and all((a.last_step or 0) < _first(b) for a, b in pairwise(placed)):
        return placed
    return [max(placed or windows, key=lambda window: window.seconds or 0.0)]


def _first(window: Power) -> int:
    return window.first_step or 0


def _mean_power(windows: Sequence[Power], warmup: int) -> Quantity:
    device_seconds = sum((w.seconds or 0.0) * (w.gpus or 0) for w in windows)
    energy = sum(_energy_j(w) or 0.0 for w in windows)
    notes = [f"{windows[0].kind} power by {windows[0].source}", *filter(None, map(_cross_check, windows))]
    if any(window.first_step is None for window in windows):
        notes.append("not aligned to the steps: idle time may be in it")
    elif any(_first(window) < warmup for window in windows):
        notes.append("the warm-up among it")
    return Quantity.of(energy / device_seconds, "W/GPU", "measured", "; ".join(dict.fromkeys(notes)))


def _energy_j(window: Power) -> float | None:
    """Return the counter's energy, or the integrated power where the two differ: counters are known to be wrong."""
    if window.energy_counter_j and not _cross_check(window):
        return window.energy_counter_j
    if window.energy_integrated_j:
        return window.energy_integrated_j
    return window.mean_power_w * window.seconds if window.mean_power_w and window.seconds else None


def _cross_check(window: Power) -> str:
    """Return what is wrong with the energy counter, empty where nothing is."""
    counter, integrated = window.energy_counter_j, window.energy_integrated_j
    if not counter or not integrated or abs(counter / integrated - 1) <= _DISAGREEMENT:
        return ""
    off = shown(100 * (counter / integrated - 1), 3)
    return f"its energy counter is {off} % off the power integrated, and not used"


@_once
def _energy(basis: Basis) -> Quantity:
    power, rate = _power(basis), _tokens_per_s_per_gpu(basis)
    if not rate.value:
        return Quantity(None, "J/token", power.source, note=power.note)
    return power.times(1 / rate.value, "J/token", rate.source, power.note)


def _tokens_per_wh(basis: Basis) -> Quantity:
    energy = _energy(basis)
    return energy.under(3600, "tokens/Wh", energy.note)


def _loss(basis: Basis, place: int) -> Quantity:
    steps = basis.record.steps
    return Quantity.of(steps[place].loss if steps else None, "nats/token", "log")


# Beginnings of the names of figures that a wrong speed, device or count of tokens leaves as they are.
NOT_OF_SPEED = ("warmup", "counted", "flops", "peak_memory", "memory", "power", "loss", "wall", "stall", "restarts")
METRICS: Mapping[str, Metric] = {
    "tokens_per_s": _tokens_per_s,
    "tokens_per_s_per_gpu": _tokens_per_s_per_gpu,
    "tokens_per_s_per_gpu_framework": _tokens_per_s_per_gpu_framework,
    "samples_per_s": _samples_per_s,
    "steps_per_s": _time(lambda times: 1 / times.mean if times.mean else None, "steps/s"),
    "step_time_mean_s": _time(lambda times: times.mean),
    "step_time_median_s": _time(lambda times: times.median),
    "step_time_p95_s": _time(lambda times: times.slowest(20)),
    "step_time_p99_s": _time(lambda times: times.slowest(100)),
    "step_time_stdev_s": _time(lambda times: times.stdev),
    "step_time_tail": _time(_tail, "× median", "95th of 100"),
    "step_time_jitter_percent": _time(lambda times: times.jitter_percent, "%", "step to step"),
    "warmup_steps": _warmup_steps,
    "counted_steps": _counted_steps,
    "flops_per_token": _flops,
    "tflops_per_gpu": _our_tflops,
    "tflops_per_gpu_framework": _tflops_framework,
    "mfu_percent": lambda basis: _share(basis, _our_tflops(basis), peak_tflops),
    "hfu_percent": _hfu,
    "mfu_achievable_percent": lambda basis: _share(basis, _our_tflops(basis), achievable_tflops),
    "peak_memory_bytes": _peak_memory,
    **{f"peak_memory_{kind}_bytes": _peak_of(kind) for kind in _KINDS},
    "peak_memory_percent": _memory_share,
    "memory_headroom_bytes": _headroom,
    "power_w_per_gpu": _power,
    "energy_j_per_token": _energy,
    "tokens_per_wh": _tokens_per_wh,
    "loss_first": lambda basis: _loss(basis, 0),
    "loss_last": lambda basis: _loss(basis, -1),
    "time_to_train_s": _stated("mlperf_time_to_train_s", "s"),
    "samples_to_target": _stated("mlperf_samples_to_target", "samples"),
    "wall_time_s": lambda basis: Quantity.of(basis.record.wall_time_s, "s", "measured"),
    "goodput_percent": _goodput,
    "stall_time_s": _stall_time,
    "restarts": lambda basis: Quantity.of(len(basis.record.restarts), "restarts", "log"),
}
