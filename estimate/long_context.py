"""Long sequences: layers and matrices split (TP × PP, with sequence parallelism) against the sequence split (CP, keys
and values around a ring or gathered): memory, bytes sent and time a step, in training and forward alone, and the length
from which one is ahead of the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec
import numpy as np

from conf.check import tensor_sizes
from conf.errors import ConfigError, Problem
from conf.resolve import Experiment, resolve
from conf.schema import Model, Request
from estimate.experiment import columns_of
from estimate.figures import estimate, gpus_of
from estimate.fitted import Parameters, Value
from estimate.host import shipped_for
from estimate.jobs import GB, Jobs, Numbers
from estimate.memory import ASSUMED, memory
from estimate.parameters import layers_on, parameters, stages
from estimate.predict import half_widths
from estimate.search import with_interval
from estimate.search_text import not_decided, ranged
from estimate.step_time import cases_of, link_rate, step_time
from metrics.quantity import Quantity, shown

Mode = Literal["training", "forward"]
LENGTHS = tuple(range(1024, 2**20 + 1, 1024))
_BF16 = 2
_ASSUMED = f"with {', '.join(ASSUMED)}, which are assumed"
_MODES: tuple[Mode, ...] = ("training", "forward")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """A way to split, at n lengths; arrays of shape (n,). gathered: keys and values are gathered before the attention
    and not sent around it. sent_bytes: by one GPU in a step. fits: what its device shows is at most what it has.
    unmeasured: why nobody knows how wrong the step time is; empty where measured runs say so. half_95: half the width
    of the interval of its logarithm; nan where it is unmeasured."""

    experiment: Experiment
    name: str
    mode: Mode
    gathered: bool
    seq_length: Numbers
    memory_bytes: Numbers
    sent_bytes: Numbers
    exposed_s: Numbers
    step_time_s: Numbers
    tokens_per_s: Numbers
    fits: Numbers
    unmeasured: str
    half_95: Numbers

    @property
    def time_per_token_s(self) -> Numbers:
        """Return the seconds of a token of all GPUs together."""
        return 1 / self.tokens_per_s


def scheme(
    e: Experiment,
    lengths: Sequence[int],
    mode: Mode = "training",
    gathered: bool = False,
    fitted: Parameters | None = None,
) -> Scheme:
    """Return what the layout of `e` takes at each length; its batch stays."""
    p = fitted or shipped_for([e.hardware.name])
    jobs = Jobs(**{name: np.asarray(value) for name, value in columns_of(e).items()} | {"seq_length": _floats(lengths)})
    alone = replace(jobs, gradient_bytes=np.zeros(())) if mode == "forward" else jobs
    parts = step_time(alone, _gathering(p) if gathered else p)
    own = _forward(parts, p) if mode == "forward" else {name: getattr(parts, name) for name in parts.__slots__}
    bytes_ = memory(jobs, training=mode == "training").on_device.max(axis=0)
    sent = _sent(jobs, mode)
    if gathered:
        waits = jobs.num_micro_batches * jobs.num_layers * p.of("collective_latency") * (1 if mode == "forward" else 3)
        own["context_parallel"] = sent["context"] / _rate(jobs, p) + waits
        bytes_ = bytes_ + _keys_and_values(jobs)
    seconds = np.broadcast_to(sum(own.values()), jobs.seq_length.shape)
    unmeasured = "no interval: no measured run gathers keys and values" if gathered else ""
    unmeasured = "no interval: no run of a forward pass alone was measured" if mode == "forward" else unmeasured
    half = np.full(len(lengths), np.nan) if unmeasured else half_widths(jobs, p, cases_of(jobs))[1]
    exposed = ("tensor_parallel", "context_parallel", "expert_parallel", "pipeline_sends", "data_parallel")
    return Scheme(
        experiment=e,
        unmeasured=unmeasured,
        half_95=half,
        name=f"{e.layout}{', EP 1' if e.model.moe else ''}{', gathered' if gathered else ''}",
        mode=mode,
        gathered=gathered,
        seq_length=jobs.seq_length,
        memory_bytes=bytes_,
        sent_bytes=np.broadcast_to(sum(sent.values()), seconds.shape),
        exposed_s=np.broadcast_to(sum(own.get(name, 0.0) for name in exposed), seconds.shape),
        step_time_s=seconds,
        tokens_per_s=jobs.seq_length * jobs.global_batch_size / seconds,
        fits=bytes_ <= jobs.memory_bytes,
    )


def schemes(e: Experiment, lengths: Sequence[int] | None = None, mode: Mode = "training") -> tuple[Scheme, ...]:
    """Return TP × PP and CP on the GPUs of `e`: TP over as much of a node as divides the model, PP over the rest, and
    CP over all GPUs, as a ring and gathered."""
    here = (e.training.seq_length,) if lengths is None else lengths
    gpus = e.layout.world_size
    tp = _tensor_size(e.model, e.gpus_per_node, gpus)
    split, ring = _laid_out(e, tp=tp, pp=gpus // tp, cp=1), _laid_out(e, tp=1, pp=1, cp=gpus)
    return (
        scheme(split, here, mode),
        scheme(ring, here, mode),
        scheme(ring, here, mode, gathered=True),
    )


def _tensor_size(model: Model, gpus_per_node: int, gpus: int) -> int:
    return max(size for size in tensor_sizes(model) if size <= gpus_per_node and gpus % size == 0)


def compared(request: Request) -> Experiment:
    """Return `request` as an experiment whose schemes can be compared. ConfigError: the launcher refuses one of them at
    its length, or there is one GPU."""
    gpus = request.world_size
    tp = _tensor_size(request.model, request.ranks_per_node, gpus)
    if gpus == 1:
        raise ConfigError(Problem("nodes", "one GPU has nothing to split a sequence over", "1 GPU", "2 GPUs or more"))
    made, wrong = list[Experiment](), dict[Problem, None]()
    for sizes in ({"tp": tp, "pp": gpus // tp, "cp": 1}, {"tp": 1, "pp": 1, "cp": gpus}):
        layout = replace(request.layout, **_layout(**sizes))
        try:
            made.append(resolve(replace(request, layout=replace(layout, table=None)), ()))
        except ConfigError as error:
            scheme_ = " ".join(f"{name.upper()}{size}" for name, size in sizes.items() if size > 1)
            wrong |= {replace(one, what=f"{scheme_}: {one.what}"): None for one in error.problems}
    if wrong:
        raise ConfigError(*wrong)
    return made[-1]


def crossing(e: Experiment, mode: Mode = "training", lengths: Sequence[int] = LENGTHS) -> int | None:
    """Return the first of `lengths` from which CP's ring has more tokens/s than TP × PP, at every longer one, too;
    None where it never has. It does not matter here whether they fit."""
    split, ring, _ = schemes(e, lengths, mode)
    ahead = ring.tokens_per_s > split.tokens_per_s
    first = len(ahead) - int(np.argmin(ahead[::-1])) if not ahead.all() else 0
    return int(lengths[first]) if first < len(ahead) else None


def undecided(e: Experiment, lengths: Sequence[int] = LENGTHS) -> list[tuple[int, int]]:
    """Return the first and the last of each stretch of `lengths` at which either of TP × PP and CP's ring may train
    faster: the interval of the ratio of their times holds 1. Of forward passes nobody knows."""
    split, ring, _ = schemes(e, lengths)
    of_log = np.log(split.step_time_s / ring.step_time_s)
    either = np.concatenate(([False], np.abs(of_log) <= np.hypot(split.half_95, ring.half_95), [False]))
    first, behind = np.flatnonzero(np.diff(either.astype(int))).reshape(-1, 2).T
    return [(int(lengths[start]), int(lengths[end - 1])) for start, end in zip(first, behind, strict=True)]


def _ratio(split: Scheme, ring: Scheme) -> Quantity:
    """Return the step time of TP × PP in those of CP's ring at the first length, half widths added as squares."""
    value, half = float(split.step_time_s[0] / ring.step_time_s[0]), float(np.hypot(split.half_95, ring.half_95)[0])
    return Quantity.of(value, "", "computed", split.unmeasured) if split.unmeasured else with_interval(value, half)


