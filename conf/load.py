"""Override strings → Experiment: pick the platform that is here, apply its own overrides, validate, resolve."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from conf import devices, frameworks
from conf.compose import CONF, choice_problems, choices, compose, entry, flattened
from conf.errors import ConfigError, Problem, listed
from conf.facts import check_hardware, find_row
from conf.freeze import freeze
from conf.resolve import Declared, Experiment, resolve
from conf.schema import Data, Model, Request
from conf.vendors import CPU, accelerators
from conf.vocabulary import read_yaml, requested

SPLITS = {"synthetic": "100,0,0", "prefix": "100,0,0", "mock": "1,1,1"}


def load(overrides: Sequence[str]) -> Experiment:
    """See conf.load_experiment."""
    common, side, reasons = settle(overrides)
    request = _request(compose([*common, *side]))
    experiment = resolve(request, tuple(reasons))
    if not side:
        return experiment
    without = _request(compose(common))
    declared = _declared(experiment, request, without, f"per_platform.{request.platform.name}")
    return replace(experiment, declared=declared)


def settle(overrides: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """Return the overrides with platform and hardware settled, those for this platform alone, and the reasons."""
    settled, reasons = spelled_out(overrides), []
    if _platform_is_auto(settled):
        vendor, because = _platform(settled)
        reasons.append(f"platform {vendor}: {because}")
        settled = [o for o in settled if _key(o) != "platform"] + [f"platform={vendor}"]
    config = compose(settled)
    if config["platform"]["vendor"] is not None:
        added, why = _found_hardware(config["platform"]["vendor"], settled)
        settled, reasons = settled + added, reasons + why
        settled += _small_model(settled, reasons)
    if any(re.fullmatch(r"\+{0,2}layout\.\w+_size", _key(o, plus=True)) for o in settled):
        settled.append("layout.name=explicit")  # tp2 with TP 4 is no longer tp2
    framework, why = frameworks.chosen(compose(settled))
    framework = [o for o in framework if _key(o) == "framework" or _chosen(settled, _key(o)) is None]
    settled = ([o for o in settled if _key(o) != "framework"] + framework) if framework else settled
    reasons += why
    release, why = frameworks.checked_out(compose(settled), settled)
    settled, reasons = settled + release, reasons + why
    config = compose(settled)
    side = spelled_out(flattened(config["per_platform"].get(config["platform"]["name"]) or {}))
    return settled, side, reasons


def spelled_out(overrides: Iterable[str]) -> list[str]:
    """Return `overrides` with `data=/x/y` as what it stands for: `data=prefix` and `data.path=/x/y`."""
    pairs = ((text, text.lstrip("+").partition("=")) for text in overrides)
    return [
        part
        for text, (key, _, value) in pairs
        for part in (("data=prefix", f"data.path={value}") if key == "data" and "/" in value else (text,))
    ]


def _request(config: dict[str, Any]) -> Request:
    """Return the validated request. ConfigError: every wrong key, type and fact."""
    problems: list[Problem] = []
    request = freeze(Request, config, "", problems)
    problems += check_hardware(config["hardware"])
    if request is not None:
        problems += [*_data_problems(request.data), *_vendor_problems(request), *_plain_problems(request)]
    if request is None or problems:
        raise ConfigError(*problems)
    return request  # type: ignore[no-any-return]


def _vendor_problems(request: Request) -> list[Problem]:
    hardware, platform = request.hardware, request.platform
    if platform.vendor not in (None, *accelerators()):
        hint = f"conf/vendors/{platform.vendor}.py"
        return [Problem("platform.vendor", "no such vendor", str(platform.vendor), listed(accelerators()), hint)]
    if hardware.vendor == platform.vendor:
        return []
    valid = [name for name in choices("hardware") if _hardware(name).get("vendor") == platform.vendor]
    what = f"{hardware.name} is no hardware of platform {platform.name}"
    return [Problem("hardware", what, allowed=listed(valid))]


def _data_problems(data: Data) -> Iterator[Problem]:
    """Yield what in `data` contradicts itself."""
    if data.name == "mock" and data.path is not None:
        yield Problem("data.path", "data=mock reads no files", data.path, "null")
    if data.name != "mock" and not data.path:
        hint = "data=/path/to/corpus, without .bin and .idx"
        yield Problem("data.path", f"data={data.name} needs a path", "null", hint=hint)
    if data.path and data.path.endswith((".bin", ".idx")):
        what = "a corpus is named by the path that its two files share"
        yield Problem("data.path", what, data.path, "a path without .bin and .idx", data.path[:-4])
    if data.split != SPLITS[data.name]:
        order = "another split is another order of samples"
        why = "Megatron's mock data knows no other" if data.name == "mock" else order
        yield Problem("data.split", why, data.split, SPLITS[data.name])


def _plain_problems(request: Request) -> list[Problem]:
    """Return root keys and prices that are numbers without sense, or a name that is no folder."""
    problems = [Problem("repeat", "must be at least 1", str(request.repeat))] if request.repeat < 1 else []
    if request.hang_after_s <= 0:
        problems.append(Problem("hang_after_s", "must be above 0 seconds", str(request.hang_after_s)))
    for name, price in request.price.usd_per_gpu_hour.items():
        if price <= 0:
            problems.append(Problem(f"price.usd_per_gpu_hour.{name}", "must be above 0", str(price)))
        if name not in choices("hardware"):
            problems.append(
                Problem(f"price.usd_per_gpu_hour.{name}", "no such hardware", name, listed(choices("hardware")))
            )
    if request.name is not None and not re.fullmatch(r"\w[\w.-]*", request.name):
        what = "is the name of a folder in runs_dir: letters, digits, '.', '_' and '-'"
        problems.append(Problem("name", what, repr(request.name)))
    return problems


def _declared(e: Experiment, request: Request, without: Request, reason: str) -> tuple[Declared, ...]:
    """Return the settings that the side's overrides changed, groups and derived values included."""
    try:
        before, after = requested(resolve(without, ())), requested(e)
    except ConfigError:  # what all sides share may not fit this one: hence the override
        before, after = requested(without, partial=True), requested(request, partial=True)
    changed = (name for name in after if name in before and before[name] != after[name])
    return tuple(Declared(name, after[name], reason) for name in changed)


