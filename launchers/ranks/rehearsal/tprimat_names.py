"""Name a Megatron parameter, and count it, as no layout changes it: by its name and shape in the complete model.

Layers and experts are numbered through the model, not through a rank; an expert has one name, however a rank keeps it.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

EMBEDDING = "embedding.word_embeddings.weight"
_EXPERT = r"(?<=\.local_experts\.)\d+"
_GROUPED = r"\.experts\.(linear_fc[12])\.(weight|bias)(\d+)$"
"""TEGroupedMLP: weight0, weight1 … are the experts of this rank (megatron/core/transformer/moe/experts.py)."""
_FUSED = (".experts.weight1", ".experts.weight2")
"""GroupedMLP: all experts of this rank in one matrix, each transposed."""

_EXPERTS_CUT = {"linear_fc1.weight": 0, "linear_fc1.bias": 0, "linear_fc2.weight": 1}


class Split(NamedTuple):
    """Over how many ranks a parameter is cut, which of them this one is, and along which dimension (None: not cut)."""

    size: int
    rank: int
    dim: int | None


def global_name(model: Any, name: str) -> str:
    """Return the name in the complete model of the parameter that this rank's GPTModel calls `name`."""
    if name == "output_layer.weight" and model.share_embeddings_and_output_weights:
        return EMBEDDING  # the last pipeline stage's copy of the tied weight
    if ".experts." in name:
        name = re.sub(_GROUPED, r".experts.local_experts.\3.\1.\2", name)
        first = first_expert(model.config)  # a rank counts its own experts from 0
        name = re.sub(_EXPERT, lambda m: str(int(m[0]) + first), name)
    if not name.startswith("decoder.layers."):
        return name
    number, _, inner = name.removeprefix("decoder.layers.").partition(".")
    # a pipeline stage counts its own layers from 0; layer_number is global and counts from 1
    return f"decoder.layers.{model.decoder.layers[int(number)].layer_number - 1}.{inner}"


def first_expert(config: Any) -> int:
    """Return the global number, from 0, of this rank's first expert."""
    from megatron.core import parallel_state

    return local_experts(config) * int(parallel_state.get_expert_model_parallel_rank())


def local_experts(config: Any) -> int:
    """Return how many experts of each layer are on this rank."""
    from megatron.core import parallel_state

    return int(config.num_moe_experts or 0) // int(parallel_state.get_expert_model_parallel_world_size())


def is_fused(name: str) -> bool:
    """Return whether this parameter is all experts of a rank (GroupedMLP)."""
    return name.endswith(_FUSED)


def split_of(parameter: Any, name: str) -> Split:
    """Return how the parameter of this global name (or of fused experts) is cut between tensor parallel ranks."""
    from megatron.core import parallel_state as groups

    if ".experts." in name:
        # grouped ones of TransformerEngine have no attribute for it (TEGroupedLinear, explicit_expert_comm)
        dim = next((dim for end, dim in _EXPERTS_CUT.items() if name.endswith(end)), None)
        return Split(groups.get_expert_tensor_parallel_world_size(), groups.get_expert_tensor_parallel_rank(), dim)
    dim = parameter.partition_dim if getattr(parameter, "tensor_model_parallel", False) else None
    return Split(groups.get_tensor_model_parallel_world_size(), groups.get_tensor_model_parallel_rank(), dim)


def full_numel(parameter: Any, name: str, config: Any) -> int:
    """Return the elements in the complete model of what this parameter is a part of."""
    from megatron.core import parallel_state

    split, numel = split_of(parameter, name), int(parameter.numel())
    if is_fused(name):
        return numel * split.size * int(parallel_state.get_expert_model_parallel_world_size())
    return numel if split.dim is None else numel * split.size