def _figures(one: Scheme) -> dict[str, Quantity]:
    """Return what a scheme takes at its first length, that of its experiment; where nobody knows how wrong its time is,
    without an interval."""
    training, seconds = one.experiment.training, Quantity.of(float(one.step_time_s[0]), "s", "computed", one.unmeasured)
    if not one.unmeasured:
        seconds = estimate(one.experiment).figures["step_time_mean_s"]
    tokens = training.seq_length * training.global_batch_size
    return {
        "memory_bytes": Quantity(float(one.memory_bytes[0]), "bytes", "assumed", note=_ASSUMED),
        "sent_bytes": Quantity(float(one.sent_bytes[0]), "bytes", "computed", note="by one GPU in a step"),
        "exposed_s": Quantity(float(one.exposed_s[0]), "s", "computed", note="an estimate; no interval of it is known"),
        "step_time_s": seconds,
        "tokens_per_s": seconds.under(tokens, "tokens/s", seconds.note),
        "time_per_token_s": seconds.times(1 / tokens, "s/token", note=seconds.note),
    }


def _laid_out(e: Experiment, tp: int, pp: int, cp: int) -> Experiment:
    """Return `e` with other sizes and one replica, for arithmetic at any length: `compared` checks what is shown."""
    sizes = _layout(tp, pp, cp) | {
        "data_parallel_size": 1,
        "num_micro_batches": e.training.global_batch_size // (e.training.micro_batch_size or 1),
    }
    return replace(e, recipe=None, layout=replace(e.layout, **sizes))


