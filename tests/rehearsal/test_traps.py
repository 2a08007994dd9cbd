"""Each trap of ../shared/reference/rehearsal.md, section 4, planted in a stack, and named by the probe, audit or check.

The numbers are those of its table (9: tests/nvidia). Traps that do not hide each other are planted in one run."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from conf import load_experiment
from conf.errors import ConfigError
from launchers.frameworks.nemo import FRAMEWORK as NEMO
from launchers.rank_modules import rank_module
from launchers.rehearse import FOLDER
from parsers import Record
from tests.launch.fake_rocm import checkout
from tests.launch.primus_cases import planned
from tests.rehearsal.probed import rank_file
from tests.rehearsal.stacks import GONE, compared, found_by, interpreter, rehearsed

BOGUS_NEMO = Path(__file__).parent / "programs" / "nemo_bogus.py"
TYPOS = {"lr_warmup_itres": 5, "grad_clip": 0.5, "norm_epsilon": 1.0e-5}  # the last obsolete from v26.2 on


def ran(record: Record, setting: str) -> Any:
    """Return what the probe, or else the log, says of a setting."""
    return record.effective[setting].value


# without a stack


def test_1_a_checkout_is_searched_before_the_run_for_keys_that_nothing_reads(tmp_path: Path) -> None:
    _, plan = planned("platform=amd", "framework=primus", "model=llama")
    import yaml

    experiment = yaml.safe_load(plan.files["primus.yaml"])
    experiment["modules"]["pre_trainer"]["overrides"] |= TYPOS
    named = {
        result.where
        for result in rank_module("primus_check").findings(checkout(tmp_path), experiment, "v26.5", said="v26.5")
    }
    assert named == TYPOS.keys()


def test_12_what_a_vendor_dies_of_is_refused_before() -> None:
    for wrong, said in (
        ("training.global_batch_size=9", "global_batch_size"),
        ("optimizer.lr_warmup_iters=50", "lr_warmup_iters"),
        ("optimizer.lr=fast", "lr"),
        ("+training.train_itres=5", "train_itres"),
    ):
        with pytest.raises(ConfigError, match=said):
            load_experiment("rehearse=train", "framework=nemo", "model=llama", "training.train_iters=50", wrong)


def test_15_the_helper_library_is_called_as_the_python_that_trains_finds_it(tmp_path: Path) -> None:
    """Megatron's Makefile takes the first python3-config in PATH; here it is another Python's."""
    other = tmp_path / "python3-config"
    other.write_text("#!/bin/sh\necho .cpython-302-x86_64-linux-gnu.so\n")
    other.chmod(0o755)
    makefile = tmp_path / "Makefile"
    makefile.write_text("LIBEXT = $(shell python3-config --extension-suffix)\nname:\n\t@echo helpers_cpp$(LIBEXT)\n")

    def name(*front: Path) -> str:
        parts = (*front, tmp_path, Path(sys.executable).parent)
        env = {**os.environ, "PATH": ":".join([*map(str, parts), os.environ["PATH"]])}
        argv = ("make", "-s", "-C", str(tmp_path), "name")
        return subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout.strip()

    assert name() == "helpers_cpp.cpython-302-x86_64-linux-gnu.so"
    assert name(FOLDER / "bin") == f"helpers_cpp{sysconfig.get_config_var('EXT_SUFFIX')}"


# with the stacks


PLANTED: dict[str, tuple[str, dict[str, Any], str]] = {
    "engine": ("megatron", {}, ""),
    # traps 1, 2, 5, 8, 11 and 14
    "primus": (
        "primus",
        {**TYPOS, "lr_warmup_init": 0.0, "use_rope_scaling": False, "adam_eps": 1.0e-5, "dataloader_type": "cyclic"}
        | {"ddp_average_in_collective": True},
        "--globl_batch_size 8 --lr-warmup-iters 5",
    ),
    # traps 6 and 11: what its recipes and defaults have where nothing is said
    "bridge": (
        "megatron_bridge",
        {"scheduler.start_weight_decay": GONE, "scheduler.end_weight_decay": GONE, "ddp.average_in_collective": GONE},
        "",
    ),
}
Rehearsal = tuple[Record, Path]


def _planted(name: str) -> Any:
    @pytest.fixture(scope="module", name=name)
    def run(tmp_path_factory: pytest.TempPathFactory) -> Rehearsal:
        framework, wrong, words = PLANTED[name]
        record, path = rehearsed(tmp_path_factory.mktemp(name), framework, wrong=wrong, words=words)
        assert record.status == "completed", record.cause
        return record, path

    return run


engine, primus, bridge = map(_planted, PLANTED)


@pytest.mark.nvidia
def test_1_and_2_keys_that_primus_never_reads(primus: Rehearsal) -> None:
    never_read = set(primus[0].environment["probe_never_read"])
    assert {*TYPOS, "globl_batch_size", "lr-warmup-iters"} <= never_read
    assert not never_read & {"lr", "adam_eps", "weight_decay", "seed", "dataloader_type"}


@pytest.mark.nvidia
def test_3_7_and_10_virtual_stages_and_a_vocabulary_that_are_not_those_requested(tmp_path: Path) -> None:
    """Primus' obvious key for virtual stages is inert, and its NullTokenizer adds one to the vocabulary."""
    layout = ("rehearse=layout", "model=llama_tiny", "layout=pp2", "gpus_per_node=2")
    vp = "layout.virtual_pipeline_model_parallel_size=2"
    wrong = {"num_virtual_stages_per_pipeline_rank": GONE, "virtual_pipeline_model_parallel_size": 2, "vocab_size": 512}
    record, path = rehearsed(tmp_path, "primus", *layout, vp, wrong=wrong)
    named = {d.setting: (d.requested, d.effective) for d in record.differences}
    assert named["virtual_pipeline_model_parallel_size"] == (2, None)
    assert len(rank_file(path)["chunks"]) == 1
    assert named["padded_vocab_size"] == (512, 1024)
    more = 512 * 128  # rows of one matrix a stage
    requested = record.environment["parameters_by_rank"]["0"] - more
    cause = record.cause or ""
    assert f"{requested + more:,} parameters" in cause
    assert f"{requested:,} by our own count" in cause


