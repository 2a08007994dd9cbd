"""Import a module of ranks/, whose programs import one another by bare names: in a container they stand alone."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "ranks"


def rank_module(name: str) -> Any:
    """Return the module ranks/`name`.py."""
    sys.path.insert(0, str(FOLDER))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(FOLDER))
