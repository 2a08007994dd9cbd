"""Power and energy of a run's GPUs: measured where the record has it, else the data sheet's TDP, marked as assumed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from msgspec.structs import replace

from metrics.basis import Basis, Metrics, count
from metrics.quantity import Quantity, shown
from metrics.speed import SPEED
from parsers.record import Power

JOULES_PER_WH = 3600
DISAGREEMENT = 0.05
"""Between counter and integrated power: above it one of them is wrong, as Zeus reports."""


def _power_w_per_gpu(basis: Basis) -> Quantity:
    """Return the mean power of one device, without host and building. TDP is what a GPU may draw, not what it drew."""
    device, windows = basis.device, basis.record.power
    if basis.record.provenance == "rehearsed":
        return Quantity(None, "W/GPU", "assumed")
    if (measured := _measured_power(basis)).value is not None:
        return measured
    # A node's power includes its hosts and fans, and is not divided among the GPUs here.
    node = any(window.kind == "node" for window in windows)
    why = "only the node's power was measured" if node else "no power was measured"
    if device is None or device.tdp_w is None:
        return Quantity(None, "W/GPU", "assumed", note=f"{why}, no TDP known")
    return Quantity.of(device.tdp_w / device.devices_per_package, "W/GPU", "assumed", f"TDP of {device.name}: {why}")


def _measured_power(basis: Basis) -> Quantity:
    """Return the mean power of one device while it trained, W; by its own sensor, else by that of its board."""
    warmup = basis.times.warmup.count
    windows = [_of_the_job(window, basis) for window in basis.record.power]
    usable = [window for window in windows if window.gpus and window.seconds and _energy_j(window) is not None]
    for kind in ("gpu", "board"):
        if chosen := [window for window in usable if window.kind == kind]:
            return _mean_power(_steady(chosen, warmup), warmup)
    return Quantity(None, "W/GPU", "measured")


def _of_the_job(window: Power, basis: Basis) -> Power:
    """Return the window with its number of GPUs: Zeus sums over all GPUs of the job without a count."""
    everything = window.kind == "gpu" and window.gpus is None
    return replace(window, gpus=count(basis.record, "world_size")) if everything else window


def _steady(windows: Sequence[Power], warmup: int) -> list[Power]:
    """Return the windows after the warm-up where they do not overlap; else, or without steps, the longest."""
    placed = sorted((w for w in windows if _first(w) >= warmup and w.last_step is not None), key=_first)
    if placed and all((a.last_step or 0) < _first(b) for a, b in pairwise(placed)):
        return placed
    return [max(placed or windows, key=lambda window: window.seconds or 0.0)]


def _first(window: Power) -> int:
    return window.first_step or 0


def _mean_power(windows: Sequence[Power], warmup: int) -> Quantity:
    device_seconds = sum((w.seconds or 0.0) * (w.gpus or 0) for w in windows)
    energy = sum(_energy_j(w) or 0.0 for w in windows)
    notes = [f"{windows[0].kind} power by {windows[0].source}", *filter(None, map(_cross_check, windows))]
    if any(window.first_step is None for window in windows):
        notes.append("not aligned to the steps: idle time may be in it")
    elif any(_first(window) < warmup for window in windows):
        notes.append("the warm-up among it")
    return Quantity.of(energy / device_seconds, "W/GPU", "measured", "; ".join(dict.fromkeys(notes)))


def _energy_j(window: Power) -> float | None:
    """Return the counter's energy, or the integrated power where the two differ: counters are known to be wrong."""
    if window.energy_counter_j and not _cross_check(window):
        return window.energy_counter_j
    if window.energy_integrated_j:
        return window.energy_integrated_j
    return window.mean_power_w * window.seconds if window.mean_power_w and window.seconds else None


def _cross_check(window: Power) -> str:
    """Return what is wrong with the energy counter, empty where nothing is."""
    counter, integrated = window.energy_counter_j, window.energy_integrated_j
    if not counter or not integrated or abs(counter / integrated - 1) <= DISAGREEMENT:
        return ""
    off = shown(100 * (counter / integrated - 1), 3)
    return f"its energy counter is {off} % off the power integrated, and not used"


def _energy_j_per_token(basis: Basis) -> Quantity:
    power, rate = _power_w_per_gpu(basis), SPEED["tokens_per_s_per_gpu"](basis)
    if not rate.value:
        return Quantity(None, "J/token", power.source, note=power.note)
    return power.times(1 / rate.value, "J/token", rate.source, power.note)


def _tokens_per_wh(basis: Basis) -> Quantity:
    energy = _energy_j_per_token(basis)
    return energy.under(JOULES_PER_WH, "tokens/Wh", energy.note)


ENERGY: Metrics = {
    "power_w_per_gpu": _power_w_per_gpu,
    "energy_j_per_token": _energy_j_per_token,
    "tokens_per_wh": _tokens_per_wh,
}
