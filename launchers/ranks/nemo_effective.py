"""What NeMo really has: read from its objects after strategy, optimizer and callbacks have had their say.

`configured` is the same of objects that were built and connected, and not trained with.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import fiddle as fdl
import numpy as np
import torch
from corpus_order import fingerprint
from lightning.pytorch.callbacks import Callback
from nemo_recipe import HAS_TRANSFORMER_ENGINE
from rank_program import Problem, Refused, is_first_rank, mark
from tprimat_settings import (
    batch_settings,
    built_settings,
    ddp_settings,
    model_settings,
    nemo_schedule,
    optimizer_settings,
    planned_layout,
    rope_scaling,
)
from vendor_ranks import changed, peak_memory, required

_RESPECTED = ("model.config.", "optim.config.", "trainer.strategy.ddp.")


def configured(recipe: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Canonical settings of the recipe, built and connected as llm.pretrain does it, without a trainer or data.

    Raises:
        Refused: NeMo's classes refuse it, or have changed what was set.
    """
    try:
        model, optim = fdl.build(recipe.model), fdl.build(recipe.optim)
        strategy, plugin = fdl.build(recipe.trainer.strategy), fdl.build(recipe.trainer.plugins)
        strategy._precision_plugin = plugin
        optim.connect(model)
        strategy.connect(model)  # overwrites the model's, the optimizer's and DDP's config
    except (AssertionError, ValueError, TypeError, AttributeError, ImportError, NotImplementedError) as error:
        raise Refused.of("recipe", f"NeMo's own classes refuse it: {error}", settings["recipe"]) from error
    objects = {"model.config.": model.config, "optim.config.": optim.config}
    set_here = required(settings, HAS_TRANSFORMER_ENGINE)
    if problems := list(_changed(set_here, {**objects, "trainer.strategy.ddp.": strategy.ddp_config})):
        raise Refused(*problems)
    ddp, world = strategy.ddp_config, recipe.trainer.devices * recipe.trainer.num_nodes
    model_ranks = strategy.tensor_model_parallel_size * strategy.pipeline_model_parallel_size
    data_size = world // (model_ranks * strategy.context_parallel_size)
    return {
        **model_settings(model.config),
        **optimizer_settings(optim.config),
        **ddp_settings(ddp),
        "lr": optim.config.lr,
        "min_lr": optim.lr_scheduler.min_lr,
        "lr_warmup_iters": optim.lr_scheduler.warmup_steps,
        "padded_vocab_size": model.config.vocab_size,
        "untie_embeddings_and_output_weights": not model.config.share_embeddings_and_output_weights,
        "rotary_base": model.config.rotary_base,
        **rope_scaling(getattr(model.config, "scale_factor", 1.0)),
        **planned_layout(strategy, data_size, recipe.data.micro_batch_size, recipe.data.global_batch_size),
        "seq_length": recipe.data.seq_length,
        "train_iters": recipe.trainer.max_steps,
        "lr_decay_iters": recipe.trainer.max_steps,
        "vocab_size": recipe.data.tokenizer.vocab_size + 1,
        "max_position_embeddings": model.config.seq_length,
    }


def _changed(values: dict[str, Any], objects: dict[str, Any]) -> Iterator[Problem]:
    for path, value in values.items():
        prefix = next((p for p in _RESPECTED if path.startswith(p)), None)
        name = path.removeprefix(prefix or "")
        if prefix is not None and hasattr(objects[prefix], name):
            yield from changed(path, value, getattr(objects[prefix], name), "NeMo")


def effective(trainer: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Canonical settings of a training that is about to take its first step, as rank 0 has them."""
    strategy, optimizer = trainer.strategy, trainer.optimizers[0]
    gpt = next(part for part in strategy.model.modules() if type(part).__name__ == "GPTModel")
    groups = optimizer.param_groups
    return {
        **built_settings(gpt, strategy.ddp_config, optimizer.mcore_optimizer.config, groups),
        **nemo_schedule(trainer.lr_scheduler_configs[0].scheduler, groups[0]["lr"]),
        **_data(trainer, settings),
        **rope_scaling(_rope_factor(gpt)),
        "train_iters": trainer.max_steps,
        "save_interval": trainer.checkpoint_callback and trainer.checkpoint_callback._every_n_train_steps,
    }


def _data(trainer: Any, settings: dict[str, Any]) -> dict[str, Any]:
    module = trainer.datamodule
    values = {
        "seq_length": module.data_sampler.seq_len,
        **batch_settings(),
        "vocab_size": module.tokenizer.vocab_size,
    }
    if not hasattr(module, "build_kwargs"):
        return {**values, "data": "mock", "data_path": None, "seed": settings["seed"]}
    paths, _ = module.build_kwargs["blend"]
    told = {"data": settings["data"]["name"], "data_path": paths[0], "split": module.build_kwargs["split"]}
    return {**values, **told, "seed": module.seed}


def _rope_factor(gpt: Any) -> float:
    """By what the lowest frequency of the rotary embedding is divided; 1 where there is none of GPTModel's own."""
    embedding = getattr(gpt, "rotary_pos_emb", None)
    if embedding is None:
        return 1.0
    frequencies = embedding.inv_freq
    lowest = float(gpt.rotary_base) ** -((len(frequencies) - 1) / len(frequencies))
    return float(round(lowest / float(frequencies[-1]), 3))


def _first_batch(trainer: Any) -> str | None:
    """Fingerprint of the first global batch; None of mock data, which no stack shares."""
    module = trainer.datamodule
    if not hasattr(module, "build_kwargs"):
        return None
    samples = (module._train_ds[index] for index in range(module.data_sampler.global_batch_size))
    return fingerprint(np.stack([np.append(s["tokens"].numpy(), s["labels"][-1:].numpy()) for s in samples]))


def marks(settings: dict[str, Any], stand_in: str | None) -> Any:
    """The callback that prints our marks on rank 0: `effective` once, `step` after each step."""
    return _Marks(settings, stand_in)


class _Marks(Callback):
    """NeMo prints four digits; these are whole, and on a monotonic clock."""

    def __init__(self, settings: dict[str, Any], stand_in: str | None) -> None:
        self.settings, self.stand_in = settings, stand_in
        self.lr_used = math.nan

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if is_first_rank():
            mark("effective", effective(trainer, self.settings))
            mark("facts", {"data_first_batch": _first_batch(trainer)})

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        self.lr_used = trainer.optimizers[0].param_groups[0]["lr"]

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if not is_first_rank():
            return
        loss, norm = (_number(trainer.callback_metrics.get(name)) for name in ("reduced_train_loss", "grad_norm"))
        values = {
            "step": trainer.global_step - 1,
            "lr_used": self.lr_used,
            "loss": loss,
            "grad_norm": norm,
            "end_monotonic_s": time.monotonic(),  # the numbers above were waited for
            **peak_memory(self.stand_in),
        }
        bad = loss is not None and not math.isfinite(loss)
        mark("step", {**values, "nonfinite": True} if bad else values)


def _number(value: Any) -> float | None:
    return None if value is None else float(value.item() if torch.is_tensor(value) else value)
