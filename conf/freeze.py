"""Plain mapping → frozen dataclass, with every wrong key and type collected instead of the first one raised."""

from __future__ import annotations

import re
import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache
from math import isfinite
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from conf.errors import ConfigError, Problem, closest, listed

_NUMBER = re.compile(r"([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(%|[kKMBGTP](?![a-zA-Z]))?\s*(\S.*)?")
_SCALES = {"k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12, "P": 1e15}
MOST, MOST_LAYERS = 2**31, 10_000  # of any count or size; layers are counted one by one


def freeze(kind: Any, value: Any, where: str, problems: list[Problem]) -> Any:
    """Return `value` (what YAML gives) as `kind` (a dataclass or any of its field types). Appends to `problems` what
    does not fit and returns None in its place, so that one call finds all of them.
    A number may be typed with one of the units that its annotation names: Annotated[float, "USD/gpu-hour"]."""
    units = getattr(kind, "__metadata__", ())
    kind = kind.__origin__ if units else kind
    if is_dataclass(kind):
        return _freeze_dataclass(kind, value, where, problems)
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return None if value is None else freeze(required(kind), value, where, problems)
    if origin is Literal:
        return value if value in get_args(kind) else _wrong(kind, value, where, problems)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(freeze(get_args(kind)[0], item, f"{where}[{i}]", problems) for i, item in enumerate(value))
    if origin is Mapping and isinstance(value, Mapping):
        return {str(k): freeze(get_args(kind)[1], v, f"{where}.{k}", problems) for k, v in value.items()}
    value = amount(kind, value, units)
    if not _is(kind, value):
        return _wrong(kind, value, where, problems)
    return float(value) if kind is float else value  # 1 and 1.0 in YAML are the same request


def amount(kind: Any, value: Any, units: Sequence[str] = ()) -> Any:
    """Return what was typed for a number of `kind` (int or float) as that number: 4k, 1e3, 2%, with one of `units`
    behind it or none. All else stays as it is."""
    if kind in (int, float) and isinstance(value, str):
        with suppress(ValueError):
            value = number(value, units)
    return int(value) if kind is int and isinstance(value, float) and value.is_integer() else value


def number(text: str, units: Sequence[str] = ()) -> float:
    """Read a number with a scale (1T), and one of `units` behind it; without units it may be a share (2%). Raises
    ValueError."""
    match = _NUMBER.fullmatch(text.strip())
    unit = match[3] or ("%" if units and match[2] == "%" else "") if match else ""
    if match is None or unit.casefold() not in ["", *(u.casefold() for u in units)]:
        known = f" or 1T, with {' or '.join(units)} behind it or nothing" if units else ", 1T or 2%"
        raise ValueError(f"a number such as 15e12{known}")
    value = float(match[1].replace("_", ""))
    value = value / 100 if match[2] == "%" else value * _SCALES.get(match[2] or "", 1)
    if not isfinite(value):
        raise ValueError("a finite number")
    return value


def frozen(kind: Any, value: Any, where: str) -> Any:
    """Return `value` as `freeze` does. ConfigError: all that does not fit."""
    problems: list[Problem] = []
    result = freeze(kind, value, where, problems)
    if problems:
        raise ConfigError(*problems)
    return result


def _freeze_dataclass(kind: Any, value: Any, where: str, problems: list[Problem]) -> Any:
    if not isinstance(value, Mapping):
        return _wrong(kind, value, where, problems)
    hints, prefix = field_types(kind), f"{where}." if where else ""
    problems += [unknown_key(f"{prefix}{key}", hints) for key in value if key not in hints]
    before = len(problems)
    frozen = {}
    for name, hint in hints.items():
        key = f"{prefix}{name}"
        if name not in value:
            or_null = "; null where it is unknown" if required(hint) is not hint else ""
            problems.append(Problem(key, "missing", hint=f"add `{name}:` to the YAML file{or_null}"))
        else:
            frozen[name] = freeze(hint, value[name], key, problems)
    return kind(**frozen) if len(problems) == before else None


def field_types(kind: Any) -> Mapping[str, Any]:
    """Return the fields of a dataclass with their resolved types."""
    return _field_types(kind)


@cache
def _field_types(kind: Any) -> Mapping[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {f.name: hints[f.name] for f in fields(kind)}


def unknown_key(where: str, valid: Mapping[str, Any]) -> Problem:
    """Return the problem of a key that its group does not have."""
    return Problem(where, "no such key", allowed=listed(sorted(valid)), hint=closest(where.rpartition(".")[2], valid))


def required(kind: Any) -> Any:
    """Return a type without its `| None`."""
    if get_origin(kind) not in (Union, types.UnionType):
        return kind
    rest = tuple(a for a in get_args(kind) if a is not type(None))
    return rest[0] if len(rest) == 1 else Union[rest]  # noqa: UP007 - a type made at run time


def _is(kind: Any, value: Any) -> bool:
    if kind is Any:
        return True
    if kind in (int, float) and isinstance(value, bool):
        return False
    if kind is float:
        return isinstance(value, int | float) and isfinite(value)
    return isinstance(kind, type) and isinstance(value, kind)


def _wrong(kind: Any, value: Any, where: str, problems: list[Problem]) -> None:
    problems.append(Problem(where, "wrong type or value", f"{value!r} ({type(value).__name__})", described(kind)))


def described(kind: Any) -> str:
    """Return a type as a user reads it: `int`, `one of full, selective, null`, `list of text`."""
    words = {Any: "any value", int: "an integer", float: "a number that is finite", str: "text", bool: "true or false"}
    if kind in words:
        return words[kind]
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return described(required(kind)) + ", or null"
    if origin is Literal:
        return "one of " + listed(args)
    if origin is tuple:
        return f"a list of {described(args[0])}"
    if origin is Mapping:
        return f"keys, each with {described(getattr(args[1], '__origin__', args[1]))}"
    return f"a group with {listed(sorted(field_types(kind)))}" if is_dataclass(kind) else str(kind)
