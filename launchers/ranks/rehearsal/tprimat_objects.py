"""Read what a rank is made of, as plain values: the stack's own configuration objects, with each class's defaults, and
the code and the variables that it really runs with. Standard library alone.

Objects are read, never called. Code: of each package of the stack the version or the commit, the imported files that
are not as the package's own RECORD or the commit has them, or whose .pyc is of other code, the files that run when
Python starts, and the folders in front of all packages (PYTHONPATH) that modules came from."""

from __future__ import annotations

import base64
import csv
import gc
import hashlib
import importlib.util
import inspect
import json
import marshal
import math
import os
import re
import site
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

MOST_FIELDS, MOST_ITEMS, DEEPEST, LONGEST = 4000, 64, 4, 400
_SECRET = re.compile(
    r"(?i)secret|passw|passphrase|credential|api_?key|(?:access|private|auth)_?key|(?:^|_)(?:token|key)$"
)
_STEERS = re.compile(
    r"(?:NVTE|NCCL|RCCL|MSCCL|MSCCLPP|TORCH|TORCHINDUCTOR|TORCHDYNAMO|PYTORCH|CUBLAS|CUBLASLT|CUDNN|HIPBLASLT|ROCBLAS|MIOPEN|"
    r"HSA|UCX|UCC|NVSHMEM|ROCSHMEM|MORI|AITER|FLYDSL|CK|TE|PRIMUS_TURBO|FLASH_ATTENTION|TRITON|TENSILE|"
    r"ONEDNN|DNNL|MKL|ATEN|FBGEMM|OPENBLAS|KMP|GOMP|KINETO|MALLOC|"  # of the processor, which a rehearsal runs on
    r"XLA_USE|USE_TE|USE_TURBO|USE_ROCM|USE_HIPBLASLT|USE_V4|V4_FLYDSL|PATCH_TE|WARMUP_FP8|ENABLE_TRANSPOSE|ENABLE_SDMA|SDMA|"
    r"MEGATRON_SDMA|HIP_FORCE|HIP_LAUNCH|FUSED_(?:LINEAR_)?CE)(?:_|$)|.*TF32|CUDA_DEVICE_MAX_CONNECTIONS$|"
    r"CUDA_(?:LAUNCH_BLOCKING|MODULE_LOADING|DEVICE_ORDER|SCALE_LAUNCH_QUEUES|GRAPH_CAPTURE_FREEZE_GC|CACHE_DISABLE)$|"
    r"FP32_MASTER_WEIGHTS$|DEBUG_SIMULATOR$|OMP_(?!NUM_THREADS$)|HEALING_|NUM_LAYERS_AT_|LEGACY_GG$|MOE_SKIP_|ENABLE_NUMA_BINDING$|"
    r"PRIMUS_(?!EXP_NAME$|TEAM$|USER$|WORKSPACE$|LOG_|CLUSTER$|PYTHON$|RELEASE$|PACKAGES$|ENTRY$|IMAGE$|GPU_MODEL$|VERBOSE_|PROJ_|BENCH_|EXPECT_)|"
    r"GPU_MAX_HW_QUEUES$|AMD_LOG_LEVEL$|PYTHON(?:HASHSEED|OPTIMIZE|MALLOC|DEVMODE|PROFILEIMPORTTIME)$|GLIBC_TUNABLES$|LD_(?:PRELOAD|AUDIT|BIND_NOW)$"
)
"""Names that torch 2.13, oneDNN, MKL, OpenMP, Megatron-LM and Primus v26.5.1 read, as their sources have them."""
_PLACES = re.compile(r"(?:_DIR|_PATH|_HOME|_ROOT)$")
_TABLE = re.compile(r"_FILE$")
"""Files that tune (HIPBLASLT_TUNING_OVERRIDE_FILE, NCCL_TOPO_FILE): that there is one counts, and not where."""
REHEARSES = any(os.environ.get(name) for name in ("TPRIMAT_REHEARSE", "TPRIMAT_REHEARSED"))
_LIBRARIES = (
    *("torchtitan", "transformers", "accelerate", "deepspeed", "lightning", "torch", "numpy"),
    *("einops", "apex", "flash_attn", "triton", "grouped_gemm", "primus_turbo", "aiter", "safetensors", "tokenizers"),
)
"""Held to their RECORD whole by a rehearsal; a training does not wait for thousands of files."""
PACKAGES = {
    "megatron.core": "megatron-core",
    "megatron.bridge": "megatron-bridge",
    "nemo": "nemo-toolkit",
    "transformer_engine": "transformer-engine",
    **({name: name for name in _LIBRARIES} if REHEARSES else {"torch.optim": "torch", "torch.nn": "torch"}),
    "megatron": None,
    "primus": None,
}
"""Modules of the stacks, and which distribution they are of: by the first name that one begins with."""
_HOMES = ("nemo", "megatron.bridge", "primus")
"""The packages that a stack is named after: Megatron may lie in the same checkout."""
_CODE = (".py", ".so")
_GIT_S = 5.0  # a file system that hangs is no reason to hang


