"""Bytes that torch allocates in the engine against estimate.memory: some layouts of benchmarks/engine_memory.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.engine_memory import LAYOUTS, measure

pytestmark = pytest.mark.engine


@pytest.mark.parametrize(
    ("name", "most"),
    [("one", 0.02), ("recompute", 0.03), ("experts", 0.02), ("PP2", 0.1), ("EP2", 0.08), ("unfused", 0.02)],
)
def test_what_torch_allocates_is_predicted(name: str, most: float, tmp_path: Path) -> None:
    """A pipeline's may be more: gloo releases what was sent when its thread has time to; and of two ranks with experts
    one has more of the tokens than the other."""
    measured = measure(LAYOUTS[name], tmp_path)
    assert [abs(error) < most for error in measured.errors] == [True, True], measured
