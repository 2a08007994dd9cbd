"""Pre-train a GPT with Megatron-Core on CPU, CUDA or ROCm: the embedded engine. One process is one rank.

    python -m torch.distributed.run --standalone --nproc-per-node N engine.py --settings FILE.json

Exit codes: 0 the training ran to its end, 2 the settings, the data or a checkpoint were refused, 3 the loss was not
finite. Checkpoints lie in checkpoints/ beside the settings; where there is one, the training goes on from it.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
import warnings
from pathlib import Path

from engine_settings import Settings, SettingsError, read_settings
from rank_program import die_with_parent, stop


def main() -> int:
    """Run this rank and return its exit code."""
    die_with_parent()
    parser = argparse.ArgumentParser(description="one rank of the embedded engine; start it with torchrun")
    parser.add_argument("--settings", required=True, metavar="FILE.json")
    path = parser.parse_args().settings
    try:
        settings = read_settings(path)
    except SettingsError as refusal:
        return stop(2, str(refusal))
    return _train(settings, Path(path).parent / "checkpoints")


def _train(settings: Settings, checkpoints: Path) -> int:
    if mode := os.environ.get("TPRIMAT_REHEARSED"):
        print(f"[tprimat] rehearsal ({mode}) on rank {os.environ.get('RANK', 0)}: no speed of it is one", flush=True)
    _quiet()
    gc.disable()  # train() switches it on again: imports make a million objects and no garbage to search them for
    try:  # imported here and in this order: a refusal of settings takes no time, and the stand-in comes before Megatron
        import engine_standin

        stand_in = engine_standin.install()
        import engine_train
        from engine_checkpoint import CheckpointError

        engine_standin.check()
    except ImportError as error:
        return stop(2, f"engine: cannot import what it runs on: {error}")

    try:
        stopped = engine_train.train(settings, stand_in, checkpoints)
    except SettingsError as refusal:
        return stop(2, str(refusal))
    except (engine_train.DeviceError, CheckpointError) as error:
        return stop(2, f"engine: {error}", speaker="LOCAL_RANK")
    return stop(3, f"engine: {stopped}; try a smaller lr or a longer warm-up") if stopped else 0


def _quiet() -> None:
    # megatron/core says at import what it lacks; the engine brings its own modules, and does no inference
    quiet = ("Transformer Engine and Apex", "Apex is not", "Failed to create unified memory", "If you are using transf")
    for message in quiet:
        warnings.filterwarnings("ignore", message=message)
    # since torch 2.13 for the names that Megatron uses in every layout
    warnings.filterwarnings("ignore", message="`torch.distributed.*is deprecated", category=FutureWarning)
    # and for what checkpoints are read with
    for message in ("`load_state_dict` is deprecated", "Please use DTensor instead"):
        warnings.filterwarnings("ignore", message=message, category=FutureWarning)
    # megatron/core/optimizer/optimizer.py:65 looks for gradients in all its parameters
    warnings.filterwarnings(
        "ignore", message="The .grad attribute of a Tensor that is not a leaf", category=UserWarning
    )
    # "fused_indices_to_multihot has reached end of life" (megatron/core/utils.py:130), from one of its own imports
    logging.getLogger("megatron.core.utils").setLevel(logging.ERROR)
    # tensor_parallel/layers.py relies on it to overlap its collectives, and warns where it is not set
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")


if __name__ == "__main__":
    sys.exit(main())
