"""What the in-rank programs of vendors' stacks share: the settings file, attribute paths, refusals, marks.

Imported with the standard library and PyYAML alone; torch and Megatron-Core are imported where a function needs them.
"""

from __future__ import annotations

import ctypes
import dataclasses
import importlib
import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

_PR_SET_PDEATHSIG = 1  # linux/prctl.h

ENUMS = {
    "AttnBackend": "megatron.core.transformer.enums",
    "CudaGraphScope": "megatron.core.transformer.enums",  # megatron-core 0.16 on
}
FUNCTIONS = {
    "silu": ("torch.nn.functional", "silu"),
    "quick_gelu": ("megatron.core.fusions.fused_bias_geglu", "quick_gelu"),
    "local_layer_spec": ("megatron.bridge.models.gpt_provider", "local_layer_spec"),
}
"""What {enum: AttnBackend.flash} and {function: silu} in a settings file may name: no other code is ever reached."""


class Refusal(NamedTuple):
    """One thing that cannot be run: where (attribute path), what is wrong, what was found, what is allowed, a try."""

    where: str
    what: str
    found: str = ""
    allowed: str = ""
    hint: str = ""

    def line(self) -> str:
        """All of it as one line."""
        labels = (("found", self.found), ("allowed", self.allowed), ("try", self.hint))
        return "; ".join([f"{self.where}: {self.what}", *(f"{label}: {text}" for label, text in labels if text)])


class Refused(Exception):
    """The run was refused before it began; `refusals` is all that was found."""

    def __init__(self, refusals: Iterable[Refusal]) -> None:
        self.refusals = tuple(refusals)
        super().__init__("; ".join(refusal.line() for refusal in self.refusals))


def read_settings(path: str) -> dict[str, Any]:
    """The settings file.

    Raises:
        Refused: it cannot be read, or is no mapping.
    """
    import yaml  # comes with omegaconf, which both stacks need

    try:
        found = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise Refused([Refusal(path, str(error))]) from error
    if not isinstance(found, dict):
        raise Refused([Refusal(path, "no mapping", type(found).__name__)])
    return found


def real_value(plain: Any) -> Any:
    """The Python value of what the settings file says: {enum: CLASS.NAME}, {dtype: NAME}, {function: NAME}, or itself.

    Raises:
        Refused: no such name in this environment.
    """
    if not isinstance(plain, dict) or not plain:
        return plain
    kind, name = next(iter(plain.items()))
    try:
        if kind == "enum":
            owner, _, member = name.partition(".")
            return getattr(importlib.import_module(ENUMS[owner]), owner)[member]
        if kind == "function":
            module, attribute = FUNCTIONS[name]
            return getattr(importlib.import_module(module), attribute)
        if kind == "dtype":
            import torch

            return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]
    except (KeyError, AttributeError, ImportError) as error:
        raise Refused([Refusal(str(plain), f"not in this environment ({error})")]) from error
    raise Refused([Refusal(str(plain), "no kind of value", kind, "enum, dtype, function")])


Names = Callable[[Any], Iterable[str]]
"""The attribute names that an object really has: `plain_names`, or what suits the stack's own config objects."""


def plain_names(parent: Any) -> set[str]:
    """Fields of a dataclass and attributes that are there; assigning any other name succeeds silently."""
    fields = {field.name for field in dataclasses.fields(parent)} if dataclasses.is_dataclass(parent) else set()
    return fields | {name for name in dir(parent) if not name.startswith("_")}


def assign(root: Any, values: Mapping[str, Any], names: Names, optional: bool = False) -> Iterator[Refusal]:
    """Set every path of `values` below `root`; yields what cannot be set. optional: a missing name is no fault."""
    for path, plain in values.items():
        *parents, name = path.split(".")
        parent, refusal = _walk(root, parents, path)
        if refusal:
            yield from () if optional else (refusal,)
            continue
        valid = set(names(parent))
        if name in valid:
            try:
                setattr(parent, name, real_value(plain))
            except (AttributeError, TypeError, ValueError, Refused) as error:
                yield Refusal(path, str(error), repr(plain))
        elif not optional:
            near = get_close_matches(name, sorted(valid), n=3)
            yield Refusal(path, f"{_class_name(parent)} has no such name", name, ", ".join(near), "another release")


