"""Leave out of a rehearsal's imports what it does not use, and what is done twice.

Imports are two thirds of a toy's time. Nothing here decides a number: of torch's compiler, what is asked for beyond the
names below is imported after all, as without us."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
import types
from typing import Any

from tprimat_after_import import after

COMPILER = "torch._dynamo"
_OF_MASKS = f"{COMPILER}._trace_wrapped_higher_order_op"
"""A part of it that transformers' masks import for a compiled attention."""
_TRANSFORMERS = "transformers.utils.import_utils"


def install() -> None:
    """Leave it out from now on; before torch is imported. Imports nothing."""
    sys.meta_path.insert(0, _FINDER)
    after("torch")(_without_compiling)
    after(_TRANSFORMERS)(_read_once)
    after("torchmetrics.utilities.imports")(_without_transformers)
    after("dataclasses")(_compile_once)
    after("primus.core.utils.module_utils")(_callers_alone)


def _is_off() -> bool:
    """Return whether torch's compiler does nothing, by torch's own switch."""
    return os.environ.get("TORCHDYNAMO_DISABLE") == "1"


def _without_compiling(torch: types.ModuleType) -> None:
    """Let torch.compile return a function as it is: what it does where its compiler is off, after importing it."""
    original = torch.compile

    def compile(model: Any = None, **options: Any) -> Any:  # noqa: A001 - torch's name
        if not _is_off() or (model is not None and not callable(model)):
            return original(model, **options)
        return model if model is not None else lambda function: compile(function, **options)

    torch.compile = compile  # type: ignore[attr-defined]


def _as_it_is(function: Any = None, *_: Any, **__: Any) -> Any:
    """Be a decorator of the compiler's, with arguments or without: all of them tell the compiler alone something."""
    return function if function is not None else lambda function: function


class _OptimizedModule:
    """Be the class of modules that were compiled: there are none. Lightning asks whether one is."""


class _Config:
    """Take settings of the compiler, and pass them on to it where it is imported after all."""

    def __setattr__(self, name: str, value: Any) -> None:
        vars(self)[name] = value

    def __getattr__(self, name: str) -> Any:
        return getattr(imported().config, name)


class _Compiler(types.ModuleType):
    """Stand for torch._dynamo until a name is asked for that is not here: what torch's optimizers and checkpointing
    call of it in every process, and what Lightning imports at its top."""

    def __init__(self) -> None:
        super().__init__(COMPILER)
        self.__path__: list[str] = []
        names = {"OptimizedModule": _OptimizedModule, "config": _Config()}
        names |= dict.fromkeys(("disable", "allow_in_graph"), _as_it_is)
        names |= {"graph_break": lambda *_, **__: None, "is_compiling": lambda: False}
        # torch.distributed has it forget what it knows, where it has been imported
        names["trace_rules"] = types.SimpleNamespace(clear_lru_cache=lambda: None)
        vars(self).update(names)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(imported(), name)


class _Part(types.ModuleType):
    """Stand for a part of the compiler, each of whose names is the real one's when it is called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        part = self.__name__

        def call(*arguments: Any, **options: Any) -> Any:
            imported()
            return getattr(importlib.import_module(part), name)(*arguments, **options)

        return call


def imported() -> types.ModuleType:
    """Return the real compiler, imported now; it has got what was set on the one that stood for it."""
    stood = sys.modules.get(COMPILER)
    if isinstance(stood, _Compiler):
        _FINDER.stands = False
        for name in (COMPILER, _OF_MASKS):
            sys.modules.pop(name, None)
        real = importlib.import_module(COMPILER)
        for name, value in vars(stood.config).items():
            setattr(real.config, name, value)
        return real
    return importlib.import_module(COMPILER)


class _Finder:
    """Find the compiler that stands for torch's, and for a part of it the real one. Also its loader."""

    stands = True

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if not name.startswith(COMPILER) or not self.stands or not _is_off():
            return None
        if name in (COMPILER, _OF_MASKS):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        if not name.startswith(f"{COMPILER}.") or not isinstance(sys.modules.get(COMPILER), _Compiler):
            return None
        real = imported()
        if name in sys.modules:  # the compiler has imported it itself
            return importlib.machinery.ModuleSpec(name, _Loaded(sys.modules[name]))  # type: ignore[arg-type]
        return importlib.machinery.PathFinder.find_spec(name, real.__path__)

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Compiler() if spec.name == COMPILER else _Part(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


_FINDER = _Finder()


class _Loaded:
    """Load a module that is loaded already, as it is."""

    def __init__(self, module: types.ModuleType) -> None:
        self.module, self.spec = module, module.__spec__

    def create_module(self, _: Any) -> types.ModuleType:
        return self.module

    def exec_module(self, module: types.ModuleType) -> None:
        module.__spec__ = self.spec


def _read_once(module: Any) -> None:
    """Let transformers read its 2,800 files of models once: it does so for its folder and for the __init__.py in it,
    which by its own words is the same. Of each it looks for the last line that begins with __all__."""
    create, fetch = module.create_import_structure_from_path, module.fetch__all__

    def of_the_folder(path: Any) -> Any:
        path = os.fspath(path)
        return create(os.path.dirname(path) if os.path.isfile(path) else path)  # noqa: PTH113, PTH120

    def from_the_last(content: str) -> Any:
        begins = content.rfind("\n__all__") + 1
        return fetch(content[begins:]) if begins else fetch(content)

    module.create_import_structure_from_path, module.fetch__all__ = of_the_folder, from_the_last


def _without_transformers(imports: Any) -> None:
    """Let torchmetrics, which Lightning imports at its top, not import language models for its scores of text."""
    for name in [name for name in vars(imports) if name.startswith("_TRANSFORMERS_")]:
        setattr(imports, name, False)


def _compile_once(dataclasses: Any) -> None:
    """Let dataclasses of the same fields share the code of their methods: the stacks have a thousand classes of the
    same two hundred fields, whose names alone are in the text that is compiled for each."""
    compiled: dict[str, types.CodeType] = {}

    def run(text: str, names: Any = None, local: Any = None) -> None:
        code = compiled.get(text)
        if code is None:
            code = compiled[text] = compile(text, "<string>", "exec", dont_inherit=True)
        exec(code, names, local)  # noqa: S102 - as the module itself does

    dataclasses.exec = run


def _callers_alone(log: Any) -> None:
    """Let Primus' log, which prints its thousand arguments a line each, find the name of its caller by the frames:
    inspect.stack looks up the source of every frame for each line, of which only the frame and its line are used."""

    def stack() -> list[types.SimpleNamespace]:
        frames, frame = [], sys._getframe(1)
        while frame is not None:
            frames.append(types.SimpleNamespace(frame=frame, lineno=frame.f_lineno))
            frame = frame.f_back  # type: ignore[assignment]
        return frames

    log.inspect = types.SimpleNamespace(**{**vars(log.inspect), "stack": stack})
