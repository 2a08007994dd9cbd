"""Faults that benchmarks/planted.py plants, those that are `quick` in its table: each is found, and named."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.planted import Case, cases, judged, row, run_reference


@pytest.fixture(scope="module")
def keep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of all runs: a reference serves many faults."""
    return tmp_path_factory.mktemp("planted")


@pytest.mark.nvidia
@pytest.mark.parametrize("case", [case for case in cases() if case.quick], ids=lambda case: case.name)
def test_a_planted_fault_is_found_and_named(case: Case, keep: Path) -> None:
    run_reference(case, keep)
    answer = judged(case, keep)
    assert answer.right(case), row(case, answer)
    assert answer.code == 3
