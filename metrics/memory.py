"""Memory at its peak, of each kind that was reported, and its share of the device.

The source is that of the step times: ours where our mark stands at the steps, else the framework's.
"""

from __future__ import annotations

from collections.abc import Mapping

from metrics.basis import Basis, Metric, Metrics
from metrics.quantity import Quantity

_GB = 1e9
# Kind: what a step calls it (memory_kind), and names among its further numbers. From the most that is taken to the
# least: the device's own count includes other processes and libraries; the allocator reserves more than
# tensors use.
_KINDS: Mapping[str, tuple[str, ...]] = {
    "device": ("hip", "device", "rocm_memory_used_bytes", "hip_memory_used_bytes"),
    "reserved": ("reserved", "max_memory_reserved_bytes"),
    "allocated": ("allocated", "max_memory_allocated_bytes"),
}
_TOTALS = ("hip_memory_total_bytes", "rocm_memory_total_bytes")


def _peak_memory(basis: Basis) -> Quantity:
    """Return the peak as the steps report it. The unit names the kind; mixed kinds give no number."""
    kinds = [kind for kind in basis.memory if "memory" not in kind]
    unit = f"bytes ({kinds[0]})" if len(kinds) == 1 and kinds[0] else "bytes"
    return Quantity.of(basis.memory[kinds[0]] if len(kinds) == 1 else None, unit, basis.times.clock)


def _peak_of(kind: str) -> Metric:
    return lambda basis: Quantity.of(_largest(basis, _KINDS[kind]), "bytes", basis.times.clock)


def _largest(basis: Basis, names: tuple[str, ...]) -> float | None:
    return max((basis.memory[name] for name in names if name in basis.memory), default=None)


def _share(basis: Basis) -> Quantity:
    kind, peak = _fullest(basis)
    room = _device_memory(basis)
    if peak is None or room.value is None:
        return Quantity(None, "%", basis.times.clock, note=kind if peak is None else room.note)
    share = 100 * peak / room.value
    note = f"{kind}, of {room.value / _GB:,.1f} GB, {room.note}"
    if share > 100:
        what = f"impossible: {share:.0f} % {note}; check: the device, GB or GiB"
        return Quantity(None, "%", basis.times.clock, note=what)
    return Quantity.of(share, "%", basis.times.clock, note)


def _headroom(basis: Basis) -> Quantity:
    (_, peak), room, share = _fullest(basis), _device_memory(basis), _share(basis)
    if peak is None or room.value is None or share.value is None:
        return Quantity(None, "bytes", basis.times.clock, note=share.note)
    return Quantity.of(room.value - peak, "bytes", basis.times.clock, share.note)


def _fullest(basis: Basis) -> tuple[str, float | None]:
    """Return the most inclusive kind that was reported, and its peak; or why there is none."""
    for kind, names in _KINDS.items():
        if (peak := _largest(basis, names)) is not None:
            return kind, peak
    return "host memory" if _peak_memory(basis).value is not None else "no memory reported", None


def _device_memory(basis: Basis) -> Quantity:
    """Return the memory of one device by the driver or the log, else by its data sheet (a little less, it may be)."""
    reported = basis.record.environment.get("device_memory_bytes")
    if type(reported) is int and reported > 0:
        return Quantity.of(reported, "bytes", "log", "by the driver")
    if total := _largest(basis, _TOTALS):
        return Quantity.of(total, "bytes", "log", "by the log")
    sheet = basis.device.memory_gb if basis.device else None
    if basis.device is None or sheet is None:
        return Quantity(None, "bytes", "spec", note="device memory unknown")
    return Quantity.of(sheet * _GB / basis.device.devices_per_package, "bytes", "spec", basis.device.name)


MEMORY: Metrics = {
    "peak_memory_bytes": _peak_memory,
    **{f"peak_memory_{kind}_bytes": _peak_of(kind) for kind in _KINDS},
    "peak_memory_percent": _share,
    "memory_headroom_bytes": _headroom,
}
