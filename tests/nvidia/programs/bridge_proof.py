"""Build each recipe twice, by Megatron-Bridge's own code and as our ranks' program does from a plan, and print in
which attributes the two objects differ, and what Bridge's own rules make of ours. stdin: JSON lines {name, settings:
the plan's settings.yaml, environment: the plan's, hub: the hub's answer about the vendor's model, kept: null, or
{base, factory, settings} of the recipe's file, which then stands for the vendor's own code}. The argument is the folder
scripts/performance of a release whose package has no recipes. Started by the interpreter that has Bridge."""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "launchers" / "ranks"))
import bridge_published
import bridge_ranks
import bridge_recipes
import tprimat_standin
import vendor_ranks
from rank_program import Refused, plain


@functools.cache
def known() -> dict[str, Any]:
    return bridge_published.published(sys.argv[1] if sys.argv[1:] else None)


def from_file(base: str, factory: str, settings: dict[str, Any]) -> Any:
    """Return the vendor's object as the recipe's file has it."""
    config = bridge_recipes.base_of(base)
    config.mixed_precision = bridge_recipes.factory_of(factory)()
    assert not list(vendor_ranks.assign(config, settings, vendor_ranks.plain_names))
    return config


def built(line: dict[str, Any], folder: str) -> dict[str, Any]:
    bridge_ranks.seed_cache(folder, line["hub"])
    vendor = from_file(**line["kept"]) if line["kept"] else known()[line["name"]].make()
    # as on a machine with TransformerEngine, which the plan is for
    settings = line["settings"] | {"set_without_transformer_engine": {}}
    bridge_ranks.seed_cache(folder, settings["hugging_face"])
    ours = importlib.import_module("bridge_config").build(settings, tprimat_standin.NAME)
    pairs = {path: [first, second] for path, first, second in bridge_recipes.differing(vendor, ours)}
    return {"name": line["name"], "differing": pairs, "configured": configured(line)}


def configured(line: dict[str, Any]) -> dict[str, Any]:
    """Return what Bridge's own rules make of ours, in the plan's environment; {"refused": why}: they refuse it."""
    bridge_config = importlib.import_module("bridge_config")
    fusions = dict.fromkeys(
        ("model.apply_rope_fusion", "model.moe_permute_fusion"), False
    )  # refused without the package
    settings, before = line["settings"] | {"set_without_transformer_engine": fusions}, dict(os.environ)
    try:
        os.environ.update(line["environment"])
        values: dict[str, Any] = bridge_config.configured(bridge_config.build(settings, tprimat_standin.NAME), settings)
    except Refused as refused:
        values = {"refused": str(refused)}
    finally:
        os.environ.clear()
        os.environ.update(before)
    result: dict[str, Any] = plain(values)
    return result


with tempfile.TemporaryDirectory(prefix="bridge-hub-") as hub:
    requests = [json.loads(line) for line in sys.stdin]
    bridge_ranks.seed_cache(hub, requests[0]["hub"])
    bridge_ranks.before_import()
    tprimat_standin.install()
    importlib.import_module("bridge_config").as_with_transformer_engine()
    for request in requests:
        print(json.dumps(built(request, hub)), flush=True)
