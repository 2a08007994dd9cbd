"""Set equal initial weights in every stack and layout: each matrix is a function of its global name, shape and the
seed.

Not of any parallel size, the device or torch's generators. Biases and norm weights keep Megatron's constants (0 and 1),
which are equal anyway. TPRIMAT_EQUAL_INIT=SEED: installed by sitecustomize.py, for a vendor's own program.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

VARIABLE = "TPRIMAT_EQUAL_INIT"


def install() -> None:
    """Set the weights of every GPTModel when it is made, before DDP and the optimizer copy them. One that cannot be set
    ends the run: losses of unequal weights would be compared."""
    from tprimat_after_import import after

    seed = int(os.environ[VARIABLE])

    @after("megatron.core.models.gpt.gpt_model")
    def equal_weights(module: Any) -> None:
        make = module.GPTModel.__init__

        @functools.wraps(make)
        def make_equal(self: Any, *arguments: Any, **options: Any) -> None:
            make(self, *arguments, **options)
            set_weights(self, seed)
            if os.environ.get("RANK", "0") == "0":
                print(f"[tprimat] facts {json.dumps({'equal_init': seed})}", flush=True)

        module.GPTModel.__init__ = make_equal


def set_weights(model: Any, seed: int) -> None:
    """Overwrite every matrix of a Megatron GPTModel: this rank's part of it.

    Raises:
        RuntimeError: a parameter is on the meta device, and would be initialised later.
    """
    import torch
    from tprimat_names import global_name, is_fused

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() < 2:
                continue
            if parameter.is_meta:
                raise RuntimeError(f"{VARIABLE}: {name} has no memory yet; try without meta device initialisation")
            if is_fused(name):
                _set_experts(parameter, global_name(model, name), model.config, seed)
            else:
                values = _this_rank(parameter, global_name(model, name), model.config, seed)
                parameter.copy_(torch.from_numpy(values))


def full_matrix(name: str, shape: tuple[int, ...], std: float, seed: int) -> NDArray[Any]:
    """Return the complete matrix [shape], float32, of the parameter with this global name.

    RandomState is a stream that numpy guarantees for all its versions. Row-major order: more padding rows at the end
    of an embedding change nothing before them.
    """
    import numpy as np

    key = int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:4], "little")
    return np.random.RandomState(key).standard_normal(shape).astype(np.float32) * np.float32(std)


def _std(name: str, config: Any) -> float:
    if name.endswith(("linear_proj.weight", "linear_fc2.weight")):
        # Megatron's scaled_init_method_normal
        return float(config.init_method_std / math.sqrt(2 * config.num_layers))
    if name.startswith("embedding."):
        return float(getattr(config, "embedding_init_method_std", None) or config.init_method_std)
    return float(config.init_method_std)


def _this_rank(parameter: Any, name: str, config: Any, seed: int) -> NDArray[Any]:
    from tprimat_names import split_of

    split = split_of(parameter, name)
    shape = tuple(n * (split.size if dim == split.dim else 1) for dim, n in enumerate(parameter.shape))
    values = full_matrix(name, shape, _std(name, config), seed)
    return _part(values, name, config, split) if split.dim is not None else values


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
    from tprimat_names import first_expert, local_experts

    experts, first = local_experts(config), first_expert(config)
    stacked = parameter.data.view(experts, -1, config.hidden_size)
    if name.endswith("weight1"):
        stacked = parameter.data.view(experts, config.hidden_size, -1)
    for expert, values in enumerate(_experts(parameter, name, config, seed, range(first, first + experts))):
        stacked[expert].copy_(torch.from_numpy(values.T.copy()))


def _experts(parameter: Any, name: str, config: Any, seed: int, experts: range) -> Iterator[NDArray[Any]]:
    """Yield this rank's part of each expert's matrix, [outputs, inputs] as in a model that keeps them apart."""
    from tprimat_names import split_of

    split = split_of(parameter, name)
    layer, _, which = name.rpartition("experts.weight")
    ffn, hidden = config.moe_ffn_hidden_size, config.hidden_size
    shape = (ffn * (2 if config.gated_linear_unit else 1), hidden) if which == "1" else (hidden, ffn)
    for expert in experts:
        own = f"{layer}experts.local_experts.{expert}.linear_fc{which}.weight"
        values = full_matrix(own, shape, _std(own, config), seed)
        yield _part(values, own, config, split._replace(dim=0 if which == "1" else 1))