def _layout(tp: int, pp: int, cp: int) -> dict[str, Any]:
    return {
        "name": "explicit",
        "tensor_model_parallel_size": tp,
        "pipeline_model_parallel_size": pp,
        "virtual_pipeline_model_parallel_size": None,
        "context_parallel_size": cp,
        "expert_model_parallel_size": 1,
        "sequence_parallel": tp > 1,
    }


def _gathering(p: Parameters) -> Parameters:
    """Return parameters with which context parallelism has no steps of a ring to add up."""
    return msgspec.structs.replace(p, values={**p.values, "ring": Value(0.0, 0.0)})


def _forward(parts: Any, p: Parameters) -> dict[str, Numbers]:
    """Return the forward pass's share of each part, by the factors with which estimate/step_time.py adds the backward
    pass; nothing is recomputed, reduced or stepped."""
    both = 1 + 2 * p.of("gemm_backward")
    share = {
        "gemm": both,
        "attention": 1 + p.of("attention_backward"),
        "memory_bound": 1 + p.of("traffic_backward"),
        "tensor_parallel": 2.0,
        "context_parallel": 3.0,
        "expert_parallel": 2.0,
        "bubble": both,
        "pipeline_sends": 2.0,
        "launches": 3.0,
        "stragglers": both,
    }
    return {name: getattr(parts, name) / factor for name, factor in share.items()}


def _sent(jobs: Jobs, mode: Mode) -> dict[str, Numbers]:
    """Return the bytes that one GPU sends in a step by direction. TP: two gathers and two scatters of the hidden states
    a layer forward and as many backward, with sequence parallelism two gathers more, of what weights' gradients are
    made of (Korthikanti 2022, 4.2.2); the last stage gathers them for the logits, again for those weights, and scatters
    their gradient, the first scatters and gathers those of the embedding; PP: a stage in the middle sends hidden states
    on and their gradients back, one of two either; CP: keys and values of all other ranks (Liu 2023), backward again
    and their gradients; data: gradients and parameters, once."""
    tp, pp, cp = (getattr(jobs, f"{n}_parallel_size") for n in ("tensor_model", "pipeline_model", "context"))
    training = mode == "training"
    ranks = cp * jobs.data_parallel_size
    tokens = jobs.seq_length * jobs.global_batch_size / ranks
    hidden = _BF16 * tokens * jobs.hidden_size
    collectives = 4 + training * (4 + 2 * jobs.sequence_parallel)
    of_ends = np.where(pp > 1, 1 + 2 * training, 2 + 3 * training)
    stage = stages(jobs)
    on_rank = parameters(jobs, stage, layers_on(jobs, stage))
    own = (on_rank.dense + on_rank.experts).max(axis=0)
    each = np.where(jobs.distributed_optimizer > 0, jobs.gradient_bytes + _BF16, 2 * jobs.gradient_bytes)
    context = _BF16 * tokens * 2 * jobs.num_query_groups * jobs.kv_channels / tp * (cp - 1) * jobs.num_layers / pp
    return {
        "tensor": (collectives * jobs.num_layers / pp + of_ends) * hidden * (tp - 1) / tp,
        "pipeline": np.where(pp > 2, 1 + training, pp > 1) * hidden / np.where(jobs.sequence_parallel > 0, tp, 1),
        "context": (1 + 2 * training) * context,
        "data": training * own * each * (ranks - 1) / ranks,
    }


