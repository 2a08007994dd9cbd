"""The learning rates that NeMo's own scheduler gives an optimizer, as JSON.

argv: lr, min_lr, steps, then the numbers of warm-up steps."""

from __future__ import annotations

import gc
import json
import sys

gc.disable()
import torch  # noqa: E402
from nemo.core.optim.lr_scheduler import CosineAnnealing  # noqa: E402

LR, MIN_LR, STEPS = float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])


def rates(warmup: int) -> list[float]:
    """As nemo/lightning/pytorch/optim/lr_scheduler.py makes it."""
    stepping = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=LR)
    schedule = CosineAnnealing(stepping, max_steps=STEPS, warmup_steps=warmup, constant_steps=0, min_lr=MIN_LR)
    used = []
    for _ in range(STEPS):
        used.append(stepping.param_groups[0]["lr"])
        stepping.step()
        schedule.step()
    return used


print("RATES " + json.dumps({warmup: rates(int(warmup)) for warmup in sys.argv[4:]}))
