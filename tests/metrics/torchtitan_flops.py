"""TorchTitan's own count of FLOPs, taken from a checkout outside this repository. A helper of test_flops.py.

    TORCHTITAN_PATH=~/torchtitan python tests/metrics/torchtitan_flops.py COMMIT > tests/metrics/torchtitan_flops.json

Its models are built on the meta device, where they take no memory. Needs torch, spmd_types, tyro and triton.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

SEQ_LENGTHS = (4096, 8192)
# Ours: TorchTitan's module, its flavour, and how many modules for multi-token prediction.
MODELS: dict[str, tuple[str, str, int]] = {
    "llama32_1b": ("llama3", "1B", 0),
    "llama32_3b": ("llama3", "3B", 0),
    "llama31_8b": ("llama3", "8B", 0),
    "llama31_70b": ("llama3", "70B", 0),
    "llama31_405b": ("llama3", "405B", 0),
    "qwen3_8b": ("qwen3", "8B", 0),
    "qwen3_30b_a3b": ("qwen3", "30B-A3B", 0),
    "qwen3_235b_a22b": ("qwen3", "235B-A22B", 0),
    "deepseek_v2_lite": ("deepseek_v3", "16B", 0),
    "deepseek_v3": ("deepseek_v3", "671B", 1),
    "gpt_oss_20b": ("gpt_oss", "20b", 0),
    "gpt_oss_120b": ("gpt_oss", "120b", 0),
}


def row(name: str, seq_length: int) -> dict[str, Any]:
    """What TorchTitan says of one of our models, as its trainer asks it."""
    import torch

    package, flavour, mtp = MODELS[name]
    more = {"num_mtp_layers": mtp} if mtp else {}
    config = importlib.import_module(f"torchtitan.models.{package}").model_registry(flavour, **more).model
    with torch.device("meta"):
        parameters, flops = config.get_nparams_and_flops(config.build(), seq_length)
    return {"model": name, "seq_length": seq_length, "parameters": parameters, "flops_per_token": flops}


if __name__ == "__main__":
    sys.path.insert(0, os.environ["TORCHTITAN_PATH"])
    rows = [json.dumps(row(name, length)) for name in MODELS for length in SEQ_LENGTHS]
    source = f"pytorch/torchtitan@{sys.argv[1]} torchtitan/models/utils.py"
    print(json.dumps({"source": source})[:-1] + ',\n "rows": [\n  ' + ",\n  ".join(rows) + "\n]}")
