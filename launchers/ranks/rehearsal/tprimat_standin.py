"""Stand in for torch.cuda, so that a vendor's stack trains on a machine without an accelerator: a rehearsal.

The stack's own code runs on the CPU over gloo: settings, layout, data, losses and learning rates are real. Kernels,
TransformerEngine, fp8, NCCL, memory and speed are missing. Where there is an accelerator, nothing is replaced.
Every name is replaced because a stack uses it unconditionally while it trains: the tables below say which and why, one
row a name. A release that lacks such a name is no reason to stop: the row is left out, and the log says so.

Seen with nemo_toolkit 2.7.3, Megatron-Bridge 0.3.1, Primus v25.9 to main; Megatron-Core 0.15.3 to 0.20 dev."""

from __future__ import annotations

import atexit
import builtins
import collections
import contextlib
import copy
import functools
import gc
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import json
import math
import mmap
import os
import sys
import time
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tprimat_light
from tprimat_after_import import FAULTS, after, around

NAME = "torch.cuda"
MODE = "TPRIMAT_REHEARSE"

_state: dict[str, Any] = {"armed": False, "active": None, "announced": False, "played": False}
GONE: list[str] = []
"""Names that could not be replaced, a line each."""


def arm() -> None:
    """Install the stand-in as soon as torch is imported; returns at once."""
    if _state["armed"]:
        return
    _state["armed"] = True
    _put_off_collection()
    tprimat_light.install()
    hide_packages()
    after("torch")(_install)


_THRESHOLD = gc.get_threshold()
_NEVER = 1 << 30


def _put_off_collection() -> None:
    """Look for garbage no more until `_collect_again`: imports make a million objects, which stay, and Python would
    look through them a third of the time."""
    gc.set_threshold(_NEVER, *_THRESHOLD[1:])


def _collect_again() -> None:
    """Collect as Python began to, unless the stack has chosen another threshold since, and leave out what is there."""
    if gc.get_threshold()[0] == _NEVER:
        gc.freeze()
        gc.set_threshold(*_THRESHOLD)


def install() -> str | None:
    """Install it now, before the vendor's stack is imported. Return NAME where it is active, None where there is an
    accelerator."""
    arm()
    return NAME if is_active() else None


def is_active() -> bool:
    """Return whether it is in place; imports torch to find out."""
    if _state["armed"] and _state["active"] is None:
        importlib.import_module("torch")
    return bool(_state["active"])


def hides() -> bool:
    """Return whether packages are hidden: where the stand-in is active. Imports torch only where that decides."""
    return os.environ.get("CUDA_VISIBLE_DEVICES") == "-1" or is_active()  # which ROCm obeys, too


def _install(torch: types.ModuleType) -> None:
    _state["active"] = not torch.cuda.is_available()
    if not _state["active"]:
        _say("this machine has an accelerator: nothing is replaced")
        return
    if not _state["played"]:
        _set_defaults()
    os.environ["NEMO_LOG_MEMORY_USAGE"] = "0"  # torch.cuda's counters read 0 here, which is no measurement
    for entry in (*CUDA, *TORCH):
        replace(entry)
    tensor_mode(torch)().__enter__()
    torch.distributed.init_process_group = _announced(torch.distributed.init_process_group)
    for entry in MEGATRON:
        after(entry.module)(functools.partial(replace, entry))


def _set_defaults() -> None:
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # Megatron compiles its fused functions, which takes minutes here
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")  # Megatron requires it with sequence parallelism


def replace(row: Replacement, _: object = None) -> None:
    """Put the row's replacement in place, or note that its name is missing; also a hook after its module's import."""
    try:
        owner = owner_of(row)
    except ImportError:
        owner = None
    if owner is None or not (row.added or hasattr(owner, row.name)):
        GONE.append(f"{row.full_name} is not in {_version(row.module)}; it was replaced because: {row.reason}")
        if _state["announced"]:  # imported late: NeMo's mock data
            _say(f"degraded: {GONE[-1]}")
        return
    setattr(owner, row.name, row.make(getattr(owner, row.name, None)))


def owner_of(row: Replacement) -> Any:
    """Return the module or class of the row, None where its module has no such class.
    Raises ImportError: there is no such module."""
    owner = sys.modules.get(row.module) or importlib.import_module(row.module)
    _, is_class, attribute = row.path.partition(":")
    return getattr(owner, attribute.partition(".")[0], None) if is_class else owner


def _version(module: str) -> str:
    """Return the installed version of the package that `module` is a part of, as far as it has one."""
    parts = module.split(".")
    for package in ("megatron.core", parts[0]):
        version = getattr(sys.modules.get(package), "__version__", None)
        if module.startswith(package) and version:
            return f"{package} {version}"
    return f"this {parts[0]}"


