"""Every model × layout × precision as NeMo builds it at true size, compared with the request; nothing of it runs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from nemo_runs import offline

from conf.compose import choices, compose
from conf.errors import ConfigError
from conf.load import _request
from conf.resolve import Experiment, resolve
from conf.schema import LayoutChoice, Request, Training
from launchers import make_plan
from launchers.frameworks.nemo import FRAMEWORK
from launchers.plan import Host, Plan
from tensorprimat.check import undeclared

pytestmark = pytest.mark.nvidia

HOST = Host(python="python", cpu_count=64)
LAYOUTS: dict[str, dict[str, Any]] = {
    "dp8": {},
    "tp2": {"tensor_model_parallel_size": 2},
    "pp2": {"pipeline_model_parallel_size": 2},
    "tp2_pp2": {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2},
    "pp2_vp2": {"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2},
    "cp2": {"context_parallel_size": 2},
    "ep2": {"expert_model_parallel_size": 2},
    "recompute": {"recompute_granularity": "selective"},
}
HARDWARE = {"bf16": "h100", "fp32": "h100", "fp8": "h200", "mxfp8": "b200"}


def cases() -> Iterator[tuple[str, Experiment, Plan]]:
    """What our own rules let pass: PP that divides the layers, EP where there are experts."""
    models = [name for name in choices("model") if name not in ("llama", "qwen") and not name.startswith("gpt_oss")]
    for model, precision in product(models, HARDWARE):
        fixed = ("framework=nemo", "platform=nvidia", "gpus_per_node=8", "layout=data_parallel")
        requested = (f"model={model}", f"precision={precision}", f"hardware={HARDWARE[precision]}")
        request = _request(compose([*fixed, *requested]))  # once: composing takes a quarter of a second
        for layout, values in LAYOUTS.items():
            with suppress(ConfigError):
                e = resolve(_with(request, values), ())
                yield f"{model}-{layout}-{precision}", e, make_plan(e, HOST)


def _with(request: Request, values: dict[str, Any]) -> Request:
    """`request` with these fields of its layout or its training."""
    layout = {name: value for name, value in values.items() if name in LayoutChoice.__slots__}
    training = {name: value for name, value in values.items() if name in Training.__slots__}
    return replace(request, layout=replace(request.layout, **layout), training=replace(request.training, **training))


def test_all_that_is_built_is_as_asked(nemo_python: str, tmp_path: Path) -> None:
    made = list(cases())
    assert len(made) > 350
    for name, _, plan in made:
        (tmp_path / name).write_text(plan.files["settings.yaml"], encoding="utf-8")
    argv = (nemo_python, str(FRAMEWORK.program), "--check", "--settings", *(name for name, _, _ in made))
    run = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=900, env=offline())
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
