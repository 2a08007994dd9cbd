"""Shared by all tests: goldens, and what of the surroundings a test may rely on."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).parent.parent
GOLDEN = ROOT / "tests" / "golden"
sys.path.insert(0, str(ROOT))
settings.register_profile("untimed", deadline=None)  # no test fails for a slow machine
settings.load_profile("untimed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that train are skipped by name where the embedded extra is not installed."""
    try:
        version("megatron-core"), version("torch")
    except PackageNotFoundError as missing:
        for item in items:
            if "engine" in item.keywords:
                item.add_marker(pytest.mark.skip(reason=f"{missing.name} is not installed: make install"))


@pytest.fixture
def golden() -> Callable[[str, str], None]:
    """golden(name, text): text must equal tests/golden/NAME. `UPDATE_GOLDEN=1 pytest` accepts a change."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if os.environ.get("UPDATE_GOLDEN") == "1":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        expected = path.read_text(encoding="utf-8") if path.exists() else ""
        if text != expected:
            lines = difflib.unified_diff(expected.splitlines(), text.splitlines(), f"golden/{name}", "now", lineterm="")
            pytest.fail("\n".join([*lines, "accept the change with: UPDATE_GOLDEN=1 make test"]))

    return check
