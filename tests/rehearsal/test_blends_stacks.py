"""One blend, with its validations, on NeMo, Megatron-Bridge, Primus (where PRIMUS_PATH names one) and the engine: the
same samples in the same order, and so losses that are bit-equal, in training and in validation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from parsers import Record, read
from tests.drills import free_port
from tests.rehearsal.stacks import ROOT, SAME, compared, found_by, interpreter

pytestmark = pytest.mark.nvidia
STACKS = ("nemo", "megatron_bridge", "megatron")
WORK = ("training.eval_interval=4", "training.eval_iters=2", 'data.split="90,10,0"', "model.vocab_size=1000")
CASES = {
    "1 rank": (400, ()),
    "DP2": (400, ("gpus_per_node=2",)),
    "TP2": (400, ("layout=tp2", "gpus_per_node=2")),
    "several epochs": (20, ()),
}


def blended(folder: Path, documents: int, stacks: tuple[str, ...], more: tuple[str, ...]) -> dict[str, Record]:
    """Rehearse a blend of two corpora of so many documents on `stacks`; return the record of each."""
    for seed, name in ((1, "wiki"), (2, "code")):
        words = ("--vocab-size", "1000", "--seed", str(seed), "--documents", str(documents))
        made = (sys.executable, str(ROOT / "launchers/ranks/corpus.py"), "--prefix", str(folder / name), *words)
        subprocess.run(made, check=True, capture_output=True)
    blend = f"data.blend={{{folder}/wiki: 0.7, {folder}/code: 0.3}}"
    argv = ("launch.py", "-m", f"framework={','.join(stacks)}", f"runs_dir={folder}", "name=t", *SAME, *WORK, blend)
    variables = {"NEMO_PYTHON": interpreter("nemo"), "BRIDGE_PYTHON": interpreter("megatron_bridge")}
    env = {**os.environ, **variables, "MASTER_PORT": str(free_port()), "HF_HUB_OFFLINE": "1"}
    command = (sys.executable, str(ROOT / argv[0]), *argv[1:], *more)
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=1500)
    assert done.returncode == 0, done.stdout + done.stderr
    return {r.framework or "": r for r in (read(path.parent) for path in (folder / "t").glob("*/run.json"))}


def check(records: dict[str, Record], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that all read what was requested, lost and validated the same."""
    firsts = {record.environment.get("data_first_batch") for record in records.values()} - {None}
    assert firsts == {record.environment["data_first_batch_predicted"] for record in records.values()}
    for name, record in records.items():
        declared = {entry.key for entry in record.declared}
        assert (name, [str(d) for d in record.differences if d.setting not in declared]) == (name, [])
        inside = {p.iteration for p in record.validations if p.split == "valid"}
        assert (name, inside) == (name, {4, 8})
    answer = compared(capsys, folder / "t")
    assert found_by(answer, ("unexplained",)) == set(), json.dumps(answer, indent=1)[:2000]
    states = {one["name"]: one["state"] for one in answer["checks"]}
    assert {states[name] for name in ("tokens_checksum", "inputs", "loss", "grad_norm", "validation")} == {"equal"}
    reasons = {one["name"]: one["reason"] for one in answer["checks"]}
    added_up = "losses in another order" if "primus" in records else "bit-equal"  # by an evaluator of its own
    assert "bit-equal" in reasons["loss"]
    assert "bit-equal" in reasons["validation"] or added_up in reasons["validation"]


@pytest.mark.parametrize("case", CASES)
def test_a_blend_is_the_same_training_on_every_stack(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    documents, more = CASES[case]
    records = blended(tmp_path, documents, STACKS, more)
    assert set(records) == set(STACKS)
    check(records, tmp_path, capsys)
    epochs = {tuple(record.environment["data_epochs"]) for record in records.values()}
    assert (case == "several epochs") == (max(max(counts) for counts in epochs) > 1) and len(epochs) == 1


@pytest.mark.parametrize("case", ["1 rank", "DP2", "TP2"])
def test_primus_reads_the_same_blend(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    interpreter("primus")  # skipped by name without
    documents, more = CASES[case]
    stacks = (*STACKS, "primus") if case == "1 rank" else ("megatron", "primus")
    records = blended(tmp_path, documents, stacks, more)
    assert set(records) == {*stacks}
    check(records, tmp_path, capsys)
