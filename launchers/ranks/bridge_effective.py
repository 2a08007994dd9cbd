"""What Megatron-Bridge really has: read from the objects that train, after setup has replaced what it replaces.

`configured` is the same of a container that was validated, and not trained with.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from corpus_order import fingerprint
from megatron.bridge.training.callbacks import Callback
from rank_program import is_first_rank, mark
from tprimat_settings import (
    batch_settings,
    built_settings,
    ddp_settings,
    megatron_schedule,
    model_settings,
    optimizer_settings,
    planned_layout,
    rope_scaling,
)
from vendor_ranks import peak_memory


def configured(config: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Canonical settings of a validated ConfigContainer."""
    model, schedule, batch = config.model, config.scheduler, config.train.global_batch_size
    return {
        **model_settings(model),
        **optimizer_settings(config.optimizer),
        **ddp_settings(config.ddp),
        **_container(config, settings),
        "lr": config.optimizer.lr,
        "min_lr": config.optimizer.min_lr,
        "weight_decay": schedule.end_weight_decay,  # what the scheduler sets in each step
        "lr_warmup_iters": schedule.lr_warmup_steps // batch,
        "lr_warmup_init": schedule.lr_warmup_init,
        "lr_decay_iters": schedule.lr_decay_steps // batch,
        "lr_decay_style": schedule.lr_decay_style,
        "padded_vocab_size": None if model.should_pad_vocab else model.vocab_size,
        "vocab_size": config.tokenizer.vocab_size,
        "max_position_embeddings": model.seq_length,
        "untie_embeddings_and_output_weights": not model.share_embeddings_and_output_weights,
        "rotary_base": model.rotary_base,
        **rope_scaling(model.rope_scaling_factor if model.rope_scaling else 1.0),
        **planned_layout(model, config.data_parallel_size, config.train.micro_batch_size, batch),
    }


def effective(context: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Canonical settings of a training that is about to take its first step, as rank 0 has them."""
    config, scheduler, optimizer = context.state.cfg, context.scheduler, context.optimizer
    gpt = next(part for part in context.model[0].modules() if type(part).__name__ == "GPTModel")
    batches = batch_settings()
    return {
        # the container was saved before setup replaced the vocabulary: what is built tells it
        **built_settings(gpt, context.model[0].ddp_config, _inner(optimizer).config, optimizer.param_groups),
        **_container(config, settings),
        **megatron_schedule(scheduler, batches["global_batch_size"]),
        **batches,
        "vocab_size": config.dataset.tokenizer.vocab_size,
        **rope_scaling(config.model.rope_scaling_factor if gpt.rotary_scaling else 1.0),
    }


def _container(config: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What no object but the ConfigContainer keeps."""
    blend = config.dataset.blend
    data = {"data": "mock"} if blend is None else {"data": settings["data"], "split": config.dataset.split}
    return {
        "seq_length": config.dataset.seq_length,
        "micro_batch_size": config.train.micro_batch_size,
        "global_batch_size": config.train.global_batch_size,
        "train_iters": config.train.train_iters,
        "seed": config.rng.seed if config.rng.seed == config.dataset.random_seed else None,
        "save_interval": None if config.checkpoint.save is None else config.checkpoint.save_interval,
        "data_path": None if blend is None else blend[0][0],
        **data,
    }


def _first_batch(config: Any) -> str | None:
    """Fingerprint of the first global batch; None of mock data, which no stack shares. Bridge's own dataset, built once
    more: it hands out no other."""
    from megatron.bridge.data.loaders import get_train_valid_test_num_samples
    from megatron.bridge.data.utils import get_dataset_provider

    if config.dataset.blend is None:
        return None
    data = get_dataset_provider(config.dataset)(get_train_valid_test_num_samples(config), config.dataset)[0]
    samples = (data[index] for index in range(config.train.global_batch_size))
    return fingerprint(np.stack([np.append(s["tokens"].numpy(), s["labels"][-1:].numpy()) for s in samples]))


def _inner(optimizer: Any) -> Any:
    """The first of a chain: experts have one of their own, of the same settings."""
    return optimizer.chained_optimizers[0] if hasattr(optimizer, "chained_optimizers") else optimizer


class Marks(Callback):
    """Prints our marks: `effective` once by rank 0, which holds the first stage; `step` by the last rank, which has the
    loss. Bridge prints the rate of the next step, and its time as a mean of the interval."""

    def __init__(self, settings: Mapping[str, Any], stand_in: str | None) -> None:
        self.settings, self.stand_in, self.lr_used = settings, stand_in, math.nan
        self.is_last_rank = os.environ.get("RANK", "0") == str(int(os.environ.get("WORLD_SIZE", "1")) - 1)

    def on_train_start(self, context: Any) -> None:
        first_batch = _first_batch(context.state.cfg)  # on every rank: building it is collective
        if is_first_rank():
            mark("effective", effective(context, self.settings))
            mark("facts", {"data_first_batch": first_batch})

    def on_train_step_start(self, context: Any) -> None:
        self.lr_used = context.optimizer.param_groups[0]["lr"]

    def on_train_step_end(self, context: Any) -> None:
        if not self.is_last_rank:
            return
        losses: Mapping[str, Any] = context.loss_dict or {}
        loss = _number(losses.get("lm loss"))
        values = {
            "step": context.state.train_state.step,
            "lr_used": self.lr_used,
            "loss": loss,
            "grad_norm": _number(context.grad_norm),
            "end_monotonic_s": time.monotonic(),  # the numbers above were waited for
            **peak_memory(self.stand_in),
        }
        bad = loss is not None and not math.isfinite(loss)
        mark("step", {**values, "nonfinite": True} if bad else values)


def _number(value: Any) -> float | None:
    return None if value is None else float(value.item() if torch.is_tensor(value) else value)
