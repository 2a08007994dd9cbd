"""The environment of NVIDIA's stacks: a golden for each GPU family and split, what must not be set, and conflicts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from conf import load_experiment
from conf.errors import ConfigError
from conf.resolve import Experiment
from launchers import variables

CASES = {
    "h100, data parallel": ("hardware=h100", "layout=data_parallel"),
    "h100, TP 2": ("hardware=h100", "layout=tp2"),
    "h100, CP 2 alone": ("hardware=h100", "layout.context_parallel_size=2"),
    "h100, PP 2": ("hardware=h100", "layout=pp2"),
    "h200, TP 2": ("hardware=h200", "layout=tp2"),
    "a100, TP 2": ("hardware=a100", "layout=tp2"),
    "b200, TP 2": ("hardware=b200", "layout=tp2"),
    "gb200, data parallel": ("hardware=gb200", "layout=data_parallel"),
    "gb300, data parallel": ("hardware=gb300", "layout=data_parallel"),
    "an unknown GPU, TP 2": ("hardware=unknown", "layout=tp2"),
    "h100, latent attention": ("hardware=h100", "model=deepseek_v2_lite", "layout=data_parallel"),
}


def experiment(*overrides: str, framework: str = "megatron_bridge") -> Experiment:
    return load_experiment("platform=nvidia", "model=llama", f"framework={framework}", *overrides)


def test_the_environment_of_each_family(golden: Callable[[str, str], None]) -> None:
    parts = []
    for case, overrides in CASES.items():
        for framework in ("nemo", "megatron_bridge"):
            env = variables.tuned(experiment(*overrides, framework=framework))
            assert all("[" in reason for _, reason in env.values()), "each has a reason and a source"
            lines = "\n".join(f"  {name}={value}" for name, (value, _) in sorted(env.items()))
            parts.append(f"{case}, {framework}\n{lines}\n")
    golden("nvidia/environment.txt", "\n".join(parts))


def test_a_rehearsal_on_a_cpu_gets_nothing_that_is_for_gpus() -> None:
    env = variables.tuned(load_experiment("platform=cpu", "framework=megatron_bridge"))
    assert set(env) == {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "TOKENIZERS_PARALLELISM"}


@pytest.mark.parametrize(
    ("overrides", "inherited", "said"),
    [
        (("cluster.forward_env=[NVTE_FLASH_ATTN]",), {"NVTE_FLASH_ATTN": "0"}, "unset NVTE_FLASH_ATTN"),
        (("cluster.forward_env=[CUDA_LAUNCH_BLOCKING]",), {"CUDA_LAUNCH_BLOCKING": "1"}, "allowed: not set"),
        ((), {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}, "allowed: 1"),
        ((), {"NVTE_FLASH_ATTN": "0"}, "unset NVTE_FLASH_ATTN"),
        (("training.attention=unfused",), {"NVTE_FUSED_ATTN": "1"}, "allowed: 0"),
        ((), {"CUDA_LAUNCH_BLOCKING": "1"}, "allowed: not set"),
        (("framework=nemo", "hardware=b200"), {"PYTORCH_CUDA_ALLOC_CONF": "x"}, "allowed: not set"),
    ],
)
def test_a_users_own_variable_that_contradicts_is_refused(
    overrides: tuple[str, ...], inherited: dict[str, str], said: str
) -> None:
    found = list(variables.conflicts(experiment(*overrides), {"PATH": "/bin", **inherited}))
    assert [p.where for p in found] == list(inherited)
    assert said in str(found[0])


def test_the_same_value_and_a_forwarded_one_are_no_conflict() -> None:
    assert not list(variables.conflicts(experiment(), {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "NVTE_FLASH_ATTN": "1"}))
    own = experiment("cluster.forward_env=[NCCL_NVLS_ENABLE]")
    assert not list(variables.conflicts(own, {"NCCL_NVLS_ENABLE": "1"}))
    assert "NCCL_NVLS_ENABLE" not in variables.tuned(own)


def test_a_row_without_a_reason_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "nvidia_env.yaml").write_text("[{variable: X, value: '1', when: {}}]", encoding="utf-8")
    monkeypatch.setattr(variables, "TABLES", tmp_path)
    variables._rows.cache_clear()
    with pytest.raises(ConfigError, match=r"nvidia_env.yaml: X.reason"):
        variables.tuned(experiment())
