"""Build a recipe of NeMo with every setting on it, and read back what it really has: `configured` of objects that were
built and connected, `effective` of those that train, after strategy, optimizer and callbacks changed them. Paths and
traps: conf/vocabulary.yaml. N: nemo/ of 2.7.3."""

from __future__ import annotations

import functools
import importlib
import math
import pkgutil
from collections.abc import Callable
from difflib import get_close_matches
from types import SimpleNamespace
from typing import Any

import fiddle as fdl
import nemo
import nemo_run
import torch
from corpus_order import batch_of, fingerprint, members, stated
from lightning.pytorch.callbacks import Callback
from megatron.core.distributed import DistributedDataParallelConfig

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
from nemo_paths import assign_paths, names_of
from rank_program import Problem, Refused, is_first_rank, mark
from tprimat_settings import nemo_schedule, planned_batches, read, rope_factor, rope_scaling, training
from vendor_ranks import (
    Settings,
    assign,
    changed,
    mark_step,
    needs_transformer_engine,
    of_tokenizer,
    pause,
    precision,
    required,
)

try:
    import transformer_engine  # noqa: F401

    HAS_TRANSFORMER_ENGINE = True
except (ImportError, OSError):  # OSError: installed, and a library of CUDA is not
    HAS_TRANSFORMER_ENGINE = False


DISTRIBUTIONS = ("nemo_toolkit", "lightning")
VERSIONS: dict[str, str] = {}  # those of the distributions
_CHECKPOINTS: dict[str, Any] = {"dirpath": "checkpoints", "filename": "{step}", "monitor": "step", "mode": "max"} | (
    dict.fromkeys(("save_last", "always_save_context", "save_context_on_train_end"), False)
)
"""The newest, in the run's directory; how many, and how often, is set by path. No context: nothing resumes from it."""


def build(settings: Settings, _stand_in: str | None) -> Any:
    """Return a new recipe (a run.Partial of llm.pretrain) with all of `settings` on it.
    Raises Refused: there is no such recipe, or it has no such attribute; all of them."""
    _check_release(settings)
    recipe = bare(settings["recipe"], settings["nodes"], settings["gpus_per_node"])
    recipe.data = _data(settings)
    if settings["set"]["trainer.enable_checkpointing"]:
        recipe.log.ckpt = nemo_run.Config(ModelCheckpoint, **_CHECKPOINTS)
    recipe.trainer.plugins, refused = precision(settings, precisions(), names_of)
    refused += assign_paths(recipe, required(settings, HAS_TRANSFORMER_ENGINE))
    refused += assign(recipe, settings["set_if_there"], names_of, optional=True)
    if not HAS_TRANSFORMER_ENGINE and (settings["device"] == "cpu" or torch.cuda.is_available()):  # it would run here
        refused += needs_transformer_engine(settings, "trainer.strategy.context_parallel_size")
    if refused:
        raise Refused(*refused)
    recipe.trainer.callbacks.append(nemo_run.Config(TimingCallback))
    if formula := settings["flops_formula"]:  # behind the other, whose log it reads
        flops = {"model_config": recipe.model.config, "data_config": recipe.data, "model_name": formula}
        recipe.trainer.callbacks.append(nemo_run.Config(FLOPsMeasurementCallback, **flops))
    return recipe


def bare(name: str, nodes: int, gpus_per_node: int) -> Any:
    """Return NeMo's recipe without what is its own of DDP, schedule, data, checkpoints and callbacks.
    Raises Refused: there is no such recipe."""
    recipe = _pretrain_recipe(name)(dir="nemo", name="run", num_nodes=nodes, num_gpus_per_node=gpus_per_node)
    recipe.trainer.strategy.ddp = nemo_run.Config(DistributedDataParallelConfig)  # qwen's is a string
    recipe.optim.lr_scheduler = nemo_run.Config(CosineAnnealingScheduler)
    recipe.data = nemo_run.Config(llm.MockDataModule, seq_length=1)
    recipe.log.ckpt = None
    recipe.trainer.callbacks = []
    return recipe


def train(recipe: Any, settings: Settings, stand_in: str | None) -> None:
    """Train by `recipe`, which build() made. Our callback comes after all others."""
    # NeMo has 1234 written down (N:lightning/_strategy_lib.py:44); it adds 100 for each pipeline stage
    seeded = functools.partial(_strategy_lib.init_parallel_ranks, seed=settings["seed"])
    _strategy_lib.init_parallel_ranks = seeded
    if not nemo_logger.HAVE_RES:  # read of every checkpoint callback (N:lightning/nemo_logger.py:253): none is one
        nemo_logger.lcp = SimpleNamespace(LocalCheckpointCallback=())
    run = fdl.build(recipe)
    run.keywords["trainer"].callbacks.append(Marks(settings, stand_in))
    run()


