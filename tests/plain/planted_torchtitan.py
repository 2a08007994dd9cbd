"""Run framework=torchtitan's program with one of TorchTitan's own ways left in, by the name in
PLANTED_IN_TORCHTITAN: a rehearsal must find it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "launchers" / "ranks"))
import plain_ranks
import torchtitan_ranks


def schedule() -> None:
    """Warm up as TorchTitan does (components/lr_scheduler.py): its last step of it has the peak, as has the next."""
    ours = plain_ranks.rate

    def rate(s: plain_ranks.Settings, step: int) -> float:
        return s.lr * (step + 1) / s.lr_warmup_iters if step < s.lr_warmup_iters else ours(s, step)

    setattr(torchtitan_ranks, "rate", rate)  # noqa: B010 - it is no export to mypy


def decayed_norms() -> None:
    """Let norms decay, too: its optimizer has one group (components/optimizer.py)."""
    plain_ranks.decayed = lambda parameters: [{"params": [*parameters]}]


WRONG = {"schedule": schedule, "norms decay": decayed_norms}

if __name__ == "__main__":
    WRONG[os.environ["PLANTED_IN_TORCHTITAN"]]()
    sys.exit(plain_ranks.main(torchtitan_ranks.train))
