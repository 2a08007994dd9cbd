"""framework=auto: the first of the platform's frameworks that is installed where the run will be, and has the model."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from conf import primus_release
from conf.compose import entry, flattened
from conf.errors import ConfigError, Problem, listed
from conf.installed import IMAGES, in_image, versions

ENGINE = "megatron"


def chosen(config: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The overrides that replace framework=auto in the composed `config`, and why; nothing where it is not auto.

    The engine, last on every platform, brings its own models and is taken unseen.

    Raises:
        ConfigError: what an image holds is not known, or an interpreter cannot be asked.
    """
    if config["framework"]["name"] != "auto":
        return [], []
    names: Sequence[str] = config["platform"]["frameworks"]
    passed_over: list[str] = []
    for name in names:
        if name == ENGINE:
            return [f"framework={name}"], [f"framework {name}: {'; '.join(passed_over) or 'the only one so far'}"]
        facts = entry("framework", name)
        where, found = _found(name, facts, config)
        if config["model"]["name"] not in facts["recipes"]:
            passed_over.append(f"{name} has no recipe of {config['model']['name']}")
        elif found is None:
            passed_over.append(f"no {name} in {where}")
        else:
            why = "; ".join([f"{found} is in {where}", *passed_over])
            release = _numbers(found) if facts["distributions"] else found
            told = flattened({"framework": {"release": release}})
            return [f"framework={name}", *told], [f"framework {name}: {why}"]
    raise ConfigError(Problem("framework", "; ".join(passed_over), "auto", listed(names)))


def _found(name: str, facts: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[str, str | None]:
    """Where the run will look for the framework, and the version of its own distribution there."""
    path = config["cluster"]["primus_path"]
    if name == "primus":  # a checkout, mounted into whatever image
        if primus_release.is_checkout(path):
            return path, primus_release.checked_out(path)
        return path, facts["release"] if config["bundle"] is not None else None  # which finds its own elsewhere
    image = config["image"]
    if config["cluster"]["container"] != "none" and image is not None:
        held = in_image(image)
        if held is None:
            what = f"what {image} holds is not in conf/tables/{IMAGES.name}, and nothing can look into it beforehand"
            allowed = listed(config["platform"]["frameworks"])
            raise ConfigError(Problem("framework", what, "auto", allowed, f"framework={name}"))
        return image, held.get(name)
    python = config["framework"]["python"] or facts["python"]
    distributions = facts["distributions"]
    found = versions(distributions, python)
    return python or sys.executable, found[distributions[-1]] if all(found.values()) else None


def _numbers(version: str) -> str:
    """0.6.0 of 0.6.0+1a2b3c."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return found[0] if found else version
