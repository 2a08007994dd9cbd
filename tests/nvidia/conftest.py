"""NVIDIA's stacks, each in an environment of its own beside the repository's; a test is skipped where it is missing."""

from __future__ import annotations

import pytest

from conf.errors import ConfigError
from conf.frameworks import versions
from tests.rehearsal.stacks import interpreter


@pytest.fixture(scope="session")
def nemo_python() -> str:
    """Return the interpreter that has nemo_toolkit 2.7.3."""
    return _with("nemo", "nemo_toolkit", "2.7.3")


@pytest.fixture(scope="session")
def bridge_python() -> str:
    """Return the interpreter that has megatron-bridge 0.3.1."""
    return _with("megatron_bridge", "megatron-bridge", "0.3.1")


def _with(stack: str, package: str, release: str) -> str:
    python = interpreter(stack)
    try:
        result = versions((package, "megatron-core"), python)
    except ConfigError:
        result = {}
    if result.get(package) != release:
        pytest.skip(f"{package} {release} is not in {python}: make {'nemo' if stack == 'nemo' else 'bridge'}")
    return python
