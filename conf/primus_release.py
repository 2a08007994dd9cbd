"""Which release of Primus is checked out: one names keys otherwise than the next (launchers/settings/primus.yaml)."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

TIMEOUT_S = 20


def is_checkout(path: str) -> bool:
    """Whether Primus is there."""
    return (Path(path) / "primus" / "cli" / "main.py").is_file()


def checked_out(path: str) -> str | None:
    """v26.5 of a checkout of branch release/v26.5 or tag v26.5.0; None of any other, or without git."""
    git = ("git", "-C", path, "log", "-1", "--format=%D")
    try:
        done = subprocess.run(git, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"(?:^|[ /])v(\d+\.\d+)(?:\.\d+)?(?:,|\s*$)", done.stdout if done.returncode == 0 else "")
    return f"v{match[1]}" if match else None


def settled(config: Mapping[str, Any], chosen: Sequence[str]) -> tuple[list[str], list[str]]:
    """framework.release as it is checked out at cluster.primus_path, where the user did not say, and why.

    chosen: the user's overrides.
    """
    path = config["cluster"]["primus_path"]
    if config["framework"]["name"] != "primus" or any(o.startswith("framework.release=") for o in chosen):
        return [], []
    release = checked_out(path) if is_checkout(path) else None
    if release is None:
        return [], []
    return [f"framework.release={release}"], [f"Primus {release}: checked out at {path}"]
