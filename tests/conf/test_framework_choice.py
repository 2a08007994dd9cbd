"""framework=auto: what is installed where the run will be, in the platform's order, and why."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conf import devices, frameworks, load_experiment, recipes
from conf.errors import ConfigError
from conf.resolve import Experiment
from conf.vendors import Devices
from launchers import preflight
from tensorprimat.recipes import write

BRIDGE = {"torch": "2.10.0", "megatron-core": "0.16.1", "megatron-bridge": "0.3.1"}
NEMO = {"torch": "2.10.0", "megatron-core": "0.15.3", "nemo_toolkit": "2.7.3"}


@pytest.fixture
def interpreter(tmp_path: Path) -> Callable[[dict[str, str]], str]:
    """interpreter({distribution: version}): a Python whose environment has just these."""

    def make(distributions: dict[str, str]) -> str:
        for name, version in distributions.items():
            folder = tmp_path / "site" / f"{name.replace('-', '_')}-{version}.dist-info"
            folder.mkdir(parents=True)
            (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", "utf-8")
        python = tmp_path / "python"
        (tmp_path / "site").mkdir(exist_ok=True)
        python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}/site exec {sys.executable} -S "$@"\n', "utf-8")
        python.chmod(0o755)
        return str(python)

    return make


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a node of H100 here: where there is none, a plan is for another machine."""
    monkeypatch.setattr(devices, "find", lambda: Devices("nvidia", names=("NVIDIA H100 80GB HBM3",) * 8))


def chosen(*overrides: str) -> tuple[Experiment, str]:
    e = load_experiment("platform=nvidia", *overrides)
    return e, next(r for r in e.reasons if r.startswith("framework "))


ENGINE = "framework megatron: the embedded engine"
BRIDGE_LACKS = "conf/framework/megatron_bridge.yaml names no recipe for mixtral_8x7b"


@pytest.mark.parametrize(
    ("installed", "model", "framework", "release", "why"),
    [
        (BRIDGE | NEMO, "llama", "megatron_bridge", "0.3.1", "0.3.1 is in PYTHON"),
        ({**BRIDGE, "megatron-bridge": "0.6.0+1a2b"}, "llama", "megatron_bridge", "0.6.0", "0.6.0+1a2b is in PYTHON"),
        (BRIDGE | NEMO, "mixtral_8x7b", "nemo", "2.7.3", f"2.7.3 is in PYTHON; {BRIDGE_LACKS}"),
        (NEMO, "gpt_oss_20b", "megatron", None, "nemo.yaml names no recipe for gpt_oss_20b"),
        (
            {"megatron-bridge": "0.3.1"},
            "llama",
            "megatron",
            None,
            f"{ENGINE}; no megatron_bridge in PYTHON; no nemo in",
        ),
    ],
)
def test_what_is_installed_and_has_the_model_is_taken(  # without its torch a stack is not there
    gpus: None,
    interpreter: Callable[[dict[str, str]], str],
    installed: dict[str, str],
    model: str,
    framework: str,
    release: str | None,
    why: str,
) -> None:
    python = interpreter(installed)
    e, reason = chosen(f"model={model}", "layout=data_parallel", f"framework.python={python}")
    assert e.framework.name == framework and release in (None, e.framework.release)
    assert why.replace("PYTHON", python) in reason


def test_without_the_gpu_a_platform_means_its_vendors_stack() -> None:
    for overrides, framework, why in (
        (("platform=nvidia", "model=llama"), "megatron_bridge", "no megatron_bridge in"),
        (("platform=nvidia", "model=mixtral_8x7b", "layout=data_parallel"), "nemo", BRIDGE_LACKS),
        (("platform=amd", "model=llama", "framework.checkout=/nowhere"), "primus", "no primus in /nowhere"),
    ):
        e, reason = chosen(*overrides)
        assert e.framework.name == framework
        assert "though it is not here" in reason and why in reason
    e, reason = chosen("model=llama", "rehearse=train")  # which starts here
    assert e.framework.name == "megatron" and ENGINE in reason


def test_what_is_named_is_taken_unseen() -> None:
    e = load_experiment("platform=nvidia", "model=llama", "framework=nemo")
    assert e.framework.name == "nemo"
    assert not any(r.startswith("framework ") for r in e.reasons)


