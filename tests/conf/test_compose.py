"""What a user may type, and what is said when it is wrong."""

from __future__ import annotations

import pytest

from conf import load_experiment, models, platforms
from conf.compose import choices, compose
from conf.errors import ConfigError


def problems(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_experiment(*overrides)
    return str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["modle=llama"], ["modle: no such key", "did you mean model?"]),
        (["model=lama"], ["model=lama: no such choice", "llama31_8b", "did you mean llama?"]),
        (["layout.tp=2"], ["layout.tp: no such key", "tensor_model_parallel_size"]),
        (["training.seed=abc"], ["training.seed: wrong type", "'abc' (str)", "a whole number"]),
        (["training.micro_batch_size=1.5"], ["training.micro_batch_size: wrong type"]),
        (["dry_run=maybe"], ["dry_run: wrong type", "true or false"]),
        (["training.recompute_granularity=some"], ["full, selective, none"]),
        (["per_platform.intel.precision=bf16"], ["per_platform.intel.precision: no such platform", "amd, cpu, nvidia"]),
        (["per_platform.amd.precsion=bf16"], ["precsion: no such key", "did you mean precision?"]),
        (["platform=amd", "per_platform.amd.precision=bf17"], ["precision=bf17: no such choice"]),
        (["a b"], ["a b:", "write KEY=VALUE"]),
        (["~training.seed"], ["cannot be deleted"]),
        (["model=llama,qwen"], ["--multirun"]),
        (["image='${oc.env:NO_SUCH_VARIABLE}'"], ["NO_SUCH_VARIABLE"]),
    ],
)
def test_wrong_input_says_what_where_and_what_would_work(overrides: list[str], said: list[str]) -> None:
    text = problems(*overrides)
    for part in said:
        assert part in text


def test_all_unknown_keys_are_told_at_once() -> None:
    text = problems("layout.tp=2", "trainin.seed=1", "layout=tp3")
    assert all(part in text for part in ("layout.tp:", "trainin:", "layout=tp3:"))


def test_a_secret_is_never_read_into_the_config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_very_secret")
    text = problems("image='${oc.env:HF_TOKEN}'")
    assert "HF_TOKEN" in text
    assert "hf_very_secret" not in text


def test_paths_fall_back_to_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    from conf.compose import _composed

    monkeypatch.setenv("PRIMUS_PATH", "/somewhere/Primus")
    _composed.cache_clear()
    assert load_experiment("platform=cpu").cluster.primus_path == "/somewhere/Primus"
    monkeypatch.delenv("PRIMUS_PATH")
    _composed.cache_clear()
    assert load_experiment("platform=cpu").cluster.primus_path == "/workspace/Primus"
    _composed.cache_clear()


def test_llama_is_llama31_8b_and_qwen_is_qwen25_7b() -> None:
    assert compose(["model=llama"]) == compose(["model=llama31_8b"])
    assert compose(["model=qwen"]) == compose(["model=qwen25_7b"])


@pytest.mark.parametrize("hardware", choices("hardware"))
def test_every_hardware_file_composes(hardware: str) -> None:
    e = load_experiment(
        "platform=cpu", "model=llama_tiny", f"hardware={hardware}", "gpus_per_node=1", "layout=data_parallel"
    )
    assert e.hardware.name == hardware


@pytest.mark.parametrize(
    "group", ["model", "platform", "framework", "layout", "precision", "data", "cluster", "price", "grid"]
)
def test_every_file_of_a_group_is_a_valid_choice(group: str) -> None:
    from conf.freeze import field_types, freeze
    from conf.schema import Request

    for name in choices(group):
        found: list = []
        config = compose([f"{group}={name}"])
        freeze(field_types(Request)[group], config[group], group, found)
        assert found == []


def test_the_lists_for_the_python_door() -> None:
    assert {"llama", "qwen", "llama31_70b", "llama_tiny"} <= set(models())
    assert {"nvidia", "amd", "cpu", "auto"} == set(platforms())
