"""A ConfigContainer of Megatron-Bridge with every setting on it; traps: launchers/settings/megatron_bridge.yaml."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
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
from vendor_config import Refusal, Refused, assign, plain, plain_names, real_value

RELEASE: str = megatron.bridge.__version__
HAS_TRANSFORMER_ENGINE = bool(getattr(core, "HAVE_TE", False))

OLDEST_TRANSFORMER_ENGINE = "2.10"  # that Bridge 0.3.1 takes (its metadata)

_FP32 = {"fp32": True, "params_dtype": torch.float32, "pipeline_dtype": torch.float32, "autocast_enabled": False}
"""mixed_precision=None would leave the recipe's bf16 where it is."""
_UNTOUCHED = ("mixed_precision.", "comm_overlap", "peft", "ft")


def versions() -> dict[str, str]:
    """As the modules tell it: a checkout on the path has no metadata."""
    return {"framework_version": RELEASE, "megatron_bridge": RELEASE, "megatron_core": megatron.core.__version__}


def use_built_helpers() -> None:
    """Bridge runs `make` for the dataset's C++ helpers, built or not (B3 training/initialize.py:139), and ends where it
    fails; megatron-core's wheels hold them built, and no Makefile."""
    folder = Path(datasets.__file__).parent
    if not (folder / "Makefile").exists() and any(folder.glob("helpers_cpp*.so")):
        initialize.compile_helpers = lambda: None


def build(settings: dict[str, Any], stand_in: str | None) -> Any:
    """A fresh recipe with all of `settings` on it, not validated yet. stand_in: None where an accelerator is here.

    Raises:
        Refused: there is no such recipe, or it has no such attribute; all that were found.
    """
    config = _recipe(settings)
    config.mixed_precision, refused = _precision(settings["precision"])
    refused += assign(config, asked(settings), plain_names)
    refused += assign(config, settings["set_if_there"], plain_names, optional=True)
    refused += () if HAS_TRANSFORMER_ENGINE or stand_in else _needs_transformer_engine(settings)
    if refused:
        raise Refused(refused)
    return config


def asked(settings: dict[str, Any]) -> dict[str, Any]:
    """path → plain value of all that must be there, in this environment."""
    return settings["set"] | ({} if HAS_TRANSFORMER_ENGINE else settings["set_without_transformer_engine"])


def validated(config: Any, settings: dict[str, Any]) -> Any:
    """`config` after Bridge's own rules, as for rank 0 of the whole run, without a process group.

    Raises:
        Refused: Bridge refuses it, or has changed what was set.
    """
    # asked for in the rules of fp8 and experts; a plan for a machine that has it is checked here, too
    if not HAS_TRANSFORMER_ENGINE:
        core._te_version = core.PkgVersion(OLDEST_TRANSFORMER_ENGINE)
    os.environ.update({"WORLD_SIZE": str(settings["world_size"]), "RANK": "0", "LOCAL_RANK": "0"})
    try:
        runtime_config_update(config)
    except (AssertionError, ValueError, TypeError, AttributeError, NotImplementedError) as error:
        what = f"Bridge's own rules refuse it: {' '.join(str(error).split())}"
        raise Refused([Refusal("recipe", what, settings["recipe"])]) from error
    changed = list(_changed(config, asked(settings)))
    if changed:
        raise Refused(changed)
    return config


def _recipe(settings: dict[str, Any]) -> Any:
    family, name = settings["family"], settings["recipe"]
    try:
        module = importlib.import_module(f"megatron.bridge.recipes.{family}")
    except ModuleNotFoundError as error:
        raise Refused([Refusal("framework.recipes", f"no recipes of {family}: {error}")]) from error
    if not hasattr(module, name):
        near = get_close_matches(name, [found for found in dir(module) if "pretrain" in found], n=4)
        raise Refused([Refusal("framework.recipes", "this release has no such recipe", name, ", ".join(near))])
    try:
        return getattr(module, name)()
    except (ValueError, OSError, TypeError, KeyError) as error:
        what = f"cannot be built: {' '.join(str(error).split())}"
        hint = "the id that it asks Hugging Face's hub for is answered from launchers/settings/hugging_face.yaml"
        raise Refused([Refusal("recipe", what, name, hint=hint)]) from error


def _precision(precision: dict[str, Any]) -> tuple[Any, list[Refusal]]:
    factory = precision["factory"]
    if factory == "fp32":
        made = mixed_precision.MixedPrecisionConfig(**_FP32)
    elif factory in mixed_precision.MIXED_PRECISION_RECIPES:
        made = mixed_precision.MIXED_PRECISION_RECIPES[factory]()
    else:
        known = ", ".join(sorted(name for name in mixed_precision.MIXED_PRECISION_RECIPES if "-" not in name))
        return None, [Refusal("precision", "this release has no such precision", factory, known)]
    return made, list(assign(made, precision["set"], plain_names))


def _needs_transformer_engine(settings: dict[str, Any]) -> Iterator[Refusal]:
    if settings["precision"]["factory"] not in ("fp32", "bf16_mixed"):
        what = "fp8 needs TransformerEngine, which is not here"
        yield Refusal("precision", what, settings["precision"]["factory"], "bf16, fp32", "precision=bf16")
    if settings["set"]["model.context_parallel_size"] > 1:
        what = "a split sequence needs TransformerEngine's attention, which is not here"
        yield Refusal("layout.context_parallel_size", what, allowed="1")


def _changed(config: Any, values: dict[str, Any]) -> Iterator[Refusal]:
    """What was set and has another value now. A null is a question: it may be answered."""
    for path, value in values.items():
        if value is None or path.startswith(_UNTOUCHED):
            continue
        now = config
        for name in path.split("."):
            now = getattr(now, name)
        if plain(now) != plain(real_value(value)):
            yield Refusal(path, "was set, and Bridge has changed it", str(plain(now)), str(plain(value)))
