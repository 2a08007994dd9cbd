"""The canonical settings (conf/vocabulary.yaml): what decides a comparison, under one name for every framework."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

TABLE = Path(__file__).with_name("vocabulary.yaml")


class Setting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One canonical setting: a row of the table, whose head says what each column means.

    A request path through a part that the model does not have (model.moe of a dense one) gives None.
    """

    name: str
    kind: str
    unit: str
    request: str | None = None
    dump: bool = True
    print: Mapping[str, str | list[str]] = {}

    def keys(self, framework: str) -> tuple[str, ...]:
        """The names under which `framework` states this setting; empty where its column has none."""
        keys = self.print.get(framework, ())
        return (keys,) if isinstance(keys, str) else tuple(keys)


@cache
def vocabulary() -> Mapping[str, Setting]:
    """Return all settings by canonical name, in the table's order.

    Raises:
        ValueError: a row is not as the table's head says; it is named.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's, ten times as fast, where PyYAML has it
    rows = yaml.load(TABLE.read_text(encoding="utf-8"), Loader=loader)
    return MappingProxyType({name: _setting(name, row) for name, row in rows.items()})


def _setting(name: str, row: Any) -> Setting:
    try:
        return msgspec.convert({**row, "name": name}, Setting)
    except (msgspec.ValidationError, TypeError) as error:
        raise ValueError(f"{TABLE.name}: {name}: {error}") from error


@cache
def printed(framework: str) -> Mapping[str, Setting]:
    """Return the settings that `framework` states in its dump or its log, by the key under which they stand there."""
    return MappingProxyType({key: setting for setting in vocabulary().values() for key in setting.keys(framework)})


def requested(experiment: object, partial: bool = False) -> dict[str, Any]:
    """Every setting that `experiment` asks for, by canonical name. partial: of a Request, what it settles already."""
    found = {}
    for setting in vocabulary().values():
        try:
            if setting.request:
                found[setting.name] = follow(experiment, setting.request)
        except AttributeError:
            if not partial:
                raise
    return found


def program_settings(experiment: object) -> dict[str, Any]:
    """What a training program is told: `requested` without the facts of the request alone."""
    return {name: value for name, value in requested(experiment).items() if vocabulary()[name].dump}


def follow(value: Any, path: str) -> Any:
    """The attribute of `value` at a dotted path; None where it leads through a part that is null."""
    for attribute in path.split("."):
        value = None if value is None else getattr(value, attribute)
    return value
