"""Who made a device, by its name."""

from __future__ import annotations

from conf.vendors import accelerators, vendor_of

_NO_MODULE = {"intel": "intel", "tpu": "google"}  # makers whose logs are read and on whose devices nothing is run


def maker_of(device_name: str) -> str | None:
    """Return the maker of the device that a log calls `device_name`, None where the name does not begin with it."""
    first = next(iter(device_name.replace("(R)", " ").lower().split()), "")
    makers = (name for name in accelerators() if first in vendor_of(name).device_prefixes)
    return next(makers, _NO_MODULE.get(first))