def _key(override: str, plus: bool = False) -> str:
    key = override.partition("=")[0]
    return key if plus else key.lstrip("+")


def _chosen(overrides: Sequence[str], key: str) -> str | None:
    """Return the last value that the user gave `key`, None if none."""
    values = [o.partition("=")[2].strip("'\"") for o in overrides if _key(o) == key]
    return values[-1] if values else None


def _platform_is_auto(overrides: Sequence[str]) -> bool:
    chosen = _chosen(overrides, "platform")
    if chosen is None and _chosen(overrides, "experiment") is not None:
        return bool(compose(overrides)["platform"]["name"] == "auto")  # the experiment's file may choose
    return chosen in (None, "auto")


def _platform(overrides: Sequence[str]) -> tuple[str, str]:
    """Return the platform that platform=auto means, and why: what is here; of a rehearsal, which needs no GPU, what its
    framework runs on."""
    if not any(_key(o) in ("rehearse", "experiment") for o in overrides) or not compose(overrides)["rehearse"]:
        return devices.find().vendor or CPU, _seen()
    framework = _chosen(overrides, "framework")
    for name in accelerators():
        if framework in (None, "auto", *entry("platform", name)["platform"]["frameworks"]):
            return name, f"a rehearsal of {'its first framework' if framework in (None, 'auto') else framework}"
    return accelerators()[0], f"no platform has {framework}"


def _found_hardware(vendor: str, overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return overrides for what this machine has, where the user did not say, and their reasons."""
    here = devices.find()
    if here.vendor != vendor:
        return [], [f"hardware as configured: no {vendor} GPU is here"]
    added, reasons = [], []
    if _chosen(overrides, "hardware") is None:
        name = hardware_named(here.names[0], vendor)
        added.append(f"hardware={name if name in choices('hardware') else 'unknown'}")
        reasons.append(f"hardware {name}: {here.names[0]} is here")
    if _chosen(overrides, "gpus_per_node") is None:
        added.append(f"gpus_per_node={here.count}")
        reasons.append(f"gpus_per_node = {here.count}: all that are here")
    return added, reasons


def _small_model(overrides: Sequence[str], reasons: list[str]) -> list[str]:
    """Return the choice of the model that fits everywhere, on GPUs for which the default has no layout."""
    if any(_chosen(overrides, key) is not None for key in ("model", "layout", "experiment")):
        return []
    if any(_key(o).startswith("layout.") for o in overrides):
        return []
    request = _request(compose(overrides))
    model, hardware, gpus = request.model.name, request.hardware.name, request.world_size
    if request.layout.table and find_row(request.layout.table, model, hardware, gpus, request.precision.name):
        return []
    reasons.append(f"model llama_tiny: no layout of {model} for {gpus} × {hardware} is known")
    return ["model=llama_tiny"]


def hardware_named(device_name: str, vendor: str) -> str:
    """Return the hardware entry that lists `device_name` as the driver spells it, else the vendor's unknown GPU."""
    for choice in choices("hardware"):
        facts = _hardware(choice)
        if device_name.lower() in (name.lower() for name in facts.get("device_names") or ()):
            return choice
    return f"unknown_{vendor}"


def _hardware(name: str) -> Any:
    return read_yaml(CONF / "hardware" / f"{name}.yaml")


def model_named(name: str) -> Model | None:
    """Return conf/model/NAME.yaml by itself, as composing takes a quarter of a second; None for an alias of another.

    Raises:
        ConfigError: all that is wrong with the file.
    """
    problems = list(choice_problems("model", name))
    if problems:
        raise ConfigError(*problems)
    file = read_yaml(CONF / "model" / f"{name}.yaml")
    model = freeze(Model, file["model"], f"conf/model/{name}.yaml", problems) if "model" in file else None
    if problems:
        raise ConfigError(*problems)
    return model


def _seen() -> str:
    here = devices.find()
    if here.vendor:
        return f"{here.count} × {here.names[0]} found"
    silent = devices.silent_tools()
    return "no accelerator found" + (f" ({' and '.join(silent)} list none)" if silent else "")
