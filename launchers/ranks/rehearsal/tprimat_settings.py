"""Read canonical settings off the objects that a stack has built, for every stack that builds on Megatron-Core.

Where each is read is the column `built` of conf/vocabulary.yaml, which stands here as tprimat_built.json: programs
inside the ranks run where nothing else of ours is. Values are read, never echoed: a setting that no object here keeps
is left out, and the caller adds what it knows."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

TABLE: dict[str, Any] = json.loads(Path(__file__).with_name("tprimat_built.json").read_text(encoding="utf-8"))
"""requested: setting → its kind. built: setting → where it is read, the first that is there. only_if: setting → the one
without which it is null."""


def read(on_fault: Callable[[str, Exception], None] | None = None, **objects: Any) -> dict[str, Any]:
    """Return every setting that `objects` have, by canonical name; which objects there are: the head of the vocabulary.
    on_fault: takes the name of a setting that cannot be read, and what was raised; without it, that is raised."""
    values: dict[str, Any] = {}
    for name, places in TABLE["built"].items():
        for place in places:
            try:
                values[name] = _value(place, objects)
                break
            except (AttributeError, LookupError):  # no such object here, or an object without it
                continue
            except Exception as error:
                if on_fault is None:
                    raise
                on_fault(name, error)
    switches = TABLE["only_if"].items()
    return values | {name: None for name, switch in switches if values.get(switch, True) in (None, False)}


def _value(place: str, objects: Mapping[str, Any]) -> Any:
    function, _, path = place.removesuffix(")").rpartition("(")
    owner, *parts = path.split(".")
    value = objects[owner]
    for part in parts:
        if isinstance(value, Mapping):
            value = value[part]
        elif part.isdigit():
            value = value[int(part)]
        else:
            value = getattr(value, part)
    value = READERS[function](value) if function else value() if callable(value) else value
    return str(value).removeprefix("torch.") if type(value).__name__ == "dtype" else getattr(value, "value", value)


def process_groups() -> dict[str, Any]:
    """Return the objects `groups`, `distributed` and, where one was made, the calculator of micro-batches `batches`."""
    import torch
    from megatron.core import num_microbatches_calculator, parallel_state

    objects = {"groups": parallel_state, "distributed": torch.distributed}
    if num_microbatches_calculator._GLOBAL_NUM_MICROBATCHES_CALCULATOR is None:  # its functions would raise
        return objects
    return {**objects, "batches": num_microbatches_calculator}


def training(gpt: Any, ddp: Any, optimizer: Any, groups: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the objects of a GPTModel and what trains it; ddp, optimizer: their configs. Schedule and data are each
    stack's own."""
    model = {"gpt": gpt, "model": gpt.config, "modules": list(gpt.modules())}
    return {**process_groups(), **first_group(groups), **model, "ddp": ddp, "optimizer": optimizer}


