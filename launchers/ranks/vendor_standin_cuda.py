"""torch.cuda without a GPU: one device a rank, streams that do nothing, counters that read 0 (vendor_standin.py)."""

from __future__ import annotations

import collections
import contextlib
import os
import time
from collections.abc import Callable
from typing import Any

_MEMORY_BYTES = 80 << 30  # what memory questions are answered with: nothing is decided by it but to go on


class _Stream:
    """The one "stream" of a CPU: what was queued is done."""

    cuda_stream = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def wait_stream(self, *_: Any) -> None:
        pass

    wait_event = synchronize = wait_stream

    def query(self) -> bool:
        return True

    def record_event(self, event: Any = None) -> Any:
        return event or _Event()

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: Any) -> None:
        pass


class _Event:
    def __init__(self, *_: Any, **__: Any) -> None:
        self.at = 0.0

    def record(self, *_: Any) -> None:
        self.at = time.monotonic()

    def wait(self, *_: Any) -> None:
        pass

    synchronize = wait

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: _Event) -> float:
        return (other.at - self.at) * 1000


class _Properties:
    """Hopper, as the stacks' switches want an architecture; the name says that there is none."""

    name = "no GPU (stand-in)"
    total_memory = _MEMORY_BYTES
    major, minor = 9, 0
    multi_processor_count, warp_size, uuid = 132, 32, "0"


class NoNccl:
    """torch.distributed.ProcessGroupNCCL, of which Megatron only fills in Options."""

    class Options:
        def __init__(self, *_: Any, **__: Any) -> None:
            self.config = type("Config", (), {})()


def answer(value: Any) -> Callable[..., Any]:
    """A function that takes anything and returns `value`; each call makes another, as torch._dynamo tells functions
    apart by identity."""
    return lambda *_, **__: value


def cuda_names(torch: Any) -> dict[str, Any]:
    """Of torch.cuda: one device a rank, streams that do nothing, counters that read 0, the CPU's random numbers."""
    devices = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    zero = {name: answer(0) for name in ("memory_allocated", "memory_reserved", "utilization")}
    peaks = {name: answer(0) for name in ("max_memory_allocated", "max_memory_reserved")}
    done = (
        "set_stream",
        "manual_seed_all",
        "reset_peak_memory_stats",
        "_lazy_call",
        "init",
        "_lazy_init",
        "set_device",
        "synchronize",
        "empty_cache",
        "ipc_collect",
    )
    return {
        **zero,
        **peaks,
        **{name: answer(None) for name in done},
        "is_available": answer(True),
        "is_initialized": answer(True),
        "is_bf16_supported": answer(True),
        "is_current_stream_capturing": answer(False),
        "device_count": answer(devices),
        "current_device": answer(int(os.environ.get("LOCAL_RANK", "0"))),
        "Stream": _Stream,
        "ExternalStream": _Stream,
        "Event": _Event,
        "stream": lambda *_: contextlib.nullcontext(),
        "device": lambda *_: contextlib.nullcontext(),
        "current_stream": lambda *_, **__: _Stream(),
        "default_stream": lambda *_, **__: _Stream(),
        "get_device_properties": lambda *_, **__: _Properties(),
        "get_device_capability": answer((_Properties.major, _Properties.minor)),
        "get_device_name": answer(_Properties.name),
        "mem_get_info": answer((_MEMORY_BYTES, _MEMORY_BYTES)),
        "memory_stats": lambda *_, **__: collections.defaultdict(int),
        "memory_snapshot": lambda *_, **__: [],
        "manual_seed": torch.default_generator.manual_seed,
        "get_rng_state": lambda *_, **__: torch.get_rng_state(),
        "set_rng_state": lambda state, *_, **__: torch.set_rng_state(state),
        "default_generators": (torch.default_generator,) * devices,
    }
