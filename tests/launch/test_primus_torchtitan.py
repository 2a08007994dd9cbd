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
from conf.vocabulary import program_settings
from launchers import make_plan, rehearse
from launchers.plan import Host, Plan
from parsers import parse
from tensorprimat.launch import main as launch
from tests.drills import free_port

ROOT = Path(__file__).parents[2]
TITAN = ("platform=amd", "framework=primus", "framework.backend=torchtitan", "layout=data_parallel")
SHORT = ("training.train_iters=8", "optimizer.lr_warmup_iters=3", "training.seq_length=64")
TOY = ("model=llama_tiny", "training.global_batch_size=8", *SHORT)
TITAN_PYTHON = Path(os.environ.get("TORCHTITAN_PYTHON", ROOT / ".venv-torchtitan/bin/python"))


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
    assert written["model"]["hf_assets_path"] == "."  # or Primus would ask for a token, and download a tokenizer


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


def test_the_ranks_look_for_the_device_of_the_platform() -> None:
    """They were given cuda, and refused every GPU of AMD's: torch is built for rocm there."""
    words = ("platform=amd", *TITAN[3:], "model=llama")
    devices = []
    for stack in (TITAN[1:3], ("framework=torchtitan",)):
        plan = make_plan(load_experiment(*words, *stack), Host("p", 2))
        devices.append(json.loads(plan.files["settings.json"])["device"])
    assert devices == ["rocm", "rocm"]


def on_this_cpu(folder: Path, plan: Plan, checkout: Path, ranks: int) -> dict[str, str]:
    """Write the plan's files for a CPU, and return the variables of its command. Primus' launcher finds the tools of a
    rehearsal in place of a ROCm box', and its ranks begin with tests/plain/primus_on_a_cpu.py."""
    settings = {**json.loads(plan.files["settings.json"]), "device": "cpu"}
    titan = checkout / "third_party" / "torchtitan"
    tools = folder / "tools"
    tools.mkdir()
    # Primus' preparation uninstalls the TorchTitan of its Python, and installs its own: no pip of that Python in PATH
    here = f'#!/bin/sh\nexec {TITAN_PYTHON} "$@"\n'
    for name, text in {"pip": "#!/bin/sh\n", "python": here, "python3": here}.items():
        (tools / name).write_text(text, encoding="utf-8")
        (tools / name).chmod(0o755)
    (tools / "rocm-smi").symlink_to(rehearse.FOLDER / "bin" / "rocm-smi")
    (tools / "sitecustomize.py").symlink_to(ROOT / "tests" / "plain" / "primus_on_a_cpu.py")
    for name, text in {**plan.files, "settings.json": json.dumps(settings)}.items():
        (folder / name).write_text(text, encoding="utf-8")
    paths = (tools, plan.env["PYTHONPATH"], *filter(None, [os.environ.get("PRIMUS_PACKAGES")]))
    there = {name: value for name, value in os.environ.items() if name not in ("HF_TOKEN", "DATA_PATH", "BACKEND_PATH")}
    own = {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "PYTHONPATH": ":".join(map(str, paths)),
        "TORCHTITAN_ON_A_CPU": f"{titan}:{ROOT / 'launchers/ranks'}",
        "PRIMUS_GPU_MODEL": "MI300X",
        "PRIMUS_PATH": str(checkout),
        "PRIMUS_CACHE_ROOT": str(folder / "cache"),
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
        "ROCM_HOME": str(folder / "rocm"),
        **{name: str(folder / name.lower()) for name in ("HF_HOME", "DATA_PATH")},
    }
    (folder / "rocm" / "lib").mkdir(parents=True)
    return {**there, **plan.env, **own, "GPUS_PER_NODE": str(ranks)}


REAL = {
    "fp32 1 rank": ("gpus_per_node=1", "precision=fp32"),
    "fp32 2 ranks, Qwen 3": ("gpus_per_node=2", "precision=fp32", "model.qk_layernorm=true"),
    "bf16 2 ranks": ("gpus_per_node=2", "precision=bf16"),
}


@pytest.mark.stacks
@pytest.mark.parametrize("case", REAL)
def test_primus_itself_trains_as_the_engine_does(case: str, tmp_path: Path) -> None:
    """By the plan's command: Primus' launcher without a token, its preparation, parser, patches and trainer, and the
    TorchTitan that it pins, on a CPU."""
    checkout = Path(os.environ.get("PRIMUS_TORCHTITAN_PATH", "nowhere"))
    if not TITAN_PYTHON.exists() or not (checkout / "third_party/torchtitan/torchtitan").is_dir():
        pytest.skip("PRIMUS_TORCHTITAN_PATH names no checkout with third_party/torchtitan, or there is no TorchTitan")
    e = load_experiment(*TITAN, *TOY, *REAL[case])
    plan = make_plan(e, Host(python=sys.executable, cpu_count=2))
    env = on_this_cpu(tmp_path, plan, checkout, e.gpus_per_node)
    for argv in plan.setup[1:]:  # the first asks rocm-smi
        subprocess.run(argv, cwd=tmp_path, check=True, timeout=300)
    log = tmp_path / "train.log"
    with log.open("w", encoding="utf-8") as out:
        done = subprocess.run(plan.argv, cwd=tmp_path, stdout=out, stderr=out, env=env, timeout=900, check=False)
    assert done.returncode == 0, log.read_text(encoding="utf-8")[-3000:]
    read = parse(log)
    declared = {entry.key for entry in plan.declared}
    ran = {name: known.value for name, known in read.effective.items()}
    requested = {name: value for name, value in program_settings(e).items() if name not in declared}
    assert {name: ran.get(name) for name in requested} == requested
    words = ("framework=megatron", "platform=cpu", *TITAN[3:], *TOY, *REAL[case])
    assert launch([*words, f"runs_dir={tmp_path / 'engine'}", "name=e"]) == 0
    engine = parse(next((tmp_path / "engine" / "e").glob("*/train.log")))
    pairs = [*zip(read.steps, engine.steps, strict=True)]
    assert len(pairs) == e.training.train_iters
    apart = max(abs((a.loss or 0) - (b.loss or 9)) for a, b in pairs)
    print(f"{case}: {apart:.1e} nats/token")
    assert apart <= (2e-6 if "fp32" in case else 3e-3)
