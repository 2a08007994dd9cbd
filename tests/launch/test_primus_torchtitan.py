"""framework=primus framework.backend=torchtitan: what is written and refused, and Primus' own run of it on a CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from conf import load_experiment
from launchers import make_plan
from launchers.plan import Host
from parsers import parse
from tensorprimat.launch import main as launch

ROOT = Path(__file__).parents[2]
TITAN = ("platform=amd", "framework=primus", "framework.backend=torchtitan", "layout=data_parallel")
SHORT = ("training.train_iters=8", "optimizer.lr_warmup_iters=3", "training.seq_length=64")
TOY = ("model=llama_tiny", "gpus_per_node=1", "precision=fp32", "training.global_batch_size=8", *SHORT)


def overrides(*words: str) -> dict[str, Any]:
    plan = make_plan(load_experiment(*TITAN, *words), Host(python=sys.executable, cpu_count=2))
    module = yaml.safe_load(plan.files["primus.yaml"])["modules"]["pre_trainer"]
    assert (module["framework"], module["config"]) == ("torchtitan", "pre_trainer.yaml")
    sections: dict[str, Any] = module["overrides"]
    return sections


def test_primus_is_given_what_torchtitan_is() -> None:
    written = overrides("model=llama", "training.train_iters=20", "optimizer.adam_eps=1e-6")
    plan = make_plan(load_experiment("platform=amd", "framework=torchtitan", *TITAN[3:], "model=llama"), Host("p", 2))
    alone = json.loads(plan.files["settings.json"])["arguments"]
    nested = {f"{section}.{key}" for section, of in written.items() if isinstance(of, dict) for key in of}
    assert alone.keys() <= nested
    assert written["optimizer"]["eps"] == 1e-6
    assert written["training"]["steps"] == 20
    assert written["lr_scheduler"]["total_steps"] == 20
    assert written["experimental"]["custom_import"] == "primus_torchtitan"
    assert written["primus_turbo"] == {"enable_primus_turbo": False, "enable_embedding_autocast": False}
    assert written["model"]["converters"] == []


REFUSED = {
    "no backend of Primus": ("framework.backend=maxtext",),
    "issues/2972": ("layout.pipeline_model_parallel_size=2",),
    "pull/2323": ("training.use_distributed_optimizer=false",),
    "another release of Primus": ("framework.release=v26.2",),
    "does not mount": ("framework.entry=slurm",),
    "a bundle of Primus": ("bundle=nowhere",),
    "its TorchTitan needs a GPU": ("rehearse=train",),
    "dense models alone": ("model=moe_tiny",),
}


@pytest.mark.parametrize("named", REFUSED)
def test_what_it_cannot_do_is_refused(named: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = () if "moe" in str(REFUSED[named]) else ("model=llama",)
    assert launch([*TITAN, *model, *REFUSED[named], f"runs_dir={tmp_path}", "dry_run=true"]) == 2
    assert named in capsys.readouterr().err


def test_a_checkout_without_torchtitan_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = (f"framework.checkout={tmp_path}", f"runs_dir={tmp_path / 'r'}")
    assert launch([*TITAN, "model=llama", *words]) == 2
    assert "git submodule update --init third_party/torchtitan" in capsys.readouterr().err


@pytest.mark.stacks
def test_primus_itself_trains_as_the_engine_does(tmp_path: Path) -> None:
    """Primus' command, its parser, patches and trainer, and the TorchTitan that it pins, on a CPU."""
    checkout = Path(os.environ.get("PRIMUS_TORCHTITAN_PATH", "nowhere"))
    titan = Path(os.environ.get("TORCHTITAN_PYTHON", ROOT / ".venv-torchtitan/bin/python"))
    packages = os.environ.get("PRIMUS_PACKAGES", "")
    if not titan.exists() or not (checkout / "third_party/torchtitan/torchtitan").is_dir():
        pytest.skip("PRIMUS_TORCHTITAN_PATH names no checkout with third_party/torchtitan, or there is no TorchTitan")
    e = load_experiment(*TITAN, *TOY)
    plan = make_plan(e, Host(python=sys.executable, cpu_count=2))
    for name, text in plan.files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    settings = {**json.loads(plan.files["settings.json"]), "device": "cpu"}
    (tmp_path / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    for argv in plan.setup[1:]:  # the first asks rocm-smi
        subprocess.run(argv, cwd=tmp_path, check=True, timeout=300)
    place = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_WORLD_SIZE": "1",
        "NNODES": "1",
        "NODE_RANK": "0",
    }
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "OMP_NUM_THREADS": "1", "PYTHONPATH": packages}
    env = {**os.environ, **place, **where, "PRIMUS_WORKSPACE": str(tmp_path / "primus")}
    program = ROOT / "tests" / "plain" / "primus_on_a_cpu.py"
    argv = (str(titan), str(program), str(checkout), str(tmp_path / "primus.yaml"))
    log = tmp_path / "train.log"
    with log.open("w", encoding="utf-8") as out:
        done = subprocess.run(argv, stdout=out, stderr=subprocess.STDOUT, env=env, timeout=900, check=False)
    assert done.returncode == 0, log.read_text(encoding="utf-8")[-3000:]
    read = parse(log)
    words = ("framework=megatron", "platform=cpu", *TITAN[3:], *TOY)
    assert launch([*words, f"runs_dir={tmp_path / 'engine'}", "name=e"]) == 0
    engine = parse(next((tmp_path / "engine" / "e").glob("*/train.log")))
    pairs = [*zip(read.steps, engine.steps, strict=True)]
    assert len(pairs) == e.training.train_iters
    assert max(abs((a.loss or 0) - (b.loss or 9)) for a, b in pairs) <= 2e-6
