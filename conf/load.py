"""Override strings → Experiment: pick the platform that is here, apply its own overrides, validate, resolve. A sweep
(`-m key=a,b`, the axes of a grid) is several experiments, expanded as Hydra expands it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from conf import devices, frameworks
from conf.compose import choices, compose, entry, flattened, parsed_override, read_choice
from conf.errors import ConfigError, Problem, listed
from conf.facts import check_hardware, find_row, hardware, named_by_driver
from conf.freeze import frozen
from conf.recipes import Case, fitting
from conf.resolve import Declared, Experiment, resolve
from conf.schema import BEST, IDENTICAL, METHODS, Data, Model, Request
from conf.secret import SECRET, in_texts, under
from conf.vendors import CPU, accelerators
from conf.vocabulary import leaves, read_yaml, requested

# Docker takes what begins with a dash as an option, and primus-cli splits its words.
_IMAGE = re.compile(r"[\w./~][\w./:@#+~-]*", re.ASCII)
_Made = TypeVar("_Made")
MOCK_SPLIT = "1,1,1"
_SPLIT = re.compile(r"\d+(\.\d+)?,\d+(\.\d+)?,\d+(\.\d+)?", re.ASCII)


def load(overrides: Sequence[str]) -> Experiment:
    """Return the experiment that `overrides` describe, as conf.load_experiment does."""
    common, side, reasons = settle(overrides)
    request = _request(compose([*common, *side]))
    experiment = resolve(request, tuple(reasons))
    if not side:
        return experiment
    without = _request(compose(common))
    declared = _declared(experiment, request, without, f"per_platform.{request.platform.name}")
    return replace(experiment, declared=(*experiment.declared, *declared))


def settle(overrides: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """Return the overrides with platform and hardware settled, those for this platform alone, and the reasons."""
    if (layout := _chosen(overrides, "layout")) in METHODS and _chosen(overrides, "method") not in (None, layout):
        what = f"layout={layout} is the older spelling of method={layout}, and the method is another"
        raise ConfigError(
            Problem("layout", what, f"method={_chosen(overrides, 'method')}", hint="leave one of them out")
        )
    typed = _chosen(overrides, "training.global_batch_size")
    if typed is not None and _chosen(overrides, "batch") == "vendor":
        what = "batch=vendor keeps each recipe's own, and this is another"
        raise ConfigError(Problem("training.global_batch_size", what, typed, hint="leave one of them out"))
    settled, reasons = spelled_out(overrides), list[str]()
    if _platform_is_auto(settled):
        platform, because = _platform(settled)
        reasons.append(f"platform {platform}: {because}")
        settled = [*(o for o in settled if _key(o) != "platform"), f"platform={platform}"]
    if (vendor := compose(settled)["platform"]["vendor"]) is not None:
        settled = [*settled, *_found_hardware(vendor, settled, reasons)]
        settled = [*settled, *_small_model(settled, reasons)]
    if any(re.fullmatch(r"layout\.\w+_size", _key(o)) for o in settled):
        settled.append("layout.name=explicit")  # tp2 with TP 4 is no longer tp2
    if framework := _of_a_recipe(settled, reasons) or frameworks.chosen(compose(settled), reasons):
        kept = [o for o in framework if _key(o) == "framework" or _chosen(settled, _key(o)) is None]
        settled = [*(o for o in settled if _key(o) != "framework"), *kept]
    settled += frameworks.checked_out(compose(settled), settled, reasons)
    config = compose(settled)
    side = spelled_out(flattened(config["per_platform"].get(config["platform"]["name"]) or {}))
    return settled, side, reasons


def _of_a_recipe(overrides: Sequence[str], reasons: list[str]) -> list[str]:
    """Return the framework and release that have the vendor's recipe for it, where the user does not say which."""
    config = compose(overrides)
    if config["method"] == IDENTICAL or _chosen(overrides, "framework.release") is not None:
        return []
    r = _request(config)
    case = Case(None, None, r.model.name, r.hardware.name, r.world_size, r.precision.name)
    return frameworks.with_recipe(config, fitting(case, r.recipe), reasons)