@around
def _announced(original: Any, *arguments: Any, **options: Any) -> Any:
    """Let init_process_group announce the rehearsal: then this process knows its rank, and the stack has imported what
    it runs."""
    made = original(*arguments, **options)
    _collect_again()
    torch = sys.modules["torch"]
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    mode = os.environ.get(MODE, "train")
    _say(json.dumps({"mode": mode, "rank": rank, "world": world, "stand_in": NAME, "torch": torch.__version__}))
    if rank == 0 or mode == "layout":
        for line in (*GONE, *_never_met(), *(f"{module}: {error}" for module, _, error in FAULTS)):
            _say(f"degraded: {line}")
        _state["announced"] = True
    return made


def _never_met() -> list[str]:
    """Return the rows whose module the installed package no longer has, while the package itself is in use."""
    gone = []
    for row in MEGATRON:
        if row.module.rpartition(".")[0] in sys.modules and row.module not in sys.modules:
            with contextlib.suppress(ImportError, ValueError):
                if importlib.util.find_spec(row.module) is not None:
                    continue
            gone.append(f"{row.module} is not in {_version(row.module)}; {row.name} was replaced because: {row.reason}")
    return gone


def _say(text: str) -> None:
    """Print a line of ours, which parsers skip, in one write: several processes share one log."""
    sys.stdout.write(f"[tprimat] rehearsal {text}\n")
    sys.stdout.flush()


Make = Callable[[Any], Any]
"""original → what stands in for it"""


class Replacement(NamedTuple):
    """Name what is replaced: `path` is `module.name`, or `module:Class.name`; `make`: original → its replacement.
    reason: why, and who needs it; a test in tests/rehearsal or tests/engine that names it fails without it. added: the
    name may be missing."""

    path: str
    make: Make
    reason: str
    added: bool = False

    @property
    def full_name(self) -> str:
        return self.path.replace(":", ".")

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def module(self) -> str:
        return self.path.rpartition(".")[0].partition(":")[0]


class _Done:
    """Be a part of a device whose queue is empty: all that was queued is done."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.at = 0.0

    def wait(self, *_: Any) -> None:
        pass

    wait_stream = wait_event = synchronize = wait

    def query(self) -> bool:
        return True


class Stream(_Done, contextlib.AbstractContextManager[Any]):
    """Be the one "stream" of a CPU."""

    cuda_stream = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream)

    __hash__ = None  # type: ignore[assignment]

    def record_event(self, event: Any = None) -> Any:
        return event or Event()

    def __exit__(self, *_: Any) -> None:
        pass


class Event(_Done):
    """Be a point on that stream."""

    def record(self, *_: Any) -> None:
        self.at = time.monotonic()

    def elapsed_time(self, other: Event) -> float:
        return (other.at - self.at) * 1000


def answer(value: Any) -> Callable[[Any], Callable[..., Any]]:
    """Return a `make` whose function takes anything and returns `value`; each is a new one, as torch._dynamo
    distinguishes functions by identity."""
    return lambda _: lambda *_, **__: value


@around
def counts_as_numpy(original: Any, tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    """Let `as_numpy` of Megatron's maybe_move_tensor_to_cpu count for tensors that are on the CPU already."""
    moved = original(tensor, as_numpy=as_numpy, record_stream=record_stream)
    return moved.numpy() if as_numpy and hasattr(moved, "numpy") else moved


def _generator() -> Any:
    """Return the CPU's generator, which stands for that of whatever device."""
    import torch

    return torch.default_generator


def set_state(_: Any) -> Callable[..., Any]:
    def put(state: Any, *_: Any, **__: Any) -> None:
        _generator().set_state(state)

    return put


@around
def decayed_first(original: Any, *arguments: Any, **options: Any) -> list[dict[str, Any]]:
    """Put the decayed group first on every rank, as Megatron-Core 0.16 does (optimizer/__init__.py:189): 0.15 begins
    with that of the rank's first parameter, and sums a later stage's gradient norm in another order."""
    return sorted(original(*arguments, **options), key=lambda group: -group["wd_mult"])


_MEMORY_BYTES = 80 << 30  # of every device: stacks decide nothing by it but to go on
_ARCHITECTURES = {"sm_90": (9, 0), "sm_100": (10, 0), "gfx942": (9, 4), "gfx950": (9, 5)}


class _Properties:
    """Name an architecture, which the stacks' switches need; the name says that there is no GPU."""

    name = "no GPU (stand-in)"
    total_memory = _MEMORY_BYTES
    multi_processor_count, warp_size, uuid, L2_cache_size = 132, 32, "0", 50 << 20

    def __init__(self) -> None:
        self.gcnArchName = os.environ.get("TPRIMAT_ARCH", "sm_90")  # torch's name
        self.major, self.minor = _ARCHITECTURES.get(self.gcnArchName, (9, 0))


def _devices() -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE") or 1)


def _a(value: Any) -> Any:
    """Return a `make` whose function takes anything and returns value()."""
    return lambda _: lambda *_, **__: value()


def _manual_seed(_: Any) -> Any:
    return _generator().manual_seed


def _generators(_: Any) -> tuple[Any, ...]:
    return (_generator(),) * _devices()


