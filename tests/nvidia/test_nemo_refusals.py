"""What is refused inside NeMo's environment, before anything is started: exit 2, what was found, what would work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from nemo_runs import launch, offline

from launchers.frameworks.nemo import FRAMEWORK

pytestmark = pytest.mark.nvidia


def refused(result: tuple[int, str, str], runs: Path) -> str:
    code, out, err = result
    assert code == 2, out + err
    assert "Traceback" not in err
    assert not list(runs.glob("t/*")), "nothing was started"
    return err


def test_a_recipe_that_this_release_lacks(nemo_python: str, tmp_path: Path) -> None:
    err = refused(launch(nemo_python, tmp_path, "framework.recipes.llama_tiny=llama31_9b"), tmp_path)
    assert "no recipe llama31_9b" in err
    assert "llama31_8b" in err, "the nearest ones are named"


def test_a_model_that_can_be_fine_tuned_only(nemo_python: str, tmp_path: Path) -> None:
    err = refused(launch(nemo_python, tmp_path, "framework.recipes.llama_tiny=gpt_oss_20b"), tmp_path)
    assert "fine-tuned only" in err


def test_an_environment_without_nemo(nemo_python: str, tmp_path: Path) -> None:
    err = refused(launch(sys.executable, tmp_path), tmp_path)
    assert "nemo_toolkit missing in" in err
    assert "make nemo" in err


def settings(tmp_path: Path, *overrides: str) -> Path:
    from conf import load_experiment
    from launchers import make_plan
    from launchers.plan import Host

    plan = make_plan(load_experiment("platform=cpu", "framework=nemo", *overrides), Host(python="python", cpu_count=2))
    path = tmp_path / "settings.yaml"
    path.write_text(plan.files["settings.yaml"], encoding="utf-8")
    return path


def checked(python: str, path: Path, **env: str) -> subprocess.CompletedProcess[str]:
    argv = (python, str(FRAMEWORK.program), "--check", "--settings", str(path))
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
