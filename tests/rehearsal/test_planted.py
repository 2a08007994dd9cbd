"""Faults that benchmarks/planted.py plants, those that are `quick` in its table: each is found, and named."""

from __future__ import annotations

import pytest

from benchmarks.planted import ERROR, Case, Keep, cases, judged, row


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
    case = Case(name="dies", part="forward", says="parameters", set={"padded_vocab_size": 1152})
    answer = judged(case, keep)
    assert (answer.code, answer.right(case), answer.word(case)) == (ERROR, False, "ERROR")
    assert "parameters" in answer.said[0]
