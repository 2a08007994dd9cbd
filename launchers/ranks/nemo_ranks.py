"""NVIDIA NeMo 2.x: builds a recipe of its llm collection, sets what the settings file says, and trains. One process of
it is one rank.

    python -m torch.distributed.run --standalone --nproc-per-node N nemo_ranks.py --settings settings.yaml
    python nemo_ranks.py --settings settings.yaml … --check      build and check each, print what is configured

Exit codes: 0 the training ran to its end (or the check found nothing), 2 the settings were refused.
"""

from __future__ import annotations

import argparse
import gc
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from vendor_config import Refusal, Refused, die_with_parent, facts, is_first_rank, mark, read_settings, stop
from vendor_device import stand_in_for

PROGRAM = "nemo"
CANNOT_IMPORT = (ImportError, AttributeError, TypeError, ValueError, RuntimeError, OSError)
"""What importing NeMo raises where its packages do not fit together."""


def main() -> int:
    """Run this rank and return its exit code."""
    die_with_parent()
    parser = argparse.ArgumentParser(description="one rank of NeMo; start it with torchrun")
    parser.add_argument("--settings", required=True, nargs="+", metavar="FILE.yaml")
    parser.add_argument("--check", action="store_true", help="build and check, without training")
    arguments = parser.parse_args()
    if arguments.check:
        gc.disable()  # imports make a million objects and no garbage to search them for
        return max([_refusing(_check, path) for path in arguments.settings])
    return _refusing(_train, arguments.settings[0])


def _refusing(action: Callable[[dict[str, Any]], None], path: str) -> int:
    try:
        action(read_settings(path))
    except Refused as refused:
        return stop(2, PROGRAM, f"{len(refused.refusals)} reasons not to run {path}", refused.refusals)
    return 0


@contextmanager
def _quiet() -> Iterator[None]:
    """While NeMo is imported: it warns of packages that an LLM does without."""
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)


def _recipe(settings: dict[str, Any]) -> Any:
    """The recipe with everything set.

    Raises:
        Refused: NeMo, or a part of it, cannot be imported; or a setting is refused.
    """
    try:
        with _quiet():
            import nemo_recipe
    except CANNOT_IMPORT as error:
        what = "NeMo cannot be imported whole: its recipes are then silently absent"
        missing = f"package {error.name} is missing" if isinstance(error, ModuleNotFoundError) else repr(error)
        hint = "install what is missing into it (make nemo has the tried lines)"
        raise Refused([Refusal("framework.python", what, f"{missing}, in {sys.executable}", hint=hint)]) from error
    return nemo_recipe.build(settings)


def _check(settings: dict[str, Any]) -> None:
    recipe = _recipe(settings)
    import nemo_effective

    configured = nemo_effective.configured(recipe, settings)
    if is_first_rank():
        mark("facts", facts(None, "nemo_toolkit", "lightning"))
        mark("configured", configured)


def _train(settings: dict[str, Any]) -> None:
    stand_in = stand_in_for(settings["device"])
    recipe = _recipe(settings)
    import nemo_effective
    import nemo_recipe

    if is_first_rank():
        mark("facts", facts(stand_in, "nemo_toolkit", "lightning"))
    nemo_recipe.seed_everything(settings["seed"])
    run = nemo_recipe.ready(recipe, nemo_effective.marks(settings, stand_in))
    run()


if __name__ == "__main__":
    sys.exit(main())
