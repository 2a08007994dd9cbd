"""The learning rates that NeMo's and Megatron-Core's own schedulers give an optimizer, as JSON.

argv: lr, min_lr, steps, then the numbers of warm-up steps.
"""

from __future__ import annotations

import gc
import json
import sys

gc.disable()
import torch  # noqa: E402
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler  # noqa: E402
from nemo.core.optim.lr_scheduler import CosineAnnealing  # noqa: E402

LR, MIN_LR, STEPS = float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=LR)


def nemo(warmup: int) -> list[float]:
    """As nemo/lightning/pytorch/optim/lr_scheduler.py makes it."""
    stepping = optimizer()
    schedule = CosineAnnealing(stepping, max_steps=STEPS, warmup_steps=warmup, constant_steps=0, min_lr=MIN_LR)
    rates = []
    for _ in range(STEPS):
        rates.append(stepping.param_groups[0]["lr"])
        stepping.step()
        schedule.step()
    return rates


def megatron(warmup: int) -> list[float]:
    """Choice A: lr_warmup_init lr / (W + 1)."""
    stepping = optimizer()
    stepping.param_groups[0].update(max_lr=LR, min_lr=MIN_LR)
    schedule = OptimizerParamScheduler(
        stepping,
        init_lr=LR / (warmup + 1),
        max_lr=LR,
        min_lr=MIN_LR,
        lr_warmup_steps=warmup,
        lr_decay_steps=STEPS,
        lr_decay_style="cosine",
        start_wd=0.1,
        end_wd=0.1,
        wd_incr_steps=STEPS,
        wd_incr_style="constant",
    )
    rates = []
    for _ in range(STEPS):
        rates.append(stepping.param_groups[0]["lr"])
        schedule.step(1)
    return rates


result = {warmup: {"nemo": nemo(int(warmup)), "megatron": megatron(int(warmup))} for warmup in sys.argv[4:]}
print("RATES " + json.dumps(result))
