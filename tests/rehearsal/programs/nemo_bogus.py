"""launchers/ranks/nemo_ranks.py with a name that MegatronStrategy does not have: it takes any, and drops it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3] / "launchers" / "ranks"))
import nemo_ranks
import vendor_ranks


def with_bogus(settings: dict[str, Any], check: bool) -> tuple[str | None, Any]:
    stand_in, module = nemo_ranks.stack(settings, check)
    make = module.build

    def build(*arguments: Any) -> Any:
        recipe = make(*arguments)
        recipe.trainer.strategy.bogus = 1
        return recipe

    module.build = build
    return stand_in, module


sys.exit(vendor_ranks.main("nemo", with_bogus))
