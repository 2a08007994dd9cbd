"""The canonical settings (conf/vocabulary.yaml): what decides a comparison, under one name for every framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("vocabulary.yaml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One canonical setting. request: attribute path in an Experiment, None if it is only read back. dump: whether it
    is a setting of the training program, which its argument dump tells; else a fact of the request alone.

    A path through a part that the model does not have (model.moe of a dense one) gives None.
    """

    name: str
    kind: str
    unit: str
    request: str | None = None
    dump: bool = True
    keys: Mapping[str, str] = field(default_factory=dict)

    def key(self, framework: str) -> str:
        """The name under which `framework` prints this setting."""
        return self.keys.get(framework, self.name)


@cache
def vocabulary() -> Mapping[str, Setting]:
    """All settings by canonical name, in the table's order."""
    import yaml

    table = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    return {name: Setting(name=name, **entry) for name, entry in table.items()}


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
