"""Megatron-Bridge's recipes, checked against Bridge itself. Of 0.3.1, whose package has no recipes, each file's values
stand for the vendor's object; the vendor's own code is run where BRIDGE_PATH names checkouts (several with : between
them), of 0.3.1, or of 0.6.0 with its 3rdparty/Megatron-LM and an interpreter that has what it requires (make
bridge-recipes, or BRIDGE_RECIPES_PYTHON)."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from conf import load_experiment
from conf.errors import ConfigError
from conf.recipes import Recipe, recipes
from conf.resolve import Experiment
from launchers import make_plan
from launchers.attribute_settings import differences
from launchers.bridge_recipes import models
from launchers.frameworks import framework_of
from launchers.frameworks.megatron_bridge import hub_answer
from launchers.plan import Host, Plan
from tensorprimat.check import undeclared
from tensorprimat.recipes import main
from tests.nvidia.nemo_runs import ROOT, offline

pytestmark = pytest.mark.nvidia

BRIDGE = framework_of("megatron_bridge")
RELEASES = dict(zip(("0.6.0", "0.3.1"), BRIDGE.recipe_trees, strict=True))
"""Release → the file of its repository by which its recipes are known."""


@pytest.fixture(scope="session", params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def checkout(release: str) -> Path:
    """Return the checkout of `release`: the tree that `recipes import` would take it for."""
    for path in map(Path, filter(None, os.environ.get("BRIDGE_PATH", "").split(os.pathsep))):
        if next((of for of, tree in RELEASES.items() if (path / tree).is_file()), None) == release:
            return path
    pytest.skip(f"BRIDGE_PATH names no checkout of Megatron-Bridge {release}")


@pytest.fixture(scope="session")
def python(release: str, request: pytest.FixtureRequest) -> str:
    if release == "0.3.1":
        return str(request.getfixturevalue("bridge_python"))
    path = os.environ.get("BRIDGE_RECIPES_PYTHON", str(ROOT / ".venv-bridge-recipes" / "bin" / "python"))
    if not Path(path).is_file():
        pytest.skip(f"{path} is not there: make bridge-recipes")
    return path


def experiment(recipe: Recipe) -> Experiment:
    per_node = 4 if recipe.hardware[0].startswith("gb") else 8
    return load_experiment(
        *("platform=nvidia", "method=max_performance", "batch=vendor", "framework=megatron_bridge"),
        *(f"framework.release={recipe.release}", f"model={recipe.model}", f"hardware={recipe.hardware[0]}"),
        *(f"precision={recipe.precision}", f"recipe={recipe.name}", f"gpus_per_node={per_node}"),
        f"nodes={recipe.gpus // per_node}",  # type: ignore[operator]
    )


TOO_FEW = {
    "0.6.0": {
        *(f"deepseek_v3_pretrain_64gpu_h100_{precision}_config" for precision in ("bf16", "fp8cs")),
        *(f"qwen3_235b_a22b_pretrain_64gpu_gb200_{precision}_config" for precision in ("fp8cs", "fp8mx")),
        *(f"qwen3_235b_a22b_pretrain_64gpu_gb300_{precision}_config" for precision in ("bf16", "fp8cs", "fp8mx")),
    },
    "0.3.1": set(),
}
"""The vendor's own layout needs more GPUs than the recipe is published for: EP × PP is above 64."""


@functools.cache
def planned(release: str) -> dict[str, tuple[Experiment, Plan]]:
    """Return what of the recipes can be planned, by name."""
    made, refused = {}, dict[str, list[str]]()
    for recipe in recipes(f"megatron_bridge-{release}"):
        try:
            made[recipe.name] = plan(recipe)
        except ConfigError as error:
            refused |= {recipe.name: [problem.where for problem in error.problems]}
    assert refused.keys() == TOO_FEW[release], refused
    assert {*map(tuple, refused.values())} <= {("layout.expert_model_parallel_size", "recipe")}
    return made


def plan(recipe: Recipe) -> tuple[Experiment, Plan]:
    e = experiment(recipe)
    return e, make_plan(e, Host(python="python", cpu_count=64))


