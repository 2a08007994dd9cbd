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


_SURE: dict[int, tuple[Schema, frozenset[type], float]] = {}


def _surely(value: Any, schema: Schema, root: Schema) -> bool:
    """Whether its type and size alone settle that `value` fits: most values of a record are such, and a thousand
    records have two hundred thousand."""
    known = _SURE.get(id(schema))
    if known is None:
        known = _SURE[id(schema)] = _sure_of(schema, root)
    _, types, minimum = known
    kind = type(value)
    return kind in types and (minimum == -math.inf or kind not in (int, float) or value >= minimum)


def _sure_of(schema: Schema, root: Schema) -> tuple[Schema, frozenset[type], float]:
    """The schema itself, so that it lives as long as its id; the types that need no closer look; the least of a
    number."""
    rules = root["$defs"][schema["$ref"].removeprefix("#/$defs/")] if "$ref" in schema else schema
    allowed = rules.get("type", ())
    types = _types(allowed if isinstance(allowed, str) else tuple(allowed))
    if "enum" in rules:
        types = frozenset()
    if {"properties", "required"} & rules.keys() or isinstance(rules.get("additionalProperties"), Mapping):
        types -= {dict}
    if "items" in rules:
        types -= {list}
    return schema, types, rules.get("minimum", -math.inf)


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