_get_state = _a(lambda: _generator().get_state())


# M: megatron/core of 0.15.3, B: megatron/bridge of 0.3.1, L: lightning of 2.4.0, N: nemo of 2.7.3
_ROWS: tuple[tuple[str, Make, str], ...] = (
    ("torch.cuda.is_available", answer(True), "read by all: Lightning's accelerator, Megatron's initialisation"),
    ("torch.cuda.is_initialized", answer(True), "torch's own calls begin a driver that is not there"),
    ("torch.cuda.device_count", _a(_devices), "a rank's GPU is its number modulo this"),
    ("torch.cuda.current_device", _a(lambda: int(os.environ.get("LOCAL_RANK") or 0)), "passed as device= all over M"),
    ("torch.cuda.set_device", answer(None), "the first thing that each rank does"),
    ("torch.cuda.get_device_properties", _a(_Properties), "switches by architecture, name and memory"),
    ("torch.cuda.mem_get_info", answer((_MEMORY_BYTES, _MEMORY_BYTES)), "Primus' memory line"),
    (
        "torch.cuda.memory_stats",
        _a(lambda: collections.defaultdict(int)),
        "B:training/utils/train_utils.py, its report",
    ),
    ("torch.cuda.utilization", answer(0), "M:utils.py:1416, StragglerDetector"),
    ("torch.cuda.memory._record_memory_history", answer(None), "N:lightning/pytorch/callbacks/memory_profiler.py:74"),
    ("torch.cuda.Stream", lambda _: Stream, "M:distributed/param_and_grad_buffer.py, token_dispatcher.py and more"),
    ("torch.cuda.Event", lambda _: Event, "M:pipeline_parallel/utils.py:122; timers"),
    ("torch.cuda.stream", _a(contextlib.nullcontext), "the same places"),
    ("torch.cuda.current_stream", _a(Stream), "the same places"),
    ("torch.cuda.default_stream", _a(Stream), "M:distributed/param_and_grad_buffer.py:422"),
    ("torch.cuda.set_stream", answer(None), "B:training/initialize.py:560"),
    ("torch.cuda.synchronize", answer(None), "timers; M:pipeline_parallel/p2p_communication.py:398"),
    ("torch.cuda.manual_seed", _manual_seed, "M:tensor_parallel/random.py:198: dropout draws from the CPU's generator"),
    ("torch.cuda.default_generators", _generators, "M:tensor_parallel/random.py:103, its tracker and recomputation"),
    ("torch.cuda.get_rng_state", _get_state, "the same, M:rerun_state_machine.py:915, checkpoints"),
    ("torch.cuda.set_rng_state", set_state, "the same"),
    ("torch.cuda.get_rng_state_all", _a(lambda: [_generator().get_state()]), "L:fabric/utilities/seed.py:134"),
    ("torch.cuda.random.get_rng_state", _get_state, "M:tensor_parallel/random.py:55, by the second name"),
    ("torch.cuda.random.set_rng_state", set_state, "torch.cuda.set_rng_state_all calls it"),
    ("torch.cuda.nvtx.range_push", answer(None), "M:pipeline_parallel/utils.py:174, N:utils/nvtx.py:42"),
    ("torch.cuda.nvtx.range_pop", answer(None), "the same"),
)

CUDA = tuple(Replacement(*row) for row in _ROWS)


_NAMES_READ = frozenset({"cuda", "device", "pin_memory", "to", "type"})
"""Functions of torch whose positional arguments or answer the mode below reads."""


def tensor_mode(torch: Any) -> Any:
    """Return the mode that reads device="cuda", a GPU's number and torch.device("cuda") as the CPU, in factories and in
    .to(); pin_memory is off; .cuda() is the tensor itself; .type() is spelled as CUDA's, which Megatron's clip_grads.py
    and distrib_optimizer.py require."""
    cpu = torch.device("cpu")

    def is_cuda(device: Any) -> bool:
        return isinstance(device, (str, torch.device)) and str(device).startswith("cuda")

    def on_cpu(device: Any) -> Any:
        return cpu if type(device) is int or is_cuda(device) else device

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = getattr(function, "__name__", "")
            if not kwargs and name not in _NAMES_READ:  # nine of ten of a hundred thousand calls
                return function(*args)
            options = dict(kwargs or {})
            options.pop("pin_memory", None)
            if options.get("device") is not None:
                options["device"] = on_cpu(options["device"])
            if function is torch.device and args and type(args[0]) is int:  # YaRN: of current_device()
                return cpu
            if name in ("cuda", "pin_memory"):
                return args[0]
            if name == "to":
                args = (args[0], *(cpu if is_cuda(value) else value for value in args[1:]))
            out = function(*args, **options)
            is_type = function is torch.Tensor.type and len(args) == 1 and not options
            return out.replace("torch.", "torch.cuda.") if is_type and ".cuda." not in out else out

    return Mode


