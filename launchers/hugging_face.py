"""A model of ours as the config.json that a recipe asks the Hugging Face hub for, from launchers/settings/. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from conf.schema import Model
from conf.vocabulary import follow

TABLE = Path(__file__).parent / "settings" / "hugging_face.yaml"


def answer(recipe: str, model: Model) -> dict[str, Any]:
    """What the hub is to answer: {id, revisions, config}. recipe: the function's name."""
    revisions = _table()["revisions"].get(recipe, [])
    return {"id": _table()["ids"][recipe], "revisions": revisions, "config": config(recipe, model)}


def config(recipe: str, model: Model) -> dict[str, Any]:
    """config.json for `recipe` with the shapes of `model`."""
    family = max((name for name in _table()["families"] if recipe.startswith(name)), key=len)
    rows = {**_table()["common"], **_table()["families"][family]}
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
def _table() -> Mapping[str, Any]:
    import yaml

    table: Mapping[str, Any] = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    return table
