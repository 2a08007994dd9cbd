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
    """One canonical setting. request: attribute path in an Experiment, None if it is only read back."""

    name: str
    kind: str
    unit: str
    request: str | None = None
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


def requested(experiment: object) -> dict[str, Any]:
    """Every setting that `experiment` asks for, by canonical name."""
    return {s.name: _follow(experiment, s.request) for s in vocabulary().values() if s.request}


def _follow(value: Any, path: str) -> Any:
    for attribute in path.split("."):
        value = getattr(value, attribute)
    return value
