"""Samples into figures, pure: what kernels and links of a machine reach, with 95 % intervals over the rounds.

A round visits every case once: rounds are drawn with replacement (Efron 1979), and everything is fitted again."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conf.machine import BEHIND, Figure
from measure.cases import COLLECTIVES, DTYPES, PROBED, Case, flops_of, group_of, moved_bytes

Numbers = NDArray[np.float64]
LAUNCHES = 200  # of launchers/ranks/measured_work.py, timed as one
_LAUNCH = f"t / {LAUNCHES} kernels of one element"
_THREADS = (
    f"t / {LAUNCHES // BEHIND} kernels that all threads of a rank share, each with {BEHIND} of one element before"
)
DRAWS = 200
LEAST_ROUNDS = 3  # for an interval
MEMORY_BOUND = ("rms_norm", "swiglu", "rope", "softmax", "adam")
_BUS: Mapping[str, Callable[[float], float]] = {
    "all_reduce": lambda ranks: 2 * (ranks - 1) / ranks,
    **dict.fromkeys(("all_gather", "reduce_scatter", "all_to_all"), lambda ranks: (ranks - 1) / ranks),
    "send": lambda ranks: 1.0,
}
"""Bytes that each rank's link carries, as a share of the tensor (nccl-tests, doc/PERFORMANCE.md)."""

_PLAIN = (
    "launches",
    "thread_launches",
    "graph",
    "to_device",
    "to_host",
    "overlap",
    "save",
    "load",
    "data",
)  # of which the precision says nothing


_BY = {"model": ("batch", "seq", "backward"), "sdpa": ("backend", "heads", "causal", "seq", "channels")}
"""Sizes of a kind of work, each of which has figures of its own."""


class Formula(NamedTuple):
    """A figure of one kind of work: its value from cases and the seconds of each."""

    name: str
    unit: str
    text: str
    value: Callable[[Sequence[Case], Numbers], float]


class _Part(NamedTuple):
    """Cases, by their numbers, that give figures together, and what those belong to."""

    formulas: Sequence[Formula]
    of: Mapping[str, int | str]
    indices: Sequence[int]


@dataclass(frozen=True, slots=True)
class Samples:
    """Timed cases. seconds: shape (cases, rounds), nan where a case was not visited; of the slowest of the ranks where
    they wait for each other, else their mean. by_rank: medians over rounds, shape (cases, ranks)."""

    cases: tuple[Case, ...]
    seconds: Numbers
    by_rank: Numbers


def samples_of(cases: Sequence[Case], lines: Sequence[Mapping[str, object]], ranks: int) -> Samples:
    """Return the samples of all ranks' lines, of which those without seconds count as not visited."""
    rounds = 1 + max((int(str(line["round"])) for line in lines), default=-1)
    every = np.full((len(cases), max(rounds, 1), ranks), np.nan)
    for line in lines:
        seconds = line["seconds"]
        if isinstance(seconds, float):
            every[int(str(line["case"])), int(str(line["round"])), int(str(line["rank"]))] = seconds
    waits = np.array([case["kind"] in _BUS or case["kind"] == "overlap" for case in cases])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of cases that no round has visited
        joined = np.where(waits[:, None], np.nanmax(every, axis=2), np.nanmean(every, axis=2))
        return Samples(tuple(cases), joined, np.nanmedian(every, axis=1))


def figures(samples: Samples) -> Iterator[Figure]:
    """Yield every figure that the samples give."""
    for part in _parts(samples.cases):
        own = [samples.cases[index] for index in part.indices]
        seconds = samples.seconds[part.indices] / (2 if own[0]["kind"] == "send" else 1)  # one way
        yield from _figures(part.formulas, seconds, own, part.of)


def incomplete(samples: Samples, refused: Collection[int]) -> dict[str, str]:
    """Return by name the figures that lack a round which timed all of their cases, and why; not of cases that torch
    refused, whose reasons are its own."""
    found: dict[str, list[str]] = defaultdict(list)
    for part in _parts(samples.cases):
        timed = ~np.isnan(samples.seconds[part.indices])
        if timed.all(axis=0).any() or not set(refused).isdisjoint(part.indices):
            continue
        of = " ".join(f"{name}={value}" for name, value in part.of.items())
        for one in part.formulas:
            found[one.name].append(f"{of} ({timed.sum(axis=0).max()} of {len(timed)})")
    why = "no round timed all cases of {}{}: more minutes, or the same call again"
    return {name: why.format(of[0], f" and {len(of) - 1} more" if of[1:] else "") for name, of in found.items()}


