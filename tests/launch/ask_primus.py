"""python ask_primus.py CHECKOUT EXPERIMENT.yaml NODES GPUS_PER_NODE: what a real Primus and Megatron make of a YAML.

Runs Primus' own runtime up to Megatron's validate_args, as rank 0, without a GPU, and prints the arguments as JSON. For
releases with the core runtime (v26.2 and newer). Needs what Primus needs: torch, loguru, pydantic, PyYAML.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import types
from pathlib import Path


def ask(checkout: str, experiment: str, nodes: str, gpus: str) -> dict[str, object]:
    megatron = str(Path(checkout, "third_party", "Megatron-LM"))
    sys.path[:0] = [checkout, megatron]
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(int(nodes) * int(gpus)), "NNODES": nodes}
    node = {"GPUS_PER_NODE": gpus, "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    os.environ.update(rank | node, BACKEND_PATH=megatron, PRIMUS_PATH=checkout, CUDA_DEVICE_MAX_CONNECTIONS="1")
    import torch

    torch.cuda.get_device_capability = lambda *_: (9, 4)  # type: ignore[method-assign,assignment] # gfx942
    gpu = types.SimpleNamespace(major=9, minor=4, name="stub", gcnArchName="gfx942", multi_processor_count=304)
    torch.cuda.get_device_properties = lambda *_: gpu  # type: ignore[method-assign,assignment,return-value]
    torch.cuda.current_device = lambda: 0  # type: ignore[method-assign]
    from primus.core.utils import logger  # type: ignore[import-not-found]

    class Quiet:
        def __getattr__(self, name: str) -> object:
            return lambda *_, **__: self

    logger._logger = Quiet()
    from primus.core.runtime.train_runtime import PrimusRuntime  # type: ignore[import-not-found]

    options = {"config": experiment, "exp": experiment, "data_path": ".", "backend_path": None, "export_config": None}
    runtime = PrimusRuntime(args=types.SimpleNamespace(**options))
    runtime._initialize_configuration("pre_trainer", [])
    for step in ("_apply_config_env", "_initialize_environment", "_initialize_distributed_context"):
        getattr(runtime, step, lambda: None)()
    runtime._initialize_adapter()
    runtime._initialize_trainer()
    runtime._run_phase_patches(phase="setup", backend_args=runtime.ctx.backend_args)
    runtime.ctx.trainer.setup()
    runtime.ctx.trainer.init()
    runtime._run_phase_patches(phase="before_train", backend_args=runtime.ctx.backend_args)
    from megatron.training import arguments  # type: ignore[import-untyped]

    resolved = arguments.parse_args()
    arguments.validate_args(resolved, {})
    return vars(resolved)


if __name__ == "__main__":
    out, sys.stdout = sys.stdout, sys.stderr
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        found = ask(*sys.argv[1:5])
        os.chdir("/")
    json.dump(found, out, default=str)
