"""A stand-in for torch.cuda, with which a vendor's stack trains on a machine without an accelerator: a rehearsal.

It runs the stack's own code on the CPU over gloo: settings, layout, data, losses and learning rates are real. Kernels,
TransformerEngine, fp8, NCCL, memory and speed are not there: the record says "rehearsed", and fp8 is refused. Where an
accelerator is found it does nothing at all. Every name is replaced because a stack uses it unconditionally while it
trains; the tables say where. (Seen with nemo_toolkit 2.7.3, Megatron-Bridge 0.3.1 and 0.7.0 dev, Megatron-Core 0.15.3
to 0.20 dev. The engine has a narrower one of its own, which keeps torch.cuda.is_available() honest.)
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from vendor_standin_cuda import NoNccl, answer, cuda_names

NAME = "torch.cuda"


class Replacement(NamedTuple):
    """One replaced name: `owner` is a module, or a class as `module:Class`; `make`: original → stand-in."""

    owner: str
    name: str
    make: Callable[[Any], Any]
    reason: str


def install() -> str | None:
    """Install the stand-in; call it before the vendor's stack is imported. NAME where it is active, None where an
    accelerator was found."""
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # Megatron compiles its fused functions, which takes minutes here
    import torch

    if torch.cuda.is_available():
        os.environ.pop("TORCHDYNAMO_DISABLE")
        return None
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")  # Megatron asks for it with sequence parallelism
    os.environ["NEMO_LOG_MEMORY_USAGE"] = "0"  # torch.cuda's counters read 0 here, which is no measurement
    _replace_torch(torch)
    for entry in REPLACEMENTS:
        owner = _owner(entry.owner)
        if owner is not None:
            setattr(owner, entry.name, entry.make(getattr(owner, entry.name, None)))
    return NAME


def _owner(name: str) -> Any:
    """The module or class, None where this stack has no such part."""
    module, _, attribute = name.partition(":")
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        return None
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError:
        return None
    return getattr(found, attribute, None) if attribute else found


def _replace_torch(torch: Any) -> None:
    cuda, process_groups = torch.cuda, torch.distributed.distributed_c10d
    for name, value in cuda_names(torch).items():
        setattr(cuda, name, value)
    cuda.random.get_rng_state, cuda.random.set_rng_state = cuda.get_rng_state, cuda.set_rng_state
    for name in ("range_push", "range_pop", "mark"):
        setattr(cuda.nvtx, name, answer(None))
    torch.nn.Module.cuda = lambda module, *_, **__: module
    if not hasattr(torch.distributed, "ProcessGroupNCCL"):  # CPU builds lack the class, whose Options Megatron fills in
        torch.distributed.ProcessGroupNCCL = NoNccl
    for name, wrap in (("init_process_group", _on_gloo), ("new_group", _on_gloo), ("barrier", _any_device)):
        original = getattr(process_groups, name)
        for owner in (process_groups, torch.distributed):
            setattr(owner, name, wrap(original))
    mode = _tensor_mode(torch)
    mode().__enter__()
    run_backward = torch.autograd._engine_run_backward

    def in_mode(*arguments: Any, **options: Any) -> Any:
        with mode():  # torch pops it inside backward, where recomputation runs the stack's code
            return run_backward(*arguments, **options)

    torch.autograd._engine_run_backward = in_mode


def _tensor_mode(torch: Any) -> Any:
    """device="cuda", a GPU's number or torch.device("cuda") → CPU, in factories and in .to(); pin_memory off; .cuda()
    the tensor itself; .type() spelled as CUDA's, which Megatron's clip_grads.py and distrib_optimizer.py ask."""
    cpu = torch.device("cpu")

    def is_cuda(device: Any) -> bool:
        if isinstance(device, str):
            return device.startswith("cuda")
        return isinstance(device, torch.device) and bool(device.type == "cuda")

    def on_cpu(device: Any) -> Any:
        number = isinstance(device, int) and not isinstance(device, bool)
        return cpu if number or is_cuda(device) else device

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            options = dict(kwargs or {})
            options.pop("pin_memory", None)
            if options.get("device") is not None:
                options["device"] = on_cpu(options["device"])
            name = getattr(function, "__name__", "")
            if name in ("cuda", "pin_memory"):
                return args[0]
            if name == "to":
                args = (args[0], *(cpu if is_cuda(value) else value for value in args[1:]))
            out = function(*args, **options)
            asked_type = function is torch.Tensor.type and len(args) == 1 and not options
            return out.replace("torch.", "torch.cuda.") if asked_type and ".cuda." not in out else out

    return Mode


def _on_gloo(original: Callable[..., Any]) -> Callable[..., Any]:
    """The stacks ask for nccl, with a device and options that gloo does not take."""

    def make(backend: Any = None, *arguments: Any, **options: Any) -> Any:
        named = options.pop("backend", None)
        asked = backend if isinstance(backend, str) else named
        gone = ("device_id", "pg_options")
        options = {name: value for name, value in options.items() if name not in gone}
        if asked is not None:
            options["backend"] = "gloo" if "nccl" in asked else asked
        ranks = () if backend is None or isinstance(backend, str) else (backend,)
        return original(*ranks, *arguments, **options)

    return make


def _any_device(original: Callable[..., Any]) -> Callable[..., Any]:
    def barrier(*arguments: Any, **options: Any) -> Any:
        options.pop("device_ids", None)
        return original(*arguments, **options)

    return barrier


def _norm_of_a_shard(original: Any) -> Any:
    def new(cls: Any, config: Any, *arguments: Any, **options: Any) -> Any:
        plain = copy.copy(config)
        plain.sequence_parallel = False
        norm = original(cls, plain, *arguments, **options)
        for parameter in norm.parameters():
            parameter.sequence_parallel = config.sequence_parallel
        return norm

    return staticmethod(new)


def _backward(original: Any) -> Any:
    def custom_backward(output: Any, grad_output: Any) -> None:
        import torch

        torch.autograd.backward(output, grad_tensors=grad_output)

    return custom_backward


def _counts(original: Any) -> Any:
    def move(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        return tensor.numpy() if as_numpy and hasattr(tensor, "numpy") else tensor

    return move


def _set_state(original: Any) -> Any:
    def set_state(state: Any, *_: Any, **__: Any) -> None:
        import torch

        torch.set_rng_state(state)

    return set_state


def _get_state(original: Any) -> Any:
    def get_state(*_: Any, **__: Any) -> Any:
        import torch

        return torch.get_rng_state()

    return get_state


def _mock_arguments(original: Any) -> Any:
    def init(self: Any, tokenizer: Any, name: str, count: int, length: int, *_: Any) -> None:
        original(self, tokenizer, name, count, length, 42, True)

    return init


REPLACEMENTS = (
    Replacement("megatron.core.tensor_parallel.random", "_set_cuda_rng_state", _set_state, "queues a call for CUDA"),
    Replacement("megatron.core.tensor_parallel.random", "_get_cuda_rng_state", _get_state, "asks CUDA's generator"),
    Replacement(
        "megatron.core.transformer.torch_norm:WrappedTorchNorm",
        "__new__",
        _norm_of_a_shard,
        "asserts that there is no sequence parallelism, for which TransformerEngine's norm is meant (torch_norm.py:32)",
    ),
    Replacement(
        "megatron.core.pipeline_parallel.schedules",
        "deallocate_output_tensor",
        lambda _: answer(None),
        "gloo sends from host memory in the background: freed before that, an output is NaN at the next stage",
    ),
    Replacement(
        "megatron.core.pipeline_parallel.schedules",
        "custom_backward",
        _backward,
        "asserts that the output was freed as above",
    ),
    Replacement(
        "megatron.core.transformer.moe.moe_utils",
        "te_general_gemm",
        lambda original: original,
        "RouterGatingLinearFunction reads this name, which only TransformerEngine defines",
    ),
    Replacement(
        "megatron.core.transformer.moe.token_dispatcher",
        "maybe_move_tensor_to_cpu",
        _counts,
        "a CPU tensor is left a tensor, and gloo's all_to_all_single takes no tensors as split sizes",
    ),
    Replacement(
        "nemo.collections.llm.gpt.data.mock:_MockGPTDataset",
        "__init__",
        _mock_arguments,
        "NeMo 2.7.3 passes create_attention_mask in the place of seed (mock.py:110 against :184), and Megatron's own "
        "attention needs the mask",
    ),
)