def _in_mode(run_backward: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    mode = tensor_mode(torch)

    def run(*arguments: Any, **options: Any) -> Any:
        with mode():
            return run_backward(*arguments, **options)

    return run


class _NoNccl:
    class Options:
        def __init__(self, *_: Any, **__: Any) -> None:
            self.config = type("Config", (), {})()


@around
def _on_gloo(original: Any, *arguments: Any, **options: Any) -> Any:
    """Request gloo where nccl is requested, without what gloo does not take."""

    def gloo(value: Any) -> Any:
        names = value.replace(":", ",").split(",") if isinstance(value, str) else ()  # cpu:gloo,cuda:nccl
        return "gloo" if "nccl" in names else value

    kept = {name: gloo(value) for name, value in options.items() if name not in ("device_id", "pg_options")}
    return original(*map(gloo, arguments), **kept)


@around
def _by_itself(original: Any, *arguments: Any, **options: Any) -> Any:
    """Let a process that was started without torchrun, and meets nobody, keep its store to itself: torch's listens on
    every interface of the machine."""
    if os.environ.get("MASTER_PORT") == "0" and len(arguments) < 2 and options.get("store") is None:
        options |= {
            "init_method": None,
            "store": sys.modules["torch"].distributed.HashStore(),
            "rank": 0,
            "world_size": 1,
        }
    return original(*arguments, **options)


@around
def _cpu_mesh(original: Any, self: Any, device_type: str, *arguments: Any, **options: Any) -> None:
    original(self, "cpu" if device_type == "cuda" else device_type, *arguments, **options)


_GROUPS = "the stacks request nccl, with a device and options that gloo does not take"

TORCH = (
    Replacement(
        "torch.distributed.ProcessGroupNCCL",
        lambda original: original or _NoNccl,
        "CPU builds lack the class, whose Options Megatron fills in (M:parallel_state.py, get_nccl_options)",
        added=True,
    ),
    Replacement("torch.distributed.init_process_group", lambda original: _by_itself(_on_gloo(original)), _GROUPS),
    Replacement("torch.distributed.new_group", _on_gloo, _GROUPS),
    Replacement(
        "torch.distributed.device_mesh:DeviceMesh.__init__",
        _cpu_mesh,
        "FSDP2 and DTensor: a mesh of cuda devices is one of cpu devices",
    ),
    Replacement(
        "torch.autograd._engine_run_backward",
        _in_mode,
        "torch leaves the mode inside backward, where recomputation runs the stack's code",
    ),
)


def _norm_of_a_shard(original: Any) -> Any:
    """Build the plain norm on this rank's shard; its weight is marked, so that Megatron sums its gradient over TP."""

    def new(cls: Any, config: Any, *arguments: Any, **options: Any) -> Any:
        plain = copy.copy(config)
        plain.sequence_parallel = False
        norm = original(cls, plain, *arguments, **options)
        for parameter in norm.parameters():
            parameter.sequence_parallel = config.sequence_parallel
        return norm

    return staticmethod(new)


def _backward(_: Any) -> Any:
    return lambda output, gradient: sys.modules["torch"].autograd.backward(output, grad_tensors=gradient)


@around
def _attention_without_cp(original: Any, self: Any, config: Any, *arguments: Any, **options: Any) -> None:
    plain = copy.copy(config)
    plain.context_parallel_size = 1
    if _state["played"]:  # latent attention gives these to TransformerEngine's; none of them makes a parameter
        options = {name: value for name, value in options.items() if name not in ("k_channels", "v_channels")}
    original(self, plain, *arguments, **options)
    self.tprimat_is_split = config.context_parallel_size > 1


@around
def _attention_on_the_shard(original: Any, self: Any, *arguments: Any, **named: Any) -> Any:
    """Attend causally in the shard's own order: the mask that comes with the batch covers the full sequence in one
    stack, and the shard in the other."""
    (mask, *rest) = arguments[3:] or (named.pop("attention_mask", None),)
    return original(self, *arguments[:3], None if self.tprimat_is_split else mask, *rest, **named)


@around
def _local(original: Any, *arguments: Any, **options: Any) -> Any:
    """Choose Megatron-Core's own layers, whatever is requested."""
    given = inspect.signature(original).bind(*arguments, **options)
    given.arguments["use_transformer_engine"] = False
    return original(*given.args, **given.kwargs)


@around
def _local_layer(original: Any, *arguments: Any, **options: Any) -> Any:
    """Make Megatron-Core's own layer of what TransformerEngine's is requested with, as far as it has that."""
    make = sys.modules[original.__module__].get_gpt_layer_local_spec
    known, given = inspect.signature(make).parameters, inspect.signature(original).bind(*arguments, **options)
    if "kwargs" in known:  # 0.19 names none
        return original(*arguments, **options)
    return make(**{name: value for name, value in given.arguments.items() if name in known})


@around
def _mock_arguments(original: Any, self: Any, *arguments: Any) -> None:
    original(self, *arguments[:4], 42, True)


@around
def _built_helpers(make: Any) -> None:
    from megatron.core import datasets

    folder = Path(datasets.__file__).parent
    if (folder / "Makefile").exists() or not any(folder.glob("helpers_cpp*.so")):
        # its Makefile asks the python3 and python3-config on PATH, which may be of another Python than this one
        places = (Path(__file__).parent / "bin", Path(sys.executable).parent, os.environ.get("PATH", ""))
        os.environ["PATH"] = os.pathsep.join(map(str, places))
        make()


_FUSED_ADAM = {"bias_correction": True, "adam_w_mode": True}
_COMPUTED = ("lr", "betas", "eps", "weight_decay", *_FUSED_ADAM)
"""The arguments of FusedAdam that the stand-in computes with. Others change nothing while they are off."""


def fused_adam(_: Any) -> Any:
    """Return what stands for the FusedAdam of TransformerEngine or Apex, which Megatron constructs on a GPU: it takes
    the same arguments, and steps by torch's Adam, which computes the same and rounds in another order. L2 is
    adam_w_mode=False; without bias_correction both moments count as they are, which is the correction of step infinity.
    (te.pytorch.optimizers.FusedAdam; adam_update in transformer_engine/common/multi_tensor/adam.cu)"""
    torch = sys.modules["torch"]

    class FusedAdam(torch.optim.Adam):  # type: ignore[name-defined]
        def __init__(self, params: Any, **given: Any) -> None:
            self.given = {**_FUSED_ADAM, **given}
            more = {n: v for n, v in given.items() if n not in _COMPUTED and v not in (None, False, torch.float32)}
            if more:
                raise NotImplementedError(f"FusedAdam with {more} is not rehearsed: only its kernel steps so")
            kept = {name: given[name] for name in _COMPUTED if name in given and name not in _FUSED_ADAM}
            super().__init__(params, **kept, decoupled_weight_decay=bool(self.given["adam_w_mode"]))

        def _init_group(self, group: Any, *lists: Any) -> Any:
            made = super()._init_group(group, *lists)
            if not group.get("bias_correction", self.given["bias_correction"]):  # as of a group, too
                for step in lists[-1]:
                    step.fill_(math.inf)
            return made

    FusedAdam.__qualname__ = "FusedAdam"
    return FusedAdam


_ATTENTION = "megatron.core.transformer.dot_product_attention:DotProductAttention"
_SPLIT = "it asserts that the sequence is not split (M:transformer/dot_product_attention.py), which is "

_KERNEL = "a GPU machine has FusedAdam, with arguments of its own: the decay mode is one (M:optimizer/__init__.py:366)"

_SCHEDULES = "megatron.core.pipeline_parallel.schedules"

MEGATRON = (
    Replacement(
        "megatron.core.transformer.torch_norm:WrappedTorchNorm.__new__",
        _norm_of_a_shard,
        "asserts that the sequence is not parallel, which TransformerEngine's may be (M:transformer/torch_norm.py)",
    ),
    Replacement(
        f"{_SCHEDULES}.deallocate_output_tensor",
        answer(None),
        "gloo sends from host memory in the background: freed before that, an output is NaN at the next stage",
    ),
    Replacement(f"{_SCHEDULES}.custom_backward", _backward, "asserts that the output was freed as above"),
    Replacement(
        "megatron.core.optimizer._get_param_groups",
        decayed_first,
        "0.15 begins with the group of the rank's first parameter (M:optimizer/__init__.py:147), 0.16 with the decayed "
        "one (:189): a later stage's is linear_proj with TransformerEngine's layers, and here a norm, so that the "
        "gradient norm was summed in another order, and losses parted by 1e-4 in bf16",
    ),
    Replacement("megatron.core.optimizer.Adam", fused_adam, _KERNEL),
    Replacement("megatron.core.optimizer.USING_PYTORCH_OPTIMIZER", lambda original: False, _KERNEL),
    Replacement(_ATTENTION + ".__init__", _attention_without_cp, _SPLIT + "TransformerEngine's part"),
    Replacement(
        _ATTENTION + ".forward",
        _attention_on_the_shard,
        _SPLIT + "done there: each rank attends to its own shard, so the loss is not context parallelism's",
    ),
    Replacement(
        "megatron.core.models.gpt.gpt_layer_specs.get_gpt_mtp_block_spec",
        _local,
        "B:models/gpt_provider.py, mtp_block_spec, requests TransformerEngine's layers, whatever the others are",
    ),
    Replacement(
        "megatron.core.models.gpt.gpt_layer_specs.get_gpt_decoder_layer_specs",
        lambda original: original and _local(original),
        "the same place of Bridge 0.6.0, where a rank has no layer but that of multi-token prediction; 0.15.3 has none",
        added=True,
    ),
    Replacement(
        "megatron.core.models.gpt.gpt_layer_specs.get_gpt_layer_with_transformer_engine_spec",
        _local_layer,
        "the same place of Bridge 0.3.1, whose layer is that of default_layer_spec: without latent attention",
    ),
    Replacement(
        "megatron.core.transformer.multi_latent_attention.HAVE_TE",
        lambda original: False,
        "0.16.1 (:62) takes TransformerEngine for there, as its names can be imported, and asks for the class None",
    ),
    Replacement(
        "megatron.core.transformer.moe.moe_utils.te_general_gemm",
        lambda original: original,
        "RouterGatingLinearFunction reads this name, which only TransformerEngine defines",
        added=True,
    ),
    Replacement(
        "megatron.core.transformer.moe.moe_utils.maybe_move_tensor_to_cpu",
        counts_as_numpy,
        "a CPU tensor is left a tensor, and gloo's all_to_all_single takes no tensors as split sizes",
    ),
    Replacement(
        "megatron.core.datasets.utils.compile_helpers",
        _built_helpers,
        "the wheels hold helpers_cpp built and no Makefile, and Bridge and Primus run `make` whatever is there",
    ),
    Replacement(
        "nemo.collections.llm.gpt.data.mock:_MockGPTDataset.__init__",
        _mock_arguments,
        "NeMo 2.7.3 passes create_attention_mask in the place of seed (mock.py:110 against :184), and Megatron's own "
        "attention needs the mask",
    ),
)


# Packages of a GPU machine. Hidden, one looks as if it were not installed, and a stack takes its own way around it:
# most load a library of CUDA's or ROCm's when they are imported, and die. Hollow, every name of a missing one can be
# imported and does nothing, for a stack that cannot do without; only the stack that imports it at its top sees that, so
# that Megatron-Core and others still know that it is not there.

HIDDEN = (
    *("transformer_engine", "transformer_engine_torch", "apex", "amp_C", "fused_weight_gradient_mlp_cuda"),
    *("flash_attn", "flash_attn_3", "flash_attn_interface", "grouped_gemm", "deep_ep", "mamba_ssm", "causal_conv1d"),
    *("primus_turbo", "aiter", "nvidia_resiliency_ext"),
    # what a stack imports only where it is there, and no rehearsal uses: each would be half a second
    *("sklearn", "scipy", "wandb"),
)

HOLLOW: Mapping[str, tuple[str, ...]] = {
    "megatron.bridge.": (
        *("transformer_engine", "transformer_engine_torch", "nvidia_resiliency_ext", "megatron.energon"),
        "qwen_vl_utils",
        # by 0.6.0 as well
        *("modelopt", "webdataset", "av", "flashinfer", "fla", "timm", "open_clip", "mlflow", "comet_ml", "diffusers"),
        "imageio",
    ),
    # of Megatron-Core 0.16.1, for inference alone
    "megatron.core.inference.": ("triton",),
    # of Megatron-Core 0.19, for dropless experts with CUDA graphs
    "megatron.core.transformer.moe.ops.": ("triton",),
    # of Primus v26.5's, for kernels that a batch does not change
    "megatron.core.transformer.custom_layers.": ("triton",),
    "nemo.": ("modelopt", "datasets", "pandas"),
    "nemo_run.": ("leptonai", "networkx"),
    # v25.9 imports it whatever it trains
    "primus.": ("transformer_engine",),
    # examples/megatron/prepare.py, to download a corpus, where none is named
    "__main__.": ("datasets", "nltk"),
    # which asks the list of distributions, and so finds it though it is hidden
    "torchmetrics.": ("scipy",),
}
"""Modules that import at their top what only parts use that are not rehearsed."""
UNUSED = ("leptonai", "networkx", "modelopt", "datasets", "pandas", "nltk")
"""Hollow where they are installed, too: the client of a cloud, the order of its jobs, quantisation, other data than
Megatron's. Each would be half a second."""


def hide_packages() -> None:
    """Hide and hollow from now on, where the stand-in is active when a package is first requested."""
    guard = _Guard()
    sys.meta_path.insert(0, guard)
    original, original_find = builtins.__import__, importlib.util.find_spec

    def guarded(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:  # noqa: A002
        if not level and name.partition(".")[0] in _TOPS:
            guard.refuse_hollow(name, (globals or {}).get("__name__", ""))
        return original(name, globals, locals, fromlist, level)

    def guarded_import(name: str, package: str | None = None) -> Any:
        guard.refuse_hollow(name, sys._getframe(1).f_globals.get("__name__", ""))
        return _import_module(name, package)

    def guarded_find(name: str, package: str | None = None) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        try:
            guard.refuse_hollow(name, caller)
            return original_find(name, package)
        except _Hidden:
            return None

    builtins.__import__ = guarded
    importlib.import_module = guarded_import
    importlib.util.find_spec = guarded_find


_import_module = importlib.import_module


class _Hidden(ModuleNotFoundError):
    def __init__(self, name: str) -> None:
        super().__init__(f"No module named {name!r} (hidden: this is a rehearsal without a GPU)", name=name)


class _HollowModule(types.ModuleType):
    """Make any name importable: a lower-case one is a module of the same kind, any other an empty Module; called, it
    decorates nothing."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.__version__ = "2.14.0"  # Bridge requires TransformerEngine 2.10 or newer

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if len(arguments) == 1 and callable(arguments[0]) and not options:
            return arguments[0]
        return None if arguments else lambda function: function

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if not name[0].isupper():
            try:
                return _import_module(f"{self.__name__}.{name}")
            except ModuleNotFoundError:  # of one that is not served it, and looks through all modules
                raise AttributeError(name) from None
        import torch

        def init(module: Any, *_: Any, **__: Any) -> None:
            torch.nn.Module.__init__(module)

        body = {"__init__": init, "__module__": self.__name__, "__class_getitem__": classmethod(lambda cls, _: cls)}
        body |= {"is_converted": staticmethod(lambda _: False)}  # what NeMo asks of modelopt before it saves or loads
        made = type(name, (torch.nn.Module,), body)
        setattr(self, name, made)
        return made


class _Guard(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Find hollow packages for those that are served them, and hidden ones for no one."""

    def __init__(self) -> None:
        self.missing: dict[str, bool] = dict.fromkeys((*HIDDEN, *UNUSED), True)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        hollow = _root(name, _ALL_HOLLOW)
        root = hollow or _root(name, HIDDEN)
        if root is None or not hides():
            return None
        if hollow and self._is_missing(hollow) and _is_served(hollow):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        if root in HIDDEN:
            raise _Hidden(name)
        return None

    def refuse_hollow(self, name: str, caller: str) -> None:
        """Raise for one that is not served what it would see without us, where the hollow package is loaded already.
        Raises ModuleNotFoundError: as for a package that is not installed."""
        root = _root(name, _ALL_HOLLOW)
        if root is None or caller == __name__ or not isinstance(sys.modules.get(root), _HollowModule):
            return
        if not _serves(caller, root):
            raise _Hidden(name)

    def _is_missing(self, root: str) -> bool:
        if root not in self.missing:
            self.missing[root] = False  # while it is looked for, which find_spec above leaves to the others
            try:
                self.missing[root] = importlib.util.find_spec(root) is None
            except ModuleNotFoundError:
                self.missing[root] = True
        return self.missing[root]

    def create_module(self, spec: Any) -> types.ModuleType:
        return _HollowModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


_ALL_HOLLOW = tuple(dict.fromkeys(root for roots in HOLLOW.values() for root in roots))
_TOPS = {root.partition(".")[0] for root in _ALL_HOLLOW}


def _root(name: str, roots: tuple[str, ...]) -> str | None:
    return next((root for root in roots if name == root or name.startswith(f"{root}.")), None)


def _serves(caller: str, root: str) -> bool:
    """Return whether `caller`, a module's name, is served the hollow `root`; a hollow module is served its own
    parts."""
    if _root(caller, (root,)):
        return True
    return any(f"{caller}.".startswith(who) and root in roots for who, roots in HOLLOW.items())


def _is_served(root: str) -> bool:
    """Return the same of whoever is importing now: the first caller outside the import machinery and this file."""
    frame = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module != __name__ and not module.startswith("importlib"):
            return _serves(module, root)
        frame = frame.f_back  # type: ignore[assignment]
    return False


# Rank R of a job of W in one process: torch's fake process group, whose collectives return at once. The model, the
# layout and every rule that the stack checks before the first forward pass are real, at true size. The process ends
# there, with exit code 0 and a mark: what would follow has no meaning (a receive leaves a tensor as it was). Only a
# rank whose place in its tensor parallel group is 0 gets that far: the others learn from a broadcast whether they
# train.

RANK, WORLD = "TPRIMAT_PLAY_RANK", "TPRIMAT_PLAY_WORLD"
_FILLERS = ("normal_", "uniform_", "trunc_normal_", "xavier_normal_", "xavier_uniform_", "kaiming_uniform_")
"""Functions of torch.nn.init: they would take minutes, and nothing reads the weights."""


def play() -> None:
    """Make this process rank RANK of WORLD; before torch is imported."""
    arm()  # whose process groups these stand on
    rank, world = _requested()
    local_world = int(os.environ.get("LOCAL_WORLD_SIZE") or min(8, world))
    node, nodes = rank // local_world, -(-world // local_world)
    sizes = {"WORLD_SIZE": world, "LOCAL_WORLD_SIZE": local_world, "GPUS_PER_NODE": local_world, "NNODES": nodes}
    place = {"RANK": rank, "LOCAL_RANK": rank % local_world, "GROUP_RANK": node, "NODE_RANK": node}
    # as torchrun; Primus and Lightning read more than that
    os.environ.update({name: str(number) for name, number in (sizes | place).items()})
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"})
    _set_defaults()
    _state["played"] = True
    after("torch")(_play)
    after(_SCHEDULES)(_end_at_the_first_forward)
    for module in _WARMED_UP:
        after(module)(_without_warm_up)


def _requested() -> tuple[int, int]:
    stated = [str(os.environ.get(name)) for name in (RANK, WORLD)]
    try:
        rank, world = map(int, stated)
    except ValueError:
        rank, world = -1, 0
    if not 0 <= rank < world:
        _refuse(f"{RANK} and {WORLD} must be integers, rank below world: {', '.join(stated)}")
    return rank, world


def _play(torch: types.ModuleType) -> None:
    if not is_active():
        _refuse("one process plays a rank on a CPU only, and an accelerator is visible here: hide it")
    try:
        from torch.testing._internal.distributed.fake_pg import FakeStore  # registers the backend "fake"
    except ImportError as error:
        _refuse(f"torch {torch.__version__} has no fake process group where it was ({error})")
    begin, new_group = torch.distributed.init_process_group, torch.distributed.new_group

    def init_process_group(*_: Any, **__: Any) -> Any:
        rank, world = _requested()  # now: this may be a fork of the process that imported torch (tprimat_warm)
        return begin("fake", store=FakeStore(), rank=rank, world_size=world)

    def fake_group(*arguments: Any, **options: Any) -> Any:
        return new_group(*arguments, **{**options, "backend": "fake"})

    def as_it_is(objects: list[Any], *_: Any, **__: Any) -> None:
        """Broadcast nothing: the objects stay what this process would have sent."""

    torch.distributed.init_process_group, torch.distributed.new_group = init_process_group, fake_group
    torch.distributed.broadcast_object_list = as_it_is
    for name in _FILLERS:
        setattr(torch.nn.init, name, lambda tensor, *_, **__: tensor)
    untouched_mode(torch)().__enter__()


_LARGE_BYTES = 1 << 20
_MADE = frozenset(
    [
        *("empty", "zeros", "ones", "full", "rand", "randn", "empty_like", "zeros_like", "ones_like"),
        *("new_empty", "new_zeros", "new_ones", "new_full"),  # of FSDP2's shards
    ]
)
_COPIED = frozenset({"clone", "float", "bfloat16", "half", "to", "contiguous"})
_WRITTEN = frozenset(
    {*_FILLERS, "copy_", "zero_", "fill_", "clamp_", "erfinv_", "add_", "sub_", "mul_", "div_", "__setitem__"}
)


def untouched_mode(torch: Any) -> Any:
    """Return the mode in which large tensors cost no memory, so that a rank of any size fits: they lie in pages that
    nothing ever writes, which read as zeros and which the system does not keep. Nothing reads the values: a rank ends
    before its first forward pass."""

    def is_large(tensor: Any) -> bool:
        return isinstance(tensor, torch.Tensor) and tensor.nbytes > _LARGE_BYTES and not tensor.is_meta

    def untouched(like: Any) -> Any:
        kinds = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
        pages = torch.frombuffer(mmap.mmap(-1, like.nbytes, flags=kinds), dtype=like.dtype)
        return pages.as_strided(like.shape, like.contiguous().stride()).requires_grad_(like.requires_grad)

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            options, name = dict(kwargs or {}), getattr(function, "__name__", "")
            if name in _MADE and "out" not in options and str(options.get("device")) != "meta":
                like = function(*args, **{**options, "device": "meta"})
                return untouched(like) if like.nbytes > _LARGE_BYTES else function(*args, **options)
            if not (args and is_large(args[0])):
                return function(*args, **options)
            if name in _WRITTEN:
                return None if name == "__setitem__" else args[0]
            if name in _COPIED:
                one = torch.empty_like(args[0], device="meta")
                kept = (value for value in args[1:] if not isinstance(value, (str, int, torch.device)))
                other = function(one, *kept, **{key: value for key, value in options.items() if key != "device"})
                return args[0] if other is one else untouched(other)
            return function(*args, **options)

    return Mode


def _end_at_the_first_forward(schedules: Any) -> None:
    """End where the schedules call the model: they have checked their own rules by then."""
    if not hasattr(schedules, "forward_step"):
        _refuse(f"{_SCHEDULES} has no forward_step in this release: the training would not end before it")
    schedules.forward_step = _end


_WARMED_UP = ("megatron.training.initialize", "megatron.bridge.training.initialize")


def _without_warm_up(initialize: Any) -> None:
    """Leave out what compiles fused functions before the first step, by activations of full size, and computes them
    here: four fifths of what a rank takes after its imports."""
    if hasattr(initialize, "_warmup_jit_function"):
        initialize._warmup_jit_function = answer(None)(None)


def _end(*_: Any, **__: Any) -> None:
    rank, world = _requested()
    for finish in getattr(sys.modules.get("tprimat_probe"), "FINISH", ()):
        finish()
    sys.stdout.write(f"[tprimat] rehearsed {json.dumps({'rank': rank, 'world': world})}\n")
    sys.stdout.flush()
    sys.stderr.flush()
    atexit._run_exitfuncs()
    os._exit(0)  # no except and no finally of the stack's in between


def _refuse(text: str) -> None:
    sys.stderr.write(f"[tprimat] rehearsal refused: {text}\n")
    sys.stderr.flush()
    os._exit(2)
