"""A recipe by itself, with its own batch, on the GPUs that it is published for: what to type for it, its experiment."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from conf.compose import compose, read_choice
from conf.facts import hardware
from conf.load import _request
from conf.recipes import Recipe
from conf.resolve import Experiment, resolve
from conf.schema import BEST


def request_of(r: Recipe, batch: str = "identical") -> tuple[str, ...]:
    """Return what to type for a run of it."""
    said = {"model": r.model, "hardware": r.hardware[0], "precision": r.precision}
    device = hardware(r.hardware[0])
    if device is not None:
        said = {"platform": str(device.vendor), **said}
        in_a_node = device.gpus_per_node * device.devices_per_package
        nodes, rest = divmod(r.gpus or _least(r, in_a_node), in_a_node)
        said |= {"gpus_per_node": str(rest)} if not nodes else {"nodes": str(nodes)} if nodes > 1 else {}
    said |= {"framework": r.framework, "framework.release": r.release, "method": BEST}
    said |= {"framework.backend": r.backend} if r.backend else {}
    said |= {"recipe": r.name} if r.variant else {}
    said |= {"batch": batch} if batch != "identical" else {}
    return tuple(f"{key}={value}" for key, value in said.items())


def experiment(r: Recipe, batch: str = "vendor") -> Experiment:
    """Return what `conf.load_experiment` makes of that and the recipe's name, but for the reasons of this machine. Of
    a stack Hydra composes once, and the choices are put in by hand: 3 ms a recipe, not 130. ConfigError: as there."""
    said = dict(word.split("=", 1) for word in request_of(r, batch))
    stack = tuple(f"{key}={said[key]}" for key in _OF_A_STACK if key in said)
    composed = compose(stack)
    chosen: dict[str, Any] = {name: _merged(composed[name], of) for name, of in read_choice("model", r.model).items()}
    chosen |= {name: _merged(composed[name], read_choice(name, said[name])) for name in ("hardware", "precision")}
    request = _request({**composed, **chosen, "recipe": r.name, "batch": batch})
    counts = {key: int(said[key]) for key in ("nodes", "gpus_per_node") if key in said}
    return resolve(replace(request, **counts), ())  # type: ignore[arg-type]


_OF_A_STACK = ("platform", "framework", "framework.release", "framework.backend", "method")


def _merged(before: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    return {**before, **chosen}


def _least(r: Recipe, in_a_node: int) -> int:
    """Return the GPUs of as few full nodes as the layout of a recipe for any number of them takes."""
    names = ("tensor_model", "pipeline_model", "context", "expert_model")
    tp, pp, cp, ep = (r.experiment.get(f"layout.{name}_parallel_size") or 1 for name in names)
    return math.lcm(tp * pp * cp, tp * pp * ep, in_a_node)
