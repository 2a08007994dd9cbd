"""Rehearsals of the stacks that are not built on Megatron-Core go through the same judgement as the others: equal ones
are comparable with the engine within what is known of the pair, and what is planted is found by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.plain import planted_names
from tests.rehearsal.stacks import ROOT, compared, found_by, rehearsed

FP32 = "precision=fp32"
QUICK = ("labels shifted twice", "norms decay")
"""The faults that `make test-stacks` plants; the others are wide."""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rehearsed(tmp_path_factory.mktemp("engine"), "megatron", FP32)[1]


@pytest.mark.engine
def test_plain_pytorch_is_judged_as_every_rehearsal_is(
    engine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record, path = rehearsed(tmp_path, "fsdp2", FP32)
    assert record.status == "completed"
    assert [note for note in record.notes if note.startswith("probe")] == []
    answer = compared(capsys, engine, path)
    assert answer["verdict"]["word"] == "comparable", answer["verdict"]
    checks = {one["name"]: one for one in answer["checks"]}
    assert {one["state"] for one in checks.values()} == {"equal"}
    assert "between" in checks["loss"]["reason"]
    assert "2.0e-06 nats/token" in checks["loss"]["reason"]


@pytest.mark.stacks
@pytest.mark.wide
def test_biases_in_bf16_round_by_a_band_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Judge them by it: those of keys have no gradient but rounding, and made the pair not comparable (2.4e-3)."""
    words = ("precision=bf16", "model=qwen25_7b")
    paths = [rehearsed(tmp_path / stack, stack, *words)[1] for stack in ("megatron", "fsdp2")]
    answer = compared(capsys, *paths)
    assert answer["verdict"]["word"] == "comparable", answer["verdict"]


@pytest.mark.stacks
def test_all_stacks_in_one_comparison(engine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stacks = ("fsdp2", "hf", "deepspeed", "torchtitan")
    paths = [rehearsed(tmp_path / stack, stack, FP32)[1] for stack in stacks]
    answer = compared(capsys, engine, *paths)
    assert answer["verdict"]["word"] == "comparable", answer["verdict"]


@pytest.mark.stacks
@pytest.mark.wide
def test_deepspeeds_tensor_parallel_ranks_are_read_as_others_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (FP32, "gpus_per_node=4", "layout.tensor_model_parallel_size=2", "layout.sequence_parallel=false")
    paths = [rehearsed(tmp_path / stack, stack, *words)[1] for stack in ("megatron", "deepspeed")]
    answer = compared(capsys, *paths)
    assert answer["verdict"]["word"] == "comparable", answer["verdict"]


@pytest.mark.stacks
@pytest.mark.parametrize(
    "wrong", [pytest.param(name, marks=() if name in QUICK else pytest.mark.wide) for name in planted_names.FOUND]
)
def test_what_is_planted_in_hugging_face_is_found_by_name(
    wrong: str, engine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(planted_names.VARIABLE, wrong)
    ours = ROOT / "launchers" / "ranks" / "hf_ranks.py"
    record, path = rehearsed(tmp_path, "hf", FP32, program=(ours, ROOT / "tests" / "plain" / "planted_hf.py"))
    assert record.status == "completed", record.cause
    answer: dict[str, Any] = compared(capsys, engine, path)
    assert answer["verdict"]["word"] == "not comparable"
    checks, text = planted_names.FOUND[wrong]
    assert checks <= found_by(answer)
    assert text in str(answer["parting"]) + str(answer["verdict"]), answer["parting"]


@pytest.mark.stacks
@pytest.mark.wide
@pytest.mark.parametrize("wrong", planted_names.IN_TORCHTITAN)
def test_what_is_planted_in_torchtitan_is_found_by_name(
    wrong: str, engine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANTED_IN_TORCHTITAN", wrong)
    programs = ROOT / "launchers/ranks/torchtitan_ranks.py", ROOT / "tests/plain/planted_torchtitan.py"
    record, path = rehearsed(tmp_path, "torchtitan", FP32, program=programs)
    assert record.status == "completed", record.cause
    answer: dict[str, Any] = compared(capsys, engine, path)
    assert answer["verdict"]["word"] == "not comparable"
    checks, text = planted_names.IN_TORCHTITAN[wrong]
    assert checks <= found_by(answer)
    assert text in str(answer["parting"]) + str(answer["verdict"]), answer["parting"]
