"""Build Megatron-Bridge's ConfigContainer with every setting on it, and read back what it really has: `configured` of a
validated one, `effective` of the objects that train. Traps: conf/vocabulary.yaml."""

from __future__ import annotations

import functools
import importlib
import math
import os
from collections.abc import Callable
from difflib import get_close_matches
from operator import attrgetter
from pathlib import Path
from typing import Any

import megatron.bridge
import megatron.core
import torch
import vendor_ranks
from corpus_order import batch_of, fingerprint, stated
from megatron.bridge.data import loaders
from megatron.bridge.data.loaders import get_train_valid_test_num_samples
from megatron.bridge.data.utils import get_dataset_provider
from megatron.bridge.training import initialize, mixed_precision
from megatron.bridge.training.callbacks import Callback
from megatron.bridge.training.config import runtime_config_update
from megatron.core import datasets
from megatron.core import utils as core
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.optimizer.optimizer_config import OptimizerConfig
from rank_program import Refused, is_first_rank, mark
from tprimat_settings import megatron_schedule, planned_batches, read, rope_scaling, training
from vendor_ranks import Settings, assign, changed, needs_transformer_engine, plain_names, precision, required

RELEASE: str = megatron.bridge.__version__
HAS_TRANSFORMER_ENGINE = bool(getattr(core, "HAVE_TE", False))

VERSIONS = {"framework_version": RELEASE, "megatron_bridge": RELEASE, "megatron_core": megatron.core.__version__}
"""As the modules state them: a checkout on the path has no metadata."""
DISTRIBUTIONS = ("megatron-bridge", "transformers")
_BUILT_WITH = {"0.3": "2.10", "0.4": "2.14", "0.5": "2.16", "0.6": "2.17"}
"""TransformerEngine's release, by Bridge's: the oldest of 0.3.1's metadata, then those of NVIDIA's containers."""

_FP32 = {"fp32": True, "params_dtype": torch.float32, "pipeline_dtype": torch.float32, "autocast_enabled": False}
_PRECISIONS = {
    **mixed_precision.MIXED_PRECISION_RECIPES,
    # None would leave the recipe's bf16 where it is
    "fp32": functools.partial(mixed_precision.MixedPrecisionConfig, **_FP32),
}
_UNTOUCHED = ("mixed_precision.", "comm_overlap", "peft", "ft")


def build(settings: Settings, stand_in: str | None) -> Any:
    """Return a new recipe with all of `settings` on it, not validated yet. stand_in: None where an accelerator is here.
    Raises Refused: there is no such recipe, or it has no such attribute; all of them."""
    as_with_fused_adam()
    config = _recipe(settings)
    config.mixed_precision, refused = precision(settings, _PRECISIONS, plain_names)
    refused += assign(config, required(settings, HAS_TRANSFORMER_ENGINE), plain_names)
    refused += assign(config, settings["set_if_there"], plain_names, optional=True)
    if not HAS_TRANSFORMER_ENGINE and stand_in is None:
        refused += needs_transformer_engine(settings, "model.context_parallel_size")
    if refused:
        raise Refused(*refused)
    return config


def as_with_fused_adam() -> None:
    """Let an optimizer of other dtypes than fp32 be described without TransformerEngine, whose FusedAdam its config
    looks for last of all (megatron-core 0.19, optimizer_config.py:465). It is missed again where the optimizer is
    made."""
    described = OptimizerConfig.__post_init__
    if HAS_TRANSFORMER_ENGINE or hasattr(described, "__wrapped__"):
        return

    @functools.wraps(described)
    def without(self: Any) -> None:
        try:
            described(self)
        except RuntimeError as error:
            if "FusedAdam" not in str(error):
                raise

    OptimizerConfig.__post_init__ = without


def local_block_spec(config: Any, vp_stage: int | None = None) -> Any:
    """Return Megatron-Core's own layers of a rank, as `model.transformer_layer_spec` takes them. Bridge's own
    local_layer_spec has neither latent attention nor dense layers before those with experts."""
    kind = config.normalization
    return get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization=kind, vp_stage=vp_stage)


def as_with_transformer_engine() -> None:
    """Let Bridge's own rules of fp8 and experts judge a config for a machine that has it."""
    as_with_fused_adam()
    if not HAS_TRANSFORMER_ENGINE:
        core._te_version = core.PkgVersion(_BUILT_WITH.get(RELEASE[:3], "2.17"))


