"""framework=auto: what is installed where the run will be, in the platform's order, and why."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from conf import frameworks, load_experiment
from conf.errors import ConfigError
from conf.resolve import Experiment

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


def chosen(*overrides: str) -> tuple[Experiment, str]:
    e = load_experiment("platform=nvidia", *overrides)
    return e, next(r for r in e.reasons if r.startswith("framework "))


def test_bridge_comes_before_nemo(interpreter: Callable[[dict[str, str]], str]) -> None:
    python = interpreter(BRIDGE | NEMO | {"megatron-core": "0.16.1"})
    e, why = chosen("model=llama", f"framework.python={python}")
    assert (e.framework.name, e.framework.release, e.framework.python) == ("megatron_bridge", "0.3.1", python)
    assert why == f"framework megatron_bridge: 0.3.1 is in {python}"


def test_the_release_that_is_there_is_the_one_that_is_written(interpreter: Callable[[dict[str, str]], str]) -> None:
    e, _ = chosen("model=llama", f"framework.python={interpreter({**BRIDGE, 'megatron-bridge': '0.6.0+1a2b'})}")
    assert e.framework.release == "0.6.0"


def test_a_model_that_bridge_lacks_goes_to_nemo(interpreter: Callable[[dict[str, str]], str]) -> None:
    python = interpreter(BRIDGE | NEMO)
    e, why = chosen("model=mixtral_8x7b", "layout=data_parallel", f"framework.python={python}")
    assert e.framework.name == "nemo"
    assert (
        why
        == f"framework nemo: 2.7.3 is in {python}; conf/framework/megatron_bridge.yaml names no recipe for mixtral_8x7b"
    )


def test_one_that_nemo_lacks_stays_with_bridge_or_the_engine(interpreter: Callable[[dict[str, str]], str]) -> None:
    e, why = chosen("model=gpt_oss_20b", "layout=data_parallel", f"framework.python={interpreter(NEMO)}")
    assert e.framework.name == "megatron"
    assert "nemo.yaml names no recipe for gpt_oss_20b" in why


def test_a_stack_without_its_torch_is_not_there(interpreter: Callable[[dict[str, str]], str]) -> None:
    e, why = chosen("model=llama", f"framework.python={interpreter({'megatron-bridge': '0.3.1'})}")
    assert e.framework.name == "megatron"
    assert "no megatron_bridge in" in why and "no nemo in" in why


def test_what_is_named_is_taken_unseen() -> None:
    e = load_experiment("platform=nvidia", "model=llama", "framework=nemo")
    assert e.framework.name == "nemo"
    assert not any(r.startswith("framework ") for r in e.reasons)


@pytest.mark.parametrize(
    ("tag", "model", "framework", "release"),
    [
        ("26.02", "llama", "megatron_bridge", "0.3.0"),
        ("26.02", "mixtral_8x7b", "nemo", "2.7.0"),
        ("25.09", "llama", "nemo", "2.5.0"),
        ("26.08", "llama", "megatron_bridge", "0.6.0"),
    ],
)
def test_an_image_is_known_by_its_name(tag: str, model: str, framework: str, release: str) -> None:
    image = f"nvcr.io/nvidia/nemo:{tag}"
    e, why = chosen(f"model={model}", "layout=data_parallel", f"image={image}", "cluster.container=docker")
    assert (e.framework.name, e.framework.release) == (framework, release)
    assert why.startswith(f"framework {framework}: {release} is in {image}")


def test_an_image_without_a_stack_for_the_model_falls_back_to_the_engine() -> None:
    args = ("layout=data_parallel", "image=nvcr.io/nvidia/nemo:26.08", "cluster.container=docker")
    e, why = chosen("model=mixtral_8x7b", *args)
    assert e.framework.name == "megatron"
    assert why == (
        "framework megatron: conf/framework/megatron_bridge.yaml names no recipe for mixtral_8x7b; "
        "no nemo in nvcr.io/nvidia/nemo:26.08"
    )


def test_an_unknown_image_asks_for_a_name() -> None:
    with pytest.raises(ConfigError, match="framework=megatron_bridge"):
        load_experiment("platform=nvidia", "model=llama", "image=mine:1", "cluster.container=docker")


def test_a_python_that_is_none_is_told() -> None:
    with pytest.raises(ConfigError, match=r"framework.python: this interpreter cannot list"):
        load_experiment("platform=nvidia", "model=llama", "framework.python=/nowhere/python")


def test_on_a_cpu_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("nothing has to be asked")

    monkeypatch.setattr(frameworks, "versions", never)
    assert load_experiment("platform=cpu").framework.name == "megatron"
    assert load_experiment("platform=cpu", "framework=auto").framework.name == "megatron"


def test_a_side_may_have_its_own() -> None:
    e = load_experiment("platform=nvidia", "model=llama", "per_platform.nvidia.framework=nemo")
    assert e.framework.name == "nemo"