def _walk(root: Any, parents: list[str], path: str) -> tuple[Any, Refusal | None]:
    parent = root
    for done, part in enumerate(parents):
        parent = getattr(parent, part, None)
        if parent is None:
            return None, Refusal(path, f"{'.'.join(parents[: done + 1])} is not there in this recipe")
    return parent, None


def _class_name(value: Any) -> str:
    return type(value).__name__


def plain(value: Any) -> Any:
    """`value` as JSON can hold it: enums, dtypes and functions by name, numbers that are not finite as None."""
    if isinstance(value, bool | int | str | None):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain(item) for item in value]
    named = getattr(value, "name", None) or getattr(value, "__name__", None)
    return named if isinstance(named, str) else str(value).removeprefix("torch.")


def is_first_rank() -> bool:
    """Whether this process speaks for the run (torchrun's RANK)."""
    return os.environ.get("RANK", "0") == "0"


def say(text: str) -> None:
    """Print a line in one write: several processes share one stdout."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def mark(kind: str, values: Mapping[str, Any]) -> None:
    """Print one of our own lines, `[tprimat] kind {json}` (parsers/marks.py reads it). The caller chooses the rank."""
    say(f"[tprimat] {kind} {json.dumps(plain(values), allow_nan=False)}")


def stop(code: int, program: str, message: str, refusals: Iterable[Refusal] = ()) -> int:
    """Say on rank 0's stderr why the program ends, in the form that parsers/faults.py takes for a root cause.

    The others wait for that: torchrun ends all ranks as soon as one has ended.
    """
    if not is_first_rank():
        time.sleep(2)
        return code
    found = list(refusals)
    lines = [f"engine: {program}: {message}", *(f"  {refusal.line()}" for refusal in found)]
    print("\n".join(lines), file=sys.stderr, flush=True)
    for refusal in found:
        mark("refused", refusal._asdict())
    return code


def die_with_parent() -> None:
    """Ask Linux to kill this process when torchrun dies: killed by SIGKILL, torchrun forwards nothing to its ranks."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def installed(*distributions: str) -> dict[str, str | None]:
    """Version of each, None where it has no metadata; keys as facts are named (megatron-core: megatron_core)."""

    def found(name: str) -> str | None:
        try:
            return version(name)
        except PackageNotFoundError:
            return None

    return {name.replace("-", "_"): found(name) for name in distributions}


def facts(stand_in: str | None, framework: str, *distributions: str) -> dict[str, Any]:
    """What this process runs on; None is "there is none", or not told. stand_in: what replaces torch.cuda, if so.

    framework: the distribution whose version is the framework's.
    """
    import torch

    gpu = torch.cuda.is_available() and stand_in is None
    return {
        **installed("torch", "megatron-core", "transformer-engine", framework, *distributions),
        "framework_version": installed(framework)[framework.replace("-", "_")],
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "cuda": torch.version.cuda,
        "rocm": torch.version.hip,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if gpu else None,
        "device_name": torch.cuda.get_device_name() if gpu else None,
        "device_count": torch.cuda.device_count() if gpu else None,
        "device_memory_bytes": torch.cuda.get_device_properties(0).total_memory if gpu else None,
        "stand_in": stand_in,
    }


def peak_memory(stand_in: str | None) -> dict[str, Any]:
    """memory_bytes and memory_kind of a step mark; nothing where no accelerator is in use."""
    import torch

    if stand_in is not None or not torch.cuda.is_available():
        return {}
    return {"memory_bytes": torch.cuda.max_memory_allocated(), "memory_kind": "allocated"}