def spelled_out(overrides: Iterable[str]) -> list[str]:
    """Return `overrides` with what stands for others spelled out: `data=/x/y` is `data=prefix` and `data.path=/x/y`; a
    site's file, `cluster=/x/y.yaml`, is cluster=slurm and its keys; `layout=max_performance` is the older form of
    method=max_performance."""
    overrides, spelled = [*overrides], list[str]()
    if any(_key(text).startswith("data.blend") for text in overrides) and _chosen(overrides, "data") is None:
        spelled.append("data=blend")
    for text in overrides:
        value = text.partition("=")[2]
        path = _key(text) == "data" and "/" in value
        older = _key(text) == "layout" and value == BEST
        if _key(text) == "cluster" and value.endswith((".yaml", ".yml")):
            if not Path(value).is_file():
                hint = "cluster=slurm, or the file of your site, with the keys of conf/cluster/slurm.yaml"
                raise ConfigError(Problem("cluster", "there is no such file", value, hint=hint))
            of_site = read_yaml(Path(value))
            kind = "kubernetes" if of_site.get("kubernetes") else "slurm"
            spelled += [f"cluster={kind}", *flattened({"cluster": of_site})]
            continue
        spelled += ["data=prefix", f"data.path={value}"] if path else [f"method={value}"] if older else [text]
    return spelled


def _request(config: dict[str, Any]) -> Request:
    """Return the validated request. ConfigError: every wrong key, type and fact."""
    request: Request = frozen(Request, config, "")
    if problems := [
        *check_hardware(asdict(request.hardware)),
        *_data_problems(request.data),
        *_senseless(request),
        *_of_a_matrix(request),
        *_secrets(config),
    ]:
        raise ConfigError(*problems)
    return request


def _data_problems(data: Data) -> Iterator[Problem]:
    if data.name == "mock" and data.path is not None:
        yield Problem("data.path", "data=mock reads no files", data.path, "null")
    if data.name not in ("mock", "blend") and not data.path:
        hint = "data=/path/to/corpus, without .bin and .idx"
        yield Problem("data.path", f"data={data.name} needs a path", "null", hint=hint)
    if data.path and data.path.endswith((".bin", ".idx")):
        what = "a corpus is named by the path that its two files share"
        yield Problem("data.path", what, data.path, "a path without .bin and .idx", data.path[:-4])
    if data.name == "mock" and data.split != MOCK_SPLIT:
        yield Problem("data.split", "Megatron's mock data knows no other", data.split, MOCK_SPLIT)
    if not _SPLIT.fullmatch(data.split) or not data.shares[0]:
        what = "three weights, of training, validation and test; training has some"
        yield Problem("data.split", what, data.split, "such as 95,5,0", "'data.split=\"95,5,0\"'")
    yield from _blend_problems(data)
    if data.tokenizer is not None and not data.given:
        what = f"data={data.name} is made of ids, and of no text"
        yield Problem("data.tokenizer", what, data.tokenizer, "null", "data=/path/to/corpus")
    if data.tokenizer_sha256 is not None and data.tokenizer is None:
        yield Problem(
            "data.tokenizer_sha256", "no tokenizer is requested", data.tokenizer_sha256, hint="data.tokenizer="
        )


def _blend_problems(data: Data) -> Iterator[Problem]:
    where = "data.blend"
    if data.name != "blend":
        if data.blend:
            yield Problem(where, f"data={data.name} is no blend", str(dict(data.blend)), "{}", "data=blend")
        return
    if data.path is not None:
        yield Problem("data.path", "a blend has the paths of its corpora", data.path, "null", where)
    if len(data.blend) < 2:
        hint = "'data.blend={/corpora/wiki: 0.7, /corpora/code: 0.3}'; of one alone data=/path/to/corpus"
        yield Problem(where, "a blend is of two corpora or more", str(dict(data.blend)), hint=hint)
    for name, weight in data.blend.items():
        path = data.corpora.get(name, name)
        if weight <= 0:
            yield Problem(f"{where}.{name}", "a weight must be above 0", str(weight), hint="leave the corpus out")
        if "/" not in path:
            what, known = "is no path and no name in data.corpora", listed(sorted(data.corpora))
            yield Problem(f"{where}.{name}", what, name, known, f"data.corpora.{name}=/path/to/corpus")
        elif path.endswith((".bin", ".idx")) or any(c.isspace() for c in path):
            what = "stacks split a blend at spaces, and take the path that .bin and .idx share"
            yield Problem(f"{where}.{name}", what, repr(path), "a path without spaces and without .bin and .idx")


