"""Print the performance recipes of a Megatron-Bridge, a JSON line each, as Bridge's own functions build them; nothing
of them runs. Started by the interpreter that has Bridge, with a request (JSON) on stdin:

    hub      {id, revisions, config} of each model, as in a settings file: no network
    bases    beginning of a recipe's name → family.function of megatron.bridge.recipes that it is said relative to
    paths    attribute paths whose values are wanted, whether or not they differ from the base's
    scripts  the folder scripts/performance of a release whose package has no recipes, else null

Of each recipe: name, model, gpus, hardware, precision, variant, where (file:line in the repository), base, settings
(path → value that differs from the base's, and those of `paths`), factory (the name of that of its
mixed_precision), environment, note, configured (canonical settings under Bridge's own rules at the recipe's
size), or `problem`: why it cannot be said so. Exit code 2: this environment has no such Bridge."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import os
import sys
import tempfile
import types
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import bridge_ranks
import tprimat_standin
from bridge_published import Published, published
from rank_program import Refused, say, stop
from vendor_ranks import NAMED, imported, plain_names

_STATED = ("name", "model", "gpus", "hardware", "precision", "variant", "where")
_APEX = "fused_weight_gradient_mlp_cuda"


def described(value: Any) -> Any:
    """Return `value` as a settings file has it (vendor_ranks.real_value); what that has no form for as its text, which
    is good for comparing alone (`is_written`)."""
    if isinstance(value, Enum):
        return {"enum": f"{type(value).__name__}.{value.name}"}
    if isinstance(value, str):
        return value.removeprefix(f"{Path.cwd()}/")  # where the recipes put their folders
    if isinstance(value, bool | int | float | None):
        return value
    if isinstance(value, Mapping):
        return {"mapping": {str(key): described(item) for key, item in value.items()}} if value else {}
    if isinstance(value, list | tuple):  # YAML has one kind of them
        return [described(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _object(value)
    if type(value).__name__ == "dtype":
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, types.FunctionType) and value.__name__ in NAMED:
        return {"function": value.__name__}
    if isinstance(value, functools.partial):
        return {"unwritten": [f"partial of {described(value.func)}", described(value.args), described(value.keywords)]}
    return {"unwritten": getattr(value, "__qualname__", None) or repr(value)}


def _is_named(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and "constant" in described(value)


def _object(value: Any) -> dict[str, Any]:
    """Return an object by the name of the constant that it is, else by its class and what differs from its defaults."""
    owner = sys.modules[type(value).__module__]
    for name, constant in vars(owner).items():
        if constant is value and name in NAMED:
            return {"constant": name}
    kept = {f.name: described(getattr(value, f.name)) for f in dataclasses.fields(value) if not _is_default(f, value)}
    return {"object": type(value).__name__, "set": kept}


def _is_default(field: Any, value: Any) -> bool:
    made = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
    return made is not dataclasses.MISSING and described(made) == described(getattr(value, field.name))


def is_written(value: Any) -> bool:
    """Return whether a settings file has a form for all of what was described."""
    if isinstance(value, Mapping):
        return "unwritten" not in value and all(map(is_written, value.values()))
    return all(map(is_written, value)) if isinstance(value, list) else True


def differing(one: Any, other: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield (attribute path, value of `one`, value of `other`) where two objects differ, both described. A constant of
    Bridge's is one value; of a class and one derived from it, the fields that both have are compared. An attribute that
    is no field of its class is left out: nobody reads it (`unread`)."""
    alike = dataclasses.is_dataclass(one) and (isinstance(one, type(other)) or isinstance(other, type(one)))
    if not alike or _is_named(one) or _is_named(other):
        first, second = described(one), described(other)
        if first != second or isinstance(first, bool) is not isinstance(second, bool):  # to Python, True is 1
            yield path, first, second
        return
    for field in dataclasses.fields(one if isinstance(other, type(one)) else other):
        below = f"{path}.{field.name}" if path else field.name
        yield from differing(getattr(one, field.name), getattr(other, field.name), below)


def unread(config: Any) -> Iterator[str]:
    """Yield the attributes that a recipe has set where the class has no such field."""
    for part, value in vars(config).items():
        if dataclasses.is_dataclass(value):
            known = {field.name for field in dataclasses.fields(value)}
            yield from (f"{part}.{name}={extra}" for name, extra in vars(value).items() if name not in known)


