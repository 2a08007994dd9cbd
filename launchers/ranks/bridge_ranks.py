"""Train with NVIDIA Megatron-Bridge: build a recipe and set what the settings file says. One process is one rank.

    python -m torch.distributed.run --standalone --nproc-per-node N bridge_ranks.py --settings settings.yaml
    python bridge_ranks.py --settings settings.yaml … --check    build and check each, print what is configured

Exit codes: 0 the training ran to its end (or every check passed), 2 the settings were refused."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import logging
import os
import re
import sys
import tempfile
import typing
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rank_program import Refused, installed
from vendor_ranks import Settings, imported, main, stand_in_for

_COMMIT = "0" * 40


def _stack(settings: Settings, check: bool, folder: str) -> tuple[str | None, Any]:
    """Return the stand-in's name, if one is needed, and bridge_config, which imports Bridge; in this order.
    Raises Refused: this environment is not the one that the plan is for."""
    planned = settings["release"]
    release = installed("megatron-bridge")["megatron_bridge"]
    if release is None and any(importlib.util.find_spec(name) is None for name in ("megatron", "megatron.bridge")):
        what = f"megatron-bridge is not installed in {sys.executable}"
        raise Refused.of("framework.python", what, "", "", "the Python that has it, or a container")
    _check_release(planned, release or planned)  # a checkout on the path has no metadata: below
    seed_cache(folder, settings["hugging_face"])
    stand_in, bridge_config = _imported(settings["device"], check)
    _check_release(planned, bridge_config.RELEASE)
    return stand_in, bridge_config


def _imported(device: str, check: bool) -> tuple[str | None, Any]:
    before_import()
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    stand_in = stand_in_for(device, check)
    hint = "install what is missing into it, or use NVIDIA's container"
    return stand_in, imported("bridge_config", "Megatron-Bridge cannot be imported", hint)


def warm(folder: str) -> None:
    """Import what a rank imports (rehearsal/tprimat_warm.py); `folder` is the cache of the hub from then on."""
    use_cache(folder)
    _imported("cpu", check=False)


def before_import() -> None:
    """Silence what is said at import about packages that an LLM does without, and let an older Python import what is
    written for 3.12."""
    warnings.filterwarnings("ignore")
    logging.getLogger("megatron.core.utils").setLevel(logging.ERROR)
    if not hasattr(typing, "override"):  # 0.6.0 asks for 3.12; it marks a method, and does nothing
        typing.override = lambda method: method  # type: ignore[attr-defined]


def _check_release(planned: str, release: str) -> None:
    """Refuse another release than the one whose attribute paths the plan has."""
    numbers, minor = re.findall(r"\d+", release), re.findall(r"\d+", planned)[:2]
    if numbers[:2] != minor:
        what = "the plan is for another release than the one that is installed"
        raise Refused.of("framework.release", what, planned, release, f"framework.release={'.'.join(numbers[:3])}")


def seed_cache(folder: str, answer: Mapping[str, Any]) -> None:
    """Make `folder` an offline cache of the Hugging Face hub with `answer`: {id, revisions, config}.

    Every recipe reads config.json of its model when it is built: from the network, and some repositories are gated. The
    answer is ours (launchers/settings/hugging_face.yaml), so it checks nothing. Call it before huggingface_hub is
    imported, which reads the variables then."""
    home = Path(folder) / "hub" / ("models--" + answer["id"].replace("/", "--"))
    for commit in (_COMMIT, *answer["revisions"]):
        snapshot = home / "snapshots" / commit
        snapshot.mkdir(parents=True, exist_ok=True)
        (snapshot / "config.json").write_text(json.dumps(answer["config"]), encoding="utf-8")
    (home / "refs").mkdir(exist_ok=True)
    (home / "refs" / "main").write_text(_COMMIT, encoding="utf-8")
    use_cache(folder)


def use_cache(folder: str) -> None:
    """Let huggingface_hub, which is not imported yet, read `folder` alone."""
    os.environ.update({"HF_HOME": folder, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"})
    os.environ.pop("HF_HUB_CACHE", None)


@contextlib.contextmanager
def _cache() -> Iterator[str]:
    """Yield a folder for the cache: the one that huggingface_hub was imported with, where `warm` has done that."""
    loaded = sys.modules.get("huggingface_hub.constants")
    with contextlib.nullcontext(loaded.HF_HOME) if loaded else tempfile.TemporaryDirectory(prefix="bridge-hub-") as hub:
        yield hub


if __name__ == "__main__":
    with _cache() as hub:
        sys.exit(main("bridge", functools.partial(_stack, folder=hub)))
