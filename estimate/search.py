"""The layouts that are best for a model, GPUs and a batch, under limits: every valid one is predicted, the rest is
sorting. Several requests (GPUs, numbers of nodes, precisions) are searched at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from math import exp, hypot, log
from typing import Literal, NamedTuple

import numpy as np
from msgspec.structs import replace as changed
from numpy.typing import NDArray

from conf.compose import choices, compose
from conf.errors import ConfigError, Problem, listed
from conf.facts import hardware
from conf.load import _request, _values, settle
from conf.schema import IDENTICAL, Request
from conf.threads import useful_threads
from estimate.experiment import columns_of
from estimate.figures import Estimate, estimate
from estimate.fitted import Parameters
from estimate.host import columns_of_host
from estimate.jobs import GB, Jobs, Numbers
from estimate.layouts import Integers, Layouts, layouts_of
from estimate.memory import memory
from estimate.predict import Prediction, predict
from estimate.step_time import PARTS
from metrics.bill import Terms
from metrics.peak import design_power
from metrics.quantity import Quantity, shown

Objective = Literal["throughput", "cost", "energy", "time"]
BEST = 10
_SEVERAL = ("platform", "hardware", "nodes", "gpus_per_node", "precision")
"""Keys of which a search compares several values: its tables and commands name them, as they do sizes of a layout."""
_NEAR = 1e-4
"""Share of a step from which on a part that is longer is a reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a layout; None: no limit. headroom: share of a GPU's memory that stays free of what its device
    shows. cost: of the training, in the currency of its prices. power_w: of all GPUs and hosts at their TDP. days: of
    the training. goodput: by which days and cost are counted, of a request; None: that of the terms."""

    headroom: float = 0.0
    cost: float | None = None
    power_w: float | None = None
    days: float | None = None
    goodput: Callable[[Request], float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """All layouts of one request, predicted. label: GPUs, precision and what else differs between requests, in words.
    memory_bytes: on the device, of the fullest stage. needed: what
    each takes of days, cost and power_w (Limits). affordable: which keep all limits but that of memory; within: that,
    too. of_a_second: what one second of step time adds to each objective, per token; nan where it is unknown."""

    label: str
    layouts: Layouts
    jobs: Jobs
    time: Prediction
    memory_bytes: Numbers
    room_bytes: float
    needed: Mapping[str, Numbers]
    affordable: NDArray[np.bool_]
    within: NDArray[np.bool_]
    of_a_second: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A layout that was found: its place in its space, its figures, its parts in seconds, and why it is behind the
    best of all."""

    space: Space
    index: int
    estimate: Estimate
    parts: Mapping[str, float]
    score: float
    behind: str


