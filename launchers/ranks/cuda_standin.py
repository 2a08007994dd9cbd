"""Let Megatron-Core run where there is no accelerator: a CPU stand-in for the few torch.cuda calls that it hard-codes.

Megatron-Core does not support the CPU, but what stands in the way of a dense GPT is small: device names written as
literals, and calls on a CUDA device that have an exact meaning on the CPU. This module replaces those and nothing
else. It does not make a GPU stack fast, measure anything, or fake an answer to `torch.cuda.is_available()`; where an
accelerator is found (CUDA or ROCm), it does nothing at all.

It replaces names inside one release, so it is tied to that release, and line numbers below are that release's.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from rehearsal.tprimat_standin_parts import Replacement, Stream, counts_as_numpy, get_state, set_state

MEGATRON_VERSION = "0.15.3"
_CPU = torch.device("cpu")
_FACTORIES = ("tensor", "zeros", "ones", "empty")


class StandInError(ImportError):
    """The installed megatron-core is not the one that this stand-in was written for."""


def install() -> bool:
    """Install the stand-in and import Megatron-Core; call it before anything else imports Megatron.

    Returns True where the stand-in is now active, False where an accelerator was found and nothing was touched.

    Raises:
        StandInError: megatron-core is missing, is another release, or lacks a name of the tables below.
    """
    if torch.cuda.is_available():
        return False
    with _no_compile():
        _check_release()
        targets = [(_resolve(entry.owner), entry) for entry in REPLACEMENTS]
        modules = [_module(name) for name in DEVICE_LITERALS]
    missing = [f"{entry.owner} has no {entry.name}" for owner, entry in targets if not hasattr(owner, entry.name)]
    if missing:
        raise StandInError(_wrong_release("; ".join(missing)))
    for owner, entry in targets:
        setattr(owner, entry.name, entry.make(getattr(owner, entry.name)))
    proxy = _TorchOnCpu()
    for module in modules:
        module.torch = proxy  # type: ignore[attr-defined]
    logging.getLogger("megatron.core.tensor_parallel.random").addFilter(_not_rng_warning)
    return True


@contextlib.contextmanager
def _no_compile() -> Iterator[None]:
    """Megatron-Core decorates its fused functions with torch.compile at import (jit.py:12); none is used on the CPU,
    and importing torch._inductor for them takes 2 to 3 seconds in every rank."""
    original = torch.compile
    torch.compile = _identity  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.compile = original


def _identity(model: Any = None, **_: Any) -> Any:
    return _identity if model is None else model


def _check_release() -> None:
    found = _module("megatron.core").__version__
    if found != MEGATRON_VERSION:
        raise StandInError(_wrong_release(f"found {found}"))


def _resolve(owner: str) -> Any:
    module, _, attribute = owner.partition(":")
    return getattr(_module(module), attribute) if attribute else _module(module)


def _module(name: str) -> types.ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise StandInError(_wrong_release(str(error))) from error


def _wrong_release(found: str) -> str:
    return (
        f"without a GPU the stand-in for torch.cuda is needed, and it fits megatron-core {MEGATRON_VERSION} only: "
        f"{found}; try: pip install megatron-core=={MEGATRON_VERSION}"
    )


class _TorchOnCpu(types.ModuleType):
    """`torch`, but for device="cuda" and pin_memory in the factory functions."""

    def __init__(self) -> None:
        super().__init__("torch")
        for name in _FACTORIES:
            setattr(self, name, _on_cpu(getattr(torch, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _on_cpu(factory: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(factory)
    def wrapped(*args: Any, **options: Any) -> Any:
        options.pop("pin_memory", None)
        if str(options.get("device")).startswith("cuda"):
            options["device"] = _CPU
        return factory(*args, **options)

    return wrapped


def _type_as_cuda(original: Callable[..., Any]) -> Callable[..., Any]:
    def type_(tensor: Any, *args: Any, **options: Any) -> Any:
        answer = original(tensor, *args, **options)
        if args or options:
            return answer
        caller = sys._getframe(1).f_globals.get("__name__", "")
        return answer.replace("torch.", "torch.cuda.") if caller.startswith("megatron.core.optimizer") else answer

    return type_


def _not_rng_warning(record: logging.LogRecord) -> bool:
    """tensor_parallel/random.py:222 warns when the CPU generator moves inside `fork`: here it is the right one."""
    return not record.getMessage().startswith("CPU RNG state changed")


_DENSE = "tests/engine/test_engine_layouts.py::test_fp32_layouts_equal_the_single_process"
_EXPERTS = "tests/engine/test_engine_layouts.py::test_layouts_of_experts_equal_the_single_process"
_AGAIN = "tests/engine/test_engine_layouts.py::test_recomputation_changes_nothing"
_DRAWS = "tests/engine/test_engine_standin.py::test_each_region_draws_from_its_own_seed"

REPLACEMENTS = (
    Replacement(
        "torch.cuda",
        "current_device",
        lambda _: lambda: _CPU,
        "passed as device=: distributed/param_and_grad_buffer.py:702, tensor_parallel/layers.py:544, "
        "tensor_parallel/mappings.py:91, pipeline_parallel/p2p_communication.py:313",
        _DENSE,
    ),
    Replacement(
        "torch.cuda",
        "synchronize",
        lambda _: lambda *_: None,
        "CPU work is done when the call returns: pipeline_parallel/p2p_communication.py:398",
        _DENSE,
    ),
    Replacement(
        "torch.cuda",
        "manual_seed",
        lambda _: torch.default_generator.manual_seed,
        "dropout draws from the CPU generator: tensor_parallel/random.py:198",
        _DRAWS,
    ),
    Replacement(
        "torch.cuda",
        "get_rng_state",
        get_state,
        "the same generator: tensor_parallel/random.py:196",
        _DRAWS,
    ),
    Replacement(
        "torch.cuda.random",
        "get_rng_state",
        get_state,
        "the same function under its second name: tensor_parallel/random.py:55",
        _AGAIN,
    ),
    Replacement(
        "megatron.core.tensor_parallel.random",
        "_set_cuda_rng_state",
        set_state,
        "it queues a call for CUDA's start, which never comes: tensor_parallel/random.py:106",
        _DRAWS,
    ),
    Replacement(
        "torch.cuda",
        "Stream",
        lambda _: Stream,
        "experts count their tokens on a stream of its own: transformer/moe/token_dispatcher.py:425",
        _EXPERTS,
    ),
    Replacement(
        "torch.cuda",
        "current_stream",
        lambda _: Stream,
        "the same: transformer/moe/token_dispatcher.py:831",
        _EXPERTS,
    ),
    Replacement(
        "megatron.core.transformer.moe.token_dispatcher",
        "maybe_move_tensor_to_cpu",
        counts_as_numpy,
        "gloo's all_to_all_single takes no tensors as split sizes, and a CPU tensor is left one: "
        "transformer/moe/token_dispatcher.py:838",
        _EXPERTS,
    ),
    Replacement(
        "torch:Tensor",
        "cuda",
        lambda _: lambda tensor, *_, **__: tensor,
        "tied embeddings over pipeline stages: models/common/language_module/language_module.py:233; positions of a "
        "context parallel rank: models/common/embeddings/rope_utils.py:64",
        _DENSE,
    ),
    Replacement(
        "torch:Tensor",
        "type",
        _type_as_cuda,
        "the optimizers take only tensors whose type() reads torch.cuda.*, and only they get that answer: "
        "optimizer/clip_grads.py:167, optimizer/optimizer.py:667, optimizer/distrib_optimizer.py:357",
        _DENSE,
    ),
)

DEVICE_LITERALS = {
    "megatron.core.pipeline_parallel.schedules": "token counter: pipeline_parallel/schedules.py:573, 963, 2114",
    "megatron.core.optimizer.optimizer": "loss scale: optimizer/optimizer.py:469, 477, 481, 903",
    "megatron.core.optimizer.clip_grads": "norms: optimizer/clip_grads.py:90, 103, 115, 174, 206",
    "megatron.core.transformer.utils": "causal mask of Megatron's own attention: transformer/utils.py:35",
    "megatron.core.models.common.embeddings.rope_utils": "pin_memory=True with context parallelism: rope_utils.py:63",
}
"""Modules that write device="cuda" or pin_memory=True as a literal: there, the name `torch` is bound to a proxy that
reads them as "cpu" and False."""