_NAMED_BY_USERS = ("environment.", "cluster.network.", "framework.options.")
"""Where a request has keys of the user's own."""


def _secrets(config: dict[str, Any]) -> Iterator[Problem]:
    """Yield each text of the request that is a secret by its shape: it would be written into experiment.yaml, the plan,
    the record and the journal. Variables that are one by their name are launchers/variables.py's to refuse."""
    for key, value in leaves(config):
        of, _, name = key.rpartition(".")
        by_name = of in ("environment", "cluster.network") and SECRET.search(name)
        is_ours = not key.startswith(_NAMED_BY_USERS)  # cluster.kubernetes.secret is the name of one
        if not by_name and (shown := in_texts(value) if is_ours else under(name, value)) != value:
            what = "looks like a secret, which the plan and the record would show"
            hint = "a variable goes in by its name alone, by cluster.forward_env=[NAME]"
            yield Problem(key, what, str(shown), hint=hint)


def _of_a_matrix(r: Request) -> Iterator[Problem]:
    if r.cluster.retries < 0:
        yield Problem("cluster.retries", "must be at least 0", str(r.cluster.retries))
    if r.cluster.budget is not None and r.cluster.budget < r.world_size:
        what = f"one run takes {r.world_size}"
        yield Problem("cluster.budget", what, str(r.cluster.budget), f"at least {r.world_size}, or null")


def _senseless(r: Request) -> Iterator[Problem]:
    """Yield hardware of another vendor, root keys and prices that are numbers without sense, a name that is none."""
    vendor, names = r.platform.vendor, choices("hardware")
    if vendor not in (None, *accelerators()):
        hint = f"conf/vendors/{vendor}.py"
        yield Problem("platform.vendor", "no such vendor", str(vendor), listed(accelerators()), hint)
    elif r.hardware.vendor != vendor:
        valid = [name for name in names if (device := hardware(name)) and device.vendor == vendor]
        yield Problem("hardware", f"{r.hardware.name} is not hardware of platform {r.platform.name}", "", listed(valid))
    if r.image is not None and not _IMAGE.fullmatch(r.image):
        allowed = "letters, digits and . / : @ # + ~ _ -, no dash first"
        yield Problem("image", "is no name of an image, nor of a file that holds one", r.image, allowed)
    if r.repeat < 1:
        yield Problem("repeat", "must be at least 1", str(r.repeat))
    if r.hang_after_s <= 0:
        yield Problem("hang_after_s", "must be above 0 seconds", str(r.hang_after_s))
    for name, price in r.price.usd_per_gpu_hour.items():
        if price <= 0:
            yield Problem(f"price.usd_per_gpu_hour.{name}", "must be above 0", str(price))
        if name not in names:
            yield Problem(f"price.usd_per_gpu_hour.{name}", "no such hardware", name, listed(names))
    if r.name is not None and not re.fullmatch(r"\w[\w.-]*", r.name):
        what = "is the name of a folder in runs_dir: letters, digits, '.', '_' and '-'"
        yield Problem("name", what, repr(r.name))


def _declared(e: Experiment, request: Request, without: Request, reason: str) -> tuple[Declared, ...]:
    """Return the settings that the side's overrides changed, groups and derived values included."""
    try:
        before, after = requested(resolve(without, ())), requested(e)
    except ConfigError:  # what all sides share may not fit this one: hence the override
        before, after = requested(without, partial=True), requested(request, partial=True)
    changed = (name for name in after if name in before and before[name] != after[name])
    return tuple(Declared(name, after[name], reason) for name in changed)


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+")


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
        here, silent = devices.find(), " and ".join(devices.silent_tools())
        seen = f"{here.count} × {here.names[0]} found" if here.vendor else "no accelerator found"
        return here.vendor or CPU, seen + (f" ({silent} list none)" if silent and not here.vendor else "")
    framework = _chosen(overrides, "framework")
    for name in accelerators():
        if framework in (None, "auto", *entry("platform", name)["platform"]["frameworks"]):
            return name, f"a rehearsal of {'its first framework' if framework in (None, 'auto') else framework}"
    return accelerators()[0], f"no platform has {framework}"