def _parts(cases: Sequence[Case]) -> Iterator[_Part]:
    groups: dict[tuple[str, str, int, int, tuple[tuple[str, Any], ...]], list[int]] = defaultdict(list)
    for index, case in enumerate(cases):
        sizes = tuple((name, case[name]) for name in _BY.get(case["kind"], ()))
        sizes += tuple(zip(("first", "second"), case.get("pair", ()), strict=False))
        sizes += (("stride", case["stride"]),) if "stride" in case else ()
        groups[case["kind"], case["dtype"], case["ranks"], group_of(case), sizes].append(index)
    for (kind, dtype, ranks, group, sizes), indices in groups.items():
        of: dict[str, int | str] = {"ranks": ranks} if kind != "send" else {}
        of |= {} if group == ranks else {"group": group}
        of |= {} if kind in _BUS or kind in _PLAIN else {"precision": DTYPES[dtype][0]}
        own = cases[indices[0]]
        formulas = _FORMULAS.get(kind, ()) if kind != "model" else (_STEP[own["backward"]],)
        of |= {"model": own["name"], **dict(sizes[:2])} if kind == "model" else dict(sizes)
        yield _Part(formulas, of, indices)
        if triad := groups.get(("triad", dtype, ranks, group, ())) if kind == "gemm" else None:
            yield _Part((_KNEE,), of, [*indices, *triad])
    yield from _layers(cases)
    yield from _overlaps(cases)


def _layers(cases: Sequence[Case]) -> Iterator[_Part]:
    for index, case in enumerate(cases):
        if "layer" in case:
            of = {"ranks": case["ranks"], "precision": DTYPES[case["dtype"]][0], "layer": case["layer"]}
            yield _Part((_LAYER,), of, [index])


def _overlaps(cases: Sequence[Case]) -> Iterator[_Part]:
    """Yield each product beside an all-reduce, with the two alone."""
    for index, both in enumerate(cases):
        if both["kind"] != "overlap":
            continue
        alone = [("gemm", ("dtype", "ranks", "m", "n", "k")), ("all_reduce", ("ranks", "bytes"))]
        found = [
            [i for i, case in enumerate(cases) if case["kind"] == kind and _alike(case, both, names)]
            for kind, names in alone
        ]
        if all(found):
            yield _Part((_HIDDEN,), {"ranks": both["ranks"]}, [index, *(own[0] for own in found)])


def _alike(one: Case, other: Case, names: Iterable[str]) -> bool:
    return group_of(one) == group_of(other) and all(one[name] == other[name] for name in names)


def _figures(
    formulas: Iterable[Formula], seconds: Numbers, cases: Sequence[Case], of: Mapping[str, int | str]
) -> Iterator[Figure]:
    """Yield a figure for each formula over all rounds that visited every case; none where there is no such round."""
    whole = seconds[:, ~np.isnan(seconds).any(axis=0)]
    rounds = whole.shape[1]
    if not rounds:
        return
    generator = np.random.default_rng(0)
    drawn = [whole[:, generator.integers(0, rounds, rounds)] for _ in range(DRAWS if rounds >= LEAST_ROUNDS else 0)]
    medians = [np.median(one, axis=1) for one in drawn]
    for name, unit, formula, value in formulas:
        best = value(cases, np.median(whole, axis=1))
        ends = np.quantile([value(cases, one) for one in medians], (0.025, 0.975)) if medians else None
        interval = None  # also where a draw leaves the figure open, as a width that does not count
        if ends is not None and np.isfinite(ends).all():
            interval = float(min(ends[0], best)), float(max(ends[1], best))
        if np.isfinite(best):
            yield Figure(name, float(best), unit, formula, of, interval, len(cases), int(whole.size))


def _flops(cases: Sequence[Case]) -> Numbers:
    return np.array([flops_of(case) for case in cases])


def _bytes(cases: Sequence[Case]) -> Numbers:
    return np.array([moved_bytes(case) for case in cases])


def _relative(columns: Numbers, seconds: Numbers) -> Numbers:
    """Return the weights, none negative, of columns that sum up to the seconds: relative errors count, so that small
    work counts as much as large."""
    from scipy.optimize import nnls

    scale = np.maximum(np.abs(columns).max(axis=0), 1e-300)
    found, _ = nnls(columns / scale / seconds[:, None], np.ones(len(seconds)))
    return np.asarray(found / scale)


