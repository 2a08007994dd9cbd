"""Print what the engine reports: Megatron-LM's own lines, and marks of ours that begin with `[tprimat]`."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import megatron.core
import torch
from rank_program import mark, say


@dataclass(frozen=True, slots=True)
class Step:
    """One finished step, as the rank that logs it measured it."""

    iteration: int
    """Counted from 1."""
    lr_used: float
    lr_next: float
    loss: float
    """Mean over the global batch."""
    grad_norm: float | None
    loss_scale: float
    skipped: bool
    elapsed_s: float
    """Since the last step's end."""
    end_monotonic_s: float
    """The clock stands still while a checkpoint is written."""


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
        "device_memory_bytes": _device_memory_bytes(gpu),
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


def print_step(step: Step, train_iters: int, batch: int) -> None:
    """Print Megatron-LM's iteration line (`training_log` in megatron/training/training.py) and our own mark.

    `batch` is the global batch size. Megatron's line has the rate after the step, so the next step's; ours has the
    rate that this step used.
    """
    finite = math.isfinite(step.loss) and math.isfinite(step.grad_norm or 0.0)
    parts = (
        f" [{datetime.now().strftime('%Y-%m-%d %H:%M:%S.%f')}] iteration {step.iteration:8d}/{train_iters:8d}",
        f"consumed samples: {step.iteration * batch:12d}",
        f"elapsed time per iteration (ms): {step.elapsed_s * 1000:.1f}",
        f"learning rate: {step.lr_next:.6E}",
        f"global batch size: {batch:5d}",
        f"lm loss: {step.loss:.6E}",
        f"loss scale: {step.loss_scale:.1f}",
        *([f"grad norm: {step.grad_norm:.3f}"] if step.grad_norm is not None else []),
        f"number of skipped iterations: {int(step.skipped):3d}",
        f"number of nan iterations: {int(not math.isfinite(step.loss)):3d} |",
    )
    say(" | ".join(parts))
    memory_bytes, memory_kind = _peak_memory()
    values = {
        "iteration": step.iteration,
        "lr_used": step.lr_used,
        "loss": step.loss,
        "grad_norm": step.grad_norm,
        "end_monotonic_s": step.end_monotonic_s,
        "memory_bytes": memory_bytes,
        "memory_kind": memory_kind,
    }
    mark("step", values if finite else {**values, "nonfinite": True})


def print_end() -> None:
    """Print Megatron-LM's last line of a training that is complete."""
    say(f"[after training is done] datetime: {datetime.now().strftime('%Y-%m-%d %H:%M:%S')}")


def _peak_memory() -> tuple[int | None, str]:
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated(), "allocated"
    # not getrusage: ru_maxrss begins with the peak of the process that forked this one (torchrun)
    return _kilobytes(_proc("self/status", "VmHWM")), "rss"


def _device_memory_bytes(gpu: bool) -> int | None:
    if gpu:
        return int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
    return _kilobytes(_proc("meminfo", "MemTotal"))


def _kilobytes(text: str | None) -> int | None:
    return None if text is None else int(text.split()[0]) * 1024


def _proc(name: str, key: str) -> str | None:
    """Return the first value of `key` in /proc/`name`; None where the system does not report it."""
    try:
        lines = Path("/proc", name).read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == key), None)
