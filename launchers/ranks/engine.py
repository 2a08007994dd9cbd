"""Pre-train a GPT with Megatron-Core on CPU, CUDA or ROCm: the embedded engine. One process is one rank.

    python -m torch.distributed.run --standalone --nproc-per-node N engine.py --settings FILE.json

Exit codes: 0 the training ran to its end, 2 the settings, the data or a checkpoint were refused, 3 the loss was not
finite. Checkpoints lie in checkpoints/ beside the settings; where there is one, the training goes on from it."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
import warnings
from pathlib import Path

from engine_settings import EngineError, read_settings
from rank_program import Refused, die_with_parent, stop

_QUIET = (
    # megatron/core says at import what it lacks; the engine brings its own modules, and does no inference
    *("Transformer Engine and Apex", "Apex is not", "Failed to create unified memory", "If you are using transf"),
    # since torch 2.13 for the names that Megatron uses in every layout, and for what checkpoints are read with
    *("`torch.distributed.*is deprecated", "`load_state_dict` is deprecated", "Please use DTensor instead"),
    # megatron/core/optimizer/optimizer.py:65 looks for gradients in all its parameters
    "The .grad attribute of a Tensor that is not a leaf",
)
"""Beginnings of warnings that say nothing to the user."""


def main() -> int:
    die_with_parent()
    parser = argparse.ArgumentParser(description="one rank of the embedded engine; start it with torchrun")
    parser.add_argument("--settings", required=True, metavar="FILE.json")
    path = parser.parse_args().settings
    try:
        return _train(path)
    except Refused as refused:
        count = f"{len(refused.problems)} problem{'s' if len(refused.problems) > 1 else ''}"
        lines = (f"  {problem.line()}" for problem in refused.problems)
        return stop(2, "\n".join([f"engine: settings refused, {count}", *lines]))


def _train(path: str) -> int:
    settings = read_settings(path)
    if mode := os.environ.get("TPRIMAT_REHEARSED"):
        print(f"[tprimat] rehearsal ({mode}) on rank {os.environ.get('RANK', 0)}: no speed of it is one", flush=True)
    silence()
    gc.disable()  # train() switches it on again: imports make a million objects and no garbage to search them for
    try:  # imported here and in this order: a refusal of settings takes no time, and the stand-in comes before Megatron
        import engine_standin

        stand_in = engine_standin.install()
        import engine_train

        engine_standin.check()
    except (ImportError, EngineError) as error:
        return stop(2, f"engine: cannot import what it runs on: {error}")
    try:
        stopped = engine_train.train(settings, stand_in, Path(path).parent / "checkpoints")
    except EngineError as error:
        return stop(2, f"engine: {error}", speaker="LOCAL_RANK")
    return stop(3, f"engine: {stopped}; try a smaller lr or a longer warm-up") if stopped else 0


def silence() -> None:
    """Keep Megatron and torch from warning of what is meant; before they are imported."""
    for message in _QUIET:
        warnings.filterwarnings("ignore", message=message)
    # "fused_indices_to_multihot has reached end of life" (megatron/core/utils.py:130), from one of its own imports
    logging.getLogger("megatron.core.utils").setLevel(logging.ERROR)
    # tensor_parallel/layers.py relies on it to overlap its collectives, and warns where it is not set
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")


if __name__ == "__main__":
    sys.exit(main())
