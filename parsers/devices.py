"""Whose a device is, by the name that it tells."""

from __future__ import annotations

from collections.abc import Mapping

_VENDORS: Mapping[str, str] = {"nvidia": "nvidia", "amd": "amd", "intel": "intel", "tpu": "google"}


def vendor_of(device_name: str) -> str | None:
    """nvidia, amd, intel or google; None where the name does not begin with its maker's."""
    words = device_name.replace("(R)", " ").lower().split()
    return _VENDORS.get(words[0]) if words else None