@pytest.mark.nvidia
def test_4_nemos_strategy_takes_any_name(tmp_path: Path) -> None:
    record, _ = rehearsed(tmp_path, "nemo", program=(NEMO.program, BOGUS_NEMO))
    assert record.status == "completed"
    assert any(name.rpartition(".")[2] == "bogus" for name in record.environment["probe_never_read"])


@pytest.mark.nvidia
def test_5_the_first_step_has_no_learning_rate(primus: Rehearsal, engine: Rehearsal) -> None:
    used, least = [step.lr_used for step in primus[0].steps], [step.lr_used for step in engine[0].steps]
    assert used[0] == 0.0
    assert least[0] == pytest.approx(3.0e-4 / 4, rel=1e-12)
    assert used[3:] == pytest.approx(least[3:], rel=1e-12)
    printed = [step.lr for step in primus[0].steps]  # of the next step
    assert printed[1:-1] == pytest.approx(used[2:], rel=1e-6)


@pytest.mark.nvidia
def test_6_bridges_weight_decay_is_the_schedulers(bridge: Rehearsal) -> None:
    assert bridge[0].requested["weight_decay"] == 0.1
    assert ran(bridge[0], "weight_decay") == 0.033
    assert "weight_decay" in {d.setting for d in bridge[0].differences}


@pytest.mark.nvidia
def test_8_rope_scaling_is_seen_in_the_frequencies(primus: Rehearsal, engine: Rehearsal) -> None:
    assert ran(primus[0], "use_rope_scaling") is False
    lowest = [rank_file(path)["rope_frequencies"][-1] for _, path in (primus, engine)]
    assert lowest[0] / lowest[1] == pytest.approx(8.0)


@pytest.mark.nvidia
def test_11_defaults_of_two_stacks_are_two(bridge: Rehearsal, engine: Rehearsal) -> None:
    assert (ran(bridge[0], "average_in_collective"), ran(engine[0], "average_in_collective")) == (True, False)


@pytest.mark.nvidia
def test_12_a_rate_without_a_dot_is_a_string_to_primus(tmp_path: Path) -> None:
    record, _ = rehearsed(tmp_path, "primus", wrong={"lr": "3e-4"})
    assert (record.status, record.exit_code) == ("failed", 1)
    assert "TypeError" in (record.cause or "")


@pytest.mark.nvidia
def test_13_nemo_with_the_core_that_pip_resolves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bridge's environment has that one, Megatron-Core 0.16.1."""
    ask = "import importlib.util as u; print(u.find_spec('megatron.core').submodule_search_locations[0])"
    argv = (interpreter("megatron_bridge"), "-c", ask)
    core = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
    (tmp_path / "first" / "megatron").mkdir(parents=True)
    (tmp_path / "first" / "megatron" / "core").symlink_to(core)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "first"))
    record, _ = rehearsed(tmp_path / "runs", "nemo")
    assert record.status == "failed"
    assert "no_weight_decay_cond" in (record.cause or "")


@pytest.mark.nvidia
def test_all_that_was_planted_is_found_by_the_audit(
    primus: Rehearsal, bridge: Rehearsal, engine: Rehearsal, capsys: pytest.CaptureFixture[str]
) -> None:
    """5, 6, 8, 11 and 14 between the groups: settings, rates used and tokens."""
    result = found_by(compared(capsys, primus[1], engine[1]))
    assert {"use_rope_scaling", "adam_eps", "average_in_collective", "lr_warmup_init"} <= result
    assert {"lr_used", "tokens_checksum", "loss"} <= result
    result = found_by(compared(capsys, bridge[1], engine[1]))
    assert {"weight_decay", "average_in_collective", "loss"} <= result
