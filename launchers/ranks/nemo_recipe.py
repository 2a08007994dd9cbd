"""Build a recipe of NeMo with every setting on it. Paths and traps: launchers/settings/nemo.yaml. N: nemo/ of 2.7.3."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import pkgutil
from difflib import get_close_matches
from types import SimpleNamespace
from typing import Any

import fiddle as fdl
import nemo_run
import torch

# explicit: the package itself imports without its recipes, and says so in a warning alone
from nemo.collections import llm
from nemo.collections.common.tokenizers.null_tokenizer import NullTokenizer
from nemo.collections.llm import recipes
from nemo.collections.llm.recipes.precision import mixed_precision
from nemo.lightning import _strategy_lib, nemo_logger
from nemo.lightning.pytorch.callbacks import ModelCheckpoint
from nemo.lightning.pytorch.callbacks.flops_callback import FLOPsMeasurementCallback
from nemo.lightning.pytorch.optim import CosineAnnealingScheduler
from nemo.lightning.pytorch.plugins import MegatronMixedPrecision
from nemo.utils.exp_manager import TimingCallback
from rank_program import Problem, Refused
from vendor_ranks import Settings, assign, needs_transformer_engine, required

try:
    import transformer_engine  # noqa: F401

    HAS_TRANSFORMER_ENGINE = True
except (ImportError, OSError):  # OSError: installed, and a library of CUDA is not
    HAS_TRANSFORMER_ENGINE = False


def build(settings: Settings) -> Any:
    """Return a new recipe (a run.Partial of llm.pretrain) with all of `settings` on it.

    Raises:
        Refused: there is no such recipe, or it has no such attribute; all of them.
    """
    name = settings["recipe"]
    machines = {"num_nodes": settings["nodes"], "num_gpus_per_node": settings["gpus_per_node"]}
    recipe = _pretrain_recipe(name)(dir="nemo", name="run", **machines)
    # replaced, so that nothing of the recipe's own is left; qwen's ddp is a string
    recipe.trainer.strategy.ddp = nemo_run.Config(llm_ddp())
    recipe.optim.lr_scheduler = nemo_run.Config(CosineAnnealingScheduler)
    recipe.data = _data(settings)
    recipe.log.ckpt = _checkpoints() if settings["set"]["trainer.enable_checkpointing"] else None
    recipe.trainer.callbacks = []
    recipe.trainer.plugins, refused = _precision(settings["precision"])
    refused += assign(recipe, required(settings, HAS_TRANSFORMER_ENGINE), names_of)
    refused += assign(recipe, settings["set_if_there"], names_of, optional=True)
    if not HAS_TRANSFORMER_ENGINE and (settings["device"] == "cpu" or torch.cuda.is_available()):  # it would run here
        refused += needs_transformer_engine(settings, "trainer.strategy.context_parallel_size")
    if refused:
        raise Refused(*refused)
    recipe.trainer.callbacks = _callbacks(recipe, settings["flops_formula"])
    return recipe


def ready(recipe: Any, callback: Any) -> Any:
    """Return the training as a function without arguments; `callback` comes after all others."""
    if not nemo_logger.HAVE_RES:  # read of every checkpoint callback (N:lightning/nemo_logger.py:253): none is one
        nemo_logger.lcp = SimpleNamespace(LocalCheckpointCallback=())
    run = fdl.build(recipe)
    run.keywords["trainer"].callbacks.append(callback)
    return run


def seed_everything(seed: int) -> None:
    """NeMo has 1234 written down (N:lightning/_strategy_lib.py:44); it adds 100 for each pipeline stage."""
    _strategy_lib.init_parallel_ranks = functools.partial(_strategy_lib.init_parallel_ranks, seed=seed)


def names_of(parent: Any) -> set[str]:
    """Return the names that a Buildable's class really has; **kwargs take any other silently (MegatronStrategy and
    more)."""
    if not isinstance(parent, fdl.Buildable):
        return set(dir(parent))
    made = fdl.get_callable(parent)
    if dataclasses.is_dataclass(made):
        return {field.name for field in dataclasses.fields(made) if field.init}
    parameters = inspect.signature(made.__init__ if inspect.isclass(made) else made).parameters.values()
    return {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)} - {"self"}


def llm_ddp() -> Any:
    """Return Megatron's DistributedDataParallelConfig."""
    from megatron.core.distributed import DistributedDataParallelConfig

    return DistributedDataParallelConfig


def _pretrain_recipe(name: str) -> Any:
    try:
        module = importlib.import_module(f"{recipes.__name__}.{name}")
    except ModuleNotFoundError as error:
        names = sorted(entry.name for entry in pkgutil.iter_modules(recipes.__path__))
        near = ", ".join(get_close_matches(name, names, n=4))
        raise Refused.of("framework.recipes", f"no recipe {name} ({error})", "", near) from error
    if not hasattr(module, "pretrain_recipe"):
        raise Refused.of("model", f"NeMo's {name} can be fine-tuned only: it has no pretrain_recipe")
    return module.pretrain_recipe


def _data(settings: Settings) -> Any:
    """Return the data module; batch sizes and seq_length are set by path."""
    data = settings["data"]
    tokenizer = nemo_run.Config(NullTokenizer, vocab_size=data["vocab_size"] - 1)  # it adds one, whose id is eod
    if data["name"] == "mock":
        count = data["samples"]
        return nemo_run.Config(llm.MockDataModule, tokenizer=tokenizer, num_train_samples=count)
    return nemo_run.Config(
        llm.PreTrainingDataModule,
        paths=[data["path"]],
        split=data["split"],
        seed=settings["seed"],
        tokenizer=tokenizer,
        # of its own: an index is looked up by the corpus' path, not by its contents
        index_mapping_dir="index",
    )


def _checkpoints() -> Any:
    """Keep all checkpoints, in the run's directory; how often is set by path. No context: nothing here resumes from
    it."""
    kept = {"monitor": None, "save_top_k": -1, "save_last": False}
    context = {"always_save_context": False, "save_context_on_train_end": False}
    name = {"dirpath": "checkpoints", "filename": "{step}"}
    return nemo_run.Config(ModelCheckpoint, **kept, **context, **name)


def _precision(precision: dict[str, Any]) -> tuple[Any, list[Problem]]:
    factory = precision["factory"]
    if factory == "fp32":
        single = {"params_dtype": torch.float32, "pipeline_dtype": torch.float32}
        plugin = nemo_run.Config(MegatronMixedPrecision, precision="32", autocast_enabled=False, **single)
    elif hasattr(mixed_precision, factory):
        plugin = getattr(mixed_precision, factory)()
    else:
        known = ", ".join(name for name in dir(mixed_precision) if name.endswith("_mixed"))
        return None, [Problem("precision", "this NeMo has no such precision", factory, known)]
    return plugin, list(assign(plugin, precision["set"], names_of))


def _callbacks(recipe: Any, formula: str | None) -> list[Any]:
    """Return the callbacks in this order: the second reads what the first has logged."""
    if formula is None:
        return [nemo_run.Config(TimingCallback)]
    flops = {"model_config": recipe.model.config, "data_config": recipe.data, "model_name": formula}
    return [nemo_run.Config(TimingCallback), nemo_run.Config(FLOPsMeasurementCallback, **flops)]
