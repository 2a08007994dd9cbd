"""Print what the engine reports: Megatron-LM's own lines, and marks of ours that begin with `[tprimat]`."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import megatron.core
import torch
from rank_program import mark, say


def print_facts(stand_in: bool) -> None:
    """Print what this process runs on; None: there is none here, or the system does not report it."""
    gpu = torch.cuda.is_available()
    facts = {
        "torch": torch.__version__,
        "megatron_core": megatron.core.__version__,
        "python": sys.version.split()[0],
        "cuda": torch.version.cuda,
        "rocm": torch.version.hip,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if gpu else None,  # RCCL's on ROCm
        "backend": torch.distributed.get_backend(),
        "device_name": torch.cuda.get_device_name() if gpu else _proc("cpuinfo", "model name"),
        "device_count": torch.cuda.device_count() if gpu else None,
        "cpu_count": len(os.sched_getaffinity(0)),
        "device_memory_bytes": torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        if gpu
        else _kilobytes(_proc("meminfo", "MemTotal")),
        "cuda_stand_in": stand_in,
        "omp_num_threads": torch.get_num_threads(),
    }
    if os.environ.get("TPRIMAT_REHEARSED"):
        facts["stand_in"] = "torch.cuda"  # by which a reader of the log alone knows that no speed in it counts
    mark("facts", facts)


def print_arguments(values: Mapping[str, Any]) -> None:
    """Print Megatron-LM's argument dump, as `_print_args` in megatron/training/arguments.py does."""
    lines = sorted((f"  {name} {'.' * (48 - len(name))} {value}" for name, value in values.items()), key=str.lower)
    head, tail = "-" * 24 + " arguments " + "-" * 24, "-" * 20 + " end of arguments " + "-" * 21
    say("\n".join((head, *lines, tail)))


_MARKED = ("iteration", "lr_used", "loss", "grad_norm", "end_monotonic_s")


def print_step(step: Mapping[str, Any], train_iters: int, batch: int) -> None:
    """Print Megatron-LM's iteration line (`training_log` in megatron/training/training.py) and our own mark.

    step: iteration (from 1), lr_used, lr_next, loss (mean over the global batch), grad_norm or None, loss_scale,
    skipped, elapsed_s since the last step's end, and end_monotonic_s, whose clock stands still while a checkpoint is
    written. batch: the global batch size. Megatron's line has the rate after the step, so the next step's; ours has the
    rate that this step used.
    """
    iteration, loss, grad_norm = step["iteration"], step["loss"], step["grad_norm"]
    parts = (
        f" [{datetime.now().strftime('%Y-%m-%d %H:%M:%S.%f')}] iteration {iteration:8d}/{train_iters:8d}",
        f"consumed samples: {iteration * batch:12d}",
        f"elapsed time per iteration (ms): {step['elapsed_s'] * 1000:.1f}",
        f"learning rate: {step['lr_next']:.6E}",
        f"global batch size: {batch:5d}",
        f"lm loss: {loss:.6E}",
        f"loss scale: {step['loss_scale']:.1f}",
        *([f"grad norm: {grad_norm:.3f}"] if grad_norm is not None else []),
        f"number of skipped iterations: {int(step['skipped']):3d}",
        f"number of nan iterations: {int(not math.isfinite(loss)):3d} |",
    )
    say(" | ".join(parts))
    finite = math.isfinite(loss) and math.isfinite(grad_norm or 0.0)
    values = {name: step[name] for name in _MARKED}
    mark("step", {**values, **_peak_memory(), **({} if finite else {"nonfinite": True})})


def _peak_memory() -> dict[str, Any]:
    if torch.cuda.is_available():
        return {"memory_bytes": torch.cuda.max_memory_allocated(), "memory_kind": "allocated"}
    # not getrusage: ru_maxrss begins with the peak of the process that forked this one (torchrun)
    return {"memory_bytes": _kilobytes(_proc("self/status", "VmHWM")), "memory_kind": "rss"}


def _kilobytes(text: str | None) -> int | None:
    return None if text is None else int(text.split()[0]) * 1024


def _proc(name: str, key: str) -> str | None:
    """Return the first value of `key` in /proc/`name`; None where the system does not report it."""
    try:
        lines = Path("/proc", name).read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == key), None)
