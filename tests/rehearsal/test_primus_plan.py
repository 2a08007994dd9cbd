"""A rehearsal of Primus as it is rendered: keys, environment, bundle, and what stands in for a ROCm box."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from conf import load_experiment
from conf.errors import ConfigError
from launchers import make_plan
from launchers.frameworks import primus
from launchers.plan import Plan
from launchers.rehearse import FOLDER, prepared
from parsers import read
from parsers.cli import main as parse_logs
from tensorprimat.launch import main as launch
from tests.launch.fake_rocm import box, the_run
from tests.launch.primus_cases import HOST, written

REHEARSED = ("platform=amd", "framework=primus", "model=llama", "layout=data_parallel", "gpus_per_node=1")
WITHOUT_TRANSFORMER_ENGINE = {
    "transformer_impl": "local",
    "apply_rope_fusion": False,
    "cross_entropy_fusion_impl": "native",
    "no_persist_layer_norm": True,
}
BIN = FOLDER / "bin"


def rehearsed(*given: str) -> Plan:
    e, _ = prepared(load_experiment(*REHEARSED, *given))
    return make_plan(e, HOST)


@pytest.mark.parametrize("release", ["v25.9", "v26.2", "v26.5", "v26.6"])
def test_a_rehearsal_asks_for_nothing_that_needs_a_gpu(release: str) -> None:
    requested = written(rehearsed("rehearse=train", f"framework.release={release}"))
    assert requested == requested | WITHOUT_TRANSFORMER_ENGINE
    ordinary = written(make_plan(load_experiment(*REHEARSED, f"framework.release={release}"), HOST))
    assert ordinary["transformer_impl"] == "transformer_engine"
    same: tuple[str, ...] = (
        "lr",
        "min_lr",
        "adam_eps",
        "adam_beta2",
        "weight_decay",
        "clip_grad",
        "use_rope_scaling",
        "rotary_base",
    )
    same += ("norm_epsilon" if release == "v25.9" else "layernorm_epsilon", "seed", "dataloader_type", "split")
    assert {key: requested[key] for key in same} == {key: ordinary[key] for key in same}, "what decides a comparison"
    assert requested.keys() - ordinary.keys() <= WITHOUT_TRANSFORMER_ENGINE.keys() | {
        *("bias_swiglu_fusion", "bias_dropout_fusion", "masked_softmax_fusion")
    }


def test_every_rank_of_a_layout_is_played_by_one_process() -> None:
    plan = rehearsed("rehearse=layout", "gpus_per_node=8", "layout=tp2_pp2")
    assert plan.env["PRIMUS_ENTRY"] == "main"
    assert (plan.env["GPUS_PER_NODE"], plan.env["TPRIMAT_PLAY_WORLD"]) == ("8", "8")
    played = [command for command in (*plan.setup, plan.argv) if command[-1] == "train.sh"]
    assert [command[:2] for command in played] == [("env", "TPRIMAT_PLAY_RANK=0"), ("env", "TPRIMAT_PLAY_RANK=6")]


def test_a_bundle_carries_the_rehearsal_along(tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    assert launch([*REHEARSED, "rehearse=train", f"bundle={folder}"]) == 0
    carried = {path.name for path in (folder / primus.REHEARSAL).glob("*.py")}
    assert carried == {path.name for path in FOLDER.glob("*.py")}
    assert all(os.access(folder / primus.REHEARSAL / "bin" / name, os.X_OK) for name in ("pip", "rocm-smi"))
    assert "PYTHONPATH" not in (folder / "env.sh").read_text()  # of this machine
    assert launch([*REHEARSED, "rehearse=train", f"bundle={folder}"]) == 0  # over itself
    assert launch([*REHEARSED, "rehearse=layout", f"bundle={folder}"]) == 2


def test_a_bundles_run_is_a_rehearsed_record_and_installs_nothing(tmp_path: Path) -> None:
    """On a box of stubs: what its run_pretrain.sh finds in its environment, and what becomes of the log."""
    rocm, folder = box(tmp_path / "box"), tmp_path / "bundle"
    given = ("rehearse=train", "precision=fp8", f"framework.checkout={rocm.checkout}")
    assert launch([*REHEARSED, *given, f"bundle={folder}"]) == 0
    said = "fp8 is not rehearsed: bf16 runs in its place"
    assert said in (folder / "README.txt").read_text()
    script = rocm.checkout / "examples" / "run_pretrain.sh"
    seen = 'printf "seen %s\\n" "$(command -v pip)" "$ROCM_HOME" "$TPRIMAT_PROBE" "$ROCR_VISIBLE_DEVICES" "$DATA_PATH"'
    lines = ["pip install -r requirements.txt --quiet", seen]
    script.write_text("\n".join([*lines, script.read_text()]))
    code, out = rocm.run(folder)
    assert code == 0, out
    run = the_run(folder)
    reported = [line.removeprefix("seen ") for line in out.splitlines() if line.startswith("seen ")]
    kept = run / "primus"
    expected = [folder / "rehearsal" / "bin" / "pip", kept / "rocm", run / "probe", -1, kept / "data"]
    assert reported == [str(part) for part in expected]
    assert "left out: pip install -r requirements.txt --quiet" in out
    assert (run / "primus" / "rocm" / "lib").is_dir()
    assert parse_logs([str(run / "train.log"), "-o", str(tmp_path / "record")]) == 0
    record = read(tmp_path / "record")
    assert (record.status, record.provenance) == ("completed", "rehearsed")
    assert {"speed", "fp8"} <= record.not_rehearsed.keys() and said in record.notes
    assert record.shrunk["num_layers"] == {"asked": 32, "ran": 4}
    assert {step.step_time_s for step in record.steps} == {step.memory_bytes for step in record.steps} == {None}


def test_a_dry_run_says_beforehand_what_is_not_the_real_thing(capsys: pytest.CaptureFixture[str]) -> None:
    given = [*REHEARSED, "rehearse=train", "precision=fp8", "dry_run=true"]
    assert launch(given) == 0
    shown = capsys.readouterr().out
    assert "\nwarning       fp8 is not rehearsed: bf16 runs in its place\n" in shown
    assert "\nshrunk        num_layers: 32, here 4\n" in shown and "\nnot rehearsed speed: " in shown
    assert launch([*given, "--json"]) == 0
    (reported,) = json.loads(capsys.readouterr().out)
    assert reported["rehearsal"]["notes"][-1] == "fp8 is not rehearsed: bf16 runs in its place"


def test_the_commands_of_a_rocm_box() -> None:
    env = {**os.environ, "PATH": f"{BIN}:{Path(sys.executable).parent}:{os.environ['PATH']}"}
    env |= {"PRIMUS_GPU_MODEL": "MI300X", "GPUS_PER_NODE": "2"}

    def reported(*argv: str) -> tuple[int, str]:
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    assert reported("pip", "install", "-r", "/nowhere/requirements.txt") == (0, "")
    assert reported("pip", "--no-such-option")[0] != 0  # pip's own answer
    assert reported("python3-config", "--extension-suffix") == (0, f"{sysconfig.get_config_var('EXT_SUFFIX')}\n")
    assert reported("python3-config", "--libs")[0] == 2
    assert reported("rocm-smi", "--showproductname")[1].split()[-1] == "MI300X"
    assert reported("rocm-smi", "--showid")[1].count("GUID") == 2
    assert reported("rocm-smi", "--showmeminfo", "vram", "-d=0")[1].count("Memory (B)") == 2
    assert reported("rocm-smi", "--showpower")[0] == 2


def test_how_primus_is_entered() -> None:
    """A container is not rehearsed."""
    entry = ("framework.entry=container", "image=rocm/primus:v26.5")
    assert rehearsed("rehearse=train", *entry).env["PRIMUS_ENTRY"] == "run_pretrain"
    plan = rehearsed("rehearse=train", "framework.entry=direct", "framework.python=/opt/primus/bin/python")
    assert (plan.env["PRIMUS_ENTRY"], plan.env["PRIMUS_PYTHON"]) == ("direct", "/opt/primus/bin/python")
    assert plan.setup[0][0] == "/opt/primus/bin/python"


def test_a_rope_scaling_that_primus_cannot_have_is_declared() -> None:
    """Found by the probe: the key is never read. Llama 3.2 has a factor of 32."""
    for model, declared in (("llama", []), ("llama32_1b", [8.0])):
        plan = make_plan(
            load_experiment("platform=amd", "framework=primus", f"model={model}", "layout=data_parallel"), HOST
        )
        assert "rope_scaling_factor" not in written(plan)
        assert [d.value for d in plan.declared if d.key == "rope_scaling_factor"] == declared


def test_a_release_that_is_not_known_is_refused() -> None:
    with pytest.raises(ConfigError, match="release of Primus whose keys are not known"):
        rehearsed("rehearse=train", "framework.release=v31.4")