def _check_release(settings: Settings) -> None:
    """Raise Refused where a vendor's recipe is of another release of NeMo than this one."""
    wanted, here = settings.get("release"), nemo.__version__
    if wanted not in (None, here):
        what = "the recipe is of another release of NeMo, and its paths may mean other things here"
        hint = f"framework.python with nemo_toolkit {wanted}; tprimat recipes import reads those of {here}"
        raise Refused.of("recipe", what, here, str(wanted), hint)


def _pretrain_recipe(name: str) -> Any:
    try:
        module = importlib.import_module(f"{recipes.__name__}.{name}")
    except ModuleNotFoundError as error:
        near = ", ".join(get_close_matches(name, [entry.name for entry in pkgutil.iter_modules(recipes.__path__)], n=4))
        raise Refused.of("framework.recipes", f"no recipe {name} ({error})", "", near) from error
    if not hasattr(module, "pretrain_recipe"):
        raise Refused.of("model", f"NeMo's {name} can be fine-tuned only: it has no pretrain_recipe")
    return module.pretrain_recipe


def _data(settings: Settings) -> Any:
    """Return the data module; sizes and the tokenizer are set by path."""
    data = settings["data"]
    if data["name"] == "mock":
        return nemo_run.Config(llm.MockDataModule, seq_length=1)
    paths = data["path"].split() if len(members(data["path"])) > 1 else [data["path"]]
    read_as = {"paths": paths, "split": data["split"], "seed": settings["seed"]}
    # an index of its own: it is looked up by the corpus' path, not by its contents
    return nemo_run.Config(llm.PreTrainingDataModule, **read_as, index_mapping_dir="index")


def precisions() -> dict[str, Callable[[], Any]]:
    """Return what makes the plugin of each precision: NeMo's own factories by their names, and fp32."""
    single = {"precision": "32", "params_dtype": torch.float32, "pipeline_dtype": torch.float32}
    fp32 = functools.partial(nemo_run.Config, MegatronMixedPrecision, autocast_enabled=False, **single)
    return {name: made for name, made in vars(mixed_precision).items() if name.endswith("_mixed")} | {"fp32": fp32}


def _connected(recipe: Any, settings: Settings) -> tuple[Any, Any, Any]:
    """Return model, optimizer and strategy of the recipe, connected as llm.pretrain does it, without trainer or data.
    Raises Refused: NeMo's classes refuse it, or have changed what was set."""
    try:
        model, optim = fdl.build(recipe.model), fdl.build(recipe.optim)
        strategy = fdl.build(recipe.trainer.strategy)
        strategy._precision_plugin = fdl.build(recipe.trainer.plugins)
        optim.connect(model)
        strategy.connect(model)  # overwrites the model's, the optimizer's and DDP's config
    except (AssertionError, ValueError, TypeError, AttributeError, ImportError, NotImplementedError) as error:
        raise Refused.of("recipe", f"NeMo's own classes refuse it: {error}", settings["recipe"]) from error
    objects = {"model.config": model.config, "optim.config": optim.config, "trainer.strategy.ddp": strategy.ddp_config}
    problems: list[Problem] = []
    for path, value in required(settings, HAS_TRANSFORMER_ENGINE).items():
        owner, _, name = path.rpartition(".")
        if owner in objects and hasattr(objects[owner], name):
            problems += changed(path, value, getattr(objects[owner], name), "NeMo")
    if problems:
        raise Refused(*problems)
    return model, optim, strategy


def configured(recipe: Any, settings: Settings) -> dict[str, Any]:
    """Return canonical settings of the recipe, built and connected.
    Raises Refused: NeMo's classes refuse it, or have changed what was set."""
    model, optim, strategy = _connected(recipe, settings)
    is_text = fdl.get_callable(recipe.data.tokenizer) is not NullTokenizer
    data, world = recipe.data, recipe.trainer.devices * recipe.trainer.num_nodes
    model_ranks = strategy.tensor_model_parallel_size * strategy.pipeline_model_parallel_size
    data_size = world // (model_ranks * strategy.context_parallel_size)
    return {
        **read(model=model.config, optimizer=optim.config, ddp=strategy.ddp_config, sizes=strategy),
        **planned_batches(strategy, data_size, data.micro_batch_size, data.global_batch_size),
        **rope_scaling(getattr(model.config, "scale_factor", 1.0)),
        "lr": optim.config.lr,
        "min_lr": optim.lr_scheduler.min_lr,
        "lr_warmup_iters": optim.lr_scheduler.warmup_steps,
        "lr_decay_iters": recipe.trainer.max_steps,
        "padded_vocab_size": model.config.vocab_size,
        "seq_length": data.seq_length,
        "train_iters": recipe.trainer.max_steps,
        "vocab_size": settings["data"]["vocab_size"] if is_text else data.tokenizer.vocab_size + 1,
    }


