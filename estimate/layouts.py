"""Every layout that an experiment may have, side by side as arrays: the conditions are the launcher's own, which numpy
goes through at once (conf/fits.py). What the request fixes stays as it is; what it leaves open takes every value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from conf import fits
from conf.check import divisors, problems, tensor_sizes
from conf.errors import ConfigError, Problem, listed
from conf.resolve import Experiment, resolve
from conf.schema import IDENTICAL, Request
from conf.shapes import ENDS, Sizes
from conf.vocabulary import vocabulary

Integers: TypeAlias = NDArray[np.int64]
RECOMPUTED: tuple[Mapping[str, Any], ...] = (
    {"recompute_granularity": "none", "recompute_method": None, "recompute_num_layers": None},
    {"recompute_granularity": "selective", "recompute_method": None, "recompute_num_layers": None},
    {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
)
"""Choices of recomputation: nothing, the core of the attention, every layer."""
_SIZES = ("tp", "pp", "vp", "cp", "ep", "first", "last")
_FIELDS = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "vp": "virtual_pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "sp": "sequence_parallel",
    **dict(zip(("first", "last"), ENDS, strict=True)),
}
_GROUPS = ("data_parallel_shards", "data_parallel_replicas")
_SWITCHES = ("sp", "first", "last")
_EXPLICIT = "explicit"
_TRIED = 8  # batches near the one that is not valid


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts:
    """n layouts, each field of shape (n,): sizes in ranks, sp 0 or 1, first and last: as how many layers embedding and
    loss count, the micro-batch in samples, recompute by its place in RECOMPUTED. They are of one request, without null
    but in what they replace."""

    request: Request
    tp: Integers
    pp: Integers
    vp: Integers
    cp: Integers
    ep: Integers
    sp: Integers
    first: Integers
    last: Integers
    micro_batch_size: Integers
    recompute: Integers

    def __len__(self) -> int:
        return len(self.tp)

    @property
    def dp(self) -> Integers:
        """Return DP of each."""
        return self.request.world_size // (self.tp * self.pp * self.cp)

    def request_of(self, index: int) -> Request:
        """Return the request of one layout, by explicit sizes, as a user would type it."""
        sizes: dict[str, Any] = {field: int(getattr(self, name)[index]) for name, field in _FIELDS.items()}
        sizes |= {_FIELDS["vp"]: sizes[_FIELDS["vp"]] if sizes[_FIELDS["vp"]] > 1 else None}
        sizes |= {_FIELDS[name]: bool(sizes[_FIELDS[name]]) for name in _SWITCHES}
        layout = replace(self.request.layout, name=_EXPLICIT, table=None, **sizes)
        training = {"micro_batch_size": int(self.micro_batch_size[index]), **RECOMPUTED[self.recompute[index]]}
        return replace(self.request, layout=layout, training=replace(self.request.training, **training))

    def experiment_of(self, index: int) -> Experiment:
        """Return the experiment of one layout, which the launcher's check has seen. ConfigError: it refuses it."""
        return resolve(self.request_of(index), ())


def layouts_of(request: Request) -> Layouts:
    """Return every layout of `request` that the launcher takes, in no order. Sizes that were typed (layout.name is
    explicit), a micro-batch and the granularity of recomputation that are not null are kept. ConfigError: what is wrong
    with the request whatever its layout, and where no layout is left, why."""
    if hybrid := [name for name in _GROUPS if getattr(request.layout, name) is not None]:
        what = "a search lets all data parallel ranks share one group of shards"
        raise ConfigError(*(Problem(f"layout.{name}", what, "", "null") for name in hybrid))
    if typed := [*_partly_recomputed(request)]:
        raise ConfigError(*typed)
    request = _open(request)
    if wrong := [*problems(_any_layout(request), layout=False), *refused_by_framework(request)]:
        raise ConfigError(*wrong)
    columns = _valid(request)
    if not len(columns["tp"]):
        raise ConfigError(_none_left(request))
    return Layouts(request=request, **columns)


def _valid(request: Request) -> dict[str, Integers]:
    """Return the columns of all layouts that are valid."""
    fixed = {name: getattr(request.layout, field) for name, field in _FIELDS.items()}
    first = _product({name: _values(request, name, fixed[name]) for name in ("tp", "pp", "cp")})
    first = _kept(first, fits.splits_world(request, _sizes(first)))
    rest = _product({name: _values(request, name, fixed[name]) for name in ("vp", "ep", "sp")})
    columns = _crossed(_crossed(first, rest), _ends(fixed["first"], fixed["last"]))
    columns = _kept(columns, _all(fits.CONDITIONS, request, columns) & _needed(request, fixed, columns))
    batch, micro = request.training.global_batch_size, request.training.micro_batch_size
    columns = _crossed(columns, {"micro_batch_size": np.array([micro] if micro else divisors(batch))})
    columns = _kept(columns, _all(fits.OF_THE_BATCH, request, columns))
    return _crossed(columns, {"recompute": np.array(_recomputations(request))})


