"""The makers of devices: one module each, whose VENDOR is all that the project knows of that maker. To add one:
CONTRIBUTING.md. Nothing else branches on a vendor's name."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from conf.errors import Problem, object_of

TIMEOUT_S = 20
CPU = "cpu"
IN_USE = 0.05
"""Share of a device's memory that somebody uses: an idle driver takes less."""
READ_ONLY = {"intel": "intel", "tpu": "google"}  # makers whose logs are read, and on whose devices nothing is run


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
    """One maker of devices. A subclass sets what differs; the defaults are those of a maker without accelerators. name:
    as in conf/platform, conf/hardware and in a record. order: the lowest is looked for first; a framework of several
    vendors is rehearsed as on the first of them. aliases: what foreign records call it. tool: the program that lists
    the devices. visibility: environment variables that limit the devices a process sees, and that a run on the CPU
    empties. device_prefixes: first words of its device names, in lower case. torch_device: what the ranks' torch must
    be built for: cpu, cuda or rocm. container_arguments: runtime → arguments that pass the devices in.
    kubernetes_resource: what a pod asks for to get a device."""

    name: str = CPU
    order: int = 50
    aliases: tuple[str, ...] = ()
    tool: str = ""
    visibility: tuple[str, ...] = ()
    device_prefixes: tuple[str, ...] = ()
    torch_device: str = "cpu"
    container_arguments: Mapping[str, tuple[str, ...]] = {}
    kubernetes_resource: str | None = None

    def devices(self) -> Devices | None:
        """Return the devices that `tool` lists, None where it is missing, fails or lists none."""
        return None

    def users(self) -> Iterator[str]:
        """Yield what uses a device now: programs where the system shows them, else memory that is in use."""
        yield from ()

    def power_limits_w(self) -> tuple[float, ...]:
        """Return the limit of power that is set of each device, W; empty where the tool does not state it."""
        return ()

    def node_problems(self, gpus_per_node: int) -> Iterator[Problem]:
        """Yield why so many GPUs of one node would give no fair figure."""
        yield from ()


@cache
def vendors() -> Mapping[str, Vendor]:
    """Return every vendor by name, in the order in which they are looked for. ConfigError: a module without one."""
    modules = sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))
    known = (object_of(__name__, module, "VENDOR", Vendor) for module in modules)
    return {vendor.name: vendor for vendor in (*sorted(known, key=lambda vendor: vendor.order), Vendor())}


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
    return next(makers, READ_ONLY.get(first))


def is_number(text: str) -> bool:
    """Return whether a tool's cell holds a number, and not `N/A`."""
    return text.replace(".", "", 1).isdigit()


def output(*argv: str, env: Mapping[str, str] | None = None) -> str:
    """Return what the command `argv` prints, an empty string where it is missing, fails or hangs. env: all of its
    environment (None: ours)."""
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(
            argv, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=True, env=env
        ).stdout
    return ""
