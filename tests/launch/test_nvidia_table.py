"""Test what every NVIDIA plan sets, in one table, and eight whole plans.

A change is accepted with: UPDATE_GOLDEN=1 make test (or UPDATE_GOLDEN=1 pytest tests/launch/test_nvidia_table.py)
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from typing import Any

import pytest
import yaml

from conf import load_experiment
from conf.errors import ConfigError
from conf.resolve import Experiment
from conf.vocabulary import program_settings
from launchers import attribute_settings, corpus, make_plan
from launchers.frameworks import megatron_bridge, nemo
from launchers.plan import Host, Plan
from tests.launch.nvidia_cases import FRAMEWORKS, HARDWARE, MODELS, PRECISIONS, overrides

HOST = Host(python="python", cpu_count=64)
ACCEPT = "# accept a change with: UPDATE_GOLDEN=1 make test\n"
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
    """The experiment and its plan, or what it is refused with."""
    e = load_experiment(*overrides(*case[:4]), *case[4:])
    try:
        return e, make_plan(e, HOST)
    except ConfigError as refused:
        return str(refused)


def text(plan: Plan) -> str:
    """All of a plan that is the same on every machine."""
    lines = f"{plan.command()}\n\n".replace(str(corpus.PROGRAM), "CORPUS")
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
    for name, asked in program_settings(e).items():
        row = table.settings[name]
        found = [written[path] for path in row.paths(e.framework.release) if path in written]
        if found:
            shown = shown_value(not found[0] if row.write.convert == "opposite" else found[0])
        else:
            shown = f"[{declared[name]}]" if name in declared else f"({shown_value(asked)})"
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


@pytest.mark.parametrize(("model", "precision"), list(product(MODELS, PRECISIONS)))
def test_both_stacks_are_told_the_same_of_every_setting_that_both_have(model: str, precision: str) -> None:
    """Unequal are only those that a stack has no place for, and declares."""
    columns = {f: planned(model, "h100", precision, f) for f in FRAMEWORKS}
    if any(isinstance(made, str) for made in columns.values()):
        assert model == "mixtral_8x7b"
        return
    values = [dict(rendered(made)) for made in columns.values()]
    plain = [{n: v.strip("()") for n, v in column.items() if not n.startswith("$")} for column in values]
    unequal = {name for name in plain[0] if plain[0][name] != plain[1][name]}
    # named otherwise, worth the same: blend is a path; NeMo's precision has other names; factor 1.0 is no scaling
    assert unequal <= {"data_path", "precision", "rope_scaling_factor", "moe_shared_expert_intermediate_size"}