def command(e: Experiment) -> tuple[str, ...]:
    """Return the overrides that give an experiment its layout: behind `tprimat launch` and what was requested."""
    layout = {field: getattr(e.layout, field) for name, field in _FIELDS.items() if name != "ep" or e.model.moe}
    layout = {field: size for field, size in layout.items() if size or field not in ENDS}
    layout = {field: str(size).lower() for field, size in layout.items() if size is not None}
    training = {name: getattr(e.training, name) for name in ("micro_batch_size", *RECOMPUTED[0], *_OVERLAP)}
    training |= {"recompute_granularity": e.training.recompute_granularity or "none"}
    typed = {name: str(value).lower() for name, value in training.items() if value is not None}
    return (*(f"layout.{key}={size}" for key, size in layout.items()), *(f"training.{k}={v}" for k, v in typed.items()))


_OVERLAP = ("overlap_grad_reduce", "overlap_param_gather")


def refused_by_framework(of: Request | Experiment) -> Iterator[Problem]:
    """Yield the sizes of a layout that its framework cannot have (`cannot` in conf/vocabulary.yaml)."""
    for field, only in _only_values(of).items():
        value = getattr(of.layout, field)
        if value is not None and value != (1 if only is None else only):
            allowed = "null" if only is None else str(only).lower()
            what = f"{of.framework.name}: {vocabulary()[field].write[of.framework.name].cannot}"
            yield Problem(f"layout.{field}", what, str(value).lower(), allowed, f"layout.{field}={allowed}")


def _only_values(of: Request | Experiment) -> dict[str, Any]:
    """Return the value of each size of a layout that the framework has one of; None of VP, which no pipeline has."""
    writes = {field: vocabulary()[field].write.get(of.framework.name) for field in _FIELDS.values()}
    only = {field: write.refused_without(of) for field, write in writes.items() if write is not None}
    return {field: value for field, value in only.items() if value is not msgspec.UNSET}


def _open(request: Request) -> Request:
    """Return `request` with every size open that nobody typed and the framework has several values of, and the switches
    that cost nothing on. A switch of a layout stays, for none of conf/layout has one: it was typed."""
    open_sizes: dict[str, Any] = {field: None for name, field in _FIELDS.items() if name not in _SWITCHES}
    layout, training = request.layout, request.training
    if layout.name != _EXPLICIT:
        layout = replace(layout, **open_sizes)
    fixed: dict[str, Any] = {field: 1 if only is None else only for field, only in _only_values(request).items()}
    layout = replace(layout, **{field: value for field, value in fixed.items() if getattr(layout, field) is None})
    names = ("use_distributed_optimizer", *_OVERLAP)
    sharded = training.use_distributed_optimizer is not False
    free: dict[str, Any] = {name: sharded for name in names if getattr(training, name) is None}
    layout = replace(layout, name=_EXPLICIT, table=None)
    return replace(request, method=IDENTICAL, recipe=None, layout=layout, training=replace(training, **free))


def _any_layout(request: Request) -> Request:
    """Return `request` filled in so far that rules which look at no layout can be checked."""
    optimizer, training = request.optimizer, request.training
    if optimizer.lr_decay_iters is None:
        optimizer = replace(optimizer, lr_decay_iters=training.train_iters)
    if training.recompute_granularity == "none":
        training = replace(training, **{**RECOMPUTED[0], "recompute_granularity": None})
    return replace(request, optimizer=optimizer, training=training)


def _values(request: Request, name: str, fixed: Any) -> Sequence[int]:
    """Return what a size may be. SP without TP is none, and where TP is 1 only the one that is off is kept."""
    if fixed is not None:
        return [int(fixed)]
    model, world = request.model, request.world_size
    return {
        "tp": lambda: tensor_sizes(model),
        "pp": lambda: stages_of(request),
        "vp": lambda: stages_of(request),
        "cp": lambda: divisors(world),
        "ep": lambda: divisors(model.moe.num_experts if model.moe else 1),
        "sp": lambda: [0, 1],
    }[name]()


def stages_of(request: Request) -> list[int]:
    """Return what divides the layers, with the embedding and the loss as layers or without."""
    return sorted({n for more in range(len(ENDS) + 1) for n in divisors(request.model.num_layers + more)})


def _ends(first: bool | None, last: bool | None) -> dict[str, Integers]:
    """Return as how many layers embedding and loss may count, side by side: what is None is open, but the embedding
    alone, which is the lighter of the two, counts only where that was typed."""
    pairs = [(0, 0), (0, 1), (1, 1)] if first is None else [(int(first), 0), (int(first), 1)]
    pairs = [(a, b) for a, b in pairs if last is None or b == last]
    return {"first": np.array([a for a, _ in pairs]), "last": np.array([b for _, b in pairs])}


