"""Memory of the model states: parameters, gradients, optimizer. Activations, buffers and the runtime come on top."""

from __future__ import annotations

from typing import NamedTuple

from conf.compose import choices
from conf.errors import Problem, listed
from conf.load import model_named
from conf.resolve import Experiment
from conf.shapes import Sizes, count, per_rank

GB = 1e9


class ModelStates(NamedTuple):
    """Bytes and parameters on the fullest rank."""

    parameters: int
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes

    def __str__(self) -> str:
        kinds = zip(("parameters", "gradients", "optimizer"), self[1:], strict=True)
        parts = ", ".join(f"{kind} {_size(n)}" for kind, n in kinds)
        return f"{_size(self.total_bytes)} of model states on the fullest rank ({parts}); activations come on top"


def model_states(e: Experiment) -> ModelStates | None:
    """Return the model states of the fullest rank, in bytes, None where a recipe shares them out in a way of its own.

    Megatron's own count (docs/source/api-guide/dist_optimizer.md): bf16 parameters with fp32 gradients take
    18 bytes a parameter, 6 + 12/DP with the distributed optimizer; fp32 takes 16, or 8 + 8/DP. Experts are on EP times
    fewer ranks, so their optimizer states are sharded over DP/EP."""
    if e.not_counted():
        return None
    on_rank = per_rank(e.model, Sizes.of(e.layout)._replace(vp=1))
    n = on_rank.total
    half = e.precision.params_dtype == "bfloat16"
    gradient = 4 if e.precision.accumulate_allreduce_grads_in_fp32 or not half else 2
    shards = e.layout.data_parallel_size * e.layout.context_parallel_size if e.training.use_distributed_optimizer else 1
    expert_shards = max(1, shards // e.layout.expert_model_parallel_size)
    state = 12 if half else 8
    optimizer = state * on_rank.dense // shards + state * on_rank.experts // expert_shards
    return ModelStates(n, (2 if half else 4) * n, gradient * n, optimizer)


def memory_text(e: Experiment) -> str:
    """Return the model states beside what the GPU of `e` has, in words."""
    states, room = model_states(e), room_bytes(e)
    if room is None:
        return str(states or f"not known: {e.not_counted()}")
    return f"{states or f'not known: {e.not_counted()}'}; one {e.hardware.name} has {_size(room)}"


def room_bytes(e: Experiment) -> float | None:
    """Return the memory of one device as software sees it; None on a CPU, and where nobody says."""
    if e.hardware.vendor is None or e.hardware.memory_gb is None:
        return None
    return e.hardware.memory_gb * GB / e.hardware.devices_per_package


def memory_problems(e: Experiment, host_memory_bytes: int) -> list[Problem]:
    """Return a problem where the model states do not fit the GPU, or those of all processes the host of a CPU run."""
    states, of_device = model_states(e), room_bytes(e)
    if states is None:
        return []
    if e.hardware.vendor is None:
        needed, room, where = states.total_bytes * e.gpus_per_node, float(host_memory_bytes), "this host"
    elif of_device is not None:
        needed, room, where = states.total_bytes, of_device, f"one {e.hardware.name}"
    else:
        return []
    if needed <= room:
        return []
    what = (
        f"{e.model.name} needs {_size(needed)} for its model states alone; {where} has {_size(room)}. "
        f"{states.parameters:,} parameters a rank: {states}"
    )
    if e.hardware.vendor is not None:
        return [Problem("model", what, hint="more TP or PP, the distributed optimizer, or more GPUs")]
    most = int(states.parameters * room / needed)
    models = {name: model_named(name) for name in choices("model")}
    fitting = [name for name, model in models.items() if model is not None and count(model).total <= most]
    hint = "model=llama_tiny, or dry_run=true to plan for a GPU: platform=nvidia dry_run=true"
    return [Problem("model", what, "", f"up to {most:,} parameters a process: {listed(fitting)}", hint)]


def _size(n: float) -> str:
    return f"{n / GB:,.1f} GB" if n >= GB else f"{n / 1e6:,.1f} MB"