def columns_of(cases: Sequence[Case]) -> Numbers:
    """Return what the seconds of products, of attention's forward pass or of links are sums of, (cases, terms)."""
    kind = cases[0]["kind"]
    if kind == "gemm":
        m, n, k = (np.array([case[name] for case in cases], dtype=float) for name in "mnk")
        return np.stack([2 * m * n * k, 2 * n * k, 2 * (m * k + m * n), np.ones_like(m)], axis=1)
    if kind == "attention":
        seq, width = (np.array([case[key] for case in cases]) for key in ("seq", "channels"))
        length = np.array([case.get("length", case["seq"]) for case in cases])
        flops = _flops(cases) * (1 + np.array([case.get("keys", 0) for case in cases]) / seq)
        return np.stack([flops, flops / length, flops / width, np.ones_like(flops)], axis=1)
    share = _BUS[kind](group_of(cases[0]))
    carried = np.array([share * case["bytes"] for case in cases])
    return np.stack([np.ones_like(carried), carried], axis=1)


def left_out(cases: Sequence[Case], seconds: Numbers) -> Numbers:
    """Return |predicted / measured - 1| of each case, as the fit of the others predicts it."""
    columns, errors = columns_of(cases), np.empty(len(cases))
    for i in range(len(cases)):
        others = np.arange(len(cases)) != i
        errors[i] = abs(float(columns[i] @ _relative(columns[others], seconds[others])) / seconds[i] - 1)
    return errors


def _gemm(cases: Sequence[Case], seconds: Numbers) -> tuple[float, float, float, float]:
    """Return rate, rows and width that halve it, and the launch."""
    per_flop, per_weight, per_row, launch = _relative(columns_of(cases), seconds)
    if per_flop <= 0:
        return (np.nan,) * 4
    return 1 / per_flop, per_weight / per_flop, per_row / per_flop, launch


def _attention(cases: Sequence[Case], seconds: Numbers) -> tuple[float, float, float]:
    """Return the rate of the forward pass, and the tokens and channels that halve it."""
    forward = [index for index, case in enumerate(cases) if not case["backward"]]
    columns = columns_of([cases[index] for index in forward])
    per_flop, per_token, per_channel, _ = _relative(columns, seconds[forward])
    if per_flop <= 0:
        return (np.nan,) * 3
    return 1 / per_flop, per_token / per_flop, per_channel / per_flop


def _backward(cases: Sequence[Case], seconds: Numbers) -> float:
    def size(index: int) -> tuple[int, int]:
        return cases[index]["seq"], cases[index]["channels"]

    forward = {size(index): seconds[index] for index, case in enumerate(cases) if not case["backward"]}
    both = {size(index): seconds[index] for index, case in enumerate(cases) if case["backward"]}
    return float(np.median([both[key] / forward[key] - 1 for key in both if key in forward]))


def _link(cases: Sequence[Case], seconds: Numbers) -> tuple[float, float, float]:
    """Return latency, rate of a rank's link, and the largest relative error of the fit."""
    columns = columns_of(cases)
    latency, per_byte = fitted = _relative(columns, seconds)
    if per_byte <= 0:
        return (np.nan,) * 3
    return latency, 1 / per_byte, float(np.max(np.abs(columns @ fitted - seconds) / seconds))


def _of_link(kind: str) -> tuple[Formula, ...]:
    share = {"all_reduce": "2 (ranks - 1) / ranks", "send": "1"}.get(kind, "(ranks - 1) / ranks")
    text = f"t = latency + {share} bytes / rate, least squares of t / measured"
    return (
        Formula(f"{kind}_latency", "s", text, lambda cases, t: _link(cases, t)[0]),
        Formula(f"{kind}_rate", "bytes/s", text, lambda cases, t: _link(cases, t)[1]),
        Formula(
            f"{kind}_deviation", "1", "most of |measured - fitted| / measured", lambda cases, t: _link(cases, t)[2]
        ),
    )


def _moving(kind: str) -> Formula:
    text = "bytes read and written once / t, median of sizes"
    return Formula(f"{kind}_rate", "bytes/s", text, lambda cases, t: float(np.median(_bytes(cases) / t)))


def _per_second(name: str, unit: str, text: str, work: Callable[[Case], float]) -> Formula:
    return Formula(name, unit, text, lambda cases, t: float(work(cases[0]) / t[0]))


def _tokens(case: Case) -> float:
    return float(case["batch"] * case["seq"])


def _probed(cases: Sequence[Case], t: Numbers) -> float:
    own = [i for i, case in enumerate(cases) if case["m"] == case["n"] == case["k"] and case["m"] in PROBED.values()]
    largest = max(own, key=lambda i: flops_of(cases[i]), default=None)
    return np.nan if largest is None else flops_of(cases[largest]) / float(t[largest])