def _found_hardware(vendor: str, overrides: Sequence[str], reasons: list[str]) -> Iterator[str]:
    """Yield overrides for what this machine has, where the user did not say."""
    here = devices.find()
    if here.vendor != vendor:
        reasons.append(f"hardware as configured: no {vendor} GPU is here")
        return
    if _chosen(overrides, "hardware") is None:
        name = hardware_named(here.names[0], vendor)
        reasons.append(f"hardware {name}: {here.names[0]} is here")
        yield f"hardware={name if name in choices('hardware') else 'unknown'}"
    if _chosen(overrides, "gpus_per_node") is None:
        reasons.append(f"gpus_per_node = {here.count}: all that are here")
        yield f"gpus_per_node={here.count}"


def _small_model(overrides: Sequence[str], reasons: list[str]) -> Iterator[str]:
    """Yield the choice of the model that fits everywhere, on GPUs for which the default has no layout."""
    if any(_key(o) in ("model", "layout", "method", "experiment") or _key(o).startswith("layout.") for o in overrides):
        return
    request = _request(compose(overrides))
    model, hardware, gpus = request.model.name, request.hardware.name, request.world_size
    if request.layout.table and find_row(request.layout.table, model, gpus):
        return
    reasons.append(f"model llama_tiny: no layout of {model} for {gpus} × {hardware} is known")
    yield "model=llama_tiny"


def hardware_named(device_name: str, vendor: str) -> str:
    """Return the hardware entry that lists `device_name` as the driver spells it, else the vendor's unknown GPU."""
    device = named_by_driver(device_name)
    return device.name if device else f"unknown_{vendor}"


def model_named(name: str) -> Model | None:
    """Return conf/model/NAME.yaml by itself, as composing takes a quarter of a second; None for an alias of another.
    ConfigError: all that is wrong with the file."""
    file = read_choice("model", name)
    model: Model | None = frozen(Model, file["model"], f"conf/model/{name}.yaml") if "model" in file else None
    return model


def experiments(overrides: Sequence[str], multirun: bool) -> list[Experiment]:
    """Return every experiment that `overrides` request, in Hydra's order; sweeps are expanded where `multirun`.
    ConfigError: with the problems of all of them."""
    problems: list[Problem] = []
    jobs = product(*map(_values, overrides)) if multirun else [tuple(overrides)]
    cells = [cell for job in jobs for cell in _collected(_cells, list(job), problems) or ()]
    made = [e for cell in cells if (e := _collected(load, cell, problems))]
    if problems:
        raise ConfigError(*dict.fromkeys(problems))
    return made


def _collected(function: Callable[[list[str]], _Made], overrides: list[str], problems: list[Problem]) -> _Made | None:
    """Return what `function` makes of `overrides`, None where it is refused: its problems are appended."""
    try:
        return function(overrides)
    except ConfigError as error:
        problems += error.problems
        return None


def _cells(overrides: list[str]) -> list[list[str]]:
    """Return the overrides of each cell of the experiment's grid; of one without, `overrides` alone."""
    common, side, _ = settle(overrides)
    axes = compose([*common, *side])["grid"]["axes"] or {}
    return [[*overrides, *cell] for cell in product(*([f"{k}={v}" for v in values] for k, values in axes.items()))]


def _values(text: str) -> list[str]:
    from hydra.errors import HydraException

    override = parsed_override(text)
    if override is None or not override.is_sweep_override():
        return [text]  # conf.compose says what is wrong with it
    try:
        return [f"{text.partition('=')[0]}={value}" for value in override.sweep_string_iterator()]
    except HydraException as error:
        hint = "list the values: KEY=A,B or KEY=range(1,4)"
        raise ConfigError(Problem(text, "cannot be listed", str(error), hint=hint)) from error
