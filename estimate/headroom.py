"""Say whether an Experiment fits the memory of its GPUs, and what to change where it does not: by the one model of
estimate/memory.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import product
from math import log2
from typing import Any, Literal, NamedTuple

from conf.check import divisors, tensor_sizes
from conf.compose import choices
from conf.errors import Problem, listed
from conf.load import model_named
from conf.resolve import Experiment
from conf.shapes import count

GB = 1e9
Word = Literal["fits", "tight", "does not fit"]
_TP, _PP, _VP, _DP = (
    f"{name}_parallel_size" for name in ("tensor_model", "pipeline_model", "virtual_pipeline_model", "data")
)
_NOTHING_NEAR = (
    "more GPUs, or a layout that `tprimat estimate search` finds: "
    "more TP and PP, a smaller micro-batch and full recomputation do not suffice"
)
_STAGES = ("first", "a middle", "last")
_FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}


class Headroom(NamedTuple):
    """Bytes of one GPU on the fullest pipeline stage. parameters: on that rank. parts: by the names of
    estimate.memory.Memory. allocated: in tensors; on_device: with what is assumed. room: what the device has, None on
    a CPU and where nobody says. stage: first, a middle or last; None without a pipeline."""

    parameters: int
    parts: Mapping[str, float]
    allocated: float
    on_device: float
    room: float | None
    stage: str | None

    @property
    def word(self) -> Word | None:
        """Return whether it fits: tight is where tensors fit, and what is assumed beside them does not."""
        if self.room is None:
            return None
        return "fits" if self.on_device <= self.room else "tight" if self.allocated <= self.room else "does not fit"

    @property
    def states_bytes(self) -> float:
        """Return the bytes of weights, gradients and optimizer."""
        return sum(self.parts[name] for name in ("weights", "gradients", "optimizer"))

    def __str__(self) -> str:
        from estimate.memory import ACTIVATIONS, ASSUMED

        groups = {"activations": (*ACTIVATIONS, "loss", "backward"), "other": ("stand_ins", "gathered")}
        sizes = {name: self.parts[name] for name in ("weights", "gradients", "optimizer")}
        sizes |= {group: sum(self.parts[name] for name in names) for group, names in groups.items()}
        shown = ", ".join(f"{name} {_size(size)}" for name, size in sizes.items() if size)
        where = f" on the fullest stage ({self.stage})" if self.stage else ""
        assumed = sum(self.parts[name] for name in ASSUMED)
        beside = f"; about {_size(assumed)} beside them (assumed)" if assumed else ""
        return f"{_size(self.allocated)} in tensors{where}: {shown}{beside}"


def headroom(e: Experiment) -> Headroom:
    """Return what `e` needs on its fullest GPU."""
    from estimate.experiment import columns_of

    return _headroom(tuple(columns_of(e, timed=False).items()), room_bytes(e))


@lru_cache(maxsize=256)
def _headroom(columns: tuple[tuple[str, Any], ...], room: float | None) -> Headroom:
    """Return the same once for all runs of a matrix that differ in nothing of it, as by their seeds."""
    return _headrooms([dict(columns)], room)[0]


def memory_text(e: Experiment) -> str:
    """Return what `e` needs, beside what its GPU has, in words."""
    needed = headroom(e)
    if needed.room is None:
        return str(needed)
    return f"{needed.word}: {needed}; one {e.hardware.name} has {_size(needed.room)}"


def room_bytes(e: Experiment) -> float | None:
    """Return the memory of one device as software sees it; None on a CPU, and where nobody says."""
    return None if e.hardware.vendor is None else e.hardware.room_bytes


def memory_problems(e: Experiment, host_memory_bytes: int) -> list[Problem]:
    """Return a problem where weights, gradients and optimizer alone do not fit the GPU, or those of all processes the
    host of a CPU run: activations are predicted to a few percent, and never the reason to refuse a run."""
    needed = headroom(e)
    if e.hardware.vendor is None:
        states, room, where = needed.states_bytes * e.gpus_per_node, float(host_memory_bytes), "this host"
    elif needed.room is not None:
        states, room, where = needed.states_bytes, needed.room, f"one {e.hardware.name}"
    else:
        return []
    if states <= room:
        return []
    what = (
        f"{e.model.name} needs {_size(states)} for its model states alone; {where} has {_size(room)}. "
        f"{needed.parameters:,} parameters a rank: {needed}"
    )
    if e.hardware.vendor is not None:
        return [Problem("model", what, hint=nearest_that_fits(e) or _NOTHING_NEAR)]
    most = int(needed.parameters * room / states)
    models = {name: model_named(name) for name in choices("model")}
    fitting = [name for name, model in models.items() if model is not None and count(model).total <= most]
    hint = "model=llama_tiny, or dry_run=true to plan for a GPU: platform=nvidia dry_run=true"
    return [Problem("model", what, "", f"up to {most:,} parameters a process: {listed(fitting)}", hint)]


def what_fits(e: Experiment) -> list[str]:
    """Return what to change where `e` is not predicted to fit; nothing where it is, or where a vendor's recipe, which
    changes in no part, says how it runs."""
    if e.recipe is not None or headroom(e).word in ("fits", None):
        return []
    return [nearest_that_fits(e) or _NOTHING_NEAR]


def nearest_that_fits(e: Experiment) -> str | None:
    """Return what to change so that `e` is predicted to fit its GPUs, and what it needs then; None where nothing here
    does: of micro-batch, recomputation, TP and PP what changes least, as the launcher's own rules allow."""
    from estimate.experiment import columns_of

    own, room = columns_of(e, timed=False), room_bytes(e)
    changes = sorted(_changes(e, own), key=lambda change: change[0])
    if room is None or not changes:
        return None
    found = _headrooms([{**own, **columns} for _, columns, _ in changes], room)
    for (_, _, words), needed in zip(changes, found, strict=True):
        if needed.word == "fits":
            return f"{words}: {_size(needed.on_device)} of {_size(room)}"
    return None


