"""Share among the programs inside the ranks: a problem, a refusal, the lines that we print, versions.

Standard library only, and beside every program that needs it: corpus.py and Primus' programs run from a bundle, too."""

from __future__ import annotations

import ctypes
import difflib
import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Problem(NamedTuple):
    """One thing that is wrong, in the fields of conf.errors.Problem. where: a key, a path or an attribute path. what:
    the broken rule. found / allowed: the value and the valid ones, empty where `what` is enough. hint: one thing to
    try."""

    where: str
    what: str
    found: str = ""
    allowed: str = ""
    hint: str = ""

    def line(self) -> str:
        labels = (("found", self.found), ("allowed", self.allowed), ("try", self.hint))
        return "; ".join([f"{self.where}: {self.what}", *(f"{label}: {text}" for label, text in labels if text)])


class Refused(Exception):
    """The run or the input is refused before anything begins; `problems` are all of them."""

    def __init__(self, *problems: Problem) -> None:
        self.problems = problems
        super().__init__("\n".join(problem.line() for problem in problems))

    @classmethod
    def of(cls, *fields: str) -> Refused:
        """Make one of a single problem, by its fields."""
        return cls(Problem(*fields))


def is_first_rank() -> bool:
    """Return whether this process speaks for the run (torchrun's RANK)."""
    return os.environ.get("RANK", "0") == "0"


def say(text: str) -> None:
    """Print `text` and a line end in one write: several processes share one stdout."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def mark(kind: str, values: Mapping[str, Any]) -> None:
    """Print one of our own lines, `[tprimat] kind {json}` (parsers/marks.py reads it). The caller chooses the rank."""
    say(f"[tprimat] {kind} {json.dumps(plain(values), allow_nan=False)}")


def plain(value: Any) -> Any:
    """Return `value` as JSON can hold it: enums, dtypes and functions by name, numbers that are not finite as None."""
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


def stop(code: int, message: str, problems: Iterable[Problem] = (), speaker: str = "RANK") -> int:
    """Print why the program ends on the stderr of the process whose variable `speaker` is 0, and return `code`. The
    others wait for that: torchrun ends all ranks as soon as one has ended. parsers/faults.py takes a message that
    begins with "engine: " for the root cause."""
    if os.environ.get(speaker, "0") != "0":
        time.sleep(2)
        return code
    listed = list(problems)
    print("\n".join([message, *(f"  {problem.line()}" for problem in listed)]), file=sys.stderr, flush=True)
    for problem in listed:
        mark("refused", problem._asdict())
    return code


def die_with_parent(by: signal.Signals = signal.SIGKILL) -> None:
    """Ask Linux to send this process a signal when its parent dies: killed by SIGKILL (a batch system, the OOM killer),
    torchrun or a bundle's script forwards nothing, and what it started would keep the machine busy."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, by)


def installed(*distributions: str) -> dict[str, str | None]:
    """Return the version of each, None where it has no metadata; keys as in facts (megatron-core: megatron_core)."""
    versions = dict.fromkeys((name.replace("-", "_") for name in distributions), None)
    for name in distributions:
        with suppress(PackageNotFoundError):
            versions[name.replace("-", "_")] = version(name)
    return versions


def torch_device() -> str:
    """Return cuda, rocm or cpu, as settings name them."""
    import torch

    return ("rocm" if torch.version.hip else "cuda") if torch.cuda.is_available() else "cpu"


def proc_value(name: str, key: str) -> str | None:
    """Return the first value of `key` in /proc/`name`; None where the system does not report it."""
    lines = (line.partition(":") for line in read_text(Path("/proc", name)).splitlines())
    return next((value.strip() for stated, _, value in lines if stated.strip() == key), None)


def machine_facts(gpu: bool) -> dict[str, Any]:
    """Return what torch runs on; None: there is none, or it is unknown."""
    import torch
    from image_facts import absent, image_facts, library_facts  # beside this where torch is

    return {
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "cuda": torch.version.cuda,
        "rocm": torch.version.hip,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if gpu else None,  # RCCL's on ROCm
        "device_name": torch.cuda.get_device_name() if gpu else None,
        "device_count": torch.cuda.device_count() if gpu else None,
        "device_memory_bytes": torch.cuda.get_device_properties("cuda").total_memory if gpu else None,
        "transformer_engine": installed("transformer-engine")["transformer_engine"] or absent("transformer_engine"),
        **(library_facts() if gpu else {}),
        **image_facts(),
    }


def read_mapping(path: str, parse: Callable[[str], Any], fault: type[Exception] = ValueError) -> dict[str, Any]:
    """Return the mapping in a settings file. fault: what `parse` raises.
    Raises Refused: the file cannot be read, or is not a mapping."""
    try:
        values = parse(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, fault) as error:
        raise Refused.of(path, "cannot be read", str(error)) from error
    if not isinstance(values, dict):
        raise Refused.of(path, "is not a settings file", f"a {type(values).__name__}", "a mapping")
    return values


def missing(expected: Iterable[str], given: Iterable[str]) -> Iterator[Problem]:
    """Yield each expected setting that a settings file lacks, with the nearest that it has and nobody expects."""
    expected, given = set(expected), set(given)
    for name in sorted(expected - given):
        near = difflib.get_close_matches(name, given - expected, n=1)
        yield Problem(name, "is missing in the settings", hint=f"rename {near[0]}" if near else "add it")


def peak_memory() -> dict[str, Any]:
    """Return memory_bytes and memory_kind of a step mark; empty where there is no accelerator."""
    import torch

    if not torch.cuda.is_available():
        return {}
    return {"memory_bytes": torch.cuda.max_memory_allocated(), "memory_kind": "allocated"}


def read_text(path: Path) -> str:
    """Return the text of a file, empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
