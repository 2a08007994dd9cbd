"""Outside torch.cuda: device="cuda" in every torch call, process groups of NCCL, a device mesh of GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tprimat_standin_parts import Replacement

_TEST = "tests/rehearsal/test_standin_torch.py::test_every_name_is_needed"


def tensor_mode(torch: Any) -> Any:
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
            if function is torch.device and args and type(args[0]) is int:  # YaRN: of current_device()
                return cpu
            if name in ("cuda", "pin_memory"):
                return args[0]
            if name == "to":
                args = (args[0], *(cpu if is_cuda(value) else value for value in args[1:]))
            out = function(*args, **options)
            asked_type = function is torch.Tensor.type and len(args) == 1 and not options
            return out.replace("torch.", "torch.cuda.") if asked_type and ".cuda." not in out else out

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


def _on_gloo(original: Callable[..., Any]) -> Callable[..., Any]:
    def init_process_group(backend: str | None = None, *arguments: Any, **options: Any) -> Any:
        return original(_gloo(backend), *arguments, **_without_device(options))

    return init_process_group


def _group_on_gloo(original: Callable[..., Any]) -> Callable[..., Any]:
    def new_group(*arguments: Any, backend: str | None = None, **options: Any) -> Any:
        return original(*arguments, backend=_gloo(backend), **_without_device(options))

    return new_group


def _gloo(backend: str | None) -> str | None:
    return "gloo" if backend and "nccl" in backend else backend


def _without_device(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in ("device_id", "pg_options")}


def _cpu_mesh(original: Callable[..., None]) -> Callable[..., None]:
    def init(self: Any, device_type: str, *arguments: Any, **options: Any) -> None:
        original(self, "cpu" if device_type == "cuda" else device_type, *arguments, **options)

    return init


_GROUPS = "the stacks ask for nccl, with a device and options that gloo does not take"

TORCH = (
    Replacement(
        "torch.distributed",
        "ProcessGroupNCCL",
        lambda original: original or _NoNccl,
        "CPU builds lack the class, whose Options Megatron fills in (M:parallel_state.py, get_nccl_options)",
        _TEST,
        added=True,
    ),
    Replacement("torch.distributed", "init_process_group", _on_gloo, _GROUPS, _TEST),
    Replacement("torch.distributed", "new_group", _group_on_gloo, _GROUPS, _TEST),
    Replacement(
        "torch.distributed.device_mesh:DeviceMesh",
        "__init__",
        _cpu_mesh,
        "FSDP2 and DTensor: a mesh of cuda devices is one of cpu devices",
        _TEST,
    ),
    Replacement(
        "torch.autograd",
        "_engine_run_backward",
        _in_mode,
        "torch leaves the mode inside backward, where recomputation runs the stack's code",
        _TEST,
    ),
)
