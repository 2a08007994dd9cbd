"""Override strings → Experiment: pick the platform that is here, apply its own overrides, validate, resolve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from conf import devices
from conf.compose import choices, compose, flattened
from conf.errors import ConfigError, Problem
from conf.facts import check_hardware
from conf.freeze import freeze
from conf.resolve import Declared, Experiment, resolve
from conf.schema import Request


def load(overrides: Sequence[str]) -> Experiment:
    """See conf.load_experiment."""
    _, config, reasons = settle(overrides)
    problems: list[Problem] = []
    request = freeze(Request, config, "", problems)
    problems += check_hardware(config["hardware"])
    if request is None or problems:
        raise ConfigError(*problems)
    side = config["per_platform"].get(request.platform.name) or {}
    pairs = (entry.split("=", 1) for entry in flattened(side))
    declared = [Declared(key, value, f"per_platform.{request.platform.name}") for key, value in pairs]
    return resolve(request, tuple(declared), tuple(reasons))


def settle(overrides: Sequence[str]) -> tuple[list[str], dict[str, Any], list[str]]:
    """The overrides with platform, hardware and per-platform values settled, the composed config, and the reasons."""
    settled, reasons = list(overrides), []
    if _platform_is_auto(settled):
        vendor = devices.find().vendor or "cpu"
        reasons.append(f"platform {vendor}: {_seen()}")
        settled = [o for o in settled if not o.startswith("platform=")] + [f"platform={vendor}"]
    config = compose(settled)
    if config["platform"]["vendor"] is not None:
        added, why = _found_hardware(config["platform"]["vendor"], settled)
        settled, reasons = settled + added, reasons + why
        config = compose(settled) if added else config
    side = list(flattened(config["per_platform"].get(config["platform"]["name"]) or {}))
    if side:
        settled += side
        config = compose(settled)
    return settled, config, reasons


def _platform_is_auto(overrides: Sequence[str]) -> bool:
    chosen = [o.partition("=")[2] for o in overrides if o.startswith("platform=")]
    if not chosen and any(o.startswith("experiment=") for o in overrides):
        return bool(compose(overrides)["platform"]["name"] == "auto")  # the experiment's file may choose
    return not chosen or chosen[-1] == "auto"


def _found_hardware(vendor: str, overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Overrides for what this machine has, where the user did not say, and their reasons."""
    found = devices.find()
    if found.vendor != vendor:
        return [], [f"hardware as configured: no {vendor} GPU is here"]
    added, reasons = [], []
    if not any(o.startswith("hardware=") for o in overrides):
        name = hardware_named(found.names[0], vendor)
        added.append(f"hardware={name}")
        reasons.append(f"hardware {name}: {found.names[0]} is here")
    if not any(o.startswith("gpus_per_node=") for o in overrides):
        added.append(f"gpus_per_node={found.count}")
        reasons.append(f"gpus_per_node = {found.count}: all that are here")
    return added, reasons


def hardware_named(device_name: str, vendor: str) -> str:
    """The hardware entry that lists `device_name` (as the driver spells it), else the vendor's unknown GPU."""
    import yaml

    from conf.compose import CONF

    for entry in choices("hardware"):
        facts = yaml.safe_load((CONF / "hardware" / f"{entry}.yaml").read_text(encoding="utf-8"))
        if device_name.lower() in (name.lower() for name in facts["device_names"]):
            return str(facts["name"])
    return f"unknown_{vendor}"


def _seen() -> str:
    found = devices.find()
    return f"{found.count} × {found.names[0]} found" if found.vendor else "no accelerator found"
