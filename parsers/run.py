"""A run directory that was read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parsers.record import Record


@dataclass(frozen=True, slots=True)
class Run:
    """A record, and the directory that it came from."""

    path: str
    record: Record


def experiment_of(directory: str) -> Mapping[str, Any]:
    """Return the experiment.yaml beside the record in `directory`; empty where there is none that can be read."""
    import yaml

    try:
        text = Path(directory, "experiment.yaml").read_text(encoding="utf-8")
        entry = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # 1.5 ms; SafeLoader: 12
    except (OSError, UnicodeDecodeError, yaml.YAMLError):  # a record needs no experiment beside it
        return {}
    return entry if isinstance(entry, Mapping) else {}