def test_an_image_is_known_by_its_name() -> None:
    for tag, model, framework, release in (
        ("26.02", "llama", "megatron_bridge", "0.3.0"),
        ("26.02", "mixtral_8x7b", "nemo", "2.7.0"),
        ("25.09", "llama", "nemo", "2.5.0"),
        ("26.08", "llama", "megatron_bridge", "0.6.0"),
        ("26.08", "mixtral_8x7b", "megatron", None),
    ):
        image = f"nvcr.io/nvidia/nemo:{tag}"
        e, why = chosen(f"model={model}", "layout=data_parallel", f"image={image}", "cluster.container=docker")
        assert e.framework.name == framework and release in (None, e.framework.release)
        if release is None:  # it falls back to the engine
            assert why == f"{ENGINE}; {BRIDGE_LACKS}; no nemo in {image}"
        else:
            assert why.startswith(f"framework {framework}: {release} is in {image}")


def test_what_cannot_be_known_is_refused() -> None:
    for overrides, said in (
        (("image=mine:1", "cluster.container=docker"), "framework=megatron_bridge"),
        (("framework.python=/nowhere/python",), "framework.python: this interpreter cannot list"),
    ):
        with pytest.raises(ConfigError, match=said):
            load_experiment("platform=nvidia", "model=llama", *overrides)


def test_on_a_cpu_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("nothing has to be called")

    monkeypatch.setattr(frameworks, "versions", never)
    assert load_experiment("platform=cpu").framework.name == "megatron"
    assert load_experiment("platform=cpu", "framework=auto").framework.name == "megatron"


def test_a_side_may_have_its_own() -> None:
    e = load_experiment("platform=nvidia", "model=llama", "per_platform.nvidia.framework=nemo")
    assert e.framework.name == "nemo"


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put recipes of Llama 3.1 8B on 8 B200 in the place of the shipped ones: of NeMo, and two releases of Bridge."""
    monkeypatch.setattr(recipes, "RECIPES", tmp_path / "recipes")
    recipes._read.cache_clear()
    keys = {"training.micro_batch_size": 2, "training.global_batch_size": 128}
    plain: dict[str, Any] = {
        "variant": None,
        "base": "x",
        "more": {},
        "environment": None,
        "published": (),
        "note": None,
        "settings": {},
    }
    case: dict[str, Any] = {
        "model": "llama31_8b",
        "hardware": ("b200",),
        "gpus": 8,
        "precision": "bf16",
        "source": "made/up@0",
    }
    for stack, release in (("nemo", "2.7.3"), ("megatron_bridge", "0.5.0"), ("megatron_bridge", "0.6.0")):
        one = recipes.Recipe(name=f"theirs_{stack}", framework=stack, release=release, experiment=keys, **case, **plain)
        write(one, tmp_path / "recipes" / f"{stack}-{release}")


BEST = ("platform=nvidia", "hardware=b200", "model=llama", "method=max_performance")


@pytest.mark.usefixtures("published")
def test_a_recipe_chooses_the_stack_and_its_release(interpreter: Callable[[dict[str, str]], str]) -> None:
    e, why = chosen(*BEST)
    assert (e.framework.name, e.framework.release) == ("megatron_bridge", "0.6.0"), "the newest of the first stack"
    assert e.recipe and e.recipe.name == "theirs_megatron_bridge" and "is not here" in why
    e, why = chosen(*BEST, "framework=nemo")
    assert (e.framework.name, e.framework.release) == ("nemo", "2.7.3")
    python = interpreter({**NEMO, "megatron-bridge": "0.5.0+1a2b"})
    e, why = chosen(*BEST, f"framework.python={python}")
    assert (e.framework.name, e.framework.release) == ("megatron_bridge", "0.5.0"), "what is installed comes first"
    assert why.endswith(f"0.5.0+1a2b is in {python}, and theirs_megatron_bridge is its recipe for this case")


@pytest.mark.usefixtures("published")
def test_a_recipe_of_another_release_than_the_installed_is_refused(
    interpreter: Callable[[dict[str, str]], str],
) -> None:
    python = interpreter(BRIDGE)  # 0.3.1
    for named in ((), ("framework=megatron_bridge",)):
        with pytest.raises(ConfigError, match=r"(?s)framework.release=0\.3\.1.*framework.release=0\.6\.0"):
            load_experiment(*BEST, *named, f"framework.python={python}")
    typed = ("framework=megatron_bridge", "framework.release=0.6.0")  # as for another machine
    problems = preflight.problems(load_experiment(*BEST, *typed, f"framework.python={python}"))
    (problem,) = (p for p in problems if p.where == "framework.release")
    assert "is of another release than the installed Megatron-Bridge" in problem.what and problem.allowed == "0.3.1"