def _needed(request: Request, fixed: Mapping[str, Any], columns: Mapping[str, Integers]) -> Any:
    """Return where the stages divide the layers by nothing less than what counts as one, or where that was typed."""
    plain = request.model.num_layers % (columns["pp"] * columns["vp"]) == 0
    typed = (bool(fixed["first"]) & (columns["first"] > 0)) | (bool(fixed["last"]) & (columns["last"] > 0))
    return typed | ~plain | (columns["first"] + columns["last"] == 0)


def _recomputations(request: Request) -> list[int]:
    """Return the places in RECOMPUTED that the request allows. The core of the attention is done again only where that
    was typed: fused attention keeps nothing of it, so that it takes time and frees no memory."""
    wanted = request.training.recompute_granularity
    names = [one["recompute_granularity"] for one in RECOMPUTED]
    return [n for n, name in enumerate(names) if name == wanted or (wanted is None and name != "selective")]


def _partly_recomputed(request: Request) -> Iterator[Problem]:
    """Yield how recomputation of some layers was typed."""
    for name, value in RECOMPUTED[-1].items():
        typed = getattr(request.training, name)
        if name != "recompute_granularity" and typed not in (None, value):
            what, hint = "a search recomputes every layer or none", "`estimate` with a layout that is typed"
            yield Problem(f"training.{name}", what, str(typed), f"null or {value}", hint)


def _none_left(request: Request) -> Problem:
    typed = [f"{field}={value}" for field in _FIELDS.values() if (value := getattr(request.layout, field))]
    kept = f", with {listed(typed)}" if typed else ""
    what = f"no layout of {request.model.name} on {request.world_size} GPUs is valid{kept}"
    found = f"batch {request.training.global_batch_size}, {request.training.seq_length} tokens a sequence"
    sizes = f"TP {listed(tensor_sizes(request.model))}; PP {listed(divisors(request.model.num_layers))}"
    allowed = f"{sizes}; what they leave of the GPUs for DP divides the batch"
    near = _near_batch(request)
    hint = f"training.global_batch_size={near}" if near else "fewer sizes typed, or another number of GPUs"
    return Problem("layout", what, found, allowed, hint)


def _near_batch(request: Request) -> int | None:
    """Return the batch nearest to that of `request` with which some layout is valid; None where it is far."""
    batch = request.training.global_batch_size
    fixed = {name: getattr(request.layout, field) for name, field in _FIELDS.items()}
    grid = _product({name: _values(request, name, fixed[name]) for name in ("tp", "pp", "cp")})
    sizes = np.unique(request.world_size // (grid["tp"] * grid["pp"] * grid["cp"]))
    sizes = sizes * (request.training.micro_batch_size or 1)
    multiples = {int(n) * whole for n in sizes if n for whole in (batch // int(n), batch // int(n) + 1)}
    for near in sorted(multiples - {0, batch}, key=lambda one: abs(one - batch))[:_TRIED]:
        if len(_valid(replace(request, training=replace(request.training, global_batch_size=near)))["tp"]):
            return near
    return None


def _product(axes: Mapping[str, Sequence[int]]) -> dict[str, Integers]:
    """Return every combination of values."""
    grid = np.meshgrid(*(np.array(values, dtype=np.int64) for values in axes.values()), indexing="ij")
    return {name: column.ravel() for name, column in zip(axes, grid, strict=True)}


def _crossed(left: Mapping[str, Integers], right: Mapping[str, Integers]) -> dict[str, Integers]:
    """Return every row of `left` with every row of `right`."""
    n, m = len(next(iter(left.values()))), len(next(iter(right.values())))
    columns = {name: np.repeat(column, m) for name, column in left.items()}
    return columns | {name: np.tile(column, n) for name, column in right.items()}


def _kept(columns: Mapping[str, Integers], mask: Any) -> dict[str, Integers]:
    return {name: column[mask] for name, column in columns.items()}


def _sizes(columns: Mapping[str, Any]) -> Any:
    return Sizes(**{name: columns[name] for name in _SIZES if name in columns})


def _all(conditions: Sequence[Any], request: Request, columns: Mapping[str, Any]) -> Any:
    """Return which rows meet all conditions."""
    r: Any = request
    r = replace(r, layout=replace(r.layout, sequence_parallel=columns["sp"]))
    if "micro_batch_size" in columns:
        r = replace(r, training=replace(r.training, micro_batch_size=columns["micro_batch_size"]))
    return reduce(and_, (condition(r, _sizes(columns)) for condition in conditions))