def _recipe(settings: Settings) -> Any:
    family, name = settings["family"], settings["recipe"]
    try:
        module = importlib.import_module(f"megatron.bridge.recipes.{family}")
    except ModuleNotFoundError as error:
        raise Refused.of("framework.recipes", f"no recipes of {family}: {error}") from error
    if not hasattr(module, name):
        near = get_close_matches(name, [recipe for recipe in dir(module) if "pretrain" in recipe], n=4)
        raise Refused.of("framework.recipes", "this release has no such recipe", name, ", ".join(near))
    try:
        return getattr(module, name)()
    except (ValueError, OSError, TypeError, KeyError) as error:
        what = f"cannot be built: {' '.join(str(error).split())}"
        hint = "the id that it requests from Hugging Face's hub is answered from launchers/settings/hugging_face.yaml"
        raise Refused.of("recipe", what, name, "", hint) from error


def configured(config: Any, settings: Settings) -> dict[str, Any]:
    """Return canonical settings of `config` under Bridge's own rules: as rank 0 of the complete run, without a group.
    Raises Refused: Bridge refuses it, or has changed what was set."""
    as_with_transformer_engine()  # a plan for a machine that has it is checked here, too
    os.environ.update({"WORLD_SIZE": str(settings["world_size"]), "RANK": "0", "LOCAL_RANK": "0"})
    try:
        runtime_config_update(config)
    except (AssertionError, ValueError, TypeError, AttributeError, NotImplementedError) as error:
        what = f"Bridge's own rules refuse it: {' '.join(str(error).split())}"
        raise Refused.of("recipe", what, settings["recipe"]) from error
    values = required({**settings, "set_by_recipe": {}}, HAS_TRANSFORMER_ENGINE)  # Bridge's rules may change its own
    paths = [path for path in values if not path.startswith(_UNTOUCHED)]
    if problems := [p for path in paths for p in changed(path, values[path], attrgetter(path)(config), "Bridge")]:
        raise Refused(*problems)
    model, batch = config.model, config.train.global_batch_size
    schedule = megatron_schedule(config.scheduler, batch)  # it counts samples
    return {
        **read(model=model, optimizer=config.optimizer, ddp=config.ddp, sizes=model, **schedule),
        **planned_batches(model, config.data_parallel_size, config.train.micro_batch_size, batch),
        **rope_scaling(model.rope_scaling_factor if model.rope_scaling else 1.0),
        **_container(config, settings),
        **{name: getattr(config.optimizer, name) for name in ("lr", "min_lr")},
        "padded_vocab_size": None if model.should_pad_vocab else model.vocab_size,
        "vocab_size": config.tokenizer.vocab_size,
    }


def train(config: Any, settings: Settings, stand_in: str | None) -> None:
    """Train by `config`, which build() made."""
    from megatron.bridge.training.gpt_step import forward_step
    from megatron.bridge.training.pretrain import pretrain

    # Bridge runs `make` for the dataset's C++ helpers that are built (B3 training/initialize.py:139): megatron-core's
    # wheels hold no Makefile, and the run would end there
    folder = Path(datasets.__file__).parent
    if not (folder / "Makefile").exists() and any(folder.glob("helpers_cpp*.so")):
        initialize.compile_helpers = lambda: None
    kind = config.dataset.dataloader_type
    loaders.build_pretraining_data_loader = in_order(loaders.build_pretraining_data_loader, kind)
    pretrain(config, forward_step, callbacks=[Marks(settings, stand_in)])


def in_order(build: Callable[..., Any], kind: str | None) -> Callable[..., Any]:
    """Return Bridge's builder of loaders so that validation takes the loader of training, `kind`, as Megatron-LM's
    does: Bridge has it draw samples at random, other ones in each layout (B3 data/loaders.py:190,
    val_dataloader_type)."""

    @functools.wraps(build)
    def built(dataset: Any, consumed_samples: int, dataloader_type: str, *more: Any, **named: Any) -> Any:
        return build(dataset, consumed_samples, kind, *more, **named)

    return built


