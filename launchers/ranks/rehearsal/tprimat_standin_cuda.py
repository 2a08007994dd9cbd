"""torch.cuda without a GPU: one device a rank, streams that do nothing, counters that read 0, the CPU's generator."""

from __future__ import annotations

import collections
import contextlib
import os
from typing import Any

from tprimat_standin_parts import Event, Replacement, Stream, answer, get_state, set_state

_MEMORY_BYTES = 80 << 30  # what memory questions are answered with: nothing is decided by it but to go on
_ARCHITECTURES = {"sm_90": (9, 0), "sm_100": (10, 0), "gfx942": (9, 4), "gfx950": (9, 5)}
_ARCHITECTURE = os.environ.get("TPRIMAT_ARCH", "sm_90")

_TEST = "tests/rehearsal/test_standin_torch.py::test_every_name_is_needed"


class _Properties:
    """An architecture, as the stacks' switches want one; the name says that there is none."""

    name = "no GPU (stand-in)"
    total_memory = _MEMORY_BYTES
    major, minor = _ARCHITECTURES.get(_ARCHITECTURE, (9, 0))
    multi_processor_count, warp_size, uuid, L2_cache_size = 132, 32, "0", 50 << 20
    gcnArchName = _ARCHITECTURE  # noqa: N815 - torch's name


def _devices() -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE") or 1)


def _generators(_: Any) -> tuple[Any, ...]:
    import torch

    return (torch.default_generator,) * _devices()


def _manual_seed(_: Any) -> Any:
    import torch

    return torch.default_generator.manual_seed


def _a(value: Any) -> Any:
    """A `make` whose function takes anything and returns value()."""
    return lambda _: lambda *_, **__: value()


# M: megatron/core of 0.15.3, B: megatron/bridge of 0.3.1, L: lightning of 2.4.0, N: nemo of 2.7.3
_ROWS: tuple[tuple[str, str, Any, str], ...] = (
    ("torch.cuda", "is_available", answer(True), "asked by all: Lightning's accelerator, Megatron's initialisation"),
    ("torch.cuda", "is_initialized", answer(True), "torch's own calls begin a driver that is not there"),
    ("torch.cuda", "device_count", _a(_devices), "a rank's GPU is its number modulo this"),
    (
        "torch.cuda",
        "current_device",
        _a(lambda: int(os.environ.get("LOCAL_RANK") or 0)),
        "passed as device= all over M",
    ),
    ("torch.cuda", "set_device", answer(None), "the first thing that each rank does"),
    ("torch.cuda", "get_device_properties", _a(_Properties), "switches by architecture, name and memory"),
    ("torch.cuda", "mem_get_info", answer((_MEMORY_BYTES, _MEMORY_BYTES)), "Primus' memory line"),
    (
        "torch.cuda",
        "memory_stats",
        _a(lambda: collections.defaultdict(int)),
        "B:training/utils/train_utils.py, its report",
    ),
    ("torch.cuda", "utilization", answer(0), "M:utils.py:1416, StragglerDetector"),
    (
        "torch.cuda.memory",
        "_record_memory_history",
        answer(None),
        "N:lightning/pytorch/callbacks/memory_profiler.py:74",
    ),
    ("torch.cuda", "Stream", lambda _: Stream, "M:distributed/param_and_grad_buffer.py, token_dispatcher.py and more"),
    ("torch.cuda", "Event", lambda _: Event, "M:pipeline_parallel/utils.py:122; timers"),
    ("torch.cuda", "stream", _a(contextlib.nullcontext), "the same places"),
    ("torch.cuda", "current_stream", _a(Stream), "the same places"),
    ("torch.cuda", "default_stream", _a(Stream), "M:distributed/param_and_grad_buffer.py:422"),
    ("torch.cuda", "set_stream", answer(None), "B:training/initialize.py:560"),
    ("torch.cuda", "synchronize", answer(None), "timers; M:pipeline_parallel/p2p_communication.py:398"),
    (
        "torch.cuda",
        "manual_seed",
        _manual_seed,
        "M:tensor_parallel/random.py:198: dropout draws from the CPU's generator",
    ),
    ("torch.cuda", "default_generators", _generators, "M:tensor_parallel/random.py:103, its tracker and recomputation"),
    ("torch.cuda", "get_rng_state", get_state, "the same, M:rerun_state_machine.py:915, checkpoints"),
    ("torch.cuda", "set_rng_state", set_state, "the same"),
    ("torch.cuda", "get_rng_state_all", _a(lambda: [get_state(None)()]), "L:fabric/utilities/seed.py:134"),
    ("torch.cuda.random", "get_rng_state", get_state, "M:tensor_parallel/random.py:55, by the second name"),
    ("torch.cuda.random", "set_rng_state", set_state, "torch.cuda.set_rng_state_all calls it"),
    ("torch.cuda.nvtx", "range_push", answer(None), "M:pipeline_parallel/utils.py:174, N:utils/nvtx.py:42"),
    ("torch.cuda.nvtx", "range_pop", answer(None), "the same"),
)

CUDA = tuple(Replacement(owner, name, make, reason, _TEST) for owner, name, make, reason in _ROWS)
