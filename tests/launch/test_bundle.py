"""A bundle of a stack that programs of ours start: rendered, run with `bash run.sh`, its log read into a record."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from conf import load_experiment
from launchers import bundle, make_plan
from launchers.plan import NO_REHEARSAL, OF_LAUNCHERS, Host
from parsers import Record, read
from parsers.cli import main as parse_logs
from tensorprimat.launch import main as launch
from tests.drills import PATIENCE_S, ROOT

HOST = Host(python="/somewhere/else/bin/python", cpu_count=64)
TINY: tuple[str, ...] = ("platform=cpu", "framework=megatron", "model=llama_tiny", "gpus_per_node=2")
TINY = (*TINY, "training.train_iters=4", "optimizer.lr_warmup_iters=1")
LLAMA = "model=llama"
SHOWN = ("train.sh", "env.sh", "README.txt")
BUNDLES = {
    "megatron_cpu": TINY,
    "nemo_2_nodes": ("platform=nvidia", "framework=nemo", "model=llama31_70b", "nodes=4"),
    "bridge_probe": (
        "platform=nvidia",
        "framework=megatron_bridge",
        "framework.release=0.3.1",
        "model=llama",
        "probe=true",
    ),
}


def run(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the bundle in `folder` with nothing of ours on the path of modules."""
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHON": sys.executable, **variables}
    marked = {name: value for name, value in os.environ.items() if name.startswith("TENSORPRIMAT_")}
    command, env = ["bash", str(folder / "run.sh")], env | marked
    return subprocess.run(
        command, cwd=folder.parent, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def the_record(folder: Path, target: Path) -> Record:
    (log,) = folder.glob("runs/*/train.log")
    assert parse_logs([str(log), "-o", str(target)]) == 0
    return read(target)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    assert launch([*TINY, f"bundle={tmp_path / 'bundle'}"]) == 0
    return tmp_path / "bundle"


@pytest.mark.parametrize("name", BUNDLES)
def test_golden_start(name: str, golden: Callable[[str, str], None]) -> None:
    e = load_experiment(*BUNDLES[name], "cluster.master_addr=head", "cluster.master_port=29500", "cluster.node_rank=0")
    texts = bundle.of_programs(e, make_plan(e, HOST), NO_REHEARSAL)
    golden(f"bundles/{name}.txt", "".join(f"--- {file}\n{texts[file]}\n" for file in SHOWN))


@pytest.mark.drill("a bundle took out PET_* and TORCHELASTIC_* alone, and did not say so")
def test_a_bundle_takes_out_what_steers_its_launcher_and_says_so(tmp_path: Path) -> None:
    script = (ROOT / "shell" / "run_bundle.sh").read_text(encoding="utf-8")
    words = re.findall(r"^steering\+?='(.*)'$", script, re.MULTILINE)
    assert "".join(words) == OF_LAUNCHERS
    assert launch([*TINY, f"bundle={tmp_path / 'bundle'}"]) == 0
    odd = (
        "PET_NNODES",
        "TORCH_ELASTIC_WORKER_IDENTICAL",
        "ACCELERATE_USE_FSDP",
        "PYTHON_EXEC",
        "BACKEND",
        "BACKEND_PATH",
        "PRIMUS_PATCHES",
    )
    done = run(tmp_path / "bundle", DRY_RUN="1", PETS="cat", PRIMUS_TURBO="1", **dict.fromkeys(odd, "2"))
    assert done.returncode == 0, done.stderr
    (said,) = (line for line in done.stderr.splitlines() if line.startswith("taken out of the environment"))
    assert {*said.partition(":")[2].split()} == {*odd}


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.long
def test_a_bundle_trains_to_the_losses_of_a_run_of_ours(tiny: Path, tmp_path: Path) -> None:
    done = run(tiny)
    assert done.returncode == 0, done.stdout[-3000:]
    assert launch([*TINY, f"runs_dir={tmp_path / 'runs'}", "name=ours"]) == 0
    (ours,) = (read(path) for path in (tmp_path / "runs" / "ours").iterdir() if path.is_dir())
    record = the_record(tiny, tmp_path / "record")
    assert (record.status, record.exit_code, len(record.steps)) == ("completed", 0, 4)
    assert [step.loss for step in record.steps] == [step.loss for step in ours.steps]
    assert record.requested == ours.requested
    assert "cpu_model" in record.environment or not Path("/proc/cpuinfo").exists()
    assert "edited_files" not in record.environment


@pytest.mark.engine
@pytest.mark.long
def test_a_file_that_was_edited_is_named(tiny: Path, tmp_path: Path) -> None:
    settings = tiny / "settings.json"
    settings.write_text(settings.read_text(encoding="utf-8").replace('"lr": 0.001', '"lr": 0.002'), encoding="utf-8")
    done = run(tiny)
    assert done.returncode == 0, done.stdout[-3000:]
    record = the_record(tiny, tmp_path / "record")
    assert record.environment["edited_files"] == ["settings.json"]


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"NNODES": "3"}, "NNODES=3, and the bundle was rendered for 1"),
        ({"TRAIN_ITERS": "7"}, "TRAIN_ITERS=7"),
        ({"NODE_RANK": "1"}, "NODE_RANK=1 is no node of 1"),
        ({"PYTHON": "/no/such/python"}, "PYTHON=/no/such/python is no command here"),
    ],
)
def test_what_only_a_new_rendering_can_change_is_refused(tiny: Path, variables: dict[str, str], says: str) -> None:
    done = run(tiny, **variables)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tiny.glob("runs/*"))


def test_a_dry_run_says_what_it_would_do_and_leaves_nothing(tiny: Path) -> None:
    done = run(tiny, DRY_RUN="1")
    assert done.returncode == 0
    assert '"$here"/ranks/engine.py' in done.stdout
    assert not (tiny / "runs").exists()
