"""A stand-in for torch.cuda, with which a vendor's stack trains on a machine without an accelerator: a rehearsal.

It runs the stack's own code on the CPU over gloo: settings, layout, data, losses and learning rates are real. Kernels,
TransformerEngine, fp8, NCCL, memory and speed are not there. Where an accelerator is found it does nothing at all.
Every name is replaced because a stack uses it unconditionally while it trains: the tables say which and why, and hold
one row a name. A release that lacks such a name is no reason to stop: the row is left out, and said.

Seen with nemo_toolkit 2.7.3, Megatron-Bridge 0.3.1, Primus v25.9 to main; Megatron-Core 0.15.3 to 0.20 dev.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import types
from collections.abc import Callable
from typing import Any

import tprimat_standin_packages
from tprimat_after_import import FAULTS, after
from tprimat_standin_cuda import CUDA
from tprimat_standin_megatron import MEGATRON
from tprimat_standin_parts import Replacement
from tprimat_standin_torch import TORCH, tensor_mode

NAME = "torch.cuda"
MODE = "TPRIMAT_REHEARSE"

_state: dict[str, Any] = {"armed": False, "active": None, "announced": False}
GONE: list[str] = []
"""What could not be replaced, a line each."""


def arm() -> None:
    """Install the stand-in as soon as torch is imported; returns at once."""
    if _state["armed"]:
        return
    _state["armed"] = True
    tprimat_standin_packages.install(is_active)
    after("torch")(_install)


def install() -> str | None:
    """Install it now, before the vendor's stack is imported. NAME where it is active, None where an accelerator was
    found."""
    arm()
    return NAME if is_active() else None


def is_active() -> bool:
    """Whether it is in place; imports torch to find out."""
    if _state["armed"] and _state["active"] is None:
        importlib.import_module("torch")
    return bool(_state["active"])


def _install(torch: types.ModuleType) -> None:
    _state["active"] = not torch.cuda.is_available()
    if not _state["active"]:
        _say("an accelerator is found here: nothing is replaced")
        return
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # Megatron compiles its fused functions, which takes minutes here
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")  # Megatron asks for it with sequence parallelism
    os.environ["NEMO_LOG_MEMORY_USAGE"] = "0"  # torch.cuda's counters read 0 here, which is no measurement
    for row in (*CUDA, *TORCH):
        _replace(row)
    tensor_mode(torch)().__enter__()
    torch.distributed.init_process_group = _announced(torch.distributed.init_process_group)
    for row in MEGATRON:
        after(row.module)(lambda _, row=row: _replace(row))


def _replace(row: Replacement) -> None:
    try:
        owner = owner_of(row)
    except ImportError:
        owner = None
    if owner is None or not (row.added or hasattr(owner, row.name)):
        _miss(f"{row.full_name} is not in {_version(row.module)}; it was replaced because: {row.reason}")
        return
    setattr(owner, row.name, row.make(getattr(owner, row.name, None)))


def _miss(line: str) -> None:
    GONE.append(line)
    if _state["announced"]:  # imported late: NeMo's mock data
        _say(f"degraded: {line}")


def owner_of(row: Replacement) -> Any:
    """The module or class of the row, None where its module has no such class.

    Raises:
        ImportError: there is no such module.
    """
    module, _, attribute = row.owner.partition(":")
    owner = sys.modules.get(module) or importlib.import_module(module)
    return getattr(owner, attribute, None) if attribute else owner


def _version(module: str) -> str:
    """The installed version of the package that `module` is a part of, as far as it tells."""
    parts = module.split(".")
    for package in ("megatron.core", parts[0]):
        found = getattr(sys.modules.get(package), "__version__", None)
        if module.startswith(package) and found:
            return f"{package} {found}"
    return f"this {parts[0]}"


def _announced(original: Callable[..., Any]) -> Callable[..., Any]:
    """init_process_group, after which this process knows its rank, and the stack has imported what it runs."""

    def init_process_group(*arguments: Any, **options: Any) -> Any:
        made = original(*arguments, **options)
        torch = sys.modules["torch"]
        rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
        told = {"mode": os.environ.get(MODE, "train"), "rank": rank, "world": world, "stand_in": NAME}
        _say(json.dumps({**told, "torch": torch.__version__}))
        if rank == 0 or told["mode"] == "layout":
            for line in (*GONE, *_never_met(), *(f"{module}: {error}" for module, _, error in FAULTS)):
                _say(f"degraded: {line}")
            _state["announced"] = True
        return made

    return init_process_group


def _never_met() -> list[str]:
    """Rows whose module the installed package no longer has, while the package itself is in use."""
    gone = []
    for row in MEGATRON:
        parent = row.module.rpartition(".")[0]
        if parent in sys.modules and row.module not in sys.modules and not _exists(row.module):
            gone.append(f"{row.module} is not in {_version(row.module)}; {row.name} was replaced because: {row.reason}")
    return gone


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _say(text: str) -> None:
    """A line of ours in one write, which parsers pass over: several processes share one log."""
    sys.stdout.write(f"[tprimat] rehearsal {text}\n")
    sys.stdout.flush()
