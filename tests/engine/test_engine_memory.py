"""Bytes that torch allocates in the engine against estimate.memory: two layouts of benchmarks/engine_memory.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.engine_memory import LAYOUTS, measure

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("name", ["one", "PP2"])
def test_what_torch_allocates_is_predicted(name: str, tmp_path: Path) -> None:
    measured = measure(LAYOUTS[name], tmp_path)
    assert [abs(error) < 0.02 for error in measured.errors] == [True, True], measured
