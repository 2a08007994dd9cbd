"""What both ways into the stand-in are made of: the row of its tables, and what a CPU has in the place of a stream."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple


class Replacement(NamedTuple):
    """One replaced name: `owner` is a module, or a class as `module:Class`; `make`: original → what stands in for it.

    reason: why, and who needs it. test: the test that fails without it. added: the name may be missing.
    """

    owner: str
    name: str
    make: Callable[[Any], Any]
    reason: str
    test: str = ""
    added: bool = False

    @property
    def module(self) -> str:
        return self.owner.partition(":")[0]

    @property
    def full_name(self) -> str:
        return f"{self.owner.replace(':', '.')}.{self.name}"


class Stream:
    """The one "stream" of a CPU: what was queued is done."""

    cuda_stream = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream)

    __hash__ = None  # type: ignore[assignment]

    def wait_stream(self, *_: Any) -> None:
        pass

    wait_event = synchronize = wait_stream

    def query(self) -> bool:
        return True

    def record_event(self, event: Any = None) -> Any:
        return event or Event()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: Any) -> None:
        pass


class Event:
    """A point on that stream."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.at = 0.0

    def record(self, *_: Any) -> None:
        self.at = time.monotonic()

    def wait(self, *_: Any) -> None:
        pass

    synchronize = wait

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: Event) -> float:
        return (other.at - self.at) * 1000


def answer(value: Any) -> Callable[[Any], Callable[..., Any]]:
    """A `make` whose function takes anything and returns `value`; each is another, as torch._dynamo tells functions
    apart by identity."""
    return lambda _: lambda *_, **__: value


def counts_as_numpy(original: Callable[..., Any]) -> Callable[..., Any]:
    """Megatron's maybe_move_tensor_to_cpu, whose `as_numpy` holds for tensors that are on the CPU already."""

    def move(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        moved = original(tensor, as_numpy=as_numpy, record_stream=record_stream)
        return moved.numpy() if as_numpy and hasattr(moved, "numpy") else moved

    return move


def get_state(_: Any) -> Callable[..., Any]:
    """The state of the CPU's generator, whatever device is asked."""
    from torch import default_generator

    return lambda *_, **__: default_generator.get_state()


def set_state(_: Any) -> Callable[..., Any]:
    """The other direction."""
    from torch import default_generator

    def put(state: Any, *_: Any, **__: Any) -> None:
        default_generator.set_state(state)

    return put


def decayed_first(original: Callable[..., list[dict[str, Any]]]) -> Callable[..., list[dict[str, Any]]]:
    """The decayed group first on every rank, as Megatron-Core 0.16 has it (optimizer/__init__.py:189): 0.15 begins with
    that of the rank's first parameter, and sums a later stage's gradient norm in another order."""

    def param_groups(*arguments: Any, **options: Any) -> list[dict[str, Any]]:
        return sorted(original(*arguments, **options), key=lambda group: -group["wd_mult"])

    return param_groups
