"""One Experiment on NeMo, Megatron-Bridge, Primus and the embedded engine: the same settings, rates, tokens and losses.

Every number is compared without a tolerance where it is read at full precision. A tolerance would hide the smaller of
the settings that test_planted.py breaks one at a time."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from parsers import Record, read
from parsers.cli import imported
from tests.drills import free_port
from tests.rehearsal.stacks import ROOT, SAME, canonical_rate, compared, found_by, interpreter, rehearsed

STACKS = ("nemo", "megatron_bridge", "primus", "megatron")
CASES = {
    "bf16 1 rank": ("precision=bf16",),
    "fp32 DP2": ("precision=fp32", "gpus_per_node=2"),
    "bf16 TP2 SP": ("layout=tp2", "gpus_per_node=2"),
    "bf16 PP2": ("layout=pp2", "gpus_per_node=2"),
}
CHECKS = ("first_weights", "inputs", "loss", "first_gradients", "grad_norm", "last_weights")
SPEEDS = ("step_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "memory_bytes", "end_monotonic_s")


@pytest.fixture(scope="module", params=CASES)
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of one run of each stack that is here, by the command of the README."""
    folder = tmp_path_factory.mktemp("four")
    variables = {"NEMO_PYTHON": interpreter("nemo"), "BRIDGE_PYTHON": interpreter("megatron_bridge")}
    stacks = STACKS if "PRIMUS_PATH" in os.environ else tuple(s for s in STACKS if s != "primus")
    argv = ("launch.py", "-m", f"framework={','.join(stacks)}", f"runs_dir={folder}", "name=t", *SAME)
    env = {**os.environ, **variables, "MASTER_PORT": str(free_port()), "HF_HUB_OFFLINE": "1"}
    command = (sys.executable, str(ROOT / argv[0]), *argv[1:], *CASES[request.param])
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=1500)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "t"


def records(runs: Path) -> dict[str, Record]:
    """Return stack → its record."""
    result = (read(path.parent) for path in runs.glob("*/run.json"))
    return {record.framework or "": record for record in result}


@pytest.mark.nvidia
def test_nothing_differs_that_is_not_declared(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, record in records(runs).items():
        assert (name, record.status, record.provenance) == (name, "completed", "rehearsed")
        declared = {entry.key for entry in record.declared}
        assert (name, [str(d) for d in record.differences if d.setting not in declared]) == (name, [])
        assert (name, record.environment["probe_never_read"]) == (name, [])
        assert record.hardware != "cpu" and record.shrunk["num_layers"]["asked"] == 32
        assert {getattr(step, speed) for step in record.steps for speed in SPEEDS} == {None}
        assert (record.effective["tensor_model_parallel_size"].file or "").startswith("probe/"), "read inside the rank"
    answer = compared(capsys, runs)
    assert found_by(answer, ("unexplained",)) == set()
    assert {check["name"]: check["state"] for check in answer["checks"]} == dict.fromkeys(
        ("lr_used", "tokens_seen", "tokens_checksum", "readings", "initialisation", *CHECKS), "equal"
    )
    assert answer["parting"] is None
    assert answer["verdict"]["word"] == "comparable"


@pytest.mark.nvidia
def test_every_rank_says_that_it_is_a_rehearsal_and_so_does_the_log_alone(runs: Path) -> None:
    for path in runs.glob("*/train.log"):
        text = path.read_text(encoding="utf-8")
        ranks = {int(line) for line in re.findall(r'\[tprimat\] rehearsal .*?rank"?:? (\d+)', text)}
        assert (path, ranks) == (path, {*range(read(path.parent).requested["world_size"])})
        assert imported(path).provenance == "rehearsed"


@pytest.mark.nvidia
def test_every_step_uses_the_same_rate(runs: Path) -> None:
    for name, record in records(runs).items():
        expected = [canonical_rate(record.requested, step) for step in range(record.requested["lr_decay_iters"])]
        assert [step.lr_used for step in record.steps] == pytest.approx(expected, rel=1e-12), name


@pytest.mark.nvidia
def test_parameters_groups_tokens_and_losses_are_equal(runs: Path) -> None:
    reported = {name: numbers(record) for name, record in records(runs).items()}
    for name, result in reported.items():
        assert (name, result) == (name, reported["nemo"])
    assert all(math.isfinite(loss) for loss in reported["nemo"]["losses"])


@pytest.mark.nvidia
def test_weights_gradients_inputs_and_optimizer_are_read_alike(runs: Path) -> None:
    """To the last bit: tensors before, in and after the steps, the norm of the gradients, what they are clipped by."""
    of_stacks = records(runs)
    engine = of_stacks["megatron"]
    for name, record in of_stacks.items():
        own, expected = record.read_back, engine.read_back
        assert own is not None and expected is not None
        assert (name, [note for note in record.notes if "probe" in note]) == (name, [])
        for kind in ("first_weights", "first_gradients", "last_weights"):
            here, there = (
                {n: tensor.checksum for n, tensor in getattr(read, kind).items()} for read in (own, expected)
            )
            assert len(here) > 10 and (name, kind, here) == (name, kind, there)
        assert (name, own.batches) == (name, expected.batches) and {batch.masked for batch in own.batches} == {0}
        assert [step.grad_norm for step in record.steps] == [step.grad_norm for step in engine.steps]
        clips = [step.metrics["clip_coefficient"] for step in engine.steps]
        assert [step.metrics["clip_coefficient"] for step in record.steps] == pytest.approx(clips, rel=1e-9)
        assert own.optimizer is not None and expected.optimizer is not None
        kernel = "torch.optim.adamw.AdamW" if name == "megatron" else "tprimat_standin.FusedAdam"
        assert (name, own.optimizer.kind) == (name, kernel)
        assert own.optimizer.weight_decays == (record.setting("weight_decay"),) * len(record.steps)
        assert (name, own.optimizer.state) == (name, expected.optimizer.state)
        for n, tensor in own.drawn.items():  # two draws by one method
            assert tensor.std == pytest.approx(own.first_weights[n].std, rel=0.05), (name, n)
        assert (name, own.drawn.keys()) == (name, own.first_weights.keys())


def numbers(record: Record) -> dict[str, Any]:
    """Return what must be equal to the last bit."""
    names = ("parameters", "parameters_decayed", "parameters_undecayed")
    return {
        **{name: record.environment[name] for name in names},
        "tokens": [step.metrics["tokens_checksum"] for step in record.steps],
        "losses": [step.loss for step in record.steps],
    }


@pytest.mark.nvidia
def test_a_wrong_padding_is_counted(tmp_path: Path) -> None:
    """A model of another size is no run of this experiment at all."""
    record, _ = rehearsed(tmp_path, "megatron", wrong={"padded_vocab_size": 1152})
    assert record.status == "failed"
    assert record.cause is not None
    total, _, which = record.cause.partition(" by our own count: ")
    assert total == "rank 0 has 853,120 parameters, and 820,352"
    assert which.startswith("embedding.word_embeddings.weight: (1152, 128), expected (1024, 128); output_layer.weight:")
    assert {d.setting for d in record.differences} == {"padded_vocab_size"}
