"""Test what is refused inside NeMo's environment, before anything is started: exit 2, what was found, what would
work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from conf import load_experiment
from launchers import make_plan
from launchers.frameworks.nemo import FRAMEWORK as NEMO
from launchers.plan import Host
from tests.nvidia.nemo_runs import launch, offline

pytestmark = pytest.mark.nvidia


RECIPE = "framework.recipes.llama_tiny="


@pytest.mark.parametrize(
    ("has_nemo", "overrides", "said"),
    [
        (True, (f"{RECIPE}llama31_9b",), ("no recipe llama31_9b", "llama31_8b")),  # the nearest ones are named
        (True, (f"{RECIPE}gpt_oss_20b",), ("fine-tuned only",)),
        (False, (), ("nemo_toolkit missing in", "make nemo")),
    ],
)
def test_a_run_that_is_not_started(
    has_nemo: bool, overrides: tuple[str, ...], said: tuple[str, ...], nemo_python: str, tmp_path: Path
) -> None:
    code, out, err = launch(nemo_python if has_nemo else sys.executable, tmp_path, *overrides)
    assert code == 2, out + err
    assert "Traceback" not in err and all(text in err for text in said)
    assert not list(tmp_path.glob("t/*")), "nothing was started"


def settings(tmp_path: Path) -> Path:
    plan = make_plan(load_experiment("platform=cpu", "framework=nemo"), Host(python="python", cpu_count=2))
    path = tmp_path / "settings.yaml"
    path.write_text(plan.files["settings.yaml"], encoding="utf-8")
    return path


def checked(python: str, path: Path, **env: str) -> subprocess.CompletedProcess[str]:
    argv = (python, str(NEMO.program), "--check", "--settings", str(path))
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300, env=offline(**env))


def test_a_package_without_which_the_recipes_are_silently_absent(nemo_python: str, tmp_path: Path) -> None:
    (tmp_path / "modelopt.py").write_text("raise ModuleNotFoundError('gone', name='modelopt')\n", encoding="utf-8")
    done = checked(nemo_python, settings(tmp_path), PYTHONPATH=str(tmp_path))
    assert done.returncode == 2
    assert "package modelopt is missing" in done.stderr


def test_names_that_nemo_takes_silently(nemo_python: str, tmp_path: Path) -> None:
    """MegatronStrategy takes any name (**kwargs); its data module, and its model's config, do not."""
    path = settings(tmp_path)
    wrong = ("trainer.strategy.tensor_model_paralel_size", "model.config.nm_layers", "optim.bogus.lr")
    more = "".join(f"  {name}: 1\n" for name in wrong)
    path.write_text(path.read_text(encoding="utf-8").replace("\nset:\n", f"\nset:\n{more}"), encoding="utf-8")
    done = checked(nemo_python, path)
    assert done.returncode == 2
    assert all(name in done.stderr for name in wrong), "all of them at once"
    assert "tensor_model_parallel_size" in done.stderr, "with the nearest that exists"
    assert done.stderr.count("engine: nemo: 3 reasons") == 1
