"""Every recipe of NVIDIA's for NeMo, against the vendor's own code: what the object that our program builds of the plan
has otherwise is what the plan says, no more and no less. The scripts come with the package; of the tables, which do
not, each recipe keeps its row. NEMO_PATH names a checkout that has them."""

from __future__ import annotations

import csv
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conf import load_experiment
from conf.recipes import Recipe, recipes
from conf.resolve import Experiment
from launchers import make_plan
from launchers.frameworks.nemo import FRAMEWORK as NEMO
from launchers.plan import Host
from tests.nvidia.nemo_runs import offline, reported

pytestmark = pytest.mark.nvidia

HOST = Host(python="python", cpu_count=64)
OPTIONAL = (
    "etp_size",
    "recompute_modules",
    "keep_fsdp_fp8_transpose_cache",
    "use_user_buffer_registration",
    "use_sharp",
)
"""Columns of the tables that few rows have."""


def experiment(recipe: Recipe) -> Experiment:
    """Return the default experiment by `recipe`, on the nodes that it is published for."""
    hardware = recipe.hardware[0]
    per_node = 4 if hardware.startswith("gb") else 8
    nodes = (f"nodes={(recipe.gpus or per_node) // per_node}", f"gpus_per_node={per_node}", f"hardware={hardware}")
    case = (f"model={recipe.model}", f"precision={recipe.precision}", "platform=nvidia", "framework=nemo", *nodes)
    return load_experiment(*case, "method=max_performance", "data=mock", "batch=vendor")


RECIPES = {recipe.name: recipe for recipe in recipes("nemo-2.7.3")}


def tables(folder: Path) -> Path:
    """Write the vendor's tables as the recipes have kept their rows, and return the folder as a checkout."""
    inside = folder / "scripts" / "performance" / "recommended_model_configs"
    inside.mkdir(parents=True)
    for gpu in {recipe.hardware[0] for recipe in RECIPES.values()}:
        of_gpu = [recipe.more["table"] for recipe in RECIPES.values() if recipe.hardware == (gpu,)]
        rows = {tuple(row.items()): row for row in of_gpu}.values()  # one row of fp8 is three recipes
        with (inside / f"model_configs_{gpu}.csv").open("w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, dict.fromkeys(name for row in rows for name in (*row, *OPTIONAL)))
            table.writeheader()
            table.writerows(rows)
    return folder


def test_the_objects_differ_in_what_the_plan_says(nemo_python: str, tmp_path: Path) -> None:
    planned = {name: experiment(recipe) for name, recipe in RECIPES.items()}
    for name, e in planned.items():
        (tmp_path / f"{name}.yaml").write_text(NEMO.text(e), encoding="utf-8")  # of those that are refused, too
    modules = next(iter(planned.values())).framework.recipes
    wanted = {script: modules[model] for script, model in NEMO.table.more["scripts"].items()}
    (tmp_path / "scripts.json").write_text(json.dumps(wanted), encoding="utf-8")
    checkout = tables(tmp_path / "tables")
    found = reported(nemo_python, "nemo_proof.py", "proof", str(checkout), str(tmp_path))
    assert found.keys() == planned.keys() and len(planned) > 60
    wrong = [f"{name}: {text}" for name, e in planned.items() for text in unlike(e, found[name])]
    assert not wrong, "\n".join(wrong)


def test_the_recipes_are_those_of_a_checkout(nemo_python: str) -> None:
    if "NEMO_PATH" not in os.environ:
        pytest.skip("NEMO_PATH names no checkout of NVIDIA-NeMo/NeMo")
    read = list(NEMO.read_recipes(Path(os.environ["NEMO_PATH"]), nemo_python, "2.7.3"))
    now = {one.name: one for one in read if isinstance(one, Recipe)}
    assert now == RECIPES


def test_a_recipe_of_another_release_is_refused(nemo_python: str, tmp_path: Path) -> None:
    text = make_plan(experiment(RECIPES["pretrain_llama3_8b_h100_8gpus_bf16"]), HOST).files["settings.yaml"]
    path = tmp_path / "settings.yaml"
    path.write_text(text.replace("release: 2.7.3", "release: 2.6.0"), encoding="utf-8")
    argv = (nemo_python, str(NEMO.program), "--check", "--settings", str(path))
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300, env=offline())
    assert done.returncode == 2 and "the recipe is of another release of NeMo" in done.stderr
    assert "found: 2.7.3; allowed: 2.6.0" in done.stderr and "Traceback" not in done.stderr


def unlike(e: Experiment, found: list[list[Any]]) -> Iterator[str]:
    """Yield each path that differs and is not said, or is said and does not differ."""
    said = {one.path: [plain(one.vendor), plain(one.here)] for one in NEMO.differences(e)}
    there = {path: [plain(vendor), plain(here)] for path, vendor, here in found}
    yield from (f"not said: {path} {values}" for path, values in there.items() if path not in said)
    yield from (f"not there: {path} {values}" for path, values in said.items() if path not in there)
    both = said.keys() & there.keys()
    yield from (f"{path}: said {said[path]}, found {there[path]}" for path in both if said[path] != there[path])


def plain(value: Any) -> Any:
    """Return the name of the class where that is all that is said of an object."""
    return value["object"] if isinstance(value, dict) and value.keys() == {"object"} else value
