"""What the probe reads of built objects, as plain values. Nothing here touches a device, but for the RoPE frequencies,
which are copied once, before the first step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tprimat_names import full_numel, global_name

if TYPE_CHECKING:
    from tprimat_probe import Probe

_VERSIONS = ("torch", "megatron.core", "nemo", "megatron.bridge", "primus", "numpy")


def described(probe: Probe) -> dict[str, Any]:
    """All but the steps. A part that cannot be read is null, and a fault."""
    from tprimat_probe_settings import settings

    if probe.frequencies is None and probe.models and not probe.steps:
        _part(probe, "frequencies", lambda: setattr(probe, "frequencies", frequencies(probe.models[0])))
    return {
        "ranks": _part(probe, "ranks", ranks),
        "settings": settings(probe),
        "chunks": [_part(probe, "chunk", lambda model=model: chunk(model, probe)) for model in probe.models],
        "reduction_dtypes": _part(probe, "reduction_dtypes", lambda: reduction_dtypes(probe)),
        "rope_frequencies": probe.frequencies,
        "input_shape": probe.tokens.shape,
        "first_tokens": probe.tokens.first,
        "tokens_unknown": probe.tokens.unknown,
        "versions": {name: str(v) for name in _VERSIONS if (v := _version(name)) is not None},
    }


def _part(probe: Probe, name: str, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Exception as error:  # noqa: BLE001  the run goes on
        probe.fault(name, error)
        return None


def ranks() -> dict[str, Any]:
    """The place of this process in each kind of group, and the number of processes."""
    import torch
    from megatron.core import parallel_state as groups

    return {
        "world": torch.distributed.get_world_size(),
        "tensor": groups.get_tensor_model_parallel_rank(),
        "pipeline": groups.get_pipeline_model_parallel_rank(),
        "data": groups.get_data_parallel_rank(),
        "context": groups.get_context_parallel_rank(),
        "expert": groups.get_expert_model_parallel_rank(),
    }


def chunk(model: Any, probe: Probe) -> dict[str, Any]:
    """One part of the model that this rank holds: [global name, local shape, elements in the whole model, whether it
    decays, dtype, dtype of its main gradient] of each parameter. None: not told."""
    decays = decayed(probe)
    rows = []
    for name, parameter in model.named_parameters():
        own = global_name(model, name)
        gradient = getattr(parameter, "main_grad", None)
        rows.append(
            [
                own,
                list(parameter.shape),
                full_numel(parameter, own, model.config),
                decays.get(id(parameter)),
                plain(parameter.dtype),
                None if gradient is None else plain(gradient.dtype),
            ]
        )
    layers = getattr(getattr(model, "decoder", None), "layers", ())
    return {
        "class": type(model).__name__,
        "layers": [layer.layer_number for layer in layers],
        "parameters": rows,
    }


def decayed(probe: Probe) -> dict[int, bool]:
    """Of each parameter, by id, whether the group that it was given to decays."""
    found = {}
    for optimizer in (o.optimizer for o in probe.optimizers if o.optimizer is not None):
        groups = probe.decay_groups[id(optimizer)]
        if len(groups) == len(optimizer.param_groups):
            for group, members in zip(optimizer.param_groups, groups, strict=True):
                found |= dict.fromkeys(members, bool(group["weight_decay"] > 0))
    return found


def reduction_dtypes(probe: Probe) -> list[str]:
    """In what the data parallel ranks reduce gradients: the dtypes of Megatron's buffers of them."""
    buffers = [b for w in probe.wrapped for kind in ("buffers", "expert_parallel_buffers") for b in _buffers(w, kind)]
    return sorted({str(plain(buffer.grad_dtype)) for buffer in buffers})


def _buffers(wrapped: Any, kind: str) -> list[Any]:
    found = getattr(wrapped, kind, None)  # of a plain torch module: a method
    return found if isinstance(found, list) else []


def group_row(group: Mapping[str, Any]) -> list[Any]:
    """lr, weight_decay, beta1, beta2, eps of a parameter group that is about to step."""
    beta1, beta2 = group.get("betas", (None, None))
    values = (group.get("lr"), group.get("weight_decay"), beta1, beta2, group.get("eps"))
    return [value if isinstance(value, int | float) else None for value in values]  # a tensor may be on a device


def frequencies(model: Any) -> list[float] | None:
    """The frequencies of the rotary embedding; None where the model has none, or another kind of them."""
    modules = (module for module in model.modules() if type(module).__name__ == "RotaryEmbedding")
    embedding = next(modules, None)
    return None if embedding is None else [float(value) for value in embedding.inv_freq.tolist()]


def means_of(losses: list[Any]) -> list[float]:
    """The mean of each micro-batch's losses [samples, sequence], of equal shape, on the host: in float64, where the
    order of summing shows no more."""
    import torch

    means: list[float] = torch.stack(losses).double().mean(dim=(1, 2)).tolist()
    return means


def _version(name: str) -> Any:
    return getattr(sys.modules.get(name), "__version__", None)


def plain(value: Any) -> Any:
    """`value` as JSON takes it. Never its str or repr, which may wait for a device: else the name of its type."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple | set):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if type(value).__name__ == "dtype":
        return str(value).removeprefix("torch.")
    named = getattr(value, "name", None) or getattr(value, "__name__", None)
    return named if isinstance(named, str) else f"<{type(value).__name__}>"
