"""Name, count and set Megatron's parameters as no layout changes them: by name and shape in the complete model.

Layers and experts are numbered through the model, not through a rank; an expert has one name, however a rank keeps it.
Equal initial weights (TPRIMAT_EQUAL_INIT=SEED, installed by sitecustomize.py for a vendor's own program): each matrix
is a function of its global name, shape and the seed, not of any parallel size, the device or torch's generators.
Biases and norm weights keep Megatron's constants (0 and 1), which are equal anyway."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

VARIABLE = "TPRIMAT_EQUAL_INIT"
EMBEDDING = "embedding.word_embeddings.weight"
_EXPERT = r"(?<=\.local_experts\.)\d+"
_GROUPED = r"\.experts\.(linear_fc[12])\.(weight|bias)(\d+)$"
"""TEGroupedMLP: weight0, weight1 … are the experts of this rank (megatron/core/transformer/moe/experts.py)."""
_FUSED = (".experts.weight1", ".experts.weight2")
"""GroupedMLP: all experts of this rank in one matrix, each transposed."""

BEFORE: list[Callable[[Any], object]] = []
"""Called with each GPTModel before its own first weights are overwritten."""
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


def _groups() -> Any:
    from megatron.core import parallel_state

    return parallel_state


def first_expert(config: Any) -> int:
    """Return the global number, from 0, of this rank's first expert."""
    return local_experts(config) * int(_groups().get_expert_model_parallel_rank())


def local_experts(config: Any) -> int:
    """Return how many experts of each layer are on this rank."""
    return int(config.num_moe_experts or 0) // int(_groups().get_expert_model_parallel_world_size())


def split_of(parameter: Any, name: str) -> Split:
    """Return how the parameter of this global name (or of fused experts) is cut between tensor parallel ranks."""
    groups = _groups()
    if ".experts." in name:
        # grouped ones of TransformerEngine have no attribute for it (TEGroupedLinear, explicit_expert_comm)
        dim = next((dim for end, dim in _EXPERTS_CUT.items() if name.endswith(end)), None)
        return Split(groups.get_expert_tensor_parallel_world_size(), groups.get_expert_tensor_parallel_rank(), dim)
    dim = parameter.partition_dim if getattr(parameter, "tensor_model_parallel", False) else None
    return Split(groups.get_tensor_model_parallel_world_size(), groups.get_tensor_model_parallel_rank(), dim)


def full_numel(parameter: Any, name: str, config: Any) -> int:
    """Return the elements in the complete model of what this parameter is a part of."""
    split, numel = split_of(parameter, name), int(parameter.numel())
    if name.endswith(_FUSED):
        return numel * split.size * int(_groups().get_expert_model_parallel_world_size())
    return numel if split.dim is None else numel * split.size


def install() -> None:
    """Set the weights of every GPTModel when it is made, before DDP and the optimizer copy them. One that cannot be set
    ends the run: losses of unequal weights would be compared."""
    from tprimat_after_import import after, wrap

    seed = int(os.environ[VARIABLE])

    def make_equal(make: Any, self: Any, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **options)
        for read in BEFORE:
            read(self)
        set_weights(self, seed)
        if os.environ.get("RANK", "0") == "0":
            print(f"[tprimat] facts {json.dumps({'equal_init': seed})}", flush=True)

    @after("megatron.core.models.gpt.gpt_model")
    def equal_weights(module: Any) -> None:
        wrap(module.GPTModel, "__init__", make_equal)


def set_weights(model: Any, seed: int) -> None:
    """Overwrite every matrix of a Megatron GPTModel: this rank's part of it.
    Raises RuntimeError: a parameter is on the meta device, and would be initialised later."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() < 2:
                continue
            if parameter.is_meta:
                raise RuntimeError(f"{VARIABLE}: {name} has no memory yet; try without meta device initialisation")
            own, config = global_name(model, name), model.config
            if name.endswith(_FUSED):
                _set_experts(parameter, own, config, seed)
                continue
            split = split_of(parameter, own)
            shape = tuple(n * (split.size if dim == split.dim else 1) for dim, n in enumerate(parameter.shape))
            values = full_matrix(own, shape, standard_deviation(own, config), seed)
            parameter.copy_(torch.from_numpy(values if split.dim is None else _part(values, own, config, split)))


def full_matrix(name: str, shape: tuple[int, ...], std: float, seed: int) -> NDArray[Any]:
    """Return the complete matrix [shape], float32, of the parameter with this global name. RandomState is a stream that
    numpy guarantees for all its versions. Row-major order: more padding rows at the end of an embedding change nothing
    before them."""
    import numpy as np

    key = int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:4], "little")
    return np.random.RandomState(key).standard_normal(shape).astype(np.float32) * np.float32(std)


def standard_deviation(name: str, config: Any) -> float:
    """Return the deviation with which Megatron draws the matrix of this global name. config: what has init_method_std
    and num_layers."""
    if name.endswith(("linear_proj.weight", "linear_fc2.weight")):
        # Megatron's scaled_init_method_normal
        return float(config.init_method_std / math.sqrt(2 * config.num_layers))
    if name.startswith("embedding."):
        return float(getattr(config, "embedding_init_method_std", None) or config.init_method_std)
    return float(config.init_method_std)


def _part(values: NDArray[Any], name: str, config: Any, split: Any) -> NDArray[Any]:
    import numpy as np

    if config.gated_linear_unit and name.endswith("linear_fc1.weight"):
        # [gate; up]: every rank has its part of both halves
        halves = np.split(values, 2, split.dim)
        return np.concatenate([np.split(half, split.size, split.dim)[split.rank] for half in halves], split.dim)
    return np.ascontiguousarray(np.split(values, split.size, split.dim)[split.rank])


def _set_experts(parameter: Any, name: str, config: Any, seed: int) -> None:
    """Set the fused matrices of a rank's experts. GroupedMLP's weight1 is [experts, hidden, fc1 of this rank] in
    memory, its weight2 [experts, fc2 of this rank, hidden], whatever their shapes say
    (megatron/core/transformer/moe/experts.py, GroupedMLP.forward)."""
    import torch

    experts, first, split = local_experts(config), first_expert(config), split_of(parameter, name)
    layer, _, which = name.rpartition("experts.weight")
    ffn, hidden = config.moe_ffn_hidden_size, config.hidden_size
    shape, dim = (hidden, ffn), 1  # [outputs, inputs], as in a model that keeps the experts apart
    if which == "1":
        shape, dim = (ffn * (2 if config.gated_linear_unit else 1), hidden), 0
    stacked = parameter.data.view(experts, hidden, -1) if which == "1" else parameter.data.view(experts, -1, hidden)
    for expert in range(experts):
        own = f"{layer}experts.local_experts.{first + expert}.linear_fc{which}.weight"
        values = _part(
            full_matrix(own, shape, standard_deviation(own, config), seed), own, config, split._replace(dim=dim)
        )
        stacked[expert].copy_(torch.from_numpy(values.T.copy()))
