"""framework=megatron_bridge: NVIDIA Megatron-Bridge (launchers/ranks/bridge_ranks.py).

A recipe asks the Hugging Face hub for the model's config.json; launchers/settings/hugging_face.yaml answers it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from conf.errors import Problem, listed
from conf.resolve import Experiment
from conf.schema import Model
from conf.vendors import vendor_of
from conf.vocabulary import follow
from launchers.attribute_settings import FOLDER
from launchers.nvidia import RANKS, RecipeStack

RELEASES = ("0.3", "0.4", "0.5", "0.6")  # whose attribute paths the table was checked against


class MegatronBridge(RecipeStack):
    """See launchers.frameworks.Framework. The precisions are names in megatron.bridge.training.mixed_precision."""

    name = "megatron_bridge"
    label = "Megatron-Bridge"
    program = RANKS / "bridge_ranks.py"
    precisions: Mapping[tuple[str, str | None], str] = {
        ("float32", None): "fp32",
        ("bfloat16", None): "bf16_mixed",
        ("bfloat16", "delayed"): "bf16_with_fp8_delayed_scaling_mixed",
        ("bfloat16", "tensorwise"): "bf16_with_fp8_current_scaling_mixed",
        ("bfloat16", "mxfp8"): "bf16_with_mxfp8_mixed",
    }

    def settings(self, e: Experiment) -> dict[str, Any]:
        """See RecipeStack."""
        family, _, recipe = e.framework.recipes[e.model.name].partition(".")
        return {
            "release": e.framework.release,
            "family": family,
            "recipe": recipe,
            "hugging_face": hub_answer(recipe, e.model),
            "device": vendor_of(e.accelerator).torch_device,
            "world_size": e.layout.world_size,
            "data": e.data.name,
            "precision": self.precision(e),
        }

    def refusals(self, e: Experiment) -> Iterator[Problem]:
        """See RecipeStack."""
        yield from super().refusals(e)
        release = e.framework.release or ""
        if not release.startswith(tuple(f"{known}." for known in RELEASES)):
            what = "the attribute paths of this release are not known"
            yield Problem("framework.release", what, release, listed([f"{known}.x" for known in RELEASES]))

    def recipe_missing(self, e: Experiment) -> Problem:
        """See RecipeStack."""
        what = f"Megatron-Bridge has no recipe to pre-train {e.model.name} with, in any release"
        hint = "another model, or framework=nemo"
        return Problem("model", what, e.model.name, listed(sorted(e.framework.recipes)), hint)


def hub_answer(recipe: str, model: Model) -> dict[str, Any]:
    """Return what the hub is to answer: {id, revisions, config}. recipe: the function's name."""
    revisions = _hugging_face()["revisions"].get(recipe, [])
    return {"id": _hugging_face()["ids"][recipe], "revisions": revisions, "config": hub_config(recipe, model)}


def hub_config(recipe: str, model: Model) -> dict[str, Any]:
    """Return config.json for `recipe` with the shapes of `model`."""
    family = max((name for name in _hugging_face()["families"] if recipe.startswith(name)), key=len)
    rows = {**_hugging_face()["common"], **_hugging_face()["families"][family]}
    values = {key: row["is"] if isinstance(row, dict) else follow(model, row) for key, row in rows.items()}
    known = {key: value for key, value in values.items() if value is not None}
    return known | {"tie_word_embeddings": not model.untie_embeddings_and_output_weights} | _scaling(model)


def _scaling(model: Model) -> dict[str, Any]:
    """RoPE scaling in Hugging Face's words; 1, 4 and 8192 are constants in Megatron-Core, as in Llama 3.1's file."""
    if model.use_rope_scaling:
        low_high = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
        return {"rope_scaling": {"rope_type": "llama3", "factor": model.rope_scaling_factor, **low_high}}
    if model.yarn is None:
        return {}
    yarn = {
        "factor": model.yarn.rotary_scaling_factor,
        "original_max_position_embeddings": model.yarn.original_max_position_embeddings,
        "beta_fast": model.yarn.beta_fast,
        "beta_slow": model.yarn.beta_slow,
        "mscale": model.yarn.mscale,
        "mscale_all_dim": model.yarn.mscale_all_dim,
    }
    return {"rope_scaling": {"rope_type": "yarn", "type": "yarn", **{k: v for k, v in yarn.items() if v is not None}}}


@cache
def _hugging_face() -> Mapping[str, Any]:
    import yaml

    text = (FOLDER / "hugging_face.yaml").read_text(encoding="utf-8")
    table: Mapping[str, Any] = yaml.safe_load(text)
    return table


FRAMEWORK = MegatronBridge()
