"""Test what every NVIDIA plan sets, in one table, and eight full plans.

A change is accepted with: UPDATE_GOLDEN=1 make test (or UPDATE_GOLDEN=1 pytest tests/launch/test_nvidia_table.py)"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from conf import load_experiment
from conf.errors import ConfigError
from conf.resolve import Experiment
from conf.vocabulary import program_settings
from launchers import attribute_settings, corpus, make_plan, variables
from launchers.frameworks import megatron_bridge, nemo
from launchers.plan import Host, Plan
from launchers.variables import START

HOST = Host(python="python", cpu_count=64)
ACCEPT = "# accept a change with: UPDATE_GOLDEN=1 make test\n"
MODELS: Mapping[str, tuple[int, tuple[str, ...]]] = {
    "llama": (8, ()),
    "qwen": (8, ()),
    "llama31_70b": (64, ()),
    "mixtral_8x7b": (8, ("layout.expert_model_parallel_size=8",)),
    "deepseek_v3": (64, ("layout.expert_model_parallel_size=64",)),
}
"""GPUs, and the sizes of a layout where the table has no row."""
HARDWARE = ("h100", "h200", "b200", "gb200")
PRECISIONS = ("bf16", "fp8")
FRAMEWORKS = ("nemo", "megatron_bridge")


def overrides(model: str, hardware: str, precision: str, framework: str) -> tuple[str, ...]:
    """Return one case as launch.py takes it."""
    gpus, layout = MODELS[model]
    nodes = gpus // (4 if hardware == "gb200" else 8)
    return (
        *("platform=nvidia", f"model={model}", f"hardware={hardware}", f"precision={precision}"),
        *(f"framework={framework}", f"nodes={nodes}", *layout),
        *("cluster.master_addr=head", "cluster.master_port=29500", "cluster.node_rank=0"),
    )


PLANS = {
    "nemo_llama_h100": ("llama", "h100", "bf16", "nemo"),
    "bridge_llama_h100": ("llama", "h100", "bf16", "megatron_bridge"),
    "bridge_060_llama_b200_fp8": ("llama", "b200", "fp8", "megatron_bridge", "framework.release=0.6.0"),
    "nemo_qwen_h200_fp8": ("qwen", "h200", "fp8", "nemo"),
    "nemo_llama31_70b_gb200": ("llama31_70b", "gb200", "bf16", "nemo"),
    "bridge_llama31_70b_gb200_fp8": ("llama31_70b", "gb200", "fp8", "megatron_bridge"),
    "nemo_mixtral_8x7b_b200": ("mixtral_8x7b", "b200", "bf16", "nemo"),
    "bridge_deepseek_v3_h100": ("deepseek_v3", "h100", "bf16", "megatron_bridge"),
}


@cache
def planned(*case: str) -> tuple[Experiment, Plan] | str:
    """Return the experiment and its plan, or what it is refused with."""
    e = load_experiment(*overrides(*case[:4]), *case[4:])
    try:
        return e, make_plan(e, HOST)
    except ConfigError as refused:
        return str(refused)


def text(plan: Plan) -> str:
    """Return all of a plan that is the same on every machine."""
    lines = f"{plan.command()}\n\n".replace(str(corpus.PROGRAM), "CORPUS").replace(str(START), "START_RANKS")
    for program, name in ((nemo.FRAMEWORK.program, "NEMO_RANKS"), (megatron_bridge.FRAMEWORK.program, "BRIDGE_RANKS")):
        lines = lines.replace(str(program), name)
    lines += "".join(f"{key}: {reason}\n" for key, reason in sorted(plan.env_reasons.items()))
    lines += "".join(f"\ndeclared: {d.key} = {d.value} ({d.reason})\n" for d in plan.declared)
    return lines + "".join(f"\n--- {path}\n{content}" for path, content in plan.files.items())


@pytest.mark.parametrize("name", PLANS)
def test_golden_plan(name: str, golden: Callable[[str, str], None]) -> None:
    made = planned(*PLANS[name])
    assert not isinstance(made, str), made
    golden(f"nvidia/plans/{name}.txt", ACCEPT + text(made[1]))


def test_a_pair_that_does_not_exist_is_refused(golden: Callable[[str, str], None]) -> None:
    refused = planned("mixtral_8x7b", "h100", "bf16", "megatron_bridge")
    assert isinstance(refused, str)
    golden("nvidia/plans/refused_bridge_mixtral_8x7b.txt", ACCEPT + refused + "\n")


@pytest.mark.long
def test_the_table_of_settings(golden: Callable[[str, str], None]) -> None:
    sides = list(product(HARDWARE, FRAMEWORKS))
    out = io.StringIO()
    writer = csv.writer(out, delimiter="\t", lineterminator="\n")
    writer.writerow(["model", "precision", "setting", *(f"{gpu} {framework}" for gpu, framework in sides)])
    for model, precision in product(MODELS, PRECISIONS):
        columns = [dict(rendered(planned(model, gpu, precision, framework))) for gpu, framework in sides]
        for name in dict.fromkeys(name for column in columns for name in column):
            writer.writerow([model, precision, name, *(column.get(name, "") for column in columns)])
    golden("nvidia/settings.tsv", ACCEPT + out.getvalue())


def rendered(made: tuple[Experiment, Plan] | str) -> Iterator[tuple[str, str]]:
    """Setting → what the plan says of it: the value at its attribute path; in () what follows from others or what the
    program sees to; in [] what is declared to run instead. Then every variable."""
    if isinstance(made, str):
        yield "refused", made.splitlines()[0]
        return
    e, plan = made
    table, file = attribute_settings.table(e.framework.name), yaml.safe_load(plan.files["settings.yaml"])
    written, declared = file["set"] | file["set_if_there"], {d.key: d.value for d in plan.declared}
    for name, requested in program_settings(e).items():
        row = table.settings[name]
        found = [written[path] for path in row.paths(e.framework.release) if path in written]
        if found:
            shown = shown_value(not found[0] if row.write.convert == "opposite" else found[0])
        else:
            shown = f"[{declared[name]}]" if name in declared else f"({shown_value(requested)})"
        yield name, shown
    yield "precision", f"{file['precision']['factory']} {file['precision']['set']}"
    yield from ((f"${name}", value) for name, value in sorted(plan.env.items()))


def shown_value(value: Any) -> str:
    """Short, and the same for a list of sixty layers."""
    if isinstance(value, dict):
        return str(next(iter(value.values())))
    if isinstance(value, list) and len(value) > 8:
        return "".join(map(str, value))
    return str(value)


ENVIRONMENTS = {
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
    for case, given in ENVIRONMENTS.items():
        for framework in ("nemo", "megatron_bridge"):
            env = variables.tuned(experiment(*given, framework=framework))
            assert all("[" in reason for _, reason in env.values()), "each has a reason and a source"
            lines = "\n".join(f"  {name}={value}" for name, (value, _) in sorted(env.items()))
            parts.append(f"{case}, {framework}\n{lines}\n")
    golden("nvidia/environment.txt", "\n".join(parts))


def test_a_rehearsal_on_a_cpu_gets_nothing_that_is_for_gpus() -> None:
    env = variables.tuned(load_experiment("platform=cpu", "framework=megatron_bridge"))
    assert set(env) == {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "TOKENIZERS_PARALLELISM"}


def test_a_users_own_variable_that_contradicts_is_refused() -> None:
    for overrides, inherited, said in (
        (("cluster.forward_env=[NVTE_FLASH_ATTN]",), {"NVTE_FLASH_ATTN": "0"}, "unset NVTE_FLASH_ATTN"),
        (("cluster.forward_env=[CUDA_LAUNCH_BLOCKING]",), {"CUDA_LAUNCH_BLOCKING": "1"}, "allowed: not set"),
        ((), {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}, "allowed: 1"),
        ((), {"NVTE_FLASH_ATTN": "0"}, "unset NVTE_FLASH_ATTN"),
        (("training.attention=unfused",), {"NVTE_FUSED_ATTN": "1"}, "allowed: 0"),
        ((), {"CUDA_LAUNCH_BLOCKING": "1"}, "allowed: not set"),
        (("framework=nemo", "hardware=b200"), {"PYTORCH_CUDA_ALLOC_CONF": "x"}, "allowed: not set"),
    ):
        found = list(variables.conflicts(experiment(*overrides), {"PATH": "/bin", **inherited}))
        assert [p.where for p in found] == list(inherited)
        assert said in str(found[0])


def test_the_same_value_and_a_forwarded_one_are_no_conflict() -> None:
    assert not list(variables.conflicts(experiment(), {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "NVTE_FLASH_ATTN": "1"}))
    own = experiment("cluster.forward_env=[NCCL_NVLS_ENABLE]")
    assert not list(variables.conflicts(own, {"NCCL_NVLS_ENABLE": "1"}))
    assert "NCCL_NVLS_ENABLE" not in variables.tuned(own)


def test_a_row_without_a_reason_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "nvidia_env.yaml").write_text("[{variable: X, value: '1', when: {}}]", encoding="utf-8")
    monkeypatch.setattr(variables, "TABLES", tmp_path)
    variables._rows.cache_clear()
    with pytest.raises(ConfigError, match=r"nvidia_env.yaml: X.reason"):
        variables.tuned(experiment())
