"""Which accelerators this machine has, as the vendors' own tools list them, and its memory. Imports no GPU library."""

from __future__ import annotations

import os
import platform
import shutil
from dataclasses import replace
from functools import cache
from itertools import takewhile
from pathlib import Path

from conf.vendors import Devices, accelerators, vendor_of

NO_DEVICES = Devices(None)
CGROUPS = (
    ("", "max", "current", "inactive_file"),
    ("memory/", "limit_in_bytes", "usage_in_bytes", "total_inactive_file"),
)
"""By version, 2 and 1: the folder, and the names of its limit, of what is in use and of cached files in that."""


@cache
def find() -> Devices:
    """Return the accelerators that are here; NO_DEVICES without any, or where their tools are missing or fail."""
    listed = next(filter(None, (vendor_of(name).devices() for name in accelerators())), NO_DEVICES)
    lists = [os.environ[name] for name in vendor_of(listed.vendor).visibility if name in os.environ]
    shown = min(map(_listed, lists), default=len(listed.names))  # the user's environment may leave fewer visible
    return replace(listed, names=listed.names[:shown]) if shown else NO_DEVICES


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


def processor() -> str:
    """Return the name of this machine's CPU as /proc/cpuinfo has it, else its architecture."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines() if cpuinfo.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def available_memory_bytes() -> int:
    """Return the bytes of `host_memory_bytes` that are not in use now: caches of files give way."""
    import psutil

    free = int(psutil.virtual_memory().available)
    for folder, limit, used, cached in CGROUPS:
        most, now = cgroup_memory(limit, folder), cgroup_memory(used, folder)
        if most.isdigit() and now:
            counts = dict(line.split() for line in cgroup_memory("stat", folder).splitlines())
            free = min(free, int(most) - int(now) + int(counts.get(cached, 0)))
    return max(0, free)


def host_memory_bytes() -> int:
    """Return the bytes that processes can use: physical memory, or the container's limit where that is smaller."""
    import psutil

    limits = (cgroup_memory(limit, folder) for folder, limit, *_ in CGROUPS)
    return min([int(psutil.virtual_memory().total), *(int(limit) for limit in limits if limit.isdigit())])


def cgroup_memory(name: str, folder: str = "") -> str:
    """Return what this cgroup says of its memory, empty where it says nothing."""
    path = Path(f"/sys/fs/cgroup/{folder}memory.{name}")
    return path.read_text(encoding="ascii").strip() if path.is_file() else ""
