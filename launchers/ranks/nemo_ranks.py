"""Train with NVIDIA NeMo 2.x: build a recipe of its llm collection and set what the settings file says. One process is
one rank.

    python -m torch.distributed.run --standalone --nproc-per-node N nemo_ranks.py --settings settings.yaml
    python nemo_ranks.py --settings settings.yaml … --check      build and check each, print what is configured

Exit codes: 0 the training ran to its end (or every check passed), 2 the settings were refused.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rank_program import is_first_rank, mark
from vendor_ranks import Settings, facts, imported, main, stand_in_for


def _stack() -> Any:
    """Return nemo_recipe, which imports NeMo.

    Raises:
        Refused: NeMo, or a part of it, cannot be imported.
    """
    what = "NeMo cannot be imported completely: its recipes are then silently absent"
    with _quiet():
        return imported("nemo_recipe", what, "install what is missing into it (make nemo has the tried lines)")


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence NeMo while it is imported: it warns of packages that an LLM does without."""
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)


def _check(settings: Settings) -> None:
    nemo_recipe = _stack()
    configured = nemo_recipe.configured(nemo_recipe.build(settings), settings)
    if is_first_rank():
        mark("facts", facts(None, "nemo_toolkit", "lightning"))
        mark("configured", configured)


def _train(settings: Settings) -> None:
    stand_in = stand_in_for(settings["device"])
    nemo_recipe = _stack()
    recipe = nemo_recipe.build(settings)
    if is_first_rank():
        mark("facts", facts(stand_in, "nemo_toolkit", "lightning"))
    nemo_recipe.seed_everything(settings["seed"])
    run = nemo_recipe.ready(recipe, nemo_recipe.Marks(settings, stand_in))
    run()


if __name__ == "__main__":
    sys.exit(main("nemo", _check, _train))
