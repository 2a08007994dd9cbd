"""NVIDIA Megatron-Bridge: builds a recipe, sets what the settings file says, and trains. One process of it is one rank.

    python -m torch.distributed.run --standalone --nproc-per-node N bridge_ranks.py --settings settings.yaml
    python bridge_ranks.py --settings settings.yaml … --check    build and check each, print what is configured

Exit codes: 0 the training ran to its end (or the check found nothing), 2 the settings were refused.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import bridge_cache
from vendor_config import Refusal, Refused, die_with_parent, facts, installed, is_first_rank, mark, read_settings, stop
from vendor_device import stand_in_for

PROGRAM = "bridge"
CANNOT_IMPORT = (ImportError, AttributeError, TypeError, ValueError, RuntimeError, OSError)
"""What importing Bridge raises where its packages do not fit together."""


def main() -> int:
    """Run this rank and return its exit code."""
    die_with_parent()
    parser = argparse.ArgumentParser(description="one rank of Megatron-Bridge; start it with torchrun")
    parser.add_argument("--settings", required=True, nargs="+", metavar="FILE.yaml")
    parser.add_argument("--check", action="store_true", help="build and check, without training")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bridge-hub-") as folder:
        if arguments.check:
            return max([_refusing(_check, path, folder) for path in arguments.settings])
        return _refusing(_train, arguments.settings[0], folder)


def _refusing(action: Callable[[dict[str, Any], str], None], path: str, folder: str) -> int:
    try:
        action(read_settings(path), folder)
    except Refused as refused:
        return stop(2, PROGRAM, f"{len(refused.refusals)} reasons not to run {path}", refused.refusals)
    return 0


def _check(settings: dict[str, Any], folder: str) -> None:
    stand_in, bridge_config = _stack(settings, folder, check=True)
    config = bridge_config.validated(bridge_config.build(settings, stand_in), settings)
    import bridge_effective

    mark("facts", facts(stand_in, "megatron-bridge", "transformers") | bridge_config.versions())
    mark("configured", bridge_effective.configured(config, settings))


def _train(settings: dict[str, Any], folder: str) -> None:
    stand_in, bridge_config = _stack(settings, folder, check=False)
    config = bridge_config.build(settings, stand_in)
    import bridge_effective
    from megatron.bridge.training.gpt_step import forward_step
    from megatron.bridge.training.pretrain import pretrain

    if is_first_rank():
        mark("facts", facts(stand_in, "megatron-bridge", "transformers") | bridge_config.versions())
    bridge_config.use_built_helpers()
    pretrain(config, forward_step, callbacks=[bridge_effective.Marks(settings, stand_in)])


def _stack(settings: dict[str, Any], folder: str, check: bool) -> tuple[str | None, Any]:
    """The stand-in's name, if one is needed, and bridge_config, which imports Bridge; in this order.

    Raises:
        Refused: this environment is not the one that the plan is for.
    """
    _release(settings["release"])
    _quiet()
    bridge_cache.seed(folder, settings["hugging_face"])
    return stand_in_for(settings["device"], check), _import(settings["release"])


def _release(planned: str) -> None:
    """The plan's attribute paths are of one release; a checkout on the path has no metadata, and is asked in _import.

    Raises:
        Refused: another one is installed, or none.
    """
    found = installed("megatron-bridge")["megatron_bridge"]
    if found is None and importlib.util.find_spec("megatron.bridge") is None:
        what = f"megatron-bridge is not installed in {sys.executable}"
        raise Refused([Refusal("framework.python", what, hint="the Python that has it, or a container")])
    _same_release(planned, found or planned)


def _same_release(planned: str, found: str) -> None:
    if _minor(found) != _minor(planned):
        what = "the plan is for another release than the one that is installed"
        hint = f"framework.release={'.'.join(re.findall(r'[0-9]+', found)[:3])}"
        raise Refused([Refusal("framework.release", what, planned, found, hint)])


def _minor(release: str) -> list[str]:
    return re.findall(r"\d+", release)[:2]


def _quiet() -> None:
    """What is said at import about packages that an LLM does without."""
    warnings.filterwarnings("ignore")
    logging.getLogger("megatron.core.utils").setLevel(logging.ERROR)
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")


def _import(planned: str) -> Any:
    """bridge_config, which imports Bridge.

    Raises:
        Refused: what cannot be imported, by name; another release.
    """
    try:
        import bridge_config
    except CANNOT_IMPORT as error:
        missing = f"package {error.name} is missing" if isinstance(error, ModuleNotFoundError) else repr(error)
        what = "Megatron-Bridge cannot be imported"
        hint = "install what is missing into it, or use NVIDIA's container"
        raise Refused([Refusal("framework.python", what, f"{missing}, in {sys.executable}", hint=hint)]) from error
    _same_release(planned, bridge_config.RELEASE)
    return bridge_config


if __name__ == "__main__":
    sys.exit(main())
