"""A bundle on a fake ROCm box: rendered, started with `bash run.sh`, its log read into a record."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import yaml

from conf import devices
from parsers import Record, read
from parsers.cli import main as parse_logs
from tensorprimat.launch import main as launch
from tests.drills import PATIENCE_S
from tests.launch.fake_rocm import Box, box, terminate, the_run, wait_for

pytestmark = pytest.mark.long

SMALL = (
    *("model=llama_tiny", "platform=amd", "framework=primus"),
    *("training.train_iters=6", "training.global_batch_size=16", "optimizer.lr_warmup_iters=1"),
)

ACCEPT = "# what primus-cli is given, an argument a line; accept a change with: UPDATE_GOLDEN=1 make test\n"
CARDS = {f"card{n}": {"Card Series": "AMD Instinct MI300X", "VRAM Total Memory (B)": "206141652992"} for n in range(8)}
ROCM_SMI_EIGHT = f"#!/bin/sh\ncat <<END\n{json.dumps(CARDS)}\nEND\n"


@pytest.fixture
def rocm(tmp_path: Path) -> Box:
    return box(tmp_path / "box")


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "bundle"
    assert launch([*SMALL, "layout=data_parallel", "image=rocm/primus:v26.5", f"bundle={folder}"]) == 0
    return folder


def record_of(bundle: Path, tmp_path: Path) -> Record:
    """Return the record that the log of the only run of a bundle becomes."""
    assert parse_logs([str(the_run(bundle) / "train.log"), "-o", str(tmp_path / "record")]) == 0
    return read(tmp_path / "record")


def processes_below(folder: Path) -> list[psutil.Process]:
    """Return what still runs of a bundle."""
    return [p for p in psutil.process_iter(["cmdline"]) if any(str(folder) in part for part in p.info["cmdline"] or ())]


def test_a_bundle_becomes_a_record_that_equals_its_request(rocm: Box, bundle: Path, tmp_path: Path) -> None:
    code, out = rocm.run(bundle, POWER_INTERVAL_S="0.2", FAKE_STEP_S="0.2")
    assert code == 0, out
    run = the_run(bundle)
    command = out.strip().splitlines()[-1]
    assert command.endswith(f"python -m parsers {run}/train.log -o {run}")
    record = record_of(bundle, tmp_path)
    assert (record.status, len(record.steps), record.requested["train_iters"]) == ("completed", 6, 6)
    assert [str(d) for d in record.differences] == []
    assert {"num_layers", "vocab_size", "norm_epsilon", "lr_warmup_init", "data_path", "split"} <= set(record.effective)
    assert record.effective["data"].value == "synthetic"  # at the path of the request
    assert record.environment["device_name"].startswith("AMD Instinct MI300X")
    assert record.image == "rocm/primus:v26.5"
    assert record.framework_version == "26.5.0"  # as Primus prints it; else what git describes
    assert "kernel" in record.environment
    samples = [json.loads(line) for line in (run / "power.jsonl").read_text().splitlines()]
    assert {sample["device"] for sample in samples} == set(range(8))
    assert {sample["power_w"] for sample in samples} == {700}


def test_a_folder_that_primus_forces_for_checkpoints_is_no_difference(rocm: Box, bundle: Path, tmp_path: Path) -> None:
    """Up to v26.4 `save: null` becomes a folder; the other keys keep it empty."""
    assert rocm.run(bundle, FAKE_SAVE="/primus/checkpoints")[0] == 0
    record = record_of(bundle, tmp_path)
    assert record.effective["save_interval"].value is None
    assert [str(d) for d in record.differences] == []


def test_a_key_that_primus_overwrites_is_named(rocm: Box, tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    given = (*SMALL, "layout=data_parallel", "framework.options={manual_gc: true, fp8_margin: 2}")
    assert launch([*given, f"bundle={folder}"]) == 0
    script = rocm.checkout / "examples" / "run_pretrain.sh"
    script.write_text(script.read_text().replace("    save) ", "    manual_gc) value=False ;;\n    save) "))
    assert rocm.run(folder)[0] == 0
    named = [note for note in record_of(folder, tmp_path).notes if "ignored" in note]
    assert named == ["manual_gc = True was written and ignored: the arguments printed say False"]


def test_a_failing_rank_keeps_its_exit_code_and_its_cause(rocm: Box, bundle: Path, tmp_path: Path) -> None:
    code, out = rocm.run(bundle, FAKE_FAILS_AT="3")
    assert code == 1
    assert '[tprimat] facts {"exit_code": 1}' in out
    record = record_of(bundle, tmp_path)
    assert (record.status, len(record.steps)) == ("failed", 2) and "HIP error" in (record.cause or "")
    assert processes_below(bundle) == []


@pytest.mark.usefixtures("heeds_ctrl_c")  # a shell cannot trap what was ignored when it began
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all_of_it_and_is_in_the_log(rocm: Box, bundle: Path, number: signal.Signals) -> None:
    log = bundle / "log.txt"
    process = rocm.start(bundle, FAKE_STEP_S="30", TRAIN_LOG=str(log))
    wait_for(log, "end of arguments")
    code, out = terminate(process, number)
    assert code == 128 + signal.SIGTERM, out  # what the training died of
    assert f'"signal": "{number.name}"' in log.read_text()
    assert psutil.wait_procs(processes_below(bundle), timeout=PATIENCE_S)[1] == []


def test_a_killed_bundle_leaves_no_sampler(rocm: Box, bundle: Path) -> None:
    log = bundle / "log.txt"
    process = rocm.start(bundle, FAKE_STEP_S="2", TRAIN_LOG=str(log), POWER_INTERVAL_S="0.2")
    wait_for(log, "end of arguments")
    process.kill()
    process.wait()
    sampling = [p for p in processes_below(bundle) if any("sample_power.sh" in part for part in p.info["cmdline"])]
    _, alive = psutil.wait_procs(sampling, timeout=PATIENCE_S)
    assert alive == []
    for rest in processes_below(bundle):
        rest.kill()


def test_without_a_sampler_the_run_goes_on_and_says_so(rocm: Box, bundle: Path) -> None:
    for name in ("amd-smi", "rocm-smi"):
        (rocm.root / "bin" / name).write_text("#!/bin/sh\nexit 1\n")
    code, _ = rocm.run(bundle)
    assert code == 0
    run = the_run(bundle)
    assert "power and memory are not sampled" in (run / "train.log").read_text()
    assert not (run / "power.jsonl").exists()


def test_overrides_are_recomputed_recorded_or_refused(rocm: Box, bundle: Path) -> None:
    code, out = rocm.run(bundle, TRAIN_ITERS="4", NNODES="2")
    assert code == 0, out
    run = the_run(bundle)
    overrides = yaml.safe_load((run / "primus.yaml").read_text())["modules"]["pre_trainer"]["overrides"]
    assert (overrides["train_iters"], overrides["lr_decay_iters"]) == (4, 4)
    marks = [line for line in (run / "train.log").read_text().splitlines() if line.startswith("[tprimat] requested ")]
    requested = json.loads(marks[0].partition("requested ")[2])
    assert (requested["train_iters"], requested["world_size"], requested["data_parallel_size"]) == (4, 16, 16)
    shutil.rmtree(bundle / "runs")
    code, out = rocm.run(bundle, TRAIN_ITERS="1")
    assert code == 2
    assert "render again" in out
    assert not any((bundle / "runs").iterdir()) or not (the_run(bundle) / "primus.yaml").exists()


def test_bad_input_is_exit_code_2_and_nothing_started(rocm: Box, bundle: Path) -> None:
    for name, value, said in (
        *(("PRIMUS_PATH", "/nowhere", "is not a checkout of Primus"), ("TRAIN_ITERS", "many", "found: 'many'")),
        *(("GPUS_PER_NODE", "6", "RCCL"), ("PRIMUS_ENTRY", "podman", "allowed: run_pretrain")),
        ("TRAIN_LOG", "/nowhere/train.log", "cannot be written"),
    ):
        code, out = rocm.run(bundle, RUN_DIR=f"runs/{name}", **{name: value})
        assert (code, said in out, "iteration" in out) == (2, True, False), out


def test_a_checkout_that_lacks_a_key_is_refused_before_the_training(rocm: Box, bundle: Path) -> None:
    preset = rocm.checkout / "primus/configs/modules/megatron/base.yaml"
    preset.write_text(preset.read_text().replace("dataloader_type", "dataloader_kind"))
    (rocm.checkout / "primus/train.py").write_text("")
    code, out = rocm.run(bundle)
    assert code == 2
    assert "dataloader_type: no code of this checkout reads it" in out
    shutil.rmtree(bundle / "runs")
    assert rocm.run(bundle, PRIMUS_CHECK="0")[0] == 0


def test_launch_runs_primus_and_records_it(rocm: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in rocm.environment(FAKE_STEP_S="0.5").items():
        monkeypatch.setenv(name, value)
    (rocm.root / "bin" / "rocm-smi").write_text(ROCM_SMI_EIGHT)
    devices.find.cache_clear()
    given = ("model=llama_tiny", "platform=amd", "training.train_iters=4", "optimizer.lr_warmup_iters=1")
    try:
        assert launch([*given, "layout=data_parallel", f"runs_dir={tmp_path / 'runs'}"]) == 0
    finally:
        devices.find.cache_clear()
    (run,) = (tmp_path / "runs" / "llama_tiny-amd").glob("dp8*")
    record = read(run)
    assert (record.framework, record.status, len(record.steps)) == ("primus", "completed", 4)
    assert [str(d) for d in record.differences] == []
    assert (run / "power.jsonl").stat().st_size > 0


def test_a_dry_run_says_what_it_would_do_and_leaves_nothing(rocm: Box, bundle: Path) -> None:
    before = sorted(bundle.rglob("*"))
    code, out = rocm.run(bundle, DRY_RUN="1", TRAIN_ITERS="5")
    assert code == 0
    assert "train_iters: 5" in out
    assert sorted(bundle.rglob("*")) == before


def test_one_visibility_variable_is_left(rocm: Box, bundle: Path) -> None:
    (rocm.checkout / "examples" / "run_pretrain.sh").write_text("env | grep VISIBLE; exit 0\n")
    _, out = rocm.run(bundle, HIP_VISIBLE_DEVICES="4,5", CUDA_VISIBLE_DEVICES="0,1", GPU_DEVICE_ORDINAL="0,1")
    visible = [line for line in out.splitlines() if "VISIBLE" in line]
    assert visible == ["ROCR_VISIBLE_DEVICES=4,5"]


@pytest.mark.parametrize("entry", ["direct", "container", "slurm"])
def test_primus_cli_which_prints_what_it_passes_on_gets_no_secret(
    rocm: Box, bundle: Path, entry: str, golden: Callable[[str, str], None]
) -> None:
    code, out = rocm.run(bundle, PRIMUS_ENTRY=entry, HF_TOKEN="hf_very_secret", DOCKER_IMAGE="another")
    assert code == 0, out
    arguments, _, _ = out.partition("-- environment")
    assert entry in arguments
    assert "hf_very_secret" not in out
    assert ("NCCL_PXN_DISABLE" in arguments) == (entry != "direct")
    assert "DOCKER_IMAGE" not in out
    command = arguments[arguments.index(f"\n{entry}\n") + 1 :]
    for path, name in ((the_run(bundle), "RUN"), (bundle, "BUNDLE"), (rocm.root, "HOME")):
        command = command.replace(str(path), name)
    golden(f"primus/primus_cli_{entry}.txt", ACCEPT + command)


def test_two_runs_of_one_bundle_share_the_corpus(rocm: Box, bundle: Path) -> None:
    assert rocm.run(bundle, RUN_DIR="runs/a")[0] == 0
    made = (bundle / "data" / "corpus.bin").stat().st_mtime_ns
    assert rocm.run(bundle, RUN_DIR="runs/b")[0] == 0
    assert (bundle / "data" / "corpus.bin").stat().st_mtime_ns == made
    code, out = rocm.run(bundle, RUN_DIR="runs/b")
    assert code == 2
    assert "has a run already" in out


def test_a_checkout_whose_release_git_does_not_state_is_refused_on_the_box(rocm: Box, bundle: Path) -> None:
    shutil.rmtree(rocm.checkout / ".git")
    code, out = rocm.run(bundle)
    assert code == 2 and f"found: {rocm.checkout}: no git history; allowed: v26.5" in out
    assert "try: PRIMUS_RELEASE=v26.5 bash run.sh" in out
    shutil.rmtree(bundle / "runs")
    assert rocm.run(bundle, PRIMUS_RELEASE="v26.4")[0] == 2
    shutil.rmtree(bundle / "runs")
    assert rocm.run(bundle, PRIMUS_RELEASE="v26.5")[0] == 0
