"""Build Megatron-Bridge's ConfigContainer with every setting on it; traps: launchers/settings/megatron_bridge.yaml."""

from __future__ import annotations

import functools
import importlib
import os
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import megatron.bridge
import megatron.core
import torch
from megatron.bridge.training import initialize, mixed_precision
from megatron.bridge.training.config import runtime_config_update
from megatron.core import datasets
from megatron.core import utils as core
from rank_program import Problem, Refused
from vendor_ranks import Settings, assign, changed, needs_transformer_engine, plain_names, required

RELEASE: str = megatron.bridge.__version__
HAS_TRANSFORMER_ENGINE = bool(getattr(core, "HAVE_TE", False))

OLDEST_TRANSFORMER_ENGINE = "2.10"  # that Bridge 0.3.1 takes (its metadata)

_FP32 = {"fp32": True, "params_dtype": torch.float32, "pipeline_dtype": torch.float32, "autocast_enabled": False}
"""mixed_precision=None would leave the recipe's bf16 where it is."""
_UNTOUCHED = ("mixed_precision.", "comm_overlap", "peft", "ft")


def versions() -> dict[str, str]:
    """Return the versions that the modules state: a checkout on the path has no metadata."""
    return {"framework_version": RELEASE, "megatron_bridge": RELEASE, "megatron_core": megatron.core.__version__}


def use_built_helpers() -> None:
    """Keep Bridge from running `make` for the dataset's C++ helpers that are built (B3 training/initialize.py:139):
    megatron-core's wheels hold no Makefile, and the run would end there."""
    folder = Path(datasets.__file__).parent
    if not (folder / "Makefile").exists() and any(folder.glob("helpers_cpp*.so")):
        initialize.compile_helpers = lambda: None


def build(settings: Settings, stand_in: str | None) -> Any:
    """Return a new recipe with all of `settings` on it, not validated yet. stand_in: None where an accelerator is here.

    Raises:
        Refused: there is no such recipe, or it has no such attribute; all of them.
    """
    config = _recipe(settings)
    config.mixed_precision, refused = _precision(settings["precision"])
    refused += assign(config, required(settings, HAS_TRANSFORMER_ENGINE), plain_names)
    refused += assign(config, settings["set_if_there"], plain_names, optional=True)
    if not HAS_TRANSFORMER_ENGINE and stand_in is None:
        refused += needs_transformer_engine(settings, "model.context_parallel_size")
    if refused:
        raise Refused(*refused)
    return config


def validated(config: Any, settings: Settings) -> Any:
    """Apply Bridge's own rules to `config`, as for rank 0 of the complete run, without a process group.

    Raises:
        Refused: Bridge refuses it, or has changed what was set.
    """
    # read by the rules of fp8 and experts; a plan for a machine that has it is checked here, too
    if not HAS_TRANSFORMER_ENGINE:
        core._te_version = core.PkgVersion(OLDEST_TRANSFORMER_ENGINE)
    os.environ.update({"WORLD_SIZE": str(settings["world_size"]), "RANK": "0", "LOCAL_RANK": "0"})
    try:
        runtime_config_update(config)
    except (AssertionError, ValueError, TypeError, AttributeError, NotImplementedError) as error:
        what = f"Bridge's own rules refuse it: {' '.join(str(error).split())}"
        raise Refused.of("recipe", what, settings["recipe"]) from error
    if problems := _changed(config, required(settings, HAS_TRANSFORMER_ENGINE)):
        raise Refused(*problems)
    return config


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


def _precision(precision: dict[str, Any]) -> tuple[Any, list[Problem]]:
    factory = precision["factory"]
    if factory == "fp32":
        made = mixed_precision.MixedPrecisionConfig(**_FP32)
    elif factory in mixed_precision.MIXED_PRECISION_RECIPES:
        made = mixed_precision.MIXED_PRECISION_RECIPES[factory]()
    else:
        known = ", ".join(sorted(name for name in mixed_precision.MIXED_PRECISION_RECIPES if "-" not in name))
        return None, [Problem("precision", "this release has no such precision", factory, known)]
    return made, list(assign(made, precision["set"], plain_names))


def _changed(config: Any, values: Settings) -> list[Problem]:
    problems: list[Problem] = []
    for path, value in values.items():
        if not path.startswith(_UNTOUCHED):
            problems += changed(path, value, functools.reduce(getattr, path.split("."), config), "Bridge")
    return problems
