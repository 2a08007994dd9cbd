"""Faults that benchmarks/planted.py plants, those that are `quick` in its table: each is found, and named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.planted import ERROR, Case, Keep, cases, judged, kept, row


@pytest.fixture(scope="module")
def keep(tmp_path_factory: pytest.TempPathFactory) -> Keep:
    """Return the folder of all runs: a reference serves many faults."""
    return Keep(tmp_path_factory.mktemp("planted"))


@pytest.mark.nvidia
@pytest.mark.parametrize("case", [case for case in cases() if case.quick], ids=lambda case: case.name)
def test_a_planted_fault_is_found_and_named(case: Case, keep: Keep) -> None:
    answer = judged(case, keep)
    assert answer.right(case), row(case, answer)
    assert answer.code == 3


@pytest.mark.nvidia
def test_a_run_that_dies_is_no_fault_that_was_found(keep: Keep) -> None:
    case = Case(name="dies", part="forward", says="NVTE_FUSED_ATTN", environ={"NVTE_FUSED_ATTN": "0"})
    answer = judged(case, keep)
    assert (answer.code, answer.right(case), answer.word(case)) == (ERROR, False, "ERROR")
    assert "NVTE_FUSED_ATTN" in answer.said[0]


@pytest.mark.nvidia
def test_a_fault_that_our_own_count_of_parameters_refuses_is_found(keep: Keep) -> None:
    case = Case(name="vocabulary", part="settings", says="parameters", set={"padded_vocab_size": 1152})
    answer = judged(case, keep)
    assert (answer.code, answer.word(case)) == (3, "right"), row(case, answer)


@pytest.mark.parametrize(
    ("status", "exit_code", "of_planted", "of_clean"),
    [("completed", 0, True, True), ("failed", 0, True, False), ("failed", 1, False, False)],
)
def test_a_refused_run_is_kept_only_with_its_fault(
    tmp_path: Path, status: str, exit_code: int, of_planted: bool, of_clean: bool
) -> None:
    run = tmp_path / "t" / "run"
    run.mkdir(parents=True)
    (run / "run.json").write_text(json.dumps({"status": status, "exit_code": exit_code, "cause": "refused"}))
    for planted, is_kept in ((True, of_planted), (False, of_clean)):
        if is_kept:
            assert kept(tmp_path, planted=planted) == run
        else:
            with pytest.raises(ValueError, match=r"failed: refused$"):
                kept(tmp_path, planted=planted)
