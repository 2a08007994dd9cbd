"""Equal initial weights in every layout: each matrix is a function of its global name, its global shape and the seed.

Not of any parallel size, the device or torch's generators. Biases and norm weights keep Megatron's
constants (0 and 1), which are equal anyway.
"""

from __future__ import annotations

import hashlib
import math
import re
from typing import Any

import numpy as np
import torch
from megatron.core import parallel_state
from numpy.typing import NDArray

_LAYER = re.compile(r"^decoder\.layers\.(\d+)")
_EXPERT = re.compile(r"(?<=\.local_experts\.)\d+")
_EMBEDDING = "embedding.word_embeddings.weight"


def set_weights(model: Any, seed: int) -> None:
    """Overwrite every matrix of a Megatron GPTModel (this rank's part of it), before DDP and the optimizer copy it."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                values = _this_rank(parameter, _global_name(model, name), model.config, seed)
                parameter.copy_(torch.from_numpy(values))


def full_matrix(name: str, shape: tuple[int, ...], std: float, seed: int) -> NDArray[np.float32]:
    """The whole matrix [shape] of the parameter with this global name.

    RandomState is a stream that numpy guarantees for all its versions. Row-major order: more padding rows at the end
    of an embedding change nothing before them.
    """
    key = int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:4], "little")
    return np.random.RandomState(key).standard_normal(shape).astype(np.float32) * np.float32(std)


def _global_name(model: Any, name: str) -> str:
    if name == "output_layer.weight" and model.share_embeddings_and_output_weights:
        return _EMBEDDING  # the last pipeline stage's copy of the tied weight
    # a rank counts its own experts from 0
    experts = (model.config.num_moe_experts or 0) // parallel_state.get_expert_model_parallel_world_size()
    first = experts * parallel_state.get_expert_model_parallel_rank()
    name = _EXPERT.sub(lambda m: str(int(m[0]) + first), name)
    # a pipeline stage counts its own layers from 0; layer_number is global and counts from 1
    return _LAYER.sub(lambda m: f"decoder.layers.{model.decoder.layers[int(m[1])].layer_number - 1}", name)


def _this_rank(parameter: Any, name: str, config: Any, seed: int) -> NDArray[np.float32]:
    std = config.init_method_std
    if name.endswith(("linear_proj.weight", "linear_fc2.weight")):
        std /= math.sqrt(2 * config.num_layers)  # Megatron's scaled_init_method_normal
    size, rank = _tensor_split(name)
    split = parameter.partition_dim if getattr(parameter, "tensor_model_parallel", False) else None
    shape = tuple(length * (size if dim == split else 1) for dim, length in enumerate(parameter.shape))
    values = full_matrix(name, shape, std, seed)
    if split is None:
        return values
    if name.endswith("linear_fc1.weight"):  # [gate; up]: every rank holds its part of both halves
        return np.concatenate([np.split(half, size, split)[rank] for half in np.split(values, 2, split)], split)
    return np.ascontiguousarray(np.split(values, size, split)[rank])


def _tensor_split(name: str) -> tuple[int, int]:
    """Over how many ranks this matrix is cut, and which of them this one is; experts may be cut otherwise."""
    if _EXPERT.search(name):
        size = parallel_state.get_expert_tensor_parallel_world_size()
        return size, parallel_state.get_expert_tensor_parallel_rank()
    return (
        parallel_state.get_tensor_model_parallel_world_size(),
        parallel_state.get_tensor_model_parallel_rank(),
    )
