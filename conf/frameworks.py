"""The frameworks as data (conf/framework/NAME.yaml): which are installed where, and which one framework=auto takes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from conf import devices
from conf.compose import AUTO, CONF, choices, entry, flattened, read_choice
from conf.errors import ConfigError, Problem, listed
from conf.freeze import field_types, frozen
from conf.recipes import Recipe
from conf.schema import FrameworkChoice
from conf.vendors import output
from conf.vocabulary import read_yaml

IMAGES = CONF / "tables" / "images.yaml"
TIMEOUT_S = 60


@cache
def facts(name: str | None) -> Mapping[str, Any]:
    """Return what conf/framework/NAME.yaml says, interpolations left as they are; empty where there is no such file."""
    if name is None or name not in choices("framework"):
        return {}
    known, kinds = read_choice("framework", name), field_types(FrameworkChoice)
    return {
        key: frozen(kinds.get(key, Any), value, f"conf/framework/{name}.yaml.{key}") for key, value in known.items()
    }


def framework_named(text: str) -> str | None:
    """Return the framework that a foreign record calls `text`, None if none is called so."""
    names = (name for name in choices("framework") if name != AUTO)
    return next((name for name in names if text in (name, *facts(name).get("aliases", ()))), None)


def chosen(config: Mapping[str, Any], reasons: list[str]) -> list[str]:
    """Return the overrides that replace framework=auto in the composed `config`, and append why to `reasons`; nothing
    where it is not auto. ConfigError: what an image holds is not known, or an interpreter cannot be run."""
    if config["framework"]["name"] != AUTO:
        return []
    names: Sequence[str] = config["platform"]["frameworks"]
    skipped: list[str] = []
    missing: list[str] = []  # they have the model
    for name in names:
        known = entry("framework", name)
        if known["own_models"]:  # brings them with it, and is taken unseen
            return [_without_a_stack(config, name, missing, skipped, reasons)]
        where, release = _installed(name, known, config)
        if config["model"]["name"] not in known["recipes"] and not known["any_model"]:
            skipped.append(f"conf/framework/{name}.yaml names no recipe for {config['model']['name']}")
        elif release is None:
            missing.append(name)
            skipped.append(f"no {name} in {where}")
        else:
            reasons.append(f"framework {name}: " + "; ".join([f"{release} is in {where}", *skipped]))
            return _stack(name, plain_release(known["distributions"], release))
    raise ConfigError(Problem("framework", "; ".join(skipped), AUTO, listed(names)))


def _without_a_stack(
    config: Mapping[str, Any], engine: str, missing: Sequence[str], skipped: Sequence[str], reasons: list[str]
) -> str:
    """Return the override where no stack of the vendor is installed: the first of `missing` where this is a plan for
    another machine, else the embedded `engine`. Append why to `reasons`."""
    platform = config["platform"]
    if missing and _for_elsewhere(config):
        why = f"what platform={platform['name']} means, though it is not here"
        reasons.append(f"framework {missing[0]}: {'; '.join([why, *skipped])}")
        return f"framework={missing[0]}"
    why = "; ".join(skipped) or "the first of the platform's frameworks"
    reasons.append(f"framework {engine}: {'the embedded engine; ' if skipped else ''}{why}")
    return f"framework={engine}"


def with_recipe(config: Mapping[str, Any], fitting: Sequence[Recipe], reasons: list[str]) -> list[str]:
    """Return the overrides that choose the framework and release of one of `fitting`, the recipes for this case: those
    that are installed; where none is and this is a plan for another machine, the newest of the platform's first stack.
    Nothing where neither is. Append why to `reasons`."""
    name, platform = config["framework"]["name"], config["platform"]
    names = [
        one for one in (platform["frameworks"] if name == AUTO else [name]) if not entry("framework", one)["own_models"]
    ]
    fitting = [r for r in fitting if r.backend == config["framework"].get("backend")]
    is_here = False
    for name in names:
        known = entry("framework", name)
        try:
            where, release = _installed(name, known, config)
        except ConfigError:
            return []  # an image that nothing can look into: `chosen` says so where it must know
        is_here = is_here or release is not None
        stack = (name, plain_release(known["distributions"], release or ""))
        recipe = next((r for r in fitting if (r.framework, r.release) == stack), None)
        if recipe is not None:
            reasons.append(f"framework {name}: {release} is in {where}, and {recipe.name} is its recipe for this case")
            return _stack(name, recipe.release)
    theirs = [r for r in fitting if r.framework in names]
    if is_here or not theirs or not _for_elsewhere(config):
        return []
    best = max(theirs, key=lambda r: (-names.index(r.framework), [int(n) for n in re.findall(r"\d+", r.release)]))
    others = sorted({r.release for r in theirs if r.framework == best.framework} - {best.release})
    why = f"has a recipe for this case; planned for where platform={platform['name']} has it, as it is not here"
    why += f"; {listed(others)} has one, too (framework.release={others[-1]})" if others else ""
    reasons.append(f"framework {best.framework}: {best.release} {why}")
    return _stack(best.framework, best.release)


def _for_elsewhere(config: Mapping[str, Any]) -> bool:
    """Return whether this is a plan for a machine with GPUs that are not here."""
    starts_here = config["rehearse"] or config["cluster"]["container"] != "none"
    return not starts_here and devices.find().vendor != config["platform"]["vendor"]


def plain_release(distributions: Sequence[str], release: str) -> str:
    """Return 0.6.0 of 0.6.0+1a2b3c; of a stack without distributions, which is a checkout's, the release as it is."""
    numbers = re.match(r"\d+(?:\.\d+)*", release) if distributions else None
    return numbers[0] if numbers else release


