"""Rehearsals started by tests: of every stack that is here, as requested or with something planted in its files."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from compare.cli import main as compare_command
from conf import load_experiment
from launchers import make_plan
from launchers.plan import Host, Plan
from launchers.rehearse import prepared
from parsers import Record
from tensorprimat.run import run_once
from tests.drills import free_port

ROOT = Path(__file__).parents[2]
FAULTS = ROOT / "benchmarks" / "planted_faults.py"
GONE = object()
"""In place of a value: the key is not written at all."""

SAME = (
    *("rehearse=train", "model=llama", "layout=data_parallel", "gpus_per_node=1"),
    *("training.train_iters=8", "optimizer.lr_warmup_iters=3"),
)
"""One experiment for all stacks: Llama 3.1 with its RoPE scaling, a toy of it."""


def canonical_rate(requested: Mapping[str, Any], step: int) -> float:
    """Return the one schedule, which every stack must use: README, "One schedule"."""
    lr, least, warm_up, end = (requested[key] for key in ("lr", "min_lr", "lr_warmup_iters", "lr_decay_iters"))
    if step < warm_up:
        return float(lr * (step + 1) / (warm_up + 1))
    share = min(1.0, (step - warm_up) / (end - warm_up))
    return float(least + (lr - least) / 2 * (1 + math.cos(math.pi * share)))


_INTERPRETERS = {
    "nemo": ("NEMO_PYTHON", ".venv-nemo"),
    "megatron_bridge": ("BRIDGE_PYTHON", ".venv-bridge"),
    "primus": ("PRIMUS_PYTHON", None),
    **dict.fromkeys(("hf", "deepspeed"), ("STACKS_PYTHON", ".venv-stacks")),
    "torchtitan": ("TORCHTITAN_PYTHON", ".venv-torchtitan"),
}
"""By stack the variable that names its interpreter, and the environment beside ours that has it; the others run in
ours."""


def interpreter(stack: str) -> str:
    """Return the interpreter that has `stack`; the test is skipped, by name, where there is none."""
    variable, name = _INTERPRETERS[stack]
    beside = str(ROOT / name / "bin" / "python") if name else sys.executable
    result = os.environ.get(f"TPRIMAT_{variable}") or os.environ.get(variable) or beside
    if not Path(result).is_file():
        pytest.skip(f"{stack} is not installed: {result} ({variable} names another)")
    if stack == "primus" and "PRIMUS_PATH" not in os.environ:
        pytest.skip("PRIMUS_PATH names no checkout of Primus")
    return result


def rehearsed(
    runs: Path,
    framework: str,
    *overrides: str,
    wrong: Mapping[str, Any] | None = None,
    words: str = "",
    program: tuple[Path, Path] | None = None,
    fault: str = "",
) -> tuple[Record, Path]:
    """Return the record of a rehearsal of `framework` and the run's directory, below `runs`.

    wrong: what is planted, by the stack's own keys. words: the same behind Primus' command. program: ours, and what
    runs in its place."""
    python: tuple[str, ...] = () if framework not in _INTERPRETERS else (f"framework.python={interpreter(framework)}",)
    if framework == "primus" and "PRIMUS_RELEASE" in os.environ:  # of a checkout whose git does not tell: main
        python += (f"framework.release={os.environ['PRIMUS_RELEASE']}",)
    port = f"cluster.master_port={free_port()}"
    e, reported = prepared(
        load_experiment(f"framework={framework}", f"runs_dir={runs}", "name=t", port, *SAME, *python, *overrides)
    )
    plan = make_plan(e, Host(python=sys.executable, cpu_count=os.cpu_count() or 1))
    plan = planted(plan, wrong or {}, words)
    if program is not None:
        assert str(program[0]) in plan.argv
        plan = replace(plan, argv=tuple(str(program[1]) if part == str(program[0]) else part for part in plan.argv))
    if fault:
        # the last of ours: what each rank runs, behind what starts several ranks
        ours = [n for n, part in enumerate(plan.argv) if part.startswith(str(ROOT / "launchers" / "ranks"))]
        place = ours[-1]
        plan = replace(plan, argv=(*plan.argv[:place], str(FAULTS), fault, *plan.argv[place:]))
    return run_once(e, plan, reported)


def planted(plan: Plan, wrong: Mapping[str, Any], words: str = "") -> Plan:
    """Return `plan` with `wrong` over what its own settings file says."""
    files = dict(plan.files)
    if "settings.json" in files:
        files["settings.json"] = json.dumps(_over(json.loads(files["settings.json"]), wrong))
    elif "settings.yaml" in files:
        document = yaml.safe_load(files["settings.yaml"])
        document["set"] = _over(document["set"], wrong)
        later = document.get("set_if_there", {})  # what is assigned last wins
        document["set_if_there"] = _over(later, {key: value for key, value in wrong.items() if key in later})
        files["settings.yaml"] = yaml.safe_dump(document, sort_keys=False)
    else:
        document = yaml.safe_load(files["primus.yaml"])
        trainer = document["modules"]["pre_trainer"]
        trainer["overrides"] = _over(trainer["overrides"], wrong)
        files["primus.yaml"] = yaml.safe_dump(document, sort_keys=False)
        start = "exec bash examples/run_pretrain.sh"
        assert start in files["train.sh"]
        files["train.sh"] = files["train.sh"].replace(start, f"{start} {words}")
    return replace(plan, files=files)


def _over(values: Mapping[str, Any], wrong: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**values, **wrong}
    return {key: value for key, value in merged.items() if value is not GONE}


def compared(capsys: pytest.CaptureFixture[str], *paths: Path) -> dict[str, Any]:
    """`python -m compare PATHS vary=framework --json`."""
    capsys.readouterr()
    compare_command([*map(str, paths), "vary=framework", "--json"])
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def found_by(answer: Mapping[str, Any], states: tuple[str, ...] = ("unexplained", "allowed")) -> set[str]:
    """Return names of the settings that differ, in one of these states, and of the checks of the curves that part.

    allowed: kernels, which may differ and are shown."""
    rows = (row for row in answer["audit"] if row["state"] in states)
    differ = {row["setting"] for row in rows if len({repr(value) for value in row["values"].values()}) > 1}
    return differ | {check["name"] for check in answer["checks"] if check["state"] == "apart"}
