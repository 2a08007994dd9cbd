"""Let Megatron-Core train where there is no accelerator: the names of torch.cuda that it hard-codes, replaced.

A selection of the rehearsal's stand-in (rehearsal/tprimat_standin.py) and five rows beside it. The rehearsal's own way
sends every call of torch through Python, which takes 7 % of a step of llama_tiny; here the literals "cuda" are replaced
in the modules that write them, and torch.cuda.is_available() stays False. Line numbers are megatron-core 0.15.3's."""

from __future__ import annotations

import functools
import logging
import os
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
from engine_settings import EngineError  # first: it puts the folder of the others on the path
from rank_program import installed
from tprimat_after_import import FAULTS, after, around
from tprimat_light import install as leave_out_compiler
from tprimat_standin import CUDA, GONE, MEGATRON, Replacement, answer, replace, set_state

MEGATRON_VERSION = "0.15.3"
_CPU = torch.device("cpu")
_SHARED = (
    *("torch.cuda.synchronize", "torch.cuda.manual_seed", "torch.cuda.Stream", "torch.cuda.current_stream"),
    *("torch.cuda.stream", "torch.cuda.default_stream"),  # replicas of shards
    *("torch.cuda.get_rng_state", "torch.cuda.random.get_rng_state"),
    "megatron.core.transformer.moe.moe_utils.maybe_move_tensor_to_cpu",
)
"""Rows of the rehearsal's tables that hold here, too."""


def install() -> bool:
    """Install the stand-in; call it before anything imports Megatron, and `check` when all of it is imported. Returns
    True where the stand-in is now active, False where there is an accelerator and nothing was replaced.
    Raises EngineError: megatron-core is missing, or is another release."""
    if torch.cuda.is_available():
        return False
    release = installed("megatron-core")["megatron_core"]
    if release != MEGATRON_VERSION:
        raise _refusal(f"this is {release}" if release else "it is not installed")
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # nothing is compiled here, and torch's optimizers import the
    leave_out_compiler()  # compiler to say so: 35 MB, and a third of a second in every rank
    for entry in rows():
        after(entry.module)(functools.partial(replace, entry))
    for name in DEVICE_LITERALS:
        after(name)(lambda module: setattr(module, "torch", _TorchOnCpu()))
    logging.getLogger("megatron.core.tensor_parallel.random").addFilter(_is_no_rng_warning)
    return True


def check() -> None:
    """Refuse a Megatron-Core in which a name could not be replaced.
    Raises EngineError: names are missing, all of them listed."""
    if missing := [*GONE, *(f"{module}: {error}" for module, _, error in FAULTS)]:
        raise _refusal("; ".join(missing))


def _refusal(why: str) -> EngineError:
    return EngineError(
        f"without a GPU the stand-in for torch.cuda is needed, and it fits megatron-core {MEGATRON_VERSION} only: "
        f"{why}; try: pip install megatron-core=={MEGATRON_VERSION}"
    )


def rows() -> tuple[Replacement, ...]:
    return (*(entry for entry in (*CUDA, *MEGATRON) if entry.full_name in _SHARED), *OWN)


class _TorchOnCpu(types.ModuleType):
    """Be `torch`, with factory functions that read device="cuda" as "cpu", and no pin_memory."""

    def __init__(self) -> None:
        super().__init__("torch")
        for name in ("tensor", "zeros", "ones", "empty"):
            setattr(self, name, _on_cpu(getattr(torch, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@around
def _on_cpu(factory: Any, *args: Any, **options: Any) -> Any:
    options.pop("pin_memory", None)
    if str(options.get("device")).startswith("cuda"):
        options["device"] = _CPU
    return factory(*args, **options)


@around
def _type_as_cuda(original: Any, tensor: Any, *args: Any, **options: Any) -> Any:
    said = original(tensor, *args, **options)
    if args or options:
        return said
    caller = sys._getframe(2).f_globals.get("__name__", "")  # behind around's own
    return said.replace("torch.", "torch.cuda.") if caller.startswith("megatron.core.optimizer") else said


def _no_compile(_: Any) -> Callable[..., Any]:
    def compile(model: Any = None, **_: Any) -> Any:  # noqa: A001 - torch's name
        return model if model is not None else compile

    return compile


def _is_no_rng_warning(record: logging.LogRecord) -> bool:
    """Drop what tensor_parallel/random.py:222 says when the CPU generator moves inside `fork`: it is the right one."""
    return not record.getMessage().startswith("CPU RNG state changed")


OWN = (
    Replacement(
        "torch.compile",
        _no_compile,
        "decorates fused functions at import (jit.py:12), none of which is used on the CPU: importing torch._inductor "
        "for them takes 2 to 3 seconds in every rank",
    ),
    Replacement(
        "torch.cuda.current_device",
        answer(_CPU),
        "passed as device=: distributed/param_and_grad_buffer.py:702, tensor_parallel/layers.py:544, "
        "tensor_parallel/mappings.py:91, pipeline_parallel/p2p_communication.py:313",
    ),
    Replacement(
        "megatron.core.tensor_parallel.random._set_cuda_rng_state",
        set_state,
        "it queues a call for CUDA's start, which never comes: tensor_parallel/random.py:106",
    ),
    Replacement(
        "torch:Tensor.cuda",
        lambda _: lambda tensor, *_, **__: tensor,
        "tied embeddings over pipeline stages: models/common/language_module/language_module.py:233; positions of a "
        "context parallel rank: models/common/embeddings/rope_utils.py:64",
    ),
    Replacement(
        "torch:Tensor.type",
        _type_as_cuda,
        "the optimizers take only tensors whose type() reads torch.cuda.*, and only they get that answer: "
        "optimizer/clip_grads.py:167, optimizer/optimizer.py:667, optimizer/distrib_optimizer.py:357",
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
