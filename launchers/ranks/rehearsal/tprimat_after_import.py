"""Call a function once, right after the vendor's own code has imported a module.

Nothing is imported for it: a module that no one imports costs nothing. A hook that fails never takes the vendor down:
it is kept in FAULTS and printed on stderr."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing itself would be most of what each start of Python pays for this module
if TYPE_CHECKING:
    import types
    from collections.abc import Callable
    from typing import Any

    Hook = Callable[[types.ModuleType], object]

FAULTS: list[tuple[str, str, str]] = []
"""Hooks that failed: the module, the hook's name, what was raised."""
_HOOKS: dict[str, list[Hook]] = {}


def after(module: str) -> Callable[[Hook], Hook]:
    """Decorate a function: call it with `module` once it is imported, at once where it is already."""

    def register(hook: Hook) -> Hook:
        if module in sys.modules:
            _call(hook, sys.modules[module])
        else:
            _HOOKS.setdefault(module, []).append(hook)
            if _FINDER not in sys.meta_path:
                sys.meta_path.insert(0, _FINDER)
        return hook

    return register


def around(function: Callable[..., Any]) -> Callable[[Any], Callable[..., Any]]:
    """Decorate a function that takes an original first: what is left makes, of an original, what stands in for it."""
    return lambda original: lambda *arguments, **options: function(original, *arguments, **options)


def wrap(owner: Any, name: str, function: Callable[..., Any]) -> None:
    """Put `function`, which takes the original first, in place of `owner.name`."""
    from functools import wraps

    original = getattr(owner, name)
    setattr(owner, name, wraps(original)(around(function)(original)))


def _call(hook: Hook, module: types.ModuleType) -> None:
    try:
        hook(module)
    except Exception as error:  # noqa: BLE001 - whatever it is, the vendor's run goes on
        name, text = getattr(hook, "__name__", "hook"), f"{type(error).__name__}: {error}"
        FAULTS.append((module.__name__, name, text))
        print(f"[tprimat] hook {name} of {module.__name__} failed: {text}", file=sys.stderr, flush=True)


class _Finder:
    """Find what the finders behind it find, and let its loader call the hooks. No subclass of importlib.abc's, which
    brings importlib.resources, pathlib and more into each start of Python."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in _HOOKS:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find and finder is not self else None
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    _call_hooks_behind(spec.loader)
                return spec
        return None


def _call_hooks_behind(loader: Any) -> None:
    def exec_module(module: types.ModuleType) -> None:
        del loader.exec_module  # the loader's own again, also for resources and inspect
        loader.exec_module(module)
        for hook in _HOOKS.pop(module.__name__, ()):
            _call(hook, module)

    loader.exec_module = exec_module


_FINDER = _Finder()
