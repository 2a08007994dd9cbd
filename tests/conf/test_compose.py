"""Test what a user may type, and what is said when it is wrong."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import pytest

from conf import load_experiment, models, platforms
from conf.compose import _composed, choices, compose
from conf.errors import ConfigError, Problem
from conf.freeze import field_types, freeze
from conf.schema import Request
from conf.vocabulary import requested


@pytest.mark.parametrize(
    "spelling", [["framework.options={a: 1,b: x}"], ["framework.options.a=1", "framework.options.b=x"]]
)
def test_an_open_mapping_is_given_in_full_or_in_parts(spelling: list[str]) -> None:
    e = load_experiment("platform=amd", "framework=primus", *spelling)
    assert dict(e.framework.options) == {"a": 1, "b": "x"}


def test_a_part_can_be_taken_out_of_a_model() -> None:
    e = load_experiment("platform=cpu", "model=moe_tiny", "model.moe=null")
    assert e.model.moe is None


def test_a_setting_of_a_part_that_the_model_lacks_is_none() -> None:
    full = requested(load_experiment("platform=nvidia", "model=deepseek_v3", "layout=data_parallel"))
    dense = requested(load_experiment("platform=cpu", "model=llama_tiny"))
    expected = {"num_experts": 256, "moe_router_topk": 8, "q_lora_rank": 1536, "mtp_num_layers": 1}
    assert expected.items() <= full.items() and full["multi_latent_attention"] is True
    assert {dense[name] for name in expected} == {None} and dense["multi_latent_attention"] is False
    assert set(dense) == set(full)


@pytest.mark.parametrize("spelling", ["HF_TOKEN", '"HF_TOKEN"', "HF_TOKEN,nothing", "${oc.env:WHICH}"])
def test_a_secret_is_never_read_into_the_config(monkeypatch: pytest.MonkeyPatch, spelling: str) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_very_secret")
    monkeypatch.setenv("WHICH", "HF_TOKEN")
    with pytest.raises(ConfigError) as caught:
        load_experiment(f"image='${{oc.env:{spelling}}}'")
    text = str(caught.value)
    assert text.startswith("image: would read the secret HF_TOKEN")
    assert "hf_very_secret" not in text


def test_paths_fall_back_to_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIMUS_PATH", "/somewhere/Primus")
    _composed.cache_clear()
    assert load_experiment("platform=amd", "framework=primus").framework.checkout == "/somewhere/Primus"
    monkeypatch.delenv("PRIMUS_PATH")
    _composed.cache_clear()
    assert load_experiment("platform=amd", "framework=primus").framework.checkout == "/workspace/Primus"
    _composed.cache_clear()


@pytest.mark.parametrize("spelling", ["platform=nvidia", "+platform=nvidia", "++platform=nvidia", "platform='nvidia'"])
def test_every_spelling_of_an_override_counts(spelling: str) -> None:
    assert load_experiment(spelling, "model=llama").platform.name == "nvidia"


def test_every_file_of_a_group_is_a_valid_choice() -> None:
    groups = ("model", "platform", "hardware", "framework", "layout", "precision", "data", "cluster", "price", "grid")
    for names in zip_longest(*(choices(group) for group in groups)):  # one of each group at a time: composing is slow
        chosen = {group: name for group, name in zip(groups, names, strict=True) if name}
        config = compose([f"{group}={name}" for group, name in chosen.items()])
        for group, name in chosen.items():
            problems: list[Problem] = []
            freeze(field_types(Request)[group], config[group], group, problems)
            assert problems == [], f"{group}={name}"


def test_the_lists_for_the_python_door() -> None:
    assert {"llama", "qwen", "llama31_70b", "llama_tiny", "mixtral_8x7b", "moe_tiny"} <= set(models())
    assert {"nvidia", "amd", "cpu", "auto"} <= set(platforms())


@pytest.mark.parametrize("platform", ["cpu", "nvidia", "amd"])
@pytest.mark.parametrize("model", ["llama_tiny", "llama"])
def test_a_point_of_a_sweep_is_what_hydra_composes_of_it_alone(model: str, platform: str) -> None:
    from omegaconf import OmegaConf

    from conf.compose import _by_hydra, _undisturbed

    for more in (
        ["++per_platform.cpu.training.seed=5", "name=null", "training.save_interval=2", "model.num_layers=6"],
        ["++price.usd_per_gpu_hour.h100=3", "optimizer.lr='1e-3'"],
        ["cluster=slurm", "++cluster.job.options.exclusive=true", "cluster.job.partition=a", "image=x:1"],
        ["training.seed=3", "training.seed=4"],
        ["optimizer.lr=1e-3", "layout=tp2", "layout.name=explicit"],
        ["++price.usd_per_gpu_hour.h100=3", "framework.release='26.10'", "cluster=slurm"],
    ):
        overrides = [more[0], f"model={model}", *more[1:], f"platform={platform}"]
        with _undisturbed("config"):
            alone = OmegaConf.to_container(_by_hydra(overrides), resolve=True)
        assert json.dumps(compose(overrides)) == json.dumps(alone), overrides


def test_the_points_of_a_sweep_are_composed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from conf import compose as module
    from conf.load import experiments

    composed: list[tuple[str, ...]] = []
    by_hydra = module._by_hydra

    def noted(checked: Sequence[str]) -> Any:
        composed.append(tuple(checked))
        return by_hydra(checked)

    monkeypatch.setattr(module, "_by_hydra", noted)
    _composed.cache_clear()
    module._resolved.cache_clear()
    module._of_choices.cache_clear()
    seeds = "training.seed=range(60)"
    found = experiments(["platform=cpu", "model=llama_tiny", "framework=megatron", seeds, "optimizer.lr=2e-3"], True)
    assert [e.training.seed for e in found] == [*range(60)] and {e.optimizer.lr for e in found} == {2e-3}
    assert len(composed) <= 3, composed