def _knee(cases: Sequence[Case], t: Numbers) -> float:
    flops = _flops(cases)
    return float(max(flops / t) * t[-1] / moved_bytes(cases[-1]))


_KNEE = Formula("roofline_knee", "FLOP/byte", "gemm_best / triad_rate", _knee)
_LAYER = _per_second("layer_rate", "FLOP/s", "2 m n k / t of the product of a layer of a model", flops_of)
_HIDDEN = Formula(
    "overlap_hidden",
    "1",
    "(t of a product + t of an all-reduce - t of both at once) / the shorter: below 0 they hinder each other",
    lambda _, t: float((t[1] + t[2] - t[0]) / min(t[1], t[2])),
)
_STEP = (
    _per_second("forward_tokens", "tokens/s", "batch seq / t of the standard model's forward pass", _tokens),
    _per_second("training_tokens", "tokens/s", "batch seq / t of a step of the standard model, Adam included", _tokens),
)
"""Figures of the standard model: forward alone, and both passes."""
_GEMM = "t = launch + 2 m n k (1 + rows/m + width/n + width/k) / rate, least squares of t / measured, none below 0"
_SIZES = f"m = n = k = {PROBED[True]}, on a CPU {PROBED[False]}"
_PROBED = f"2 m n k / t of {_SIZES}: the product that quick, full and probe all have"
_ATTENTION = (
    "t = launch + flops (1 + tokens/length + channels/width) / rate; flops = 2 batch heads seq² width (1 + keys/seq),"
    " causal; keys, length: of a block, which a CPU computes whole, and 4 times its queries; on a GPU 0 and seq"
)
_REACHED = {
    "grouped": "2 experts m n k / t of products one behind the other, median",
    "grouped_kernel": "2 experts m n k / t of one grouped product, median",
    "sdpa": "flops / t of the forward pass; flops = 4 batch heads seq² width, causal half of that",
}
_FORMULAS: Mapping[str, tuple[Formula, ...]] = {
    "gemm": (
        Formula("gemm_rate", "FLOP/s", _GEMM, lambda cases, t: _gemm(cases, t)[0]),
        Formula("gemm_rows", "rows", _GEMM, lambda cases, t: _gemm(cases, t)[1]),
        Formula("gemm_width", "columns", _GEMM, lambda cases, t: _gemm(cases, t)[2]),
        Formula("gemm_launch", "s", _GEMM, lambda cases, t: _gemm(cases, t)[3]),
        Formula("gemm_best", "FLOP/s", "most of 2 m n k / t", lambda cases, t: float(max(_flops(cases) / t))),
        Formula("gemm_probed", "FLOP/s", _PROBED, _probed),
    ),
    "attention": (
        Formula("attention_rate", "FLOP/s", _ATTENTION, lambda cases, t: _attention(cases, t)[0]),
        Formula("attention_tokens", "tokens", _ATTENTION, lambda cases, t: _attention(cases, t)[1]),
        Formula("attention_channels", "channels", _ATTENTION, lambda cases, t: _attention(cases, t)[2]),
        Formula("attention_backward", "1", "median of (both passes - forward) / forward", _backward),
    ),
    **{
        kind: (Formula(f"{kind}_rate", "FLOP/s", text, lambda cases, t: float(np.median(_flops(cases) / t))),)
        for kind, text in _REACHED.items()
    },
    "save": (_per_second("save_rate", "bytes/s", "bytes / t of torch.save, until the disk has them", moved_bytes),),
    "load": (
        _per_second("load_rate", "bytes/s", "bytes / t of torch.load of a file that no cache holds", moved_bytes),
    ),
    "data": (_per_second("data_tokens", "tokens/s", "batch seq / t of reading sequences of a mapped file", _tokens),),
    "launches": (Formula("launch", "s", _LAUNCH, lambda _, t: float(t[0] / LAUNCHES)),),
    "thread_launches": (Formula("thread_launch", "s", _THREADS, lambda _, t: float(t[0] / (LAUNCHES // BEHIND))),),
    "graph": (Formula("graph_launch", "s", _LAUNCH, lambda _, t: float(t[0] / LAUNCHES)),),
    **{kind: (_moving(kind),) for kind in (*MEMORY_BOUND, "copy", "triad", "to_device", "to_host")},
    **{kind: _of_link(kind) for kind in (*COLLECTIVES, "send")},
}
