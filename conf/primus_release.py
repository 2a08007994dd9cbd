"""Which release of Primus is checked out: one names keys otherwise than the next (launchers/settings/primus.yaml)."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from conf.compose import flattened

TIMEOUT_S = 20


def is_checkout(path: str) -> bool:
    """Whether Primus is there."""
    return (Path(path) / "primus" / "cli" / "main.py").is_file()


def checked_out(path: str) -> str:
    """v26.5 of a checkout of branch release/v26.5 or tag v26.5.0; of any other, which launchers/primus.py refuses, what
    git says of it and where it is."""
    names = _git(path, "log", "-1", "--format=%D")
    if match := re.search(r"(?:^|[ /])v(\d+\.\d+)(?:\.\d+)?(?:,|\s*$)", names):
        return f"v{match[1]}"
    commit = _git(path, "describe", "--tags", "--always")
    return f"{commit} ({names}) at {path}" if commit else f"no git history at {path}"


def settled(config: Mapping[str, Any], chosen: Sequence[str]) -> tuple[list[str], list[str]]:
    """framework.release as it is checked out at cluster.primus_path, where the user did not say, and why.

    chosen: the user's overrides.
    """
    path = config["cluster"]["primus_path"]
    if config["framework"]["name"] != "primus" or not is_checkout(path):
        return [], []
    asked, release = config["framework"]["release"], checked_out(path)
    if any(o.lstrip("+").startswith("framework.release=") for o in chosen):
        return [], [] if asked == release else [f"Primus {asked}, as asked: checked out is {release}"]
    return list(flattened({"framework": {"release": release}})), [f"Primus {release}: checked out at {path}"]


def _git(path: str, *words: str) -> str:
    """What git says of the tree at `path`, and of none that it lies in; nothing where it says nothing."""
    git = ("git", "-c", "safe.directory=*", "-C", path, *words)
    alone = os.environ | {"GIT_CEILING_DIRECTORIES": str(Path(path).resolve().parent)}
    try:
        done = subprocess.run(git, capture_output=True, text=True, check=False, timeout=TIMEOUT_S, env=alone)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
