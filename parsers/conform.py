"""Holds JSON values against the part of JSON Schema that our own schemas use, without a library.

Not a general validator: only the keywords that our files use are known; the tests hold it against `jsonschema`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Violation:
    """Where in the value (a.b[0]), which rule it breaks, and what was found there."""

    path: str
    rule: str
    found: str


def violations(value: Any, schema: Schema, root: Schema | None = None, path: str = "") -> Iterator[Violation]:
    """All that `schema` forbids in `value`."""
    root = schema if root is None else root
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    allowed = schema.get("type")
    if allowed is not None and not _is_a(value, allowed):
        yield Violation(path or "top", f"must be {_listed(allowed)}", _shown(value))
        return
    if "enum" in schema and value not in schema["enum"]:
        yield Violation(path or "top", f"must be one of {_listed(schema['enum'])}", _shown(value))
    if "minimum" in schema and _is_a(value, "number") and value < schema["minimum"]:
        yield Violation(path or "top", f"must be at least {schema['minimum']}", _shown(value))
    if isinstance(value, dict):
        yield from _in_object(value, schema, root, path)
    elif isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            yield from violations(item, schema["items"], root, f"{path}[{index}]")


def _in_object(value: dict[str, Any], schema: Schema, root: Schema, path: str) -> Iterator[Violation]:
    for name in schema.get("required", ()):
        if name not in value:
            yield Violation(_join(path, name), "is missing", "")
    named, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    for name, item in value.items():
        inner = named.get(name, others)
        if isinstance(inner, Mapping) and not _surely(item, inner, root):
            yield from violations(item, inner, root, _join(path, name))


_SURE: dict[int, _Sure] = {}
_MANY = 1000


def _surely(value: Any, schema: Schema, root: Schema) -> bool:
    """Whether its type and size alone settle that `value` fits: most values of a record are such, and a thousand
    records have two hundred thousand."""
    known = _SURE.get(id(schema))
    if known is None:
        known = _SURE[id(schema)] = _sure_of(schema, root)
    kind = type(value)
    if kind is dict and known.shapes is not None:
        return _has_known_shape(value, known, root)
    return kind in known.types and (known.minimum == -math.inf or kind not in (int, float) or value >= known.minimum)


@dataclass(frozen=True, slots=True)
class _Sure:
    """schema: itself, so that it lives as long as its id. types: those that need no closer look. shapes: of an object,
    its names and their types, to the least that the numbers among them may be; None where all objects fit."""

    schema: Schema
    rules: Schema
    types: frozenset[type]
    minimum: float
    shapes: dict[tuple[Any, ...], Mapping[str, float] | None] | None


def _sure_of(schema: Schema, root: Schema) -> _Sure:
    rules = root["$defs"][schema["$ref"].removeprefix("#/$defs/")] if "$ref" in schema else schema
    allowed = rules.get("type", ())
    types = _types(allowed if isinstance(allowed, str) else tuple(allowed))
    if "enum" in rules:
        types = frozenset()
    looked_into = {"properties", "required"} & rules.keys() or isinstance(rules.get("additionalProperties"), Mapping)
    if "items" in rules:
        types -= {list}
    return _Sure(schema, rules, types, rules.get("minimum", -math.inf), {} if looked_into and dict in types else None)


def _has_known_shape(value: dict[str, Any], known: _Sure, root: Schema) -> bool:
    shapes = known.shapes
    assert shapes is not None
    shape = (*value, *map(type, value.values()))
    if shape not in shapes:
        if len(shapes) >= _MANY:
            shapes.clear()
        shapes[shape] = _minima(value, known.rules, root)
    minima = shapes[shape]
    if minima is None:
        return False
    for name, least in minima.items():  # noqa: SIM110  all() takes twice as long
        if value[name] < least:
            return False
    return True


def _minima(value: dict[str, Any], rules: Schema, root: Schema) -> Mapping[str, float] | None:
    """None where more than types and minima decide."""
    minima: dict[str, float] = {}
    named, others = rules.get("properties", {}), rules.get("additionalProperties", True)
    if any(name not in value for name in rules.get("required", ())):
        return None
    for name, item in value.items():
        inner = named.get(name, others)
        if isinstance(inner, Mapping):
            sure = _sure_of(inner, root)
            if type(item) not in sure.types or (type(item) is dict and sure.shapes is not None):
                return None
            if type(item) in (int, float) and sure.minimum > -math.inf:
                minima[name] = sure.minimum
    return minima


def _is_a(value: Any, allowed: str | list[str]) -> bool:
    return type(value) in _types(allowed if isinstance(allowed, str) else tuple(allowed))


@cache
def _types(allowed: str | tuple[str, ...]) -> frozenset[type]:
    """What json.loads makes: never a subclass, and True is no integer."""
    return frozenset(kind for name in ((allowed,) if isinstance(allowed, str) else allowed) for kind in _PYTHON[name])


_PYTHON: Mapping[str, tuple[type, ...]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "array": (list,),
    "object": (dict,),
}


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _listed(allowed: str | list[Any]) -> str:
    return allowed if isinstance(allowed, str) else ", ".join(str(item) for item in allowed)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
