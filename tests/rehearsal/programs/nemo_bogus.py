"""launchers/ranks/nemo_ranks.py with a name that MegatronStrategy does not have: it takes any, and drops it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3] / "launchers" / "ranks"))
import nemo_ranks

make = nemo_ranks._recipe


def with_bogus(settings: dict[str, Any]) -> Any:
    recipe = make(settings)
    recipe.trainer.strategy.bogus = 1
    return recipe


nemo_ranks._recipe = with_bogus
sys.exit(nemo_ranks.main())
