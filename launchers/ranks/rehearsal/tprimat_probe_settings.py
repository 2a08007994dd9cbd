"""Canonical settings (conf/vocabulary.yaml) from what the probe has seen. One that no built object tells is left out:
train_iters, save_interval and the name of the data are the request's alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tprimat_settings import (
    attention,
    batch_settings,
    ddp_settings,
    layout_settings,
    megatron_schedule,
    model_settings,
    nemo_schedule,
    optimizer_settings,
    padded_vocab_size,
    rope_scaling,
)

if TYPE_CHECKING:
    from tprimat_probe import Probe


def settings(probe: Probe) -> dict[str, Any]:
    """All that can be told; a part that cannot be read is a fault, and the others remain."""
    return _told(probe, _model, _built, _rope, _ddp, _optimizer, _layout, _batches, _schedule, _data)


def schedule(probe: Probe) -> dict[str, Any]:
    """What the schedule alone tells."""
    return _told(probe, _schedule)


def _told(probe: Probe, *parts: Callable[[Probe], dict[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for part in parts:
        try:
            values |= part(probe)
        except Exception as error:  # noqa: BLE001  the run goes on
            probe.fault(part.__name__, error)
    return values


def _model(probe: Probe) -> dict[str, Any]:
    config = probe.models[0].config
    return {**model_settings(config), **_aux_loss(config)}


def _aux_loss(config: Any) -> dict[str, Any]:
    """Megatron-Core 0.15 divides the gradient of the auxiliary loss by the context parallel size:
    https://github.com/NVIDIA/Megatron-LM/pull/2217."""
    import megatron.core

    size = config.context_parallel_size
    if config.num_moe_experts is None or size == 1 or not megatron.core.__version__.startswith("0.15."):
        return {}
    return {"moe_aux_loss_coeff": config.moe_aux_loss_coeff / size}


def _built(probe: Probe) -> dict[str, Any]:
    """What the modules and parameters themselves show."""
    gpt = probe.models[0]
    modules = [module for model in probe.models for module in model.modules()]
    tensor = layout_settings()["tensor_model_parallel_size"]
    vocabulary = padded_vocab_size(gpt.named_parameters(), tensor)
    if vocabulary is None and getattr(gpt.output_layer if gpt.post_process else None, "weight", None) is not None:
        vocabulary = int(gpt.output_layer.weight.shape[0]) * tensor
    values = {
        "params_dtype": next((p.dtype for p in gpt.parameters() if p.dim() > 1), None),
        "norm_epsilon": _norm_epsilon(modules),
        "max_position_embeddings": gpt.max_sequence_length,
        "padded_vocab_size": vocabulary,
        **attention(modules),
    }
    return {
        **{name: value for name, value in values.items() if value is not None},
        "untie_embeddings_and_output_weights": not gpt.share_embeddings_and_output_weights,
    }


def _norm_epsilon(modules: Iterable[Any]) -> float | None:
    """The epsilon that all norms have; None where they differ or keep it elsewhere."""
    found = {module.eps for module in modules if isinstance(getattr(module, "eps", None), float)}
    return found.pop() if len(found) == 1 else None


def _rope(probe: Probe) -> dict[str, Any]:
    """From the frequencies in use: rotary_base ** (-i / n) for i < n, the low ones divided where they are scaled as
    Llama 3.1's are."""
    if not probe.frequencies or len(probe.frequencies) < 2:
        return {}
    count, told = len(probe.frequencies), float(probe.models[0].rotary_base)
    base = probe.frequencies[1] ** -count
    factor = told ** -((count - 1) / count) / probe.frequencies[-1]
    return {
        # float32 keeps seven digits of a frequency: the attribute is exact where it is that of the frequencies
        "rotary_base": told if math.isclose(base, told, rel_tol=1e-3) else round(base, 3),
        **rope_scaling(round(factor, 3)),
    }


def _ddp(probe: Probe) -> dict[str, Any]:
    return ddp_settings(probe.wrapped[0].ddp_config) if probe.wrapped else {}


def _optimizer(probe: Probe) -> dict[str, Any]:
    groups = [group for optimizer in probe.optimizers for group in optimizer.param_groups]
    return optimizer_settings(probe.optimizers[0].config, groups) if probe.optimizers else {}


def _layout(_: Probe) -> dict[str, Any]:
    return layout_settings()


def _batches(probe: Probe) -> dict[str, Any]:
    """Counted where steps were made, else what Megatron's calculator says."""
    sizes = layout_settings()
    if probe.steps and probe.tokens.shape is not None:
        micro_batch, part = probe.tokens.shape
        count = probe.steps[0]["forwards"]
        return {
            "micro_batch_size": micro_batch,
            "num_micro_batches": count,
            "global_batch_size": micro_batch * count * sizes["data_parallel_size"],
            "seq_length": part * sizes["context_parallel_size"],
        }
    return batch_settings()


def _schedule(probe: Probe) -> dict[str, Any]:
    if probe.schedule is None:
        return {}
    if hasattr(probe.schedule, "base_lrs"):
        known = bool(probe.steps and probe.steps[0]["groups"])
        return nemo_schedule(probe.schedule, probe.steps[0]["groups"][0][0] if known else None)
    # Megatron-LM's schedule counts samples, the engine's steps
    counts = probe.schedule_counts
    return megatron_schedule(probe.schedule, counts[1] - counts[0] if len(counts) > 1 else None)


def _data(probe: Probe) -> dict[str, Any]:
    """Of the training data's first part. A blend of several is named by none."""
    if probe.dataset is None:
        return {}
    config = probe.dataset.config
    values = {"seed": config.random_seed, "seq_length": config.sequence_length}
    if isinstance(size := getattr(config.tokenizer, "vocab_size", None), int):
        values["vocab_size"] = size
    if getattr(config, "mock", False):
        return {**values, "data": "mock", "data_path": None}
    split = {} if config.split is None else {"split": config.split}
    return {**values, "data_path": probe.dataset.dataset_path, **split}