def effective(context: Any, settings: Settings) -> dict[str, Any]:
    """Return canonical settings of a training that is about to take its first step, as rank 0 has them."""
    config, scheduler, optimizer = context.state.cfg, context.scheduler, context.optimizer
    gpt = next(part for part in context.model[0].modules() if type(part).__name__ == "GPTModel")
    inner = getattr(optimizer, "chained_optimizers", [optimizer])[0]  # experts have one of their own, of equal settings
    objects = training(gpt, context.model[0].ddp_config, inner.config, optimizer.param_groups)
    batch = objects["batches"].get_current_global_batch_size()  # the schedule counts samples
    return {
        **_container(config, settings),
        # the container was saved before setup replaced the vocabulary: what is built has it
        **read(**objects, **megatron_schedule(scheduler, batch)),
        **_tokenizer(config),
        **rope_scaling(config.model.rope_scaling_factor if gpt.rotary_scaling else 1.0),
    }


def _container(config: Any, settings: Settings) -> dict[str, Any]:
    """Return what no object but the ConfigContainer keeps."""
    blend, evaluation = config.dataset.blend, _evaluation(config)
    data = {"data": "mock"} if blend is None else {"data": settings["data"], "split": config.dataset.split}
    return {
        "seq_length": config.dataset.seq_length,
        "micro_batch_size": config.train.micro_batch_size,
        "global_batch_size": config.train.global_batch_size,
        "train_iters": config.train.train_iters,
        "seed": config.rng.seed if config.rng.seed == config.dataset.random_seed else None,
        "save_interval": None if config.checkpoint.save is None else config.checkpoint.save_interval,
        "eval_interval": evaluation.eval_interval if evaluation.eval_iters else None,
        "eval_iters": evaluation.eval_iters,
        "data_path": None if blend is None else stated(*blend),
        **data,
    }


def _tokenizer(config: Any) -> dict[str, Any]:
    """Return what the data's tokenizer is. Beside one of text nothing but the request keeps the model's vocabulary."""
    kind, made = config.tokenizer.tokenizer_type, config.dataset.tokenizer
    named = {"tokenizer_type": kind, "tokenizer_model": config.tokenizer.tokenizer_model}
    if kind == "NullTokenizer":
        return {**named, "vocab_size": made.vocab_size}
    return {**named, "vocab_size": config.tokenizer.vocab_size, **vendor_ranks.of_tokenizer(made)}


def _evaluation(config: Any) -> Any:
    """Return the part of the container that says how it validates: `train` until 0.3, `validation` from 0.4 on."""
    return getattr(config, "validation", None) or config.train


class Marks(Callback):
    """Print our marks: `effective` once by rank 0, which has the first stage; `step` by the last rank, which has the
    loss. Bridge prints the rate of the next step, and its time as a mean of the interval."""

    def __init__(self, settings: Settings, stand_in: str | None) -> None:
        self.settings, self.stand_in, self.lr_used, self.validated = settings, stand_in, math.nan, 0
        self.is_last_rank = os.environ.get("RANK", "0") == str(int(os.environ.get("WORLD_SIZE", "1")) - 1)

    def on_train_start(self, context: Any) -> None:
        config, first_batch = context.state.cfg, None
        if config.dataset.blend is not None:  # and no mock data, which no stack shares
            # Bridge's own dataset, built once more, on every rank: it hands out no other
            made = get_dataset_provider(config.dataset)(get_train_valid_test_num_samples(config), config.dataset)[0]
            first_batch = fingerprint(batch_of(made, range(config.train.global_batch_size)))
        if is_first_rank():
            mark("effective", effective(context, self.settings))
            mark("facts", {"data_first_batch": first_batch})

    def on_eval_start(self, context: Any) -> None:
        vendor_ranks.pause()

    def on_eval_end(self, context: Any) -> None:
        vendor_ranks.pause(over=True)
        done = context.state.train_state.step
        inside = done % _evaluation(context.state.cfg).eval_interval == 0 and self.validated != done
        if self.is_last_rank and inside:  # not the one that Bridge adds at the end
            mark("validation", {"iteration": done, "loss": float(context.total_loss_dict["lm loss"])})
        self.validated = done

    def on_train_step_start(self, context: Any) -> None:
        self.lr_used = context.optimizer.param_groups[0]["lr"]

    def on_train_step_end(self, context: Any) -> None:
        if self.is_last_rank:
            loss = (context.loss_dict or {}).get("lm loss")
            vendor_ranks.mark_step(self.stand_in, context.state.train_state.step, self.lr_used, loss, context.grad_norm)