def _stack(name: str, release: str) -> list[str]:
    return [f"framework={name}", *flattened({"framework": {"release": release}})]


def checked_out(config: Mapping[str, Any], overrides: Sequence[str], reasons: list[str]) -> list[str]:
    """Return the override of framework.release by what is checked out at framework.checkout, and append why to
    `reasons`; nothing where the user's `overrides` say it."""
    framework = config["framework"]
    name, path, requested = framework["name"], framework["checkout"], framework["release"]
    if path is None or not is_checkout(framework, path):
        return []
    release, label = release_of_checkout(path), facts(name).get("label", name)
    if any(o.lstrip("+").startswith("framework.release=") for o in overrides):
        reasons += [] if requested == release else [f"{label} {requested}, as requested: checked out is {release}"]
        return []
    reasons.append(f"{label} {release}: checked out at {path}")
    return flattened({"framework": {"release": release}})


def is_checkout(framework: Mapping[str, Any], path: str) -> bool:
    """Return whether the stack's source tree is at `path`: framework.checkout_holds names a file of it."""
    return Path(path, framework["checkout_holds"]).is_file()


def release_of_checkout(path: str) -> str:
    """Return v26.5 of a checkout of branch release/v26.5 or tag v26.5.0; of any other, which a framework refuses, what
    git says of it and where it is."""
    names = git(path, "log", "-1", "--format=%D")
    if match := re.search(r"(?:^|[ /])v(\d+\.\d+)(?:\.\d+)?(?:,|\s*$)", names):
        return f"v{match[1]}"
    commit = git(path, "describe", "--tags", "--always")
    return f"{commit} ({names}) at {path}" if commit else f"no git history at {path}"


def tag_of(path: str) -> str:
    """Return the tag of what is checked out at `path`, empty where it has none."""
    return git(path, "describe", "--tags", "--exact-match")


def versions(distributions: Sequence[str], python: str | None) -> Mapping[str, str | None]:
    """Return the version of each in the environment of the interpreter `python` (None: this one), None where missing.
    ConfigError: `python` cannot be run."""
    path = sys.path if python in (None, sys.executable) else _path_of(str(python))
    known = {name: next(iter(metadata.distributions(name=name, path=path)), None) for name in distributions}
    return {name: package.version if package else None for name, package in known.items()}


def is_module(distribution: str, python: str | None) -> bool:
    """Return whether the interpreter `python` (None: this one) can import it all the same: a source tree on its path,
    as in containers that build Megatron from source, has no metadata. Nothing is imported."""
    path: Sequence[str] | None = sys.path if python in (None, sys.executable) else _path_of(str(python))
    name = ""
    for part in distribution.split("-"):
        name = f"{name}.{part}".removeprefix(".")
        spec = PathFinder.find_spec(name, path)
        if spec is None:
            return False
        path = list(spec.submodule_search_locations or ())
    return True


def _installed(name: str, known: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return where the run will look for the framework, and the version of its own distribution there."""
    given = config["framework"]
    if known["checkout"] is not None:  # mounted into whatever image
        path = given["checkout"] or known["checkout"]
        if is_checkout(known, path):
            return path, release_of_checkout(path)
        return path, known["release"] if config["bundle"] is not None else None  # which finds its own elsewhere
    image = config["image"]
    if config["cluster"]["container"] != "none" and image is not None:
        images = frozen(Mapping[str, Mapping[str, Any]], read_yaml(IMAGES), IMAGES.name)
        contents = images.get(image)  # framework → version
        if contents is None:
            what = f"what {image} holds is not in conf/tables/{IMAGES.name}, and nothing can look into it beforehand"
            allowed = listed(config["platform"]["frameworks"])
            raise ConfigError(Problem("framework", what, AUTO, allowed, f"framework={name}"))
        return image, contents.get(name)
    python = given["python"] or known["python"]
    distributions = known["distributions"]
    installed = versions(distributions, python)
    return python or sys.executable, installed[distributions[-1]] if all(installed.values()) else None


@cache
def _path_of(python: str) -> list[str]:
    """Return where the interpreter `python` looks for packages."""
    try:
        argv = [python, "-c", "import json, sys; print(json.dumps(sys.path))"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
        path: list[str] = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        what = f"this interpreter cannot list what is installed: {error}"
        raise ConfigError(Problem("framework.python", what, python, hint="the path of a Python")) from error
    return path


def git(path: str, *words: str) -> str:
    """Return what git prints about the tree at `path`, not about one around it; empty where it knows none."""
    alone = os.environ | {"GIT_CEILING_DIRECTORIES": str(Path(path).resolve().parent)}
    return output("git", "-c", "safe.directory=*", "-C", path, *words, env=alone).strip()
