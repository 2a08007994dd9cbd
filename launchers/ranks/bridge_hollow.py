"""Hollow packages in the place of those that Megatron-Bridge imports at its top and that only a GPU machine has.

For machines without an accelerator, together with vendor_standin: Bridge imports TransformerEngine, NVIDIA's resiliency
package and those for images whatever is trained. A package that is installed stays as it is.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

ROOTS = (
    "transformer_engine",
    "transformer_engine_torch",
    "nvidia_resiliency_ext",
    "megatron.energon",
    "qwen_vl_utils",
    # by 0.6.0 as well
    *("modelopt", "webdataset", "av", "flashinfer", "fla", "timm", "open_clip", "mlflow", "comet_ml", "diffusers"),
    "imageio",
    # Megatron-Core 0.16.1 imports Triton here, for inference alone
    "megatron.core.inference.contexts.attention_context.triton",
)
_SEES_THE_TRUTH = ("megatron.core.", "torch.")
"""Whose own "not installed" is what we want: Megatron-Core takes its local modules then."""


def install() -> tuple[str, ...]:
    """Make the missing ones of ROOTS importable; returns those."""
    missing = tuple(root for root in ROOTS if not _installed(root))
    sys.meta_path.insert(0, _Finder(missing))
    original = builtins.__import__

    def guarded(name: str, *rest: Any, **named: Any) -> Any:
        told = dict(zip(("globals", "locals", "fromlist", "level"), rest, strict=False)) | named
        caller = f"{(told.get('globals') or {}).get('__name__', '')}."
        hidden = name.partition(".")[0] in missing and not told.get("level")
        if hidden and caller.startswith(_SEES_THE_TRUTH):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return original(name, *rest, **named)

    builtins.__import__ = guarded
    return missing


def _installed(name: str) -> bool:
    if name.endswith(".triton"):  # the package is there; what it imports is not
        return importlib.util.find_spec("triton") is not None
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


class _Hollow(types.ModuleType):
    """Any lower-case name is a module of the same kind, any other an empty Module; called, it decorates nothing."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.__version__ = "2.14.0"  # Bridge asks for 2.10 or newer

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if len(arguments) == 1 and callable(arguments[0]) and not options:
            return arguments[0]
        return None if arguments else _same

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if not name[0].isupper():
            return importlib.import_module(f"{self.__name__}.{name}")
        import torch

        def init(module: Any, *_: Any, **__: Any) -> None:
            torch.nn.Module.__init__(module)

        body = {"__init__": init, "__module__": self.__name__, "__class_getitem__": classmethod(lambda cls, _: cls)}
        made = type(name, (torch.nn.Module,), body)
        setattr(self, name, made)
        return made


def _same(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, roots: Sequence[str]) -> None:
        self.roots = roots

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if any(name == root or name.startswith(f"{root}.") for root in self.roots):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Hollow(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass
