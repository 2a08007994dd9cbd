"""Print what a bundle requests, and what is known of this machine: python3 bundle_marks.py BUNDLE [ENVIRONMENT.sh]

The marks make a record of the log (parsers/marks.py). A file of the bundle that is not as it was rendered is named.
ENVIRONMENT.sh: shell/environment.sh, which reports the host. Needs rank_program.py beside it."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rank_program import mark

BUNDLE = "bundle.json"


def print_marks(bundle: Mapping[str, Any], requested: Mapping[str, Any], folder: Path) -> None:
    """Print `requested`, and the facts of `bundle` (bundle.json, in `folder`) with the files that were edited since."""
    mark("requested", requested)
    changed = edited(folder, bundle.get("sha256", {}))
    mark("facts", {**bundle["facts"], **({"edited_files": changed} if changed else {})})


def edited(folder: Path, digests: Mapping[str, str]) -> list[str]:
    """Return the files of a bundle that are not as they were rendered. digests: the SHA-256 of each."""
    here = {name: path.read_bytes() if (path := folder / name).is_file() else b"" for name in digests}
    return [name for name, digest in digests.items() if hashlib.sha256(here[name]).hexdigest() != digest]


def host_facts(script: str) -> dict[str, str]:
    """Return what shell/environment.sh says; nothing where it cannot run."""
    try:
        done = subprocess.run(["bash", script], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    stated = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    if driver := stated.get("nvidia_driver", stated.get("amdgpu_driver")):
        stated["driver"] = driver
    return stated


def start_facts() -> dict[str, str]:
    """Return where and when this is started, and as which job."""
    known = {"host": os.environ.get("SLURMD_NODENAME") or socket.gethostname(), "os": platform.platform()}
    known["started_at"] = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    names = {"slurm_job_id": "SLURM_JOB_ID", "slurm_restarts": "SLURM_RESTART_COUNT"}
    return known | {fact: os.environ[name] for fact, name in names.items() if os.environ.get(name)}


def main(folder: str, script: str | None = None) -> int:
    source = Path(folder)
    bundle = json.loads((source / BUNDLE).read_text(encoding="utf-8"))
    print_marks(bundle, bundle["requested"], source)
    host = host_facts(script) if script else {}
    mark("facts", {**host, **start_facts()})
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
