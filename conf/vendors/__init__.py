"""The makers of devices: one module each, whose VENDOR is all that the project knows of that maker.

To add one: a module here, conf/platform/NAME.yaml, and a line in shell/power_tools for the power that its tool reports.
Nothing else branches on a vendor's name. Its GPUs are files in conf/hardware, the environment variables of its GPUs
conf/tables/NAME_env.yaml, where it needs any. Standard library only: `platform=auto` reads this before anything else.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

from conf.errors import Problem

TIMEOUT_S = 20
CPU = "cpu"
_READ_ONLY = {"intel": "intel", "tpu": "google"}  # makers whose logs are read, and on whose devices nothing is run


@dataclass(frozen=True, slots=True)
class Devices:
    """The accelerators of this machine. vendor: its name, None without any. names: one a device, as the driver spells
    it. memory_bytes: of one device, None if the tool does not report it."""

    vendor: str | None
    names: tuple[str, ...] = ()
    memory_bytes: int | None = None
    driver: str | None = None

    @property
    def count(self) -> int:
        return len(self.names)


class Vendor:
    """One maker of devices. A subclass sets what differs; the defaults are those of a maker without accelerators."""

    name: str
    """As in conf/platform, conf/hardware and in a record."""
    order: int = 50
    """The lowest is looked for first; a framework of several vendors is rehearsed as on the first of them."""
    aliases: tuple[str, ...] = ()
    """Other names that foreign records have for it."""
    tool: str = ""
    """The program that lists the devices, as messages name it."""
    visibility: tuple[str, ...] = ()
    """Environment variables that limit the devices a process sees. A run on the CPU empties them."""
    device_prefixes: tuple[str, ...] = ()
    """First words of its device names, in lower case."""
    torch_device: str = "cpu"
    """The device that the ranks' torch must be built for: cpu, cuda or rocm."""
    container_arguments: Mapping[str, tuple[str, ...]] = {}
    """Container runtime → arguments that pass the devices in."""

    def devices(self) -> Devices | None:
        """Return the devices that `tool` lists, None where it is missing, fails or lists none."""
        return None

    def node_problems(self, gpus_per_node: int) -> Iterator[Problem]:
        """Yield why so many GPUs of one node would give no fair figure."""
        yield from ()


@cache
def vendors() -> Mapping[str, Vendor]:
    """Return every vendor by name, in the order in which they are looked for."""
    modules = sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))
    known: list[Vendor] = [import_module(f"{__name__}.{module}").VENDOR for module in modules]
    return {vendor.name: vendor for vendor in sorted(known, key=lambda vendor: vendor.order)}


def vendor_of(name: str | None) -> Vendor:
    """Return the vendor called `name` (None: the CPU's). KeyError: no such vendor."""
    return vendors()[name or CPU]


def accelerators() -> tuple[str, ...]:
    """Return the names of the vendors that make accelerators."""
    return tuple(name for name in vendors() if name != CPU)


def vendor_named(text: str) -> str | None:
    """Return the name of the vendor that a foreign record calls `text`, None if no vendor is called so."""
    return next((name for name in accelerators() if text in (name, *vendors()[name].aliases)), None)


def maker_of(device_name: str) -> str | None:
    """Return the maker of the device that a log calls `device_name`, None where the name does not begin with it."""
    first = next(iter(device_name.replace("(R)", " ").lower().split()), "")
    makers = (name for name in accelerators() if first in vendors()[name].device_prefixes)
    return next(makers, _READ_ONLY.get(first))


def output(*argv: str, env: Mapping[str, str] | None = None) -> str:
    """Return what the command `argv` prints, an empty string where it is missing, fails or hangs. env: all of its
    environment (None: ours)."""
    if shutil.which(argv[0]) is None:
        return ""
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=False, env=env
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
