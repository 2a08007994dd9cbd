"""Import a module of ranks/, whose programs import one another by bare names: in a container they stand alone."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = Path(__file__).parent / "ranks"
_imported: dict[str, ModuleType] = {}


def rank_module(name: str) -> Any:
    """Return the module ranks/`name`.py. No bare name stays in sys.modules, where a user's own module may have it."""
    names = {path.stem for path in FOLDER.glob("*.py")}
    others = {other: sys.modules.pop(other) for other in names & sys.modules.keys()}
    sys.modules.update(_imported)
    sys.path.insert(0, str(FOLDER))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(FOLDER))
        _imported.update({ours: sys.modules.pop(ours) for ours in names & sys.modules.keys()})
        sys.modules.update(others)
