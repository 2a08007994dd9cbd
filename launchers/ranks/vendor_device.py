"""What a rank of NVIDIA's stacks finds to run on: GPUs, or a stand-in for torch.cuda where the run is a rehearsal."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from vendor_config import Refusal, Refused

# behind all else: where the plan put it on PYTHONPATH it is loaded already, and these are the same modules
sys.path.append(str(Path(__file__).with_name("rehearsal")))
import tprimat_standin


def stand_in_for(device: str, check: bool = False) -> str | None:
    """The stand-in's name where the run is meant for a CPU or rehearsed, or is only checked where no GPU is; before the
    stack is imported.

    Raises:
        Refused: this process does not find what the run is meant for.
    """
    if device == "cpu" or os.environ.get(tprimat_standin.MODE) or tprimat_standin.is_active():
        name = tprimat_standin.install()
        if name is None:
            raise Refused([Refusal("platform", "meant for a CPU, and an accelerator is visible here")])
        return name
    import torch

    if check and not torch.cuda.is_available():
        return tprimat_standin.install()
    found, ranks = torch.cuda.device_count(), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if not torch.cuda.is_available() or torch.version.hip:
        here = f"torch {torch.__version__} finds no NVIDIA GPU here"
        raise Refused([Refusal("platform", here, hint="a torch built for CUDA, or platform=cpu")])
    if ranks > found:
        raise Refused([Refusal("gpus_per_node", "more ranks than visible GPUs", str(ranks), f"1 to {found}")])
    return None