class Ratio(NamedTuple):
    """The best of `label` against the best of all, of the objective: above 1 it takes more."""

    label: str
    ratio: Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The result of a search. best: at most ten, the best first. of_each: the best of each request. front: those that
    no other beats in all of speed, cost (energy without prices) and memory, the fastest first. unfit: the layout that
    would be best if memory were no limit, where it is better. excluded: why some requests have no layout."""

    objective: Objective
    spaces: tuple[Space, ...]
    best: tuple[Found, ...]
    of_each: tuple[Found, ...]
    ratios: tuple[Ratio, ...]
    front: tuple[Found, ...]
    unfit: Found | None
    excluded: tuple[Problem, ...]


def requests_of(overrides: Sequence[str]) -> list[Request]:
    """Return every request that `overrides` describe: values with commas between them (hardware=b200,mi355x) are one
    each, and one that is there twice is one. The platform follows from the hardware where it is not typed;
    layout=searched is what a search does. ConfigError: it is none, or of several models or batches, of which none is
    better."""
    values = {text: _values(text) for text in overrides if text != "layout=searched"}
    if several := [text for text, own in values.items() if len(own) > 1 and not _compared(text.partition("=")[0])]:
        what, hint = "has several values, of which a search takes one", "a command each"
        raise ConfigError(*(Problem(text, what, "", f"several of {listed(_SEVERAL)}", hint) for text in several))
    if places := [text for text in values if text.startswith("layout=searched")]:
        what, hint = "is a place among what a search finds", f"tprimat launch {places[0]}"
        raise ConfigError(Problem(places[0], what, allowed="layout=searched", hint=hint))
    if named := [text for text in values if text.startswith("layout=")]:
        what, hint = "names a layout, which is what a search finds", "layout.tensor_model_parallel_size=2 keeps a size"
        raise ConfigError(Problem(named[0], what, allowed="layout=searched", hint=hint))
    found = []
    for job in dict.fromkeys(product(*values.values())):
        common, side, _ = settle(with_platform(job))
        request = _request(compose([*common, *side]))
        if request.method != IDENTICAL:
            what, hint = "a recipe brings its own layout, and a search finds one", "leave it out"
            raise ConfigError(Problem(f"method={request.method}", what, allowed=f"method={IDENTICAL}", hint=hint))
        found.append(request)
    return found


def _compared(key: str) -> bool:
    return key in _SEVERAL or key.startswith("layout.") or key == "training.micro_batch_size"


def with_platform(overrides: Sequence[str]) -> tuple[str, ...]:
    """Return `overrides` with the platform of their hardware, where they name one and no platform."""
    keys = dict(text.partition("=")[::2] for text in overrides)
    device = hardware(keys["hardware"]) if keys.get("hardware") in choices("hardware") else None
    known = device is not None and device.vendor in choices("platform") and "platform" not in keys
    platform = (f"platform={device.vendor}",) if device and known else ()
    return (*overrides, *platform)


def search(
    requests: Sequence[Request],
    terms: Terms,
    limits: Limits | None = None,
    objective: Objective = "throughput",
    parameters: Parameters | None = None,
) -> Search:
    """Return the best layouts of `requests`, of which each has sizes and batch as it was typed, all else open.
    ConfigError: no layout is valid or within the limits, or the objective needs a price that is missing."""
    kept = limits or Limits()
    spaces, invalid = _spaces(requests, terms, kept, parameters)
    if missing := [space for space in spaces if not np.isfinite(space.of_a_second[objective])]:
        names = [space.layouts.request.hardware.name for space in missing]
        raise ConfigError(*(_unknown(name, objective) for name in dict.fromkeys(names)))
    full = [_nothing_within(space, kept, terms) for space in spaces if not space.within.any()]
    if len(full) == len(spaces):
        raise ConfigError(*full, *invalid)
    candidates = [(space, np.flatnonzero(space.within)) for space in spaces if space.within.any()]
    places = _sorted(candidates, objective)

    def found(place: _Place) -> Found:
        return _found(*place, objective, places[0], parameters)

    best, each = map(found, places[:BEST]), [found(_sorted([one], objective)[0]) for one in candidates]
    unfit = _unfit(spaces, objective, places[0])
    return Search(
        objective=objective,
        spaces=spaces,
        best=(first := next(best), *best),
        of_each=tuple(each),
        ratios=tuple(_ratio(one, first, objective) for one in each if one.space is not first.space),
        front=tuple(map(found, _front(spaces, terms))),
        unfit=None if unfit is None else found(unfit),
        excluded=(*full, *invalid),
    )


def _spaces(
    requests: Sequence[Request], terms: Terms, limits: Limits, parameters: Parameters | None
) -> tuple[tuple[Space, ...], list[Problem]]:
    """Return the spaces of requests, and why others have none. ConfigError: none has one."""
    made, invalid = list[Space](), list[Problem]()
    for label, request in zip(_labels(requests), requests, strict=True):
        try:
            made.append(_space(label, request, terms, limits, parameters))
        except ConfigError as error:
            invalid += error.problems
    if not made:
        raise ConfigError(*dict.fromkeys(invalid))
    return tuple(made), invalid


def _labels(requests: Sequence[Request]) -> list[str]:
    """Return GPUs and precision of each request in words, and the sizes typed that are not those of all."""
    sizes = [{**asdict(r.layout), "micro_batch_size": r.training.micro_batch_size} for r in requests]
    differ = [name for name in sizes[0] if len({one[name] for one in sizes}) > 1]
    typed = ["".join(f", {name} {own[name]}" for name in differ) for own in sizes]
    return [
        f"{r.world_size:,} × {r.hardware.name}, {r.precision.name}{own}" for r, own in zip(requests, typed, strict=True)
    ]


def jobs_of_layouts(layouts: Layouts) -> Jobs:
    """Return the jobs of all layouts: what they have in common is that of the first."""
    columns = {name: np.asarray(value) for name, value in columns_of(layouts.experiment_of(0)).items()}
    columns |= _processors(layouts) if layouts.request.hardware.name == "cpu" else {}
    sizes = {
        "tensor_model_parallel_size": layouts.tp,
        "expert_tensor_parallel_size": layouts.tp,
        "pipeline_model_parallel_size": layouts.pp,
        "virtual_pipeline_model_parallel_size": layouts.vp,
        "context_parallel_size": layouts.cp,
        "expert_model_parallel_size": layouts.ep,
        "data_parallel_size": layouts.dp,
        "sequence_parallel": layouts.sp,
        "embedding_counts": layouts.first,
        "micro_batch_size": layouts.micro_batch_size,
        "again_core_attn": layouts.recompute == _SELECTIVE,
        "recompute_layers": layouts.recompute == _FULL,
    }
    return Jobs(**columns | {name: column.astype(float) for name, column in sizes.items()})


_SELECTIVE, _FULL = 1, 2  # of RECOMPUTED


def _processors(layouts: Layouts) -> dict[str, Numbers]:
    """Return the rates of this machine for the processes of each layout: a small micro-batch pays for fewer threads."""
    r = layouts.request
    tokens = layouts.micro_batch_size * r.training.seq_length / layouts.cp
    useful, where = np.unique([useful_threads(each, r.model.hidden_size) for each in tokens], return_inverse=True)
    rates = [columns_of_host(r.ranks_per_node, int(threads))["peak_flops"] for threads in useful]
    return dict.fromkeys(("peak_flops", "peak_bf16_flops"), np.array(rates, dtype=float)[where])


def _space(label: str, request: Request, terms: Terms, limits: Limits, parameters: Parameters | None) -> Space:
    """Return all layouts of a request with their predictions."""
    layouts = layouts_of(request)
    jobs = jobs_of_layouts(layouts)
    time, taken = predict(jobs, parameters), memory(jobs).on_device.max(axis=0)
    room = float(jobs.memory_bytes)
    device, world = request.hardware, request.world_size
    tokens = request.training.global_batch_size * request.training.seq_length
    price = terms.prices.of(device.name).value
    power = _power_w(request, terms)
    gpu_hours = world / device.devices_per_package / 3600 / tokens
    of_a_second = {
        "throughput": world / tokens,
        "time": 1 / tokens,
        "cost": np.nan if price is None else gpu_hours * price,
        "energy": power / tokens,
    }
    goodput = limits.goodput(request) if limits.goodput else terms.goodput
    per_token = time.step_time_s * terms.tokens / goodput
    needed = {
        "days": per_token * of_a_second["time"] / 86400,
        "cost": per_token * of_a_second["cost"],
        "power_w": np.full(len(layouts), power),
    }
    affordable = np.ones(len(layouts), dtype=bool)
    for name, each in needed.items():
        if (most := getattr(limits, name)) is not None:
            if np.isnan(each).all():
                raise ConfigError(_unknown(device.name, "energy" if name == "power_w" else name))
            affordable &= each <= most
    return Space(
        label=label,
        layouts=layouts,
        jobs=jobs,
        time=time,
        memory_bytes=taken,
        room_bytes=room,
        needed=needed,
        affordable=affordable,
        within=affordable & (taken <= room * (1 - limits.headroom)),
        of_a_second=of_a_second,
    )


def _power_w(request: Request, terms: Terms) -> float:
    """Return the power of all GPUs at their TDP, hosts and building."""
    power = design_power(request.hardware).value
    return np.nan if power is None else power * request.world_size * (1 + terms.host_share) * terms.pue


def _sorted(candidates: Sequence[tuple[Space, Integers]], objective: Objective, most: int = BEST) -> list[_Place]:
    """Return the best places of several spaces, the best first; of equal ones that of less memory."""
    places = []
    for space, indices in candidates:
        score = space.time.step_time_s[indices] * space.of_a_second[objective]
        order = np.lexsort((space.memory_bytes[indices], score))[:most]
        places += [(space, int(indices[n])) for n in order]
    return sorted(places, key=lambda place: _score(place[0], place[1], objective))[:most]


_Place = tuple[Space, int]


def _score(space: Space, index: int, objective: Objective) -> float:
    return float(space.time.step_time_s[index] * space.of_a_second[objective])


def _found(space: Space, index: int, objective: Objective, first: _Place, parameters: Parameters | None) -> Found:
    result = estimate(space.layouts.experiment_of(index), parameters)
    return Found(
        space=space,
        index=index,
        estimate=result,
        parts=space.time.parts.of(index),
        score=_score(space, index, objective),
        behind=_behind(space, index, first, objective),
    )


def _behind(space: Space, index: int, first: _Place, objective: Objective) -> str:
    """Return why a layout is behind the best: by how much, and which parts are longer; empty of the best itself."""
    share = _score(space, index, objective) / _score(*first, objective) - 1
    if space is first[0] and index == first[1]:
        return ""
    if space is not first[0] or share < 0:
        return f"{100 * share:+.1f} %"
    mine, theirs = space.time.parts.of(index), first[0].time.parts.of(first[1])
    longer = sorted(((mine[name] - theirs[name], name) for name in PARTS), reverse=True)
    near = _NEAR * float(space.time.step_time_s[index])
    parts = [f"{name} {seconds:+.3g} s" for seconds, name in longer[:2] if seconds > near]
    if not parts:
        return f"{100 * share:+.1f} %: {(space.memory_bytes[index] - space.memory_bytes[first[1]]) / GB:+.1f} GB"
    return f"{100 * share:+.1f} %: {', '.join(parts)}"


def _front(spaces: Sequence[Space], terms: Terms) -> list[_Place]:
    """Return the places that no other beats in all of time a token and GPU, cost a token (energy where a price is
    missing) and memory; the fastest first."""
    priced = all(np.isfinite(space.of_a_second["cost"]) for space in spaces)
    money = "cost" if priced else "energy"
    own: list[tuple[float, float, float, _Place]] = []
    for space in spaces:  # within a space cost follows from time: only time and memory are left
        indices = np.flatnonzero(space.within)
        seconds, taken = space.time.step_time_s[indices], space.memory_bytes[indices]
        order = np.lexsort((taken, seconds))
        least = np.minimum.accumulate(taken[order])
        ahead = np.concatenate(([True], taken[order][1:] < least[:-1]))[: len(order)]
        for n in order[ahead]:
            second = float(seconds[n])
            worth = (second * space.of_a_second["throughput"], second * space.of_a_second[money], float(taken[n]))
            own.append((*worth, (space, int(indices[n]))))
    front = [one for one in own if not any(_beats(other, one) for other in own)]
    return [place for *_, place in sorted(front, key=lambda one: one[:3])]


def _beats(other: tuple[float, float, float, _Place], one: tuple[float, float, float, _Place]) -> bool:
    return other[:3] != one[:3] and all(theirs <= mine for theirs, mine in zip(other[:3], one[:3], strict=True))


def _unfit(spaces: Sequence[Space], objective: Objective, first: _Place) -> _Place | None:
    """Return the best of what only memory excludes, where it is better than the best."""
    excluded = [(space, np.flatnonzero(space.affordable & (space.memory_bytes > space.room_bytes))) for space in spaces]
    places = _sorted(excluded, objective, 1)
    if not places or _score(*places[0], objective) >= _score(*first, objective):
        return None
    return places[0]


def _ratio(one: Found, best: Found, objective: Objective) -> Ratio:
    """Return the ratio of two objectives with its interval. A price or a power has no error."""
    halves = []
    for found in (one, best):
        low, high = (float(end[found.index]) for end in (found.space.time.low_95_s, found.space.time.high_95_s))
        halves.append(log(high / low) / 2)
    known = with_interval(one.score / best.score, hypot(*halves))
    return Ratio(one.space.label, changed(known, note=f"{_TAKEN[objective]} of a token; {known.note}"))


_TAKEN: Mapping[Objective, str] = {"throughput": "GPU time", "time": "time", "cost": "cost", "energy": "energy"}


def with_interval(ratio: float, half: float) -> Quantity:
    """Return the ratio of two predictions. half: half the width of the interval of its logarithm, those of the two
    added as squares, as if their errors were independent: no measured pair says how much they share."""
    note = "the errors of both are taken as independent, which nobody measured"
    return changed(Quantity.of(ratio, "", "computed", note), interval=(ratio * exp(-half), ratio * exp(half)))


def _unknown(name: str, objective: str) -> Problem:
    if objective == "energy":
        return Problem("hardware", f"nobody states the power of {name}", hint="objective=throughput")
    hint = f"price.usd_per_gpu_hour.{name}=3.10, or price=oracle"
    return Problem("price", f"no price of {name}, without which nothing is said of cost", hint=hint)


def _nothing_within(space: Space, limits: Limits, terms: Terms) -> Problem:
    """Return why no layout keeps the limits: the least memory that any takes, or the least of what is limited that any
    takes whose memory suffices."""
    r, least = space.layouts.request, int(np.argmin(space.memory_bytes))
    free = f" less {100 * limits.headroom:g} %" if limits.headroom else ""
    smallest = space.layouts.experiment_of(least).layout
    none = f"none of {len(space.layouts):,} valid layouts of {r.model.name} on {space.label}"
    fits = space.memory_bytes <= space.room_bytes * (1 - limits.headroom)
    if not fits.any():
        what = f"{none} fits: the smallest, {smallest}, takes {space.memory_bytes[least] / GB:,.1f} GB"
        hint = "more GPUs, a GPU with more memory, or a shorter sequence"
        return Problem("layout", what, "", f"{space.room_bytes / GB:,.0f} GB{free}", hint)
    units = {"days": "days", "cost": terms.prices.currency, "power_w": "W"}
    stated = {name: most for name in units if (most := getattr(limits, name)) is not None}
    allowed = listed([f"at most {most:g} {units[name]}" for name, most in stated.items()])
    found = listed([f"at least {shown(float(space.needed[name][fits].min()))} {units[name]}" for name in stated])
    return Problem("layout", f"{none} fits and keeps the limits", found, allowed, "a wider limit, or other GPUs")