def proof(
    planned: Mapping[str, tuple[Experiment, Plan]], python: str, checkout: Path | None
) -> dict[str, dict[str, Any]]:
    """Return what programs/bridge_proof.py prints of each recipe, by name. checkout None: by the recipe's file."""
    hub = {base: hub_answer(base.partition(".")[2], model) for _, base, model, _ in models(BRIDGE)}
    lines = []
    for name, (e, plan) in planned.items():
        line = {"name": name, "settings": yaml.safe_load(plan.files["settings.yaml"]), "environment": dict(plan.env)}
        r: Any = e.recipe
        kept = {"base": r.base, "factory": r.more["precision"], "settings": asdict(r)["settings"]}
        lines.append(json.dumps(line | {"hub": hub[r.base], "kept": None if checkout else kept}))
    argv, roots = [python, str(Path(__file__).parent / "programs" / "bridge_proof.py")], list[str]()
    if checkout:
        roots = [str(checkout / "src"), str(checkout / "3rdparty" / "Megatron-LM")]
        scripts, in_package = (checkout / RELEASES[of] for of in ("0.3.1", "0.6.0"))
        argv += [] if in_package.is_file() else [str(scripts.parent)]
    options: dict[str, Any] = {"capture_output": True, "text": True, "check": False, "timeout": 1800}
    environment = offline() | {"PYTHONPATH": os.pathsep.join(roots)}
    done = subprocess.run(argv, input="\n".join(lines), env=environment, **options)
    assert done.returncode == 0, done.stderr[-3000:]
    read = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"name"')]
    return {line["name"]: line for line in read}


@pytest.fixture(scope="module")
def built(release: str, python: str, checkout: Path) -> dict[str, dict[str, Any]]:
    return proof(planned(release), python, checkout)


def unlike(planned: Mapping[str, tuple[Experiment, Plan]], built: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return what differs otherwise than the plans say, and of 0.6.0's objects, which have them, the variables."""
    assert list(built) == list(planned)
    wrong: dict[str, Any] = {}
    for name, (e, plan) in planned.items():
        expected = {d.path: [d.vendor, d.here] for d in differences(e, BRIDGE.table)}
        actual = built[name]["differing"]
        variables, none_left = actual.pop("env_vars", [{"mapping": {}}, {}])
        assert none_left == {} and {k: str(v) for k, v in variables["mapping"].items()}.items() <= plan.env.items()
        paths = [path for path in {**expected, **actual} if expected.get(path) != actual.get(path)]
        wrong |= {f"{name} {path}": [expected.get(path), actual.get(path)] for path in paths}
    return wrong


def refused(planned: Mapping[str, tuple[Experiment, Plan]], built: dict[str, dict[str, Any]]) -> dict[str, list[str]]:
    """Return what Bridge's own rules refuse, or run otherwise than the plans say."""
    wrong = {}
    for name, (e, plan) in planned.items():
        configured = built[name]["configured"]
        by_bridge = [configured["refused"]] if "refused" in configured else []
        if problems := [*by_bridge, *map(str, undeclared(e, plan, configured))]:
            wrong[name] = problems
    return wrong


def test_what_is_built_differs_from_the_vendors_own_object_as_the_plan_says(
    release: str, built: dict[str, dict[str, Any]]
) -> None:
    assert unlike(planned(release), built) == {}


def test_bridges_own_rules_take_every_recipe_and_nothing_runs_otherwise(
    release: str, built: dict[str, dict[str, Any]]
) -> None:
    assert refused(planned(release), built) == {}


def test_what_the_package_alone_builds_differs_from_the_files_as_the_plan_says(bridge_python: str) -> None:
    known = {(r.model, r.precision): r for r in recipes("megatron_bridge-0.3.1")}
    planned = {recipe.name: plan(recipe) for recipe in known.values()}
    built = proof(planned, bridge_python, None)
    assert len(built) > 15, "one of each model and precision"
    assert unlike(planned, built) == {}
    assert refused(planned, built) == {}


def test_an_import_of_the_checkout_changes_nothing(release: str, checkout: Path, python: str) -> None:
    assert main(["import", str(checkout), f"python={python}", f"release={release}", "--check"]) == 0