def recipes(request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what every pre-training recipe is, by name."""
    for recipe in published(request["scripts"]).values():
        row = {name: getattr(recipe, name) for name in _STATED}
        base = request["bases"].get(recipe.model)
        if base is None:
            yield row | {"problem": f"no model of ours is {recipe.model}"}
            continue
        try:
            yield row | _built(recipe, base, request)
        except Refused as refused:
            yield row | {"problem": "; ".join(problem.what for problem in refused.problems)}


def _built(recipe: Published, base: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe relative to `base`.
    Raises Refused: a value of it has no form in a settings file, or Bridge's own rules refuse it."""
    config, plain = recipe.make(), base_of(base)
    factory = precision_of(config.mixed_precision)
    plain.mixed_precision = factory_of(factory)()
    settings = {path: value for path, value, _ in differing(config, plain)}
    paths = (path for path in request["paths"] if path != "env_vars" and _has(config, path))
    wanted = {path: described(_at(config, path)) for path in paths}
    environment = {name: str(value) for name, value in recipe.environment(config).items()}
    below = tuple(f"{path}." for path, value in wanted.items() if isinstance(value, dict))
    settings = {path: value for path, value in settings.items() if path != "env_vars" and not path.startswith(below)}
    left_open = {path for path, _, _ in differing(config, _with_apex(recipe.make))}
    settings = {path: value for path, value in sorted((settings | wanted).items()) if path not in left_open}
    if unwritten := [path for path, value in settings.items() if not is_written(value)]:
        raise Refused.of(", ".join(unwritten), "a settings file has no form for it", str(settings[unwritten[0]]))
    made: dict[str, Any] = {"base": base, "settings": settings, "factory": factory, "environment": environment}
    made |= {"note": recipe.note()}
    made["unread"] = sorted({*unread(config)} - {*unread(plain)})
    return made | {"configured": _configured(recipe, environment)}


def _with_apex(make: Callable[[], Any]) -> Any:
    """Return the object of an environment that has APEX's extension, by which Bridge's classes choose a default
    (B3 utils/fusions.py:31): what a recipe leaves to that is nobody's value."""
    sys.modules[_APEX] = types.ModuleType(_APEX)
    try:
        return make()
    finally:
        del sys.modules[_APEX]


def _configured(recipe: Published, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return what Bridge's own rules make of a new object, as rank 0 of all its GPUs, in its environment.
    Raises Refused: they refuse it."""
    bridge_config, config, before = importlib.import_module("bridge_config"), recipe.make(), dict(os.environ)
    config.dataset.path_to_cache = "index"  # every run here has one, and gpt-oss requires it
    config.dataset.seq_length = config.model.seq_length  # as the vendor's launcher does: gpt-oss 20B states it once
    if not bridge_config.HAS_TRANSFORMER_ENGINE:  # whose absence is refused; none of them is a setting of ours
        config.model.apply_rope_fusion = config.model.moe_permute_fusion = False
    run = {"world_size": recipe.gpus, "recipe": recipe.name, "data": "mock", "set": {}}
    try:
        os.environ.update(environment)
        values: dict[str, Any] = bridge_config.configured(config, run | {"set_without_transformer_engine": {}})
    finally:
        os.environ.clear()
        os.environ.update(before)
    return values


def base_of(base: str) -> Any:
    """Return a new object of `family.function` of megatron.bridge.recipes."""
    family, _, name = base.partition(".")
    return getattr(importlib.import_module(f"megatron.bridge.recipes.{family}"), name)()


def factory_of(name: str) -> Any:
    """Return the function by the name that a settings file has for a precision."""
    return importlib.import_module("megatron.bridge.training.mixed_precision").MIXED_PRECISION_RECIPES[name]


def precision_of(mixed_precision: Any) -> str:
    """Return the name of the factory whose object is nearest to `mixed_precision`, which may be that name itself."""
    if isinstance(mixed_precision, str):
        return mixed_precision
    known = importlib.import_module("megatron.bridge.training.mixed_precision").MIXED_PRECISION_RECIPES

    def distance(name: str) -> tuple[Any, ...]:
        made = known[name]()
        other = [getattr(made, kind) != getattr(mixed_precision, kind) for kind in ("fp8", "fp8_recipe", "fp4")]
        return *other, len(list(differing(mixed_precision, made))), name

    return str(min((name for name in known if "-" not in name), key=distance))  # which spells another once more


def _has(config: Any, path: str) -> bool:
    parent, _, name = path.rpartition(".")
    try:
        return name in plain_names(_at(config, parent))
    except AttributeError:
        return False


def _at(config: Any, path: str) -> Any:
    return functools.reduce(getattr, path.split("."), config) if path else config


def main() -> int:
    """Answer the request on stdin and return the exit code."""
    request = json.load(sys.stdin)
    with tempfile.TemporaryDirectory(prefix="bridge-hub-") as folder:
        for answer in request["hub"]:
            bridge_ranks.seed_cache(folder, answer)
        bridge_ranks.before_import()
        tprimat_standin.install()
        try:
            config = imported("bridge_config", "Megatron-Bridge cannot be imported", "the packages that it requires")
            config.as_with_transformer_engine()
            for recipe in recipes(request):
                say(json.dumps(recipe))
        except Refused as refused:
            return stop(2, "engine: no recipes can be read", refused.problems)
    return 0


if __name__ == "__main__":
    sys.exit(main())
