"""Bytes that torch allocates in the engine against estimate.memory: two layouts of benchmarks/engine_memory.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.engine_memory import LAYOUTS, measure

pytestmark = pytest.mark.engine


@pytest.mark.parametrize(("name", "most"), [("one", 0.02), ("recompute", 0.03), ("PP2", 0.1)])
def test_what_torch_allocates_is_predicted(name: str, most: float, tmp_path: Path) -> None:
    """A pipeline's may be more: gloo releases what was sent when its thread has time to."""
    measured = measure(LAYOUTS[name], tmp_path)
    assert [abs(error) < most for error in measured.errors] == [True, True], measured