# Objects.


def described(found: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return of each object, by its short name, its class, its fields and its class's defaults. An object inside
    another that stands here by itself is left out there."""
    own = {id(value) for value in found.values()}
    return {
        name: {
            "kind": _kind(value),
            "fields": dict(_limited(_fields(value, own - {id(value)}))),
            "defaults": dict(_limited(_defaults(value))),
        }
        for name, value in found.items()
        if value is not None
    }


class Named(NamedTuple):
    """An object by values of ours in place of its attributes, which may be anything."""

    kind: type
    values: Mapping[str, Any]
    defaults: Mapping[str, Any]


def given(kind: type, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Named:
    """Return an object of the class `kind` by the arguments that it is made with, given or by default."""
    signature = inspect.signature(kind)
    bound = signature.bind_partial(*arguments, **options)
    defaults = {n: p.default for n, p in signature.parameters.items() if p.default is not inspect.Parameter.empty}
    plain = {
        n: v for n, v in bound.arguments.items() if signature.parameters[n].kind is not inspect.Parameter.VAR_KEYWORD
    }
    return Named(kind, {**defaults, **plain}, defaults)


def lightning(trainer: Any) -> Named:
    """Return Lightning's trainer by its plain attributes, with those of its callbacks and of its data module."""
    parts = {"": trainer, "data.": getattr(trainer, "datamodule", None)}
    parts |= {f"callbacks.{type(callback).__name__}.": callback for callback in getattr(trainer, "callbacks", ())}
    values = {f"{path}{n}": v for path, part in parts.items() if part is not None for n, v in _plain_attributes(part)}
    return Named(type(trainer), {**values, "callbacks": [path[10:-1] for path in parts if path[10:]]}, {})


class Switches(NamedTuple):
    """The switches of a process that decide how fast a step is, or how it is rounded, beside all configuration: as
    they are while steps are made. garbage_collection: by Python itself; its interval: after how many steps the stack
    collects by hand. workers: of the training data's loader, as its iterator has them. evaluation: after so many steps
    so many batches. scaled_dot_product: torch's kernels that may be taken, in the order of _ATTENTIONS. tracer_active:
    Python's or torch's profiler, or a tracer, is at work; tracer_planned: the stack is to profile a step, or the
    memory, be it later. saving: checkpoints, after so many steps. iterations_to_skip, rampup_batch_size: what a toy's
    few steps may not come to. linked_from_outside: native libraries that LD_LIBRARY_PATH has brought in."""

    garbage_collection: bool
    garbage_collection_threshold: tuple[int, ...]
    garbage_collection_interval: int | None
    num_workers: int | None
    pin_memory: bool | None
    persistent_workers: bool | None
    timing_log_level: int | None
    timing_log_option: str | None
    evaluation: tuple[float, float] | None
    empty_unused_memory_level: int
    float32_matmul_precision: str
    allow_tf32: tuple[bool | str, ...]
    reduced_precision_reduction: tuple[Any, ...]
    deterministic_algorithms: bool
    cudnn_deterministic: bool
    cudnn_benchmark: bool
    scaled_dot_product: tuple[bool, ...]
    default_dtype: str
    mkldnn: bool
    num_threads: int
    cpu_capability: str
    flush_denormal: bool
    fp16_accumulation: bool
    mkldnn_fp32_precision: str
    cudnn_enabled: bool
    anomaly_detection: bool
    tracer_active: bool
    autograd_threads: bool
    tracer_planned: bool
    saving: int | None
    iterations_to_skip: tuple[int, ...] | None
    rampup_batch_size: tuple[int, ...] | None
    linked_from_outside: tuple[str, ...]


_ATTENTIONS = ("flash", "mem_efficient", "math", "cudnn")
HALVES = ("fp16", "bf16")


def switches(
    loader: Any, timers: Any, trainers: tuple[Any, ...], requested: tuple[float, float] | None = None
) -> Named:
    """Return them. loader: the iterator over the training data, timers: Megatron's, or None. trainers: the stack's own
    objects that say how it trains; None among them. requested: evaluation, where it is read. None: unknown, or none."""
    torch = sys.modules["torch"]
    blas, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    values = Switches(
        garbage_collection=gc.isenabled(),
        garbage_collection_threshold=gc.get_threshold(),
        garbage_collection_interval=collection_interval(trainers),
        num_workers=getattr(loader, "_num_workers", None),
        pin_memory=getattr(loader, "_pin_memory", None),
        persistent_workers=getattr(loader, "_persistent_workers", None),
        timing_log_level=getattr(timers, "_log_level", None),
        timing_log_option=getattr(timers, "_log_option", None),
        evaluation=requested or evaluation(trainers),
        empty_unused_memory_level=_first_of(trainers, "empty_unused_memory_level") or 0,
        float32_matmul_precision=_or_why(torch.get_float32_matmul_precision),
        allow_tf32=(_or_why(lambda: blas.allow_tf32), _or_why(lambda: cudnn.allow_tf32)),
        reduced_precision_reduction=tuple(getattr(blas, f"allow_{of}_reduced_precision_reduction") for of in HALVES),
        deterministic_algorithms=torch.are_deterministic_algorithms_enabled(),
        cudnn_deterministic=cudnn.deterministic,
        cudnn_benchmark=cudnn.benchmark,
        scaled_dot_product=tuple(getattr(torch.backends.cuda, f"{name}_sdp_enabled", bool)() for name in _ATTENTIONS),
        default_dtype=json_value(torch.get_default_dtype()),
        mkldnn=torch.backends.mkldnn.enabled,
        num_threads=torch.get_num_threads(),
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        flush_denormal=sys.float_info.min / 2 == 0.0,
        fp16_accumulation=getattr(blas, "allow_fp16_accumulation", False),  # from torch 2.7 on, the next from 2.9
        mkldnn_fp32_precision=getattr(getattr(torch.backends.mkldnn, "matmul", None), "fp32_precision", "none"),
        cudnn_enabled=cudnn.enabled,
        anomaly_detection=torch.is_anomaly_enabled(),
        tracer_active=sys.getprofile() is not None or sys.gettrace() is not None or torch.autograd._profiler_enabled(),
        autograd_threads=torch._C._is_multithreading_enabled(),
        tracer_planned=profiles(trainers),
        saving=_first_of(trainers, "save_interval") if _first_of(trainers, "save") else None,
        iterations_to_skip=tuple(_first_of(trainers, "iterations_to_skip") or ()) or None,
        rampup_batch_size=tuple(_first_of(trainers, "rampup_batch_size") or ()) or None,
        linked_from_outside=linked_from_outside(),
    )
    return Named(Switches, values._asdict(), {})


def linked_from_outside(maps: Path = Path("/proc/self/maps")) -> tuple[str, ...]:
    """Return the native libraries that this process has out of folders of LD_LIBRARY_PATH, by their names: the linker
    takes them before those that a package was built with. maps: what is mapped, as Linux has it (proc_pid_maps(5))."""
    folders = {os.path.realpath(folder) for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder}
    lines = maps.read_text(errors="replace").splitlines() if folders and maps.is_file() else []
    paths = {Path(line.split(maxsplit=5)[5]) for line in lines if line.endswith(".so") or ".so." in line}
    return tuple(sorted(path.name for path in paths if str(path.parent) in folders))


def _or_why(read: Callable[[], Any]) -> Any:
    """Return a switch of torch, or that it cannot be read: from 2.9 on those of float32 raise where one was set by the
    old name and another by the new one."""
    try:
        return read()
    except RuntimeError:
        return "set by two names"


def changed_since(first: Named, now: Named) -> dict[str, Any]:
    """Return the switches that were changed between two readings, each with both values in the order of time."""
    pairs = ((name, value, now.values.get(name)) for name, value in first.values.items())
    return {name: [value, later] for name, value, later in pairs if value != later}


def collection_interval(trainers: tuple[Any, ...]) -> int | None:
    """Return after how many steps a stack collects garbage by hand; None where it never does. By Megatron's names, and
    that of NeMo's callback. A stack may have Python's collector off in either case, as Primus has."""
    callbacks = tuple(callback for trainer in trainers for callback in getattr(trainer, "callbacks", None) or ())
    by_hand = _first_of(trainers, "manual_gc")
    interval: int | None = _first_of(trainers, "manual_gc_interval") if by_hand else None
    return interval or _first_of(callbacks, "gc_interval_train")


_PROFILERS = ("use_nsys_profiler", "use_pytorch_profiler", "profile", "record_memory_history")


def profiles(trainers: tuple[Any, ...]) -> bool:
    """Return whether a stack is to profile a step, by Megatron's names and Lightning's callbacks."""
    callbacks = (type(callback).__name__ for one in trainers for callback in getattr(one, "callbacks", None) or ())
    by_callback = any(word in name for name in callbacks for word in ("Profil", "Nsys"))
    return by_callback or any(_first_of(trainers, name) is True for name in _PROFILERS)


def evaluation(trainers: tuple[Any, ...]) -> tuple[float, float] | None:
    """Return after how many steps a stack evaluates inside training, and on how many batches; None where it never
    does. By Megatron's names, and Lightning's."""
    for names in (("eval_interval", "eval_iters"), ("val_check_interval", "limit_val_batches")):
        interval, batches = (_first_of(trainers, name) for name in names)
        if interval and batches:
            return interval, batches // (_micro_batches(trainers) if names[1].startswith("limit") else 1)
    return None


def _micro_batches(trainers: tuple[Any, ...]) -> int:
    """Return of how many micro-batches a global batch is, where NeMo has counted its validation in these."""
    sampler = getattr(_first_of(trainers, "datamodule"), "data_sampler", None)
    return getattr(sampler, "num_microbatches", None) or 1


def _first_of(trainers: tuple[Any, ...], name: str) -> Any:
    known = (getattr(trainer, name, None) for trainer in trainers)
    return next((value for value in known if value is not None), None)


def _plain_attributes(value: Any) -> Iterator[tuple[str, Any]]:
    members = vars(value).items()
    return ((n, v) for n, v in members if not n.startswith("_") and isinstance(v, bool | int | float | str | None))


def _kind(value: Any) -> str:
    kind = value.kind if isinstance(value, Named) else type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def _members(value: Any) -> Mapping[str, Any]:
    """Return the fields of a dataclass, and the public attributes of any object."""
    if isinstance(value, Named):
        return value.values
    attributes = {name: item for name, item in vars(value).items() if not name.startswith("_")}
    if not is_dataclass(value):
        return attributes
    return {**{f.name: getattr(value, f.name, None) for f in fields(value)}, **attributes}


def _fields(value: Any, elsewhere: set[int], path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    for name, item in _members(value).items():
        if id(item) in elsewhere or name.startswith("_"):
            continue
        nested = is_dataclass(item) and not isinstance(item, type) and not isinstance(value, Named)
        if _SECRET.search(name):
            yield f"{path}{name}", None if item is None else "<hidden>"
        elif nested and depth < DEEPEST:
            yield from _fields(item, elsewhere, f"{path}{name}.", depth + 1)
        else:
            yield f"{path}{name}", json_value(item)


def _defaults(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the default of each field that has one. A factory is called only where it makes an empty container."""
    if isinstance(value, Named):
        yield from ((name, json_value(item)) for name, item in value.defaults.items())
        return
    for field in fields(value) if is_dataclass(value) else ():
        if field.default is not MISSING:
            yield field.name, json_value(field.default)
        elif field.default_factory in (list, dict, set, tuple):
            yield field.name, json_value(field.default_factory())


def _limited(pairs: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    for count, pair in enumerate(pairs):
        if count == MOST_FIELDS:
            return
        yield pair


def json_value(value: Any, depth: int = 0) -> Any:
    """Return `value` as JSON can hold it: an enum, a dtype, a function or a class by its name, of any other object the
    name of its type. Never its str or repr, which may wait for a device, or hold an address."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, int | float):
        return value if math.isfinite(value) and abs(value) < 2**53 else str(value)
    if isinstance(value, str | os.PathLike):
        return str(os.fspath(value))[:LONGEST]
    if type(value).__name__ in ("dtype", "device"):
        return str(value).removeprefix("torch.")
    if depth < DEEPEST and isinstance(value, Mapping) and len(value) <= MOST_ITEMS:
        named = {str(key)[:LONGEST]: item for key, item in value.items()}
        return {k: "<hidden>" if _SECRET.search(k) else json_value(item, depth + 1) for k, item in named.items()}
    if depth < DEEPEST and isinstance(value, list | tuple | set | frozenset) and len(value) <= MOST_ITEMS:
        items = [json_value(item, depth + 1) for item in value]
        return sorted(items, key=repr) if isinstance(value, set | frozenset) else items
    return _named(value)


def _named(value: Any) -> str:
    function = getattr(value, "func", None)
    if function is not None and hasattr(value, "keywords"):  # functools.partial
        return f"partial {_named(function)}"
    name = getattr(value, "__qualname__", None) or getattr(value, "name", None) or getattr(value, "__name__", None)
    return name[:LONGEST] if isinstance(name, str) else f"<{type(value).__name__}>"


# Code and environment.


def variables() -> dict[str, str]:
    """Return the variables that steer numerics and communication, without secrets and without places of files."""
    steering = {name: value for name, value in os.environ.items() if _STEERS.match(name) and not _PLACES.search(name)}
    known = {name: "<a file>" if _TABLE.search(name) and value else value for name, value in steering.items()}
    return {n: v[:LONGEST] for n, v in sorted(known.items()) if not _SECRET.search(n) and "://" not in v}


def rendered(folder: Path, plan: str = "plan.json") -> dict[str, str]:
    """Return the SHA-256 of each file of the plan in `folder` as it is now; of one that is gone, nothing."""
    try:
        names = json.loads((folder / plan).read_text(encoding="utf-8"))["files"]
        return {name: _sha256(folder / name).hexdigest() for name in names if (folder / name).is_file()}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def process(files: Mapping[str, str]) -> dict[str, Any]:
    """Return what this process runs; files: of each rendered file the SHA-256 at the start."""
    code = Code()
    return {
        "commits": code.commits,
        "changed": code.changed[:MOST_ITEMS],
        "ahead": code.ahead[:MOST_ITEMS],
        "variables": variables(),
        "files": dict(files),
    }


class Code:
    """The modules of the stack that this process has imported, and where each came from. commits: of an installed
    distribution its version, of a checkout its commit."""

    def __init__(self) -> None:
        self.commits: dict[str, str] = {}
        self.changed: list[str] = []
        self.installed: dict[str, _Installed | None] = {}
        self.homes = [str(home) for name in _HOMES if (home := self._home(name))]
        self.other: dict[Path, list[str]] = {}
        checkouts: dict[Path, list[Path]] = {}
        strays: dict[str, list[str]] = {}
        for name, file in _imported():
            package = next((p for p in PACKAGES if name == p or name.startswith(f"{p}.")), None)
            installed = self._installed(PACKAGES[package]) if package else None
            if installed is not None and installed.owns(file):
                self.commits.setdefault(installed.name, installed.version)
                why = installed.why_changed(file)
                if why or (REHEARSES and is_other_code(name, file, installed.since)):
                    self.changed.append(f"{installed.name}: {why or f'{installed.path(file)}{_OTHER}'}")
            elif installed is None and not _PACKAGED.isdisjoint(file.parts) and not (package and PACKAGES[package]):
                continue  # of a distribution that is none of a stack's
            elif not self._is_known(file, installed):
                strays.setdefault(str(_root(name, file)), []).append(name)
            elif (repository := next(_repositories(file), None)) is not None:
                checkouts.setdefault(repository, []).append(file)
                if REHEARSES and is_other_code(name, file):
                    self.other.setdefault(repository, []).append(f"{file.relative_to(repository)}{_OTHER}")
        self.ahead = [f"{folder}: {_some(names)}" for folder, names in sorted(strays.items())]
        self.ahead += [f"{what}, which runs whenever Python starts" for what in started(_sites())]
        for repository, files in checkouts.items():
            self._checkout(repository, files)

    def _is_known(self, file: Path, installed: _Installed | None) -> bool:
        """Return whether a file is of the stack's own checkout, of an editable distribution, or of a checkout that
        stands in front of no installed one: a commit names it."""
        known = (*self.homes, *([installed.source] if installed and installed.source else ()))
        if any(str(file).startswith(f"{home}{os.sep}") for home in known):
            return True
        return installed is None and next(_repositories(file), None) is not None

    def _home(self, package: str) -> Path | None:
        """Return the folder of the checkout that a stack was imported from; None where it is installed, or is not
        there, or is a copy without history in front of an installed one."""
        file = getattr(sys.modules.get(package), "__file__", None)
        if not isinstance(file, str) or not Path(file).is_file():
            return None
        path = Path(file).resolve()
        installed, history = self._installed(PACKAGES[package]), [*_repositories(path)]
        if installed is not None and (installed.owns(path) or not history):
            return None
        return history[-1] if history else _root(package, path)

    def _installed(self, name: str | None) -> _Installed | None:
        if name is not None and name not in self.installed:
            try:
                self.installed[name] = _Installed(distribution(name))
            except PackageNotFoundError:
                self.installed[name] = None
        return None if name is None else self.installed[name]

    def _checkout(self, repository: Path, files: list[Path]) -> None:
        """Keep the commit of a checkout, and what of it is not as committed."""
        outer = [*_repositories(repository / "file")][-1]
        name = repository.name if outer == repository else f"{outer.name}/{repository.relative_to(outer)}"
        commit = _git(repository, "describe", "--always", "--tags")
        if not commit:
            return
        edited = _git(repository, "diff", "HEAD", "--name-only", "--ignore-submodules=dirty").splitlines()
        relative = {str(file.relative_to(repository)) for file in files if _is_code(file)}
        tags = {line[2:]: line[0] for line in _git(repository, "ls-files", "-v", "--", *sorted(relative)).splitlines()}
        edited += _unseen(repository, [path for path, tag in tags.items() if tag != "H" and path not in edited])
        edited += self.other.get(repository, [])
        own = relative - {*tags}  # ignored by git, it is of no commit either
        self.commits[name] = f"{commit}-dirty" if edited or own else commit
        self.changed += [f"{name}: {path}" for path in edited]
        self.changed += [f"{name}: {path}, which is not committed" for path in sorted(own)]


class _Installed:
    """A distribution, and the hashes that its RECORD has of its files. source: of an editable one its folder. since:
    when it was installed, by _times; 0: unknown."""

    def __init__(self, found: Distribution) -> None:
        self.name, self.version = found.metadata["Name"], found.version
        self.folder = os.path.realpath(str(found.locate_file("")))
        lines = (found.read_text("RECORD") or "").splitlines()
        rows = (row for row in csv.reader(lines) if len(row) >= 2 and row[0].endswith(_CODE))
        self.hashes = {row[0]: row[1] for row in rows}
        list_of_files = Path(str(getattr(found, "_path", "")), "RECORD")
        self.since = _times(list_of_files) if list_of_files.is_file() else (0.0, 0.0)
        origin = json.loads(found.read_text("direct_url.json") or "{}")
        editable = origin.get("dir_info", {}).get("editable")
        self.source = os.path.realpath(unquote(urlsplit(origin["url"]).path)) if editable else None

    def owns(self, file: Path) -> bool:
        """Return whether a file lies where the distribution does; of an editable one there are none."""
        return bool(self.hashes) and str(file).startswith(f"{self.folder}{os.sep}")

    def path(self, file: Path) -> str:
        """Return a file that it owns as its RECORD names it."""
        return str(file)[len(self.folder) + 1 :]

    def why_changed(self, file: Path) -> str:
        """Return the file where it is not as it was installed; empty where it is, and where nobody knows."""
        path = self.path(file)
        if path not in self.hashes:
            return f"{path}, which is not of the package" if _is_code(file) else ""
        kind, _, value = self.hashes[path].partition("=")
        if kind != "sha256":
            return ""
        return "" if _recorded(file) == value else path


def _is_code(file: Path) -> bool:
    """Return whether a file that was imported must be as it was installed or committed. A library that a stack compiles
    on the machine is in no list of files: it is one only where it is imported in place of the module beside it."""
    return file.suffix in (".py", ".pyc") or file.with_name(f"{file.name.partition('.')[0]}.py").is_file()


_OTHER = ", of which __pycache__ has other code"
_SINCE = time.time()


def _times(path: Path) -> tuple[float, float]:
    """Return when a file was written, and when the file system saw it last: of an image that was unpacked, or of an
    environment that was copied, all are of one moment, and only the first says more."""
    found = path.stat()
    return found.st_mtime, found.st_ctime


def is_other_code(name: str, file: Path, since: tuple[float, float] = (0.0, 0.0)) -> bool:
    """Return whether the module `name` may be of a .pyc that is not what its source compiles to: Python looks at the
    source's time and size alone, and at nothing where the .pyc tells it to. since: the _times of the installation: what
    is older by both was written by whoever installed it; what the file system saw first since this process began, by
    Python itself."""
    cached = getattr(sys.modules[name], "__cached__", None)
    if file.suffix != ".py" or not isinstance(cached, str):
        return False
    try:
        found = os.stat(cached)  # noqa: PTH116 - of thousands
        if found.st_ctime >= _SINCE or (found.st_mtime <= since[0] and found.st_ctime <= since[1]):
            return False
        code, source = Path(cached).read_bytes(), file.read_bytes()
        if code[:4] != importlib.util.MAGIC_NUMBER:
            return False
        return bool(marshal.loads(code[16:]) != compile(source, str(file), "exec", dont_inherit=True))
    except (OSError, ValueError, EOFError, TypeError, SyntaxError):
        return False


def started(sites: Iterable[Path]) -> Iterator[str]:
    """Yield each file in `sites`, folders of installed packages, that runs code whenever Python starts, with the
    package that it is of, if the RECORD of one has it as it is."""
    for folder in sites:
        for file in sorted((*folder.glob("*.pth"), folder / "sitecustomize.py", folder / "usercustomize.py")):
            text = file.read_bytes() if file.is_file() else b""
            if file.suffix == ".pth":
                text = b"".join(line for line in text.splitlines(True) if _RUNS.match(line) and not _USUAL.match(line))
            if text:
                entry = f"{file.name},sha256={_recorded(file)},".encode()
                owners = (path.parent for path in folder.glob("*.dist-info/RECORD") if entry in path.read_bytes())
                owner = next(owners, None)
                yield f"{file} of {owner.name.removesuffix('.dist-info')}" if owner else str(file)


_RUNS = re.compile(rb"import[ \t]")
_USUAL = re.compile(
    rb"import (?:_virtualenv|(__editable___\w+_finder); \1\.install\(\)|"
    rb"sys; (?:sys\.__plen = |new=sys\.path\[sys\.__plen:\]; ).*|"
    rb"os; var = 'SETUPTOOLS_USE_DISTUTILS'; enabled = os\.environ\.get\(var, '\w+'\) == 'local'; "
    rb"enabled and __import__\('_distutils_hack'\)\.add_shim\(\);)\s*$"
)
"""Lines of a .pth file by which virtualenv, setuptools and its editable packages work themselves, also where an
operating system has installed them, which leaves no RECORD."""


def _sites() -> list[Path]:
    """Return the folders whose .pth files Python has read at its start."""
    if sys.flags.no_site:
        return []
    users = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return [Path(folder) for folder in (*site.getsitepackages(), *users)]


def _imported() -> Iterator[tuple[str, Path]]:
    """Yield name and file of each module that may be of a stack, or lies below an entry of sys.path that comes before
    the standard library's. None of a namespace, of a hollow module, and of ours. In text: a stack imports thousands."""
    front, prefixes = tuple(f"{entry}{os.sep}" for entry in _front()), tuple(f"{package}." for package in PACKAGES)
    folders: dict[str, str] = {}
    for name, module in [*sys.modules.items()]:
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or getattr(module, "__spec__", None) is None:
            continue
        folder, _, last = file.rpartition(os.sep)
        real = folders.get(folder) or folders.setdefault(folder, os.path.realpath(folder))
        wanted = f"{name}.".startswith(prefixes) or f"{real}{os.sep}".startswith(front)
        if wanted and real not in _OURS and ((path := Path(real, last)).is_file() or _archive(path) is not None):
            yield name, path


def _archive(file: Path) -> Path | None:
    """Return the archive that a module was imported from; None where its file is gone."""
    return next((path for path in file.parents if path.is_file()), None)


_PACKAGED = {"site-packages", "dist-packages"}
_OURS = {os.path.realpath(folder) for folder in Path(__file__).parents[:2]}


_STANDARD = f"python{sys.version_info.major}{sys.version_info.minor}.zip"
"""The archive in which the standard library may be, which stands in front of its folder."""


def _front() -> list[str]:
    library, entries = os.path.realpath(sysconfig.get_path("stdlib")), []
    for entry in sys.path:
        folder = os.path.realpath(entry)
        if folder == library or (Path(folder).name == _STANDARD and Path(folder).parent in Path(library).parents):
            break
        entries += [folder] if folder not in _OURS and Path(folder).exists() else []
    return entries


def _root(name: str, file: Path) -> Path:
    """Return the folder that a module was found in, by its name: a.b in FOLDER/a/b.py."""
    depth = name.count(".") + (file.name == "__init__.py")
    return file.parents[min(depth, len(file.parents) - 1)]


def _repositories(file: Path) -> Iterator[Path]:
    """Yield the checkout that a file lies in, then those that this one is a submodule of."""
    for folder in file.parents:
        if (folder / ".git").exists():
            yield folder
            if (folder / ".git").is_dir():
                return


def _unseen(repository: Path, paths: list[str]) -> list[str]:
    """Return those files that are not as committed, though git is told not to look (git update-index --skip-worktree,
    --assume-unchanged)."""
    if not paths:
        return []
    rows = (line.partition("\t") for line in _git(repository, "ls-tree", "-r", "HEAD", "--", *paths).splitlines())
    committed = {path: head.split()[-1] for head, _, path in rows}
    here = _git(repository, "hash-object", "--no-filters", "--", *paths).splitlines()
    return [path for path, value in zip(paths, here, strict=False) if committed.get(path) != value]


def _git(repository: Path, *words: str) -> str:
    """Return what git prints, empty where it fails. It writes nothing, and runs nothing that the checkout names."""
    options = (
        "-c",
        "safe.directory=*",
        "-c",
        "core.fsmonitor=false",
        "-c",
        "core.quotepath=false",
        "-c",
        "diff.external=",
    )
    env = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_EXTERNAL_DIFF": ""}
    argv = ("git", *options, "-C", str(repository), *words)
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", timeout=_GIT_S, env=env, check=False
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode in (0, 1) else ""


def _some(names: list[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(sorted(names)[:most]) + more


def _recorded(file: Path) -> str:
    """Return the hash of a file as a RECORD has it."""
    return base64.urlsafe_b64encode(_sha256(file).digest()).decode().rstrip("=")


def _sha256(path: Path) -> Any:
    return hashlib.sha256(path.read_bytes())
