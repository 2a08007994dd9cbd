"""Run framework=hf's program with one of Trainer's own ways left in, by the name in PLANTED: a rehearsal must find it.

The name is in the environment, as the program's words are those of a plan."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "launchers" / "ranks"))
import hf_ranks
import plain_ranks
import torch
import transformers

PLANTED = "PLANTED_IN_HF"  # as planted_names.py has it


def shuffled() -> None:
    """Take the samples as Trainer's own sampler deals them."""
    del hf_ranks.Trainer._get_train_sampler


def labels(**of: str) -> None:
    """Give the model labels as they are cut from a sample [sequence + 1], and no shifted ones."""
    item = hf_ranks.Samples.__getitem__

    def read(self: Any, index: int) -> dict[str, torch.Tensor]:
        row = item(self, index)
        return {"input_ids": row["input_ids"], "labels": row[of["of"]]}

    setattr(hf_ranks.Samples, "__getitem__", read)  # noqa: B010


def schedule() -> None:
    """Warm up as Trainer does, from a rate of nothing."""

    def made(self: Any, num_training_steps: int, optimizer: Any = None) -> Any:
        s = self.settings
        self.lr_scheduler = transformers.get_cosine_with_min_lr_schedule_with_warmup(
            optimizer or self.optimizer, s.lr_warmup_iters, s.lr_decay_iters, min_lr=s.min_lr
        )
        return self.lr_scheduler

    setattr(hf_ranks.Trainer, "create_scheduler", made)  # noqa: B010


def decayed_norms() -> None:
    """Let norms decay, too."""
    hf_ranks.Trainer.get_decay_parameter_names = lambda self, model: [name for name, _ in model.named_parameters()]


WRONG = {
    "sampler": shuffled,
    "labels not shifted": lambda: labels(of="input_ids"),
    "labels shifted twice": lambda: labels(of="labels"),
    "schedule": schedule,
    "norms decay": decayed_norms,
}

if __name__ == "__main__":
    WRONG[os.environ[PLANTED]]()
    sys.exit(plain_ranks.main(hf_ranks.train))
