"""Which accelerators this machine has, as the vendors' own tools list them, and its memory. Imports no GPU library."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from functools import cache
from itertools import takewhile
from pathlib import Path

from conf.vendors import Devices, accelerators, vendor_of

NO_DEVICES = Devices(None)


@cache
def find() -> Devices:
    """Return the accelerators that are here; NO_DEVICES without any, or where their tools are missing or fail."""
    listed = next(filter(None, (vendor_of(name).devices() for name in accelerators())), NO_DEVICES)
    shown = _visible(listed.vendor)
    return listed if shown is None else (replace(listed, names=listed.names[:shown]) if shown else NO_DEVICES)


def _visible(vendor: str | None) -> int | None:
    """Return how many devices the user's environment leaves visible, the smallest of its lists; None for all."""
    lists = [os.environ[name] for name in vendor_of(vendor).visibility if name in os.environ]
    return min(map(_listed, lists), default=None)


def _listed(text: str) -> int:
    """Count the devices of such a list. As CUDA documents it, it ends at the first entry that names no device."""
    items = (item.strip() for item in text.split(","))
    return len(list(takewhile(lambda item: item and not item.startswith("-"), items)))


def silent_tools() -> tuple[str, ...]:
    """Return the vendors' tools that are installed; where `find` returns none, they listed no GPU or failed."""
    return tuple(tool for name in accelerators() if shutil.which(tool := vendor_of(name).tool))


def hidden_by() -> tuple[str, ...]:
    """Return every variable that a run on the CPU empties, so that no stack sees an accelerator."""
    return tuple(dict.fromkeys(variable for name in accelerators() for variable in vendor_of(name).visibility))


def available_memory_bytes() -> int:
    """Return the bytes of `host_memory_bytes` that are not in use now: caches of files give way."""
    import psutil

    free = int(psutil.virtual_memory().available)
    limit, used, stat = (Path("/sys/fs/cgroup") / f"memory.{name}" for name in ("max", "current", "stat"))
    if not limit.is_file() or not used.is_file() or not (text := limit.read_text(encoding="ascii").strip()).isdigit():
        return free
    lines = stat.read_text(encoding="ascii").splitlines() if stat.is_file() else []
    cached = sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
    return min(free, int(text) - int(used.read_text(encoding="ascii")) + cached)


def host_memory_bytes() -> int:
    """Return the bytes that processes can use: physical memory, or the container's limit where that is smaller."""
    import psutil

    physical = int(psutil.virtual_memory().total)
    limits = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
    for path in map(Path, limits):
        text = path.read_text(encoding="ascii").strip() if path.is_file() else ""
        if text.isdigit():
            return min(physical, int(text))
    return physical
