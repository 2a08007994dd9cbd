"""NVIDIA's stacks, each in an environment of its own beside the repository's; a test is skipped where it is missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from conf.errors import ConfigError
from conf.frameworks import versions

ROOT = Path(__file__).parent.parent.parent
BRIDGE = os.environ.get("TPRIMAT_BRIDGE_PYTHON", str(ROOT / ".venv-bridge" / "bin" / "python"))
NEMO = os.environ.get("TPRIMAT_NEMO_PYTHON", str(ROOT / ".venv-nemo" / "bin" / "python"))


@pytest.fixture(scope="session")
def nemo_python() -> str:
    """The interpreter that has nemo_toolkit 2.7.3 (TPRIMAT_NEMO_PYTHON names another than make nemo's)."""
    try:
        result = versions(("nemo_toolkit", "megatron-core"), NEMO)
    except ConfigError:
        result = {}
    if result.get("nemo_toolkit") != "2.7.3":
        pytest.skip(f"nemo_toolkit 2.7.3 is not in {NEMO}: make nemo")
    return NEMO


@pytest.fixture(scope="session")
def bridge_python() -> str:
    """The interpreter that has megatron-bridge 0.3.1 (TPRIMAT_BRIDGE_PYTHON names another than make bridge's)."""
    try:
        result = versions(("megatron-bridge", "megatron-core"), BRIDGE)
    except ConfigError:
        result = {}
    if result.get("megatron-bridge") != "0.3.1":
        pytest.skip(f"megatron-bridge 0.3.1 is not in {BRIDGE}: make bridge")
    return BRIDGE
