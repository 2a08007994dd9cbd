"""tprimat check with NeMo's own environment: the recipe is built, every path there, and nothing is started."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from nemo_runs import ROOT, offline

pytestmark = pytest.mark.nvidia
START = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tensorprimat.cli import main; sys.exit(main())"


def check(python: str, cwd: Path, *overrides: str) -> tuple[int, dict[str, dict[str, Any]]]:
    argv = (sys.executable, "-c", START, "check", "--json", "rehearsal=false", "framework=nemo")
    requested = (f"framework.python={python}", *overrides)
    done = subprocess.run((*argv, *requested), cwd=cwd, capture_output=True, text=True, timeout=300, env=offline())
    (row,) = json.loads(done.stdout)
    return done.returncode, {part["part"]: part for part in row["parts"]}


def test_a_run_on_this_machine(nemo_python: str, tmp_path: Path) -> None:
    code, parts = check(nemo_python, tmp_path, "platform=cpu")
    assert code == 0, parts
    assert "nemo_toolkit 2.7.3" in parts["target"]["says"]
    assert list(tmp_path.iterdir()) == []


def test_a_plan_for_gpus_is_built_and_checked_without_one(nemo_python: str, tmp_path: Path) -> None:
    requested = ("platform=nvidia", "model=llama31_70b", "nodes=4", "precision=fp8", "layout=tp2_pp2", "hardware=b200")
    code, parts = check(nemo_python, tmp_path, *requested)
    assert code == 2
    assert "platform" in [p["where"] for p in parts["machine"]["problems"]], "there is no GPU here"
    assert parts["target"]["problems"] == []
    assert parts["settings"]["problems"] == []