def _changes(e: Experiment, own: Mapping[str, Any]) -> Iterator[tuple[float, dict[str, Any], str]]:
    """Yield how far each other way is from `e`, its columns of Jobs, and what to type for it."""
    tp, pp, world = e.layout.tensor_model_parallel_size, e.layout.pipeline_model_parallel_size, e.layout.world_size
    micro, batch, cp = int(own["micro_batch_size"]), e.training.global_batch_size, e.layout.context_parallel_size
    tps = [n for n in tensor_sizes(e.model) if tp <= n <= max(tp, e.gpus_per_node) and n % tp == 0]
    ends = e.sizes().first + e.sizes().last
    pps = [n for n in divisors(e.model.num_layers + ends) if pp <= n <= world and n % pp == 0]
    pps = [n for n in pps if not ends or e.model.num_layers + ends >= 2 * n]  # each end keeps a layer
    for n, m, b, again in product(tps, pps, divisors(micro), (False, True)):
        dp, rest = divmod(world, n * m * cp)
        divides = not rest and dp and batch % (dp * b) == 0 and (dp * cp) % e.layout.expert_model_parallel_size == 0
        far = log2(n / tp) + log2(m / pp) + log2(micro / b) + again
        if not divides or not far or (again and own["recompute_layers"] == 1):
            continue
        columns: dict[str, Any] = {"micro_batch_size": b}
        words = list[str]()
        if (n, m) != (tp, pp):
            columns |= {_TP: n, _PP: m, _DP: dp, "sequence_parallel": float(n > 1)}
            columns |= {"expert_tensor_parallel_size": n, _VP: 1}
            words += [f"layout.{_TP}={n} layout.{_PP}={m}", *([f"layout.{_VP}=null"] if own[_VP] > 1 else [])]
        words += [f"training.micro_batch_size={b}"] if b != micro else []
        words += [f"training.{name}={value}" for name, value in _FULL.items()] if again else []
        yield far, columns | ({"recompute_layers": 1.0} if again else {}), " ".join(words)


def _headrooms(columns: list[dict[str, Any]], room: float | None) -> list[Headroom]:
    from estimate.memory import memory
    from estimate.parameters import layers_on, parameters, stages
    from estimate.rows import jobs_of

    jobs = jobs_of(columns)
    found, stage = memory(jobs), stages(jobs)
    held = parameters(jobs, stage, layers_on(jobs, stage))
    numbers, rows = held.dense + held.experts, []
    for index, own in enumerate(columns):
        at = found.fullest[index]
        tensors, device = (float(total[at, index]) for total in (found.allocated, found.on_device))
        where = _STAGES[at] if own[_PP] > 1 else None
        rows.append(Headroom(int(numbers[at, index]), found.parts(index), tensors, device, room, where))
    return rows


def _size(n: float) -> str:
    return f"{n / GB:,.1f} GB" if n >= GB else f"{n / 1e6:,.1f} MB"
