"""Hide installed packages of a GPU machine, and serve missing ones hollow to those that cannot do without.

Hidden, a package looks as if it were not installed, and a stack takes its own way around it: most of these load a
library of CUDA's or ROCm's when they are imported, and die. Hollow, every name of it can be imported and does nothing;
only the stack that imports it at its top sees that, so that Megatron-Core and others still know that it is not there.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

HIDDEN = (
    *("transformer_engine", "transformer_engine_torch", "apex", "amp_C", "fused_weight_gradient_mlp_cuda"),
    *("flash_attn", "flash_attn_3", "flash_attn_interface", "grouped_gemm", "deep_ep", "mamba_ssm", "causal_conv1d"),
    *("primus_turbo", "aiter", "nvidia_resiliency_ext"),
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
    "nemo.": ("modelopt",),
    # v25.9 imports it whatever it trains
    "primus.": ("transformer_engine",),
}
"""Modules that import at their top what only parts use that are not rehearsed."""


def install(is_active: Callable[[], bool]) -> None:
    """Hide and hollow from now on, where `is_active` says so when a package is first requested."""
    guard = _Guard(is_active)
    sys.meta_path.insert(0, guard)
    original, original_find = builtins.__import__, importlib.util.find_spec

    def guarded(name: str, *rest: Any, **named: Any) -> Any:
        if name.partition(".")[0] in _TOPS:
            call = dict(zip(("globals", "locals", "fromlist", "level"), rest, strict=False)) | named
            if not call.get("level"):
                guard.refuse_hollow(name, (call.get("globals") or {}).get("__name__", ""))
        return original(name, *rest, **named)

    def guarded_import(name: str, package: str | None = None) -> Any:
        guard.refuse_hollow(name, sys._getframe(1).f_globals.get("__name__", ""))
        return _import_module(name, package)

    def guarded_find(name: str, package: str | None = None) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        try:
            guard.refuse_hollow(name, caller)
            return original_find(name, package)
        except ModuleNotFoundError as error:
            if isinstance(error, _Hidden):
                return None
            raise

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
            return _import_module(f"{self.__name__}.{name}")
        import torch

        def init(module: Any, *_: Any, **__: Any) -> None:
            torch.nn.Module.__init__(module)

        body = {"__init__": init, "__module__": self.__name__, "__class_getitem__": classmethod(lambda cls, _: cls)}
        made = type(name, (torch.nn.Module,), body)
        setattr(self, name, made)
        return made


class _Guard(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Find hollow packages for those that are served them, and hidden ones for no one."""

    def __init__(self, is_active: Callable[[], bool]) -> None:
        self.is_active = is_active
        self.missing: dict[str, bool] = {}
        self.looking: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        hollow = _root(name, _ALL_HOLLOW)
        root = hollow or _root(name, HIDDEN)
        if root is None or root in self.looking or not self.is_active():
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
        if root in HIDDEN:
            return True
        if root not in self.missing:
            self.looking.add(root)
            try:
                self.missing[root] = importlib.util.find_spec(root) is None
            except ModuleNotFoundError:
                self.missing[root] = True
            finally:
                self.looking.discard(root)
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