def _rate(jobs: Jobs, p: Parameters) -> Numbers:
    """Return the bytes/s at which one GPU gathers: over the network where the group leaves the domain."""
    inside = jobs.context_parallel_size * jobs.tensor_model_parallel_size <= jobs.gpus_per_domain
    link, nic = link_rate(jobs, p, jobs.context_parallel_size), jobs.nic_bandwidth * p.of("nic_efficiency")
    return np.where(inside, link, nic)


def _keys_and_values(jobs: Jobs) -> Numbers:
    """Return the bytes of all keys and values of one layer and micro-batch."""
    tokens = jobs.seq_length * jobs.micro_batch_size
    return _BF16 * tokens * 2 * jobs.num_query_groups * jobs.kv_channels / jobs.tensor_model_parallel_size


def _floats(lengths: Sequence[int]) -> Numbers:
    return np.array(lengths, dtype=float)


def lines(e: Experiment) -> Iterator[str]:
    """Yield the table at the length of `e`, in both modes, where one scheme overtakes the other and whether that is
    decided, and how wrong it may be."""
    length = f"{e.training.seq_length:,} tokens"
    yield f"{e.model.name}, {e.model.num_layers} layers, {length} a sequence on {gpus_of(e)} (estimated)"
    head = ("", "", "tokens/s, 95 %", "µs/token", "memory GB", "sent GB/GPU", "exposed s", "step s, 95 %")
    yield _row(head)
    for mode in _MODES:
        split, ring, gathered = schemes(e, None, mode)
        for one in (split, ring, gathered):
            known = _figures(one)
            taken = f"{one.memory_bytes[0] / GB:,.1f}" + ("" if one.fits[0] else " does not fit")
            each = shown(1e6 * (known["time_per_token_s"].value or 0.0))
            moved = (f"{one.sent_bytes[0] / GB:,.1f}", shown(float(one.exposed_s[0])))
            speed, seconds = (ranged(known[name]) for name in ("tokens_per_s", "step_time_s"))
            yield _row((mode, one.name, speed, each, taken, *moved, seconds))
        at = crossing(e, mode)
        more = f"from {at:,} tokens on" if at else f"at no length up to {LENGTHS[-1]:,} tokens"
        yield f"{mode}, expected: CP's ring is faster than TP × PP {more}"
        if not split.unmeasured:
            ratio = _ratio(split, ring)
            yield f"at {length} a step of TP × PP takes {ranged(ratio)} × the ring's{not_decided(ratio)}; {ratio.note}"
            yield _open(undecided(e))
    yield from _accuracy(e)


def _open(stretches: Sequence[tuple[int, int]]) -> str:
    """Return at which lengths it is not decided which of the two trains faster."""
    where = " and ".join(f"from {first:,} to {last:,} tokens" for first, last in stretches) or "at no length"
    return f"undecided which of the two trains faster: {where}, where the interval of their ratio holds 1"


def _accuracy(e: Experiment) -> Iterator[str]:
    """Yield how wrong the step times may be, of all schemes in both modes."""
    of_each = [one for mode in _MODES for one in schemes(e, None, mode)]
    texts = [one.unmeasured or estimate(one.experiment).accuracy for one in of_each]
    for text in dict.fromkeys(texts):
        names = [f"{one.mode} {one.name}" for one, own in zip(of_each, texts, strict=True) if own == text]
        yield f"how wrong: {text} ({', '.join(names)})"


def to_json(e: Experiment) -> dict[str, Any]:
    """Return what `lines` prints as plain data."""
    rows, ratios = [], {}
    for mode in _MODES:
        split, ring, gathered = schemes(e, None, mode)
        ratios[mode] = _ratio(split, ring).to_json()
        for one in (split, ring, gathered):
            figures = {name: quantity.to_json() for name, quantity in _figures(one).items()}
            accuracy = one.unmeasured or estimate(one.experiment).accuracy
            about = {"mode": mode, "scheme": one.name, "fits": bool(one.fits[0]), "accuracy": accuracy}
            rows.append({**about, "figures": figures})
    about = {"model": e.model.name, "hardware": e.hardware.name, "gpus": e.layout.world_size, "provenance": "estimated"}
    return {
        **about,
        "seq_length": e.training.seq_length,
        "schemes": rows,
        "split_by_ring": ratios,
        "ring_ahead_from_tokens": {mode: crossing(e, mode) for mode in _MODES},
        "undecided_tokens": {"training": [list(ends) for ends in undecided(e)]},
    }


def _row(cells: Sequence[str]) -> str:
    widths = (9, 27, 28, 9, 20, 12, 10, 0)
    return " ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()
