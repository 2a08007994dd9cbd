"""launch.py as its user types it: exit codes, no traceback, nothing touched by a dry run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conf import load_experiment
from launchers import run_dir, where
from parsers import Record, write

ROOT = Path(__file__).parent.parent.parent


def launch(directory: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(ROOT / "launch.py"), *arguments]
    return subprocess.run(argv, cwd=directory, env={**os.environ, **env}, capture_output=True, text=True, timeout=120)


def test_bad_input_is_exit_2_with_a_reason_and_no_traceback(tmp_path: Path) -> None:
    """As a process; what is refused, and with which words: tests/refusals.yaml."""
    done = launch(tmp_path, "model=lama", "training.seed=1")
    assert done.returncode == 2
    assert "model=lama: no such choice" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_prints_the_plan_and_touches_nothing(tmp_path: Path) -> None:
    done = launch(tmp_path, "platform=nvidia", "model=llama", "dry_run=true")
    assert done.returncode == 0
    states = "fits: "
    for part in ("8,030,261,248 parameters", "DP = 4: 8 GPUs / TP 2 / PP 1", states, "start_ranks.py"):
        assert part in done.stdout
    assert "files         settings.yaml;" in done.stdout and "model.num_layers: 32" not in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_as_json(tmp_path: Path) -> None:
    done = launch(
        tmp_path, "-m", "model=llama_tiny,llama", "platform=amd", "framework=megatron", "dry_run=true", "--json"
    )
    shown = json.loads(done.stdout)
    assert [job["experiment"]["model"]["name"] for job in shown] == ["llama_tiny", "llama31_8b"]
    assert shown[0]["plan"]["argv"][0] == sys.executable


def test_a_grid_is_a_sweep_by_name(tmp_path: Path) -> None:
    arguments = ("gpus_per_node=2", "platform=cpu", "dry_run=true", "--json")
    by_grid = launch(tmp_path, "grid=layouts", *arguments)
    by_hand = launch(tmp_path, "-m", "layout=data_parallel,tp2", *arguments)
    plans = [[job["plan"] for job in json.loads(done.stdout)] for done in (by_grid, by_hand)]
    assert plans[0] == plans[1]
    assert len(plans[0]) == 2


def test_the_composed_config_can_be_seen(tmp_path: Path) -> None:
    assert json.loads(launch(tmp_path, "--cfg", "job", "--json", "training.seed=7").stdout)["training"]["seed"] == 7
    done = launch(tmp_path, "--cfg", "job", "platform=amd", "training.seed=7")
    assert done.returncode == 0
    assert "seed: 7" in done.stdout
    assert "name: mi300x" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_help_fits_a_screen_and_names_the_choices(tmp_path: Path) -> None:
    done = launch(tmp_path, "--help")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) <= 24
    assert "llama31_8b" in done.stdout


def test_a_missing_engine_names_the_one_command(tmp_path: Path) -> None:
    """An interpreter without site-packages has neither torch nor megatron-core; our own packages come by PYTHONPATH."""
    light = tmp_path / "light"
    light.mkdir()
    import hydra

    site = Path(hydra.__file__).parent.parent
    ours = ("hydra", "omegaconf", "antlr4", "yaml", "rich", "psutil", "packaging", "msgspec")
    for needed in (*ours, "pygments", "markdown_it", "mdurl"):
        (light / needed).symlink_to(site / needed)
    argv = [sys.executable, "-S", str(ROOT / "launch.py"), "platform=cpu", f"runs_dir={tmp_path}/runs"]
    env = {**os.environ, "PYTHONPATH": str(light)}
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    assert "torch and megatron-core missing" in done.stderr
    assert "[embedded]" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("stranger", [{"step=8": "x"}, {"plan.json": "{}", "run.json": "another"}])
def test_a_directory_that_holds_something_else_is_left_alone(tmp_path: Path, stranger: dict[str, str]) -> None:
    """NeMo and Bridge would go on with the checkpoints that lie there."""
    experiment = load_experiment("platform=cpu", "name=t", f"runs_dir={tmp_path}")
    directory = run_dir.directory(experiment, where.commit())
    directory.mkdir(parents=True)
    for name, text in stranger.items():
        (directory / name).write_text(text)
    if "run.json" in stranger:
        write(Record(id="another", name="t", provenance="measured", status="completed"), directory)
    before = sorted(directory.iterdir())
    done = launch(tmp_path, "platform=cpu", "name=t", f"runs_dir={tmp_path}")
    assert done.returncode == 2
    assert ("is of another run" if "run.json" in stranger else "has files of something else") in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(directory.iterdir()) == before
