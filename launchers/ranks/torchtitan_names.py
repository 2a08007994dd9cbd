"""Names of TorchTitan's models, and how its RoPE pairs elements: what both of its releases share."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributed.tensor import DTensor, distribute_tensor

NAMES = {
    "embedding": "tok_embeddings",
    "output": "output",
    "layer": "layers",
    **{part: f"attention.w{part}" for part in ("q", "k", "v")},
    "proj": "attention.wo",
    "gate": "feed_forward.w1",
    "up": "feed_forward.w3",
    "down": "feed_forward.w2",
    "input_norm": "attention_norm",
    "mlp_norm": "ffn_norm",
    "final_norm": "norm",
    **{f"{part}_norm": f"attention.{part}_norm" for part in ("q", "k")},
}
"""The modules of TorchTitan's models (plain_ranks.apart, together)."""
_WRAPPERS = ("_checkpoint_wrapped_module.", "_orig_mod.")


def plain_name(name: str) -> str:
    """Return the name of a parameter without what activation checkpointing and torch.compile wrap around its module."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def put(parameter: torch.Tensor, full: torch.Tensor) -> None:
    """Copy the complete tensor, which every rank has, into the part of it that a rank holds."""
    if isinstance(parameter, DTensor):
        full = distribute_tensor(full, parameter.device_mesh, parameter.placements, src_data_rank=None)
    parameter.copy_(full)


def adjacent(rows: NDArray[Any], heads: int) -> NDArray[Any]:
    """Return rows [heads × head size, hidden] with each element beside the one that is half a head on, which RoPE turns
    together with it (torchtitan/models/llama3/model/state_dict_adapter.py, _permute)."""
    halves = rows.reshape(heads, 2, -1, rows.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows.shape))
