"""End a training before a batch system does: all ranks agree on it after a step, so that they save the same one."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist
from rank_program import mark


class Stop:
    """Knows whether the ranks are to save and end: the file that TPRIMAT_STOP names is there, or a rank got SIGTERM, as
    Slurm sends to all processes of a job that it preempts. Without TPRIMAT_STOP never, and SIGTERM ends a rank."""

    def __init__(self) -> None:
        self._file = os.environ.get("TPRIMAT_STOP")
        self._signalled = False
        if self._file:
            signal.signal(signal.SIGTERM, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._signalled = True

    def is_wanted(self) -> bool:
        """Return it, the same on all ranks; all must call it after the same step."""
        if not self._file:
            return False
        here = self._signalled or (dist.get_rank() == 0 and Path(self._file).exists())  # one rank a file system
        device = torch.cuda.current_device() if torch.cuda.is_available() else "cpu"
        wanted = torch.tensor([here], dtype=torch.int32, device=device)
        dist.all_reduce(wanted, dist.ReduceOp.MAX)
        return bool(wanted.item())

    def done(self, iteration: int) -> None:
        """Say that all ranks have saved after `iteration`: in the log of each node, and in the file, which the job
        reads, whatever torchrun and Slurm make of the exit codes."""
        if os.environ["LOCAL_RANK"] == "0":
            mark("stopped", {"iteration": iteration})
        if dist.get_rank() == 0:
            Path(self._file or "").write_text(f"{iteration}\n", encoding="utf-8")