def effective(trainer: Any, settings: Settings) -> dict[str, Any]:
    """Return canonical settings of a training that is about to take its first step, as rank 0 has them."""
    strategy, optimizer, module = trainer.strategy, trainer.optimizers[0], trainer.datamodule
    gpt = next(part for part in strategy.model.modules() if type(part).__name__ == "GPTModel")
    groups, embedding = optimizer.param_groups, getattr(gpt, "rotary_pos_emb", None)
    objects = training(gpt, strategy.ddp_config, optimizer.mcore_optimizer.config, groups)
    data = {"data": "mock", "data_path": None, "seed": settings["seed"]}
    if built := getattr(module, "build_kwargs", None):
        path = stated(*built["blend"])
        data = {"data": settings["data"]["name"], "data_path": path, "split": built["split"], "seed": module.seed}
    return {
        **read(**objects, **nemo_schedule(trainer.lr_scheduler_configs[0].scheduler, groups[0]["lr"])),
        **rope_scaling(1.0 if embedding is None else rope_factor(embedding.inv_freq, gpt.rotary_base)),
        **data,
        "seq_length": module.data_sampler.seq_len,
        **_tokenizer(module.tokenizer, settings),
        "train_iters": trainer.max_steps,
        "eval_interval": trainer.val_check_interval if trainer.limit_val_batches else None,
        "eval_iters": trainer.limit_val_batches // module.data_sampler.num_microbatches,  # NeMo has counted those
        "save_interval": trainer.checkpoint_callback and trainer.checkpoint_callback._every_n_train_steps,
    }


_MEGATRON_TYPES = {
    "AutoTokenizer": "HuggingFaceTokenizer",
    "SentencePieceTokenizer": "SentencePieceTokenizer",
    "TiktokenTokenizer": "TikTokenizer",
}
"""Megatron's names of NeMo's tokenizers."""


def _tokenizer(tokenizer: Any, settings: Settings) -> dict[str, Any]:
    """Return what the data's tokenizer is. Beside one of text no object keeps the model's own vocabulary."""
    if isinstance(tokenizer, NullTokenizer):
        return {"tokenizer_type": "NullTokenizer", "tokenizer_model": None, "vocab_size": tokenizer.vocab_size}
    kind = _MEGATRON_TYPES[type(tokenizer).__name__]
    # those of a file keep no path of it
    path = {"tokenizer_model": tokenizer.tokenizer.name_or_path} if kind == "HuggingFaceTokenizer" else {}
    return {"tokenizer_type": kind, **path, "vocab_size": settings["data"]["vocab_size"], **of_tokenizer(tokenizer)}


class Marks(Callback):
    """Print our marks on rank 0: `effective` once, `step` after each step; NeMo prints four digits."""

    def __init__(self, settings: Settings, stand_in: str | None) -> None:
        self.settings, self.stand_in, self.lr_used, self.validations = settings, stand_in, math.nan, 0

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Let each validation go on behind the samples of the one before, as Megatron's do: NeMo begins anew each time
        (N:lightning/pytorch/plugins/data_sampler.py, consumed_samples=0)."""
        pause()
        sampler = trainer.datamodule.data_sampler
        batches = trainer.limit_val_batches // sampler.num_microbatches  # NeMo counts micro-batches by now
        done = self.validations * batches * sampler.global_batch_size
        loaders = trainer.val_dataloaders
        for loader in loaders if isinstance(loaders, list) else [loaders]:
            of_loader = loader.batch_sampler
            getattr(of_loader, "_sampler", of_loader).consumed_samples = done
        self.validations += 1
        # Lightning weighs the first global batch with 1, and the others with the samples of a micro-batch
        pl_module.log = functools.partial(type(pl_module).log, pl_module, batch_size=1)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        del pl_module.log
        if is_first_rank():
            loss = trainer.callback_metrics["val_loss"]
            mark("validation", {"iteration": trainer.global_step, "loss": float(loss)})
        pause(over=True)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if is_first_rank():
            mark("effective", effective(trainer, self.settings))
            module = trainer.datamodule
            shared = hasattr(module, "build_kwargs")  # mock data no stack shares
            indices = range(module.data_sampler.global_batch_size)
            mark("facts", {"data_first_batch": fingerprint(batch_of(module._train_ds, indices)) if shared else None})

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        self.lr_used = trainer.optimizers[0].param_groups[0]["lr"]

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if is_first_rank():
            metrics = trainer.callback_metrics
            loss, norm = metrics.get("reduced_train_loss"), metrics.get("grad_norm")
            mark_step(self.stand_in, trainer.global_step - 1, self.lr_used, loss, norm)
