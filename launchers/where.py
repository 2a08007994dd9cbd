"""Where a run happens and with which code: the facts that only the launching side knows."""

from __future__ import annotations

import hashlib
import platform
import socket
import subprocess
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from conf import devices

ROOT = Path(__file__).parent.parent


def now() -> str:
    """Return the time as ISO 8601 in UTC."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def commit() -> str | None:
    """Return the Git commit of our own code, with a hash of its changes; else the installed version, else None."""
    head = _git("rev-parse", "HEAD") if (ROOT / ".git").exists() else ""
    if head:
        changes = _git("diff", "HEAD")
        return head + (f"-changed-{hashlib.sha256(changes.encode()).hexdigest()[:8]}" if changes else "")
    try:
        return version("tensorprimat")
    except PackageNotFoundError:
        return None


def facts() -> dict[str, Any]:
    """Return host, operating system, and the accelerators as the driver's tool reports them."""
    found = devices.find()
    where: dict[str, Any] = {"host": socket.gethostname(), "os": platform.platform(), **_environment()}
    if found.vendor:
        where |= {"device_name": found.names[0], "device_count": found.count, "driver": found.driver}
        where |= {"device_memory_bytes": found.memory_bytes}
    return where


def _environment() -> dict[str, str]:
    """What shell/environment.sh finds: the same facts that a box without our Python reports."""
    lines = _output("bash", str(ROOT / "shell" / "environment.sh")).splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def _git(*arguments: str) -> str:
    return _output("git", "-C", str(ROOT), *arguments)


def _output(*argv: str) -> str:
    """What the command prints; nothing if it is missing, fails or hangs."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
