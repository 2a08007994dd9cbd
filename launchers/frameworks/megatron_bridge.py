"""framework=megatron_bridge: NVIDIA Megatron-Bridge (launchers/ranks/bridge_ranks.py). A recipe reads the model's
config.json from the Hugging Face hub; it gets launchers/settings/hugging_face.yaml's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from conf.errors import Problem, blamed
from conf.recipes import Recipe
from conf.resolve import Experiment
from conf.schema import Model
from conf.vendors import vendor_of
from conf.vocabulary import follow, read_yaml
from launchers import bridge_recipes
from launchers.attribute_settings import FOLDER
from launchers.nvidia import RANKS, RecipeStack


class MegatronBridge(RecipeStack):
    name = "megatron_bridge"
    opens_tokenizers = True
    program = RANKS / "bridge_ranks.py"
    checkouts = "BRIDGE_PATH"
    recipe_trees = bridge_recipes.TREES

    def read_recipes(self, checkout: Path, python: str, release: str) -> Iterator[Recipe | Problem]:
        return bridge_recipes.read(self, checkout, python, release, hub_answer)

    def settings(self, e: Experiment) -> dict[str, Any]:
        family, _, recipe = (e.recipe.base if e.recipe else e.framework.recipes[e.model.name]).partition(".")
        # its fields are among the recipe's settings; a rehearsal runs in bf16
        stated = e.recipe.more.get("precision") if e.recipe and not e.rehearse else None
        return {
            "release": e.framework.release,
            "family": family,
            "recipe": recipe,
            "hugging_face": hub_answer(recipe, e.model),
            "device": vendor_of(e.accelerator).torch_device,
            "world_size": e.layout.world_size,
            "data": e.data.name,
            "precision": {"factory": stated, "set": {}} if stated else self.precision(e),
        }


def hub_answer(recipe: str, model: Model) -> dict[str, Any]:
    """Return the hub's answer: {id, revisions, config}. recipe: the function's name."""
    with blamed("launchers/settings/hugging_face.yaml", "has no id or family for the recipe", "add it, as the others"):
        table, config = read_yaml(FOLDER / "hugging_face.yaml"), hub_config(recipe, model)
        return {"id": table["ids"][recipe], "revisions": table["revisions"].get(recipe, []), "config": config}


def hub_config(recipe: str, model: Model) -> dict[str, Any]:
    """Return config.json for `recipe` with the shapes of `model`."""
    table = read_yaml(FOLDER / "hugging_face.yaml")
    family = max((name for name in table["families"] if recipe.startswith(name)), key=len)
    rows = {**table["common"], **table["families"][family]}
    values = {key: _config_value(row, model) for key, row in rows.items()}
    known = {key: value for key, value in values.items() if value is not None or "or_null" in rows[key]}
    scaling = _scaling(model)
    for key in [key for key in known if key.startswith("rope_scaling.")]:
        value = known.pop(key)
        if scaling:
            scaling["rope_scaling"][key.partition(".")[2]] = value
    return known | {"tie_word_embeddings": not model.untie_embeddings_and_output_weights} | scaling


def _config_value(row: Any, model: Model) -> Any:
    """Return what a row of launchers/settings/hugging_face.yaml makes of `model`."""
    if isinstance(row, str):
        return follow(model, row)
    if "share" in row:
        every, one = (follow(model, path) for path in row["share"])
        return every // one if every else None
    if "opposite" in row:
        return not follow(model, row["opposite"])
    return follow(model, row["or_null"]) if "or_null" in row else row["is"]


def _scaling(model: Model) -> dict[str, Any]:
    """Return RoPE scaling in Hugging Face's words; 1, 4 and 8192 are constants in Megatron-Core and Llama 3.1."""
    if model.use_rope_scaling:
        low_high = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
        return {"rope_scaling": {"rope_type": "llama3", "factor": model.rope_scaling_factor, **low_high}}
    if model.yarn is None:
        return {}
    yarn = {name: value for name, value in asdict(model.yarn).items() if value is not None}
    factor = yarn.pop("rotary_scaling_factor")
    return {"rope_scaling": {"rope_type": "yarn", "type": "yarn", "factor": factor, **yarn}}


FRAMEWORK = MegatronBridge()
