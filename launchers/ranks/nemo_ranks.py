"""Train with NVIDIA NeMo 2.x: build a recipe of its llm collection and set what the settings file says. One process is
one rank.

    python -m torch.distributed.run --standalone --nproc-per-node N nemo_ranks.py --settings settings.yaml
    python nemo_ranks.py --settings settings.yaml … --check      build and check each, print what is configured

Exit codes: 0 the training ran to its end (or every check passed), 2 the settings were refused."""

from __future__ import annotations

import logging
import sys
import warnings
from typing import Any

from vendor_ranks import Settings, imported, main, stand_in_for


def stack(settings: Settings, check: bool) -> tuple[str | None, Any]:
    """Return the stand-in's name, if one is needed, and nemo_recipe, which imports NeMo.
    Raises Refused: NeMo, or a part of it, cannot be imported, or this machine is not what the run is meant for."""
    stand_in = None if check else stand_in_for(settings["device"])
    what = "NeMo cannot be imported completely: its recipes are then silently absent"
    logging.disable(logging.WARNING)  # it warns of packages that an LLM does without
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nemo_recipe = imported("nemo_recipe", what, "install what is missing into it (make nemo has the tried lines)")
    logging.disable(logging.NOTSET)
    return stand_in, nemo_recipe


def warm(_: str) -> None:
    """Import what a rank imports (rehearsal/tprimat_warm.py)."""
    stack({"device": "cpu"}, check=False)


if __name__ == "__main__":
    sys.exit(main("nemo", stack))
