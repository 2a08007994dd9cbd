"""launchers/ranks/nemo_ranks.py with a name that MegatronStrategy does not have: it takes any, and drops it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3] / "launchers" / "ranks"))
import nemo_ranks

stack = nemo_ranks._stack


def with_bogus() -> Any:
    module = stack()
    make = module.build

    def build(settings: dict[str, Any]) -> Any:
        recipe = make(settings)
        recipe.trainer.strategy.bogus = 1
        return recipe

    module.build = build
    return module


nemo_ranks._stack = with_bogus
sys.exit(nemo_ranks.main("nemo", nemo_ranks._check, nemo_ranks._train))
