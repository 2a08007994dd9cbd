"""Every model × layout × precision as NeMo 2.7.3 and Megatron-Bridge 0.3.1 build it at true size, compared with the
request; nothing of it runs. And what is refused before it would be taken silently, or be died of."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from conf import load_experiment
from conf.compose import choices, compose
from conf.errors import ConfigError
from conf.load import _request
from conf.resolve import Experiment, resolve
from conf.schema import LayoutChoice, Request, Training
from launchers import make_plan
from launchers.plan import Host, Plan
from tensorprimat.check import undeclared
from tests.nvidia.nemo_runs import ROOT, offline

pytestmark = pytest.mark.nvidia

HOST = Host(python="python", cpu_count=64)
LAYOUTS: dict[str, dict[str, Any]] = {
    "dp8": {},
    "tp2": {"tensor_model_parallel_size": 2},
    "pp2": {"pipeline_model_parallel_size": 2},
    "tp2_pp2": {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2},
    "pp2_vp2": {"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2},
    "cp2": {"context_parallel_size": 2, "recompute_granularity": "selective"},
    "ep2": {"expert_model_parallel_size": 2},
}
HARDWARE = {"bf16": "h100", "fp32": "h100", "fp8": "h200", "mxfp8": "b200"}
LACKS = {"nemo": "gpt_oss", "megatron_bridge": "mixtral"}
"""Families of models that a stack has no recipe of."""


def cases(framework: str) -> Iterator[tuple[str, Experiment, Plan]]:
    """Return what our own rules let pass: PP that divides the layers, EP where there are experts."""
    models = [name for name in choices("model") if not name.startswith(LACKS[framework])]
    for model, precision in product(sorted({*models} - {"llama", "qwen"}), HARDWARE):
        fixed = (f"framework={framework}", "platform=nvidia", "gpus_per_node=8", "layout=data_parallel")
        requested = (f"model={model}", f"precision={precision}", f"hardware={HARDWARE[precision]}")
        request = _request(compose([*fixed, *requested]))  # once: composing takes a quarter of a second
        for layout, values in LAYOUTS.items():
            with suppress(ConfigError):
                e = resolve(_with(request, values), ())
                yield f"{model}-{layout}-{precision}", e, make_plan(e, HOST)


def _with(request: Request, values: dict[str, Any]) -> Request:
    """Return `request` with these fields of its layout or its training."""
    layout = {name: value for name, value in values.items() if name in LayoutChoice.__slots__}
    training = {name: value for name, value in values.items() if name in Training.__slots__}
    return replace(request, layout=replace(request.layout, **layout), training=replace(request.training, **training))


def checked(framework: str, python: str, folder: Path, *names: str) -> subprocess.CompletedProcess[str]:
    program = {"nemo": "nemo_ranks.py", "megatron_bridge": "bridge_ranks.py"}[framework]
    argv = (python, str(ROOT / "launchers" / "ranks" / program), "--check", "--settings", *names)
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False, timeout=1200, env=offline())


@pytest.mark.parametrize(("framework", "least"), [("nemo", 300), ("megatron_bridge", 250)])
def test_all_that_is_built_is_as_requested(
    framework: str, least: int, nemo_python: str, bridge_python: str, tmp_path: Path
) -> None:
    made = list(cases(framework))
    assert len(made) > least
    for name, _, plan in made:
        (tmp_path / name).write_text(plan.files["settings.yaml"], encoding="utf-8")
    python = nemo_python if framework == "nemo" else bridge_python
    run = checked(framework, python, tmp_path, *(name for name, _, _ in made))
    assert run.returncode == 0, run.stderr[-3000:]
    marks = [line for line in run.stdout.splitlines() if line.startswith("[tprimat] configured ")]
    assert len(marks) == len(made)
    wrong = {}
    for (name, e, plan), mark in zip(made, marks, strict=True):
        configured = json.loads(mark.partition("configured ")[2])
        assert len(configured) > 60
        if problems := list(undeclared(e, plan, configured)):
            wrong[name] = [str(problem) for problem in problems]
    assert wrong == {}


NOBODY: dict[str, Any] = {"id": "nobody/nothing", "revisions": [], "config": {}}
REFUSED: Mapping[str, tuple[dict[str, Any], str]] = {
    "typo": ({"set": {"model.num_layer": 4}}, "no such name; found: num_layer; allowed: num_layers"),
    "part": ({"set": {"trian.train_iters": 4}}, "trian is not there in this recipe"),
    "enum": ({"set": {"model.attention_backend": {"enum": "AttnBackend.sdpa"}}}, "not in this environment"),
    "size": ({"set": {"model.tensor_model_parallel_size": 3}}, "not divisible"),
    "twice": ({"set": {"dataset.seq_length": 64}}, "sequence length configuration"),
    "overwritten": ({"set": {"ddp.grad_reduce_in_fp32": False}}, "was set, and Bridge has changed it; found: True"),
    "recipe": ({"recipe": "llama4_pretrain_config"}, "this release has no such recipe"),
    "precision": ({"precision": {"factory": "bf16_mix", "set": {}}}, "no such precision; found: bf16_mix"),
    "hub": ({"recipe": "llama3_70b_pretrain_config", "hugging_face": NOBODY}, "cannot be built"),
    "release": ({"release": "0.6.0"}, "than the one that is installed; found: 0.6.0; allowed: 0.3.1"),
}


def test_what_bridge_would_take_silently_or_die_of_is_refused(bridge_python: str, tmp_path: Path) -> None:
    e = load_experiment("framework=megatron_bridge", "platform=nvidia", "model=llama32_1b", "layout=data_parallel")
    for name, (change, _) in REFUSED.items():
        settings = yaml.safe_load(make_plan(e, HOST).files["settings.yaml"])
        for key, value in change.items():
            settings[key] = settings[key] | value if key == "set" else value
        (tmp_path / name).write_text(yaml.safe_dump(settings), encoding="utf-8")
    run = checked("megatron_bridge", bridge_python, tmp_path, *REFUSED)
    assert run.returncode == 2, run.stderr[-3000:]
    reported = {}
    for part in run.stderr.split("engine: bridge: ")[1:]:
        first, *lines = part.splitlines()
        reported[first.partition("not to run ")[2]] = lines[0]
    assert list(reported) == list(REFUSED)
    assert {name: line for name, line in reported.items() if REFUSED[name][1] not in line} == {}
    assert run.stdout.count('[tprimat] refused {"where"') == len(REFUSED)
    assert "configured" not in run.stdout
