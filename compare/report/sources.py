"""How a run was started, from the files that lie beside its record. A record needs none of them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conf.compose import SECRET

_LARGEST_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class Launched:
    """command: as a shell takes it, in the run's directory. experiment: the config as YAML. None: not there."""

    command: str | None = None
    experiment: str | None = None


def launched(directory: str) -> Launched:
    """What plan.json and experiment.yaml of a run directory say; nothing of files that are not as we write them."""
    plan, experiment = (_text(Path(directory) / name) for name in ("plan.json", "experiment.yaml"))
    return Launched(None if plan is None else _command(directory, plan), experiment)


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8") if path.stat().st_size <= _LARGEST_BYTES else None
    except (OSError, ValueError):  # a name or a text that is no UTF-8, too
        return None


def _command(directory: str, plan: str) -> str | None:
    try:
        entry: Any = json.loads(plan)
    except (ValueError, RecursionError):
        return None
    argv, env = (entry.get(name) for name in ("argv", "env")) if isinstance(entry, dict) else (None, None)
    if not isinstance(argv, list) or not argv or not all(isinstance(part, str) for part in argv):
        return None
    given = _assignments(env) if isinstance(env, dict) else ()
    return " \\\n  ".join([f"cd {shlex.quote(directory)} &&", *given, shlex.join(argv)])


def _assignments(env: Mapping[str, Any]) -> list[str]:
    """A secret by its name alone."""
    return [f'{k}="${k}"' if SECRET.search(k) else f"{k}={shlex.quote(str(v))}" for k, v in sorted(env.items())]
