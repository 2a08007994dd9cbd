"""Where a run happens and with which code: the facts that only the launching side knows."""

from __future__ import annotations

import hashlib
import os
import platform
import socket
import sys
from contextlib import suppress
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from conf import devices
from conf.threads import cores_here
from conf.vendors import output
from launchers.plan import Host

ROOT = Path(__file__).parent.parent
_OURS = (
    "conf",
    "launchers",
    "parsers",
    "metrics",
    "compare",
    "estimate",
    "measure",
    "corpora",
    "shell",
    "tensorprimat",
)
_SOURCES = (".py", ".yaml", ".csv", ".sh")
"""A new file of ours in these folders takes part in a run before git tracks it."""


def host() -> Host:
    """Return this machine, with the cores that this process may use."""
    return Host(python=sys.executable, cpu_count=cores_here(), ci="CI" in os.environ)


def now() -> str:
    """Return the time as ISO 8601 in UTC."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def commit() -> str | None:
    """Return the Git commit of our own code, with a hash of its changes and of files that git does not track (nor
    ignore); else the installed version, else None."""
    git = ("git", "-C", str(ROOT))
    head = output(*git, "rev-parse", "HEAD").strip() if (ROOT / ".git").exists() else ""
    if head:
        names = output(*git, "ls-files", "-z", "--others", "--exclude-standard", "--", *_OURS).split("\0")
        ours = (name for name in names if name.endswith(_SOURCES) and (ROOT / name).is_file())
        new = "".join(f"{name} {hashlib.sha256((ROOT / name).read_bytes()).hexdigest()}\n" for name in ours)
        changes = output(*git, "diff", "HEAD").encode() + new.encode("utf-8", "replace")
        return head + (f"-changed-{hashlib.sha256(changes).hexdigest()[:8]}" if changes else "")
    with suppress(PackageNotFoundError):
        return version("tensorprimat")
    return None


def facts() -> dict[str, Any]:
    """Return host, operating system, and the accelerators as the driver's tool reports them."""
    here = devices.find()
    # the same facts that a machine without our Python reports
    lines = output("bash", str(ROOT / "shell" / "environment.sh")).splitlines()
    where: dict[str, Any] = {"host": socket.gethostname(), "os": platform.platform()}
    where |= dict(line.split("=", 1) for line in lines if "=" in line)
    if here.vendor:
        where |= {"device_name": here.names[0], "device_count": here.count, "driver": here.driver}
        where |= {"device_memory_bytes": here.memory_bytes}
    return where
