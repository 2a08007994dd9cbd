"""Which accelerators this machine has, asked from the vendors' own tools. Imports no GPU library."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

from conf.schema import Vendor

TIMEOUT_S = 20


@dataclass(frozen=True, slots=True)
class Found:
    """Accelerators of one vendor. names: one a device; memory_bytes: of one, None if the tool does not say."""

    vendor: Vendor | None
    names: tuple[str, ...] = ()
    memory_bytes: int | None = None
    driver: str | None = None

    @property
    def count(self) -> int:
        return len(self.names)


NOTHING = Found(None)


@cache
def find() -> Found:
    """The accelerators that are here; NOTHING where there are none (or their tools are missing or fail)."""
    found = _nvidia() or _amd() or NOTHING
    shown = _visible(found.vendor)
    return found if shown is None else (replace(found, names=found.names[:shown]) if shown else NOTHING)


def _visible(vendor: Vendor | None) -> int | None:
    """How many devices the user's environment leaves visible, None for all: the smallest of the lists that are set."""
    hip = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")  # HIP honours CUDA's, too
    names = {"nvidia": ("CUDA_VISIBLE_DEVICES",), "amd": hip}
    lists = [os.environ[name] for name in names.get(vendor or "", ()) if name in os.environ]
    return min(map(_listed, lists), default=None)


def _listed(text: str) -> int:
    """Devices in such a list. As CUDA's documentation says, it ends at the first entry that names no device."""
    items = (item.strip() for item in text.split(","))
    return len(list(takewhile(lambda item: item and not item.startswith("-"), items)))


def silent_tools() -> tuple[str, ...]:
    """The vendors' tools that are installed; where `find` found nothing, they told of no GPU or failed."""
    return tuple(tool for tool in ("nvidia-smi", "rocm-smi") if shutil.which(tool))


def _nvidia() -> Found | None:
    query = "--query-gpu=name,memory.total,driver_version"
    text = _run("nvidia-smi", query, "--format=csv,noheader,nounits")
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.count(",") == 2]
    if not rows:
        return None
    memory = int(rows[0][1]) * 2**20 if rows[0][1].isdigit() else None  # nvidia-smi prints MiB
    return Found("nvidia", tuple(row[0] for row in rows), memory, rows[0][2])


def _amd() -> Found | None:
    """rocm-smi is in every ROCm image, also where amd-smi is not. It prints one object a card, and the driver's."""
    text = _run("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--showdriverversion", "--json")
    try:
        cards: Mapping[str, Any] = json.loads(text[text.find("{") :])  # warnings about idle GPUs come before it
    except ValueError:
        return None
    devices = [card for key, card in sorted(cards.items()) if key.startswith("card") and isinstance(card, Mapping)]
    if not devices:
        return None
    names = tuple(_name(card) for card in devices)
    memory = _first(devices[0], ("VRAM Total Memory (B)",))
    driver = _first(cards.get("system", {}), ("Driver version",))
    return Found("amd", names, int(memory) if str(memory).isdigit() else None, driver)


def _name(card: Mapping[str, Any]) -> str:
    told = (str(card[key]) for key in ("Card Series", "Card series", "Card Model", "Card model") if key in card)
    return next((name for name in told if name not in ("", "N/A")), "unknown AMD GPU")


def _first(mapping: Mapping[str, Any], keys: Iterable[str]) -> Any:
    return next((mapping[key] for key in keys if key in mapping), None)


def _run(*argv: str) -> str:
    if shutil.which(argv[0]) is None:
        return ""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def available_memory_bytes() -> int:
    """Of that memory, what is not in use now: caches of files give way."""
    import psutil

    free = int(psutil.virtual_memory().available)
    limit, used, stat = (Path("/sys/fs/cgroup") / f"memory.{name}" for name in ("max", "current", "stat"))
    if not limit.is_file() or not used.is_file() or not (text := limit.read_text(encoding="ascii").strip()).isdigit():
        return free
    lines = stat.read_text(encoding="ascii").splitlines() if stat.is_file() else []
    cached = sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
    return min(free, int(text) - int(used.read_text(encoding="ascii")) + cached)


def host_memory_bytes() -> int:
    """Memory of this host that processes can use: physical, or the container's limit where that is smaller."""
    import psutil

    physical = int(psutil.virtual_memory().total)
    limits = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
    for path in map(Path, limits):
        text = path.read_text(encoding="ascii").strip() if path.is_file() else ""
        if text.isdigit():
            return min(physical, int(text))
    return physical