def first_group(groups: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the object `group` of a built optimizer's parameter groups; its weight decay is that of those that
    decay: the largest."""
    known = [group for group in groups if group.get("params") is not None]
    return {"group": {**known[0], "weight_decay": max(group["weight_decay"] for group in known)}} if known else {}


def megatron_schedule(schedule: Any, unit: float | None = 1) -> dict[str, Any]:
    """Return the object `schedule` of an OptimizerParamScheduler, or of what it will be made from. unit: by how much it
    counts a step; without it, lengths are left out."""
    made = dict(vars(schedule))
    for name in ("lr_warmup_steps", "lr_decay_steps"):
        steps = made.pop(name)
        if unit:
            made[name] = int(steps / unit) if steps % unit == 0 else steps / unit
    return {"schedule": made}


def nemo_schedule(schedule: Any, first_lr: float | None) -> dict[str, Any]:
    """Return the object `schedule` of NeMo's, which begins at lr / (warm-up steps + 1), whatever it was given.
    first_lr: the rate of the first step, where it is known."""
    lr, steps = schedule.base_lrs[0], schedule.warmup_steps
    style = type(schedule).__name__
    made = {**vars(schedule), "max_lr": lr, "lr_warmup_steps": steps}
    made["lr_decay_steps"] = schedule.max_steps - (schedule.constant_steps or 0)
    made["lr_decay_style"] = {"CosineAnnealing": "cosine"}.get(style, style)
    if first_lr is not None:
        start = lr / (steps + 1)
        # its product rounds otherwise in the last digit
        made["init_lr"] = start if math.isclose(first_lr, start, rel_tol=1e-12) else first_lr
    return {"schedule": made}


def planned_batches(sizes: Any, data_size: int, micro_batch: int, batch: int) -> dict[str, Any]:
    """Return what follows from a config that no process group was made from yet. sizes: what has the sizes of the
    model's parts; data_size: replicas; micro_batch, batch: samples."""
    split = sizes.tensor_model_parallel_size * sizes.pipeline_model_parallel_size * sizes.context_parallel_size
    return {
        "data_parallel_size": data_size,
        "world_size": data_size * split,
        "micro_batch_size": micro_batch,
        "global_batch_size": batch,
        "num_micro_batches": batch // (micro_batch * data_size),
    }


def rope_scaling(factor: float) -> dict[str, Any]:
    """Return the settings of a factor that the low frequencies are divided by, 1 where they are not."""
    scaled = not math.isclose(factor, 1.0, rel_tol=1e-3)
    return {"use_rope_scaling": scaled, "rope_scaling_factor": factor if scaled else None}


def rope_factor(frequencies: Sequence[Any], base: float) -> float:
    """Return what the lowest of RoPE's frequencies, base ** (-i / n) for i < n, is divided by."""
    count = len(frequencies)
    return float(round(float(base) ** -((count - 1) / count) / float(frequencies[-1]), 3))


def aux_loss_correction(context_size: int) -> int:
    """Return the factor of the auxiliary loss's coefficient that makes Megatron-Core weigh it as requested. 0.15
    divides its gradient by the context parallel size: https://github.com/NVIDIA/Megatron-LM/pull/2217."""
    import megatron.core

    return context_size if megatron.core.__version__.startswith("0.15.") else 1


def stated_aux_loss(config: Any) -> dict[str, Any]:
    """Return that coefficient as Megatron-Core weighs it; empty where a config states it so."""
    correction = aux_loss_correction(config.context_parallel_size)
    if config.num_moe_experts is None or correction == 1:
        return {}
    return {"moe_aux_loss_coeff": config.moe_aux_loss_coeff / correction}


# Readers of what is no path. LookupError: this object does not show it.


def is_swiglu(config: Any) -> bool:
    from torch.nn import functional

    return bool(config.gated_linear_unit and config.activation_func is functional.silu)


def first_dense_layers(config: Any) -> int | None:
    """Return the layers before the first with experts; None where they do not all come first."""
    frequency = config.moe_layer_freq
    if isinstance(frequency, int):
        return 0 if frequency == 1 else None
    pattern = [int(layer) for layer in frequency]
    dense = pattern.index(1) if 1 in pattern else len(pattern)
    return dense if pattern == [0] * dense + [1] * (len(pattern) - dense) else None


def rows(gpt: Any) -> int:
    """Return the rows of the embedding, or of the output layer, over all TP ranks."""
    from megatron.core import parallel_state

    ends = ("word_embeddings.weight", "output_layer.weight")
    shapes = [p.shape for end in ends for name, p in gpt.named_parameters() if name.endswith(end)]
    return int(shapes[0][0]) * int(parallel_state.get_tensor_model_parallel_world_size())


def matrix_dtype(gpt: Any) -> Any:
    dtypes = [p.dtype for p in gpt.parameters() if p.dim() > 1]
    return dtypes[0]


def epsilon(modules: Sequence[Any]) -> float:
    values = {module.eps for module in modules if isinstance(getattr(module, "eps", None), float)}
    if len(values) != 1:
        raise LookupError("the norms differ, or keep it elsewhere")
    return float(values.pop())


def attention(modules: Sequence[Any]) -> str:
    """Return the kernel: TransformerEngine's attention takes the one that its config names, or chooses (auto);
    Megatron's own is "unfused"."""
    by_class = {type(module).__name__: module for module in modules}
    if "TEDotProductAttention" in by_class:
        return str(by_class["TEDotProductAttention"].config.attention_backend.name)
    if "SDPACoreAttention" in by_class:  # the embedded engine's
        return "sdpa"
    if "DotProductAttention" in by_class:
        return "unfused"
    raise LookupError("no attention of a kind that is known")


def implementation(modules: Sequence[Any]) -> str:
    """Return whose layers the model is built of."""
    ours = any(type(module).__name__.startswith("TE") for module in modules)
    return "transformer_engine" if ours else "local"


def shards(groups: Any) -> int:
    """Return over how many data parallel ranks the distributed optimizer cuts."""
    cut = groups.get_data_parallel_group(with_context_parallel=True, partial_data_parallel=True)
    return int(cut.size()) // int(groups.get_context_parallel_world_size())


def graphs(config: Any) -> str:
    """Return by whom CUDA's or HIP's graphs are captured: none, local or transformer_engine. Megatron-Core before 0.15
    has two switches for it, and later ones set the first with cuda_graph_impl."""
    if (by := getattr(config, "cuda_graph_impl", None)) is not None:
        return str(by)
    if getattr(config, "external_cuda_graph", False):
        return "transformer_engine"
    return "local" if config.enable_cuda_graph else "none"


_NAMED = (attention, epsilon, first_dense_layers, graphs, implementation, is_swiglu, matrix_dtype, rows, shards)
READERS: dict[str, Callable[[Any], Any]] = {
    **{reader.__name__: reader for reader in _NAMED},
    "grouped_gemm": lambda config: config.moe_grouped_gemm if config.num_moe_experts else None,
    "opposite": lambda value: not value,
    "token_dispatcher": lambda config: config.moe_token_dispatcher_type if config.num_moe_experts else None,
}
