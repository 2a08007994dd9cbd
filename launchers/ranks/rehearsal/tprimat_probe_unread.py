"""Names that were set and that nothing has read: where a stack takes any name, only this tells a misspelt one."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from tprimat_after_import import after

if TYPE_CHECKING:
    from tprimat_probe import Probe

_PRIMUS_PRINTS = {"_print_args", "log_dict_aligned", "merge_namespace", "nested_namespace_to_dict"}
"""These read every argument: to print it, or to copy it."""


def install(probe: Probe) -> None:
    """Hook what takes names silently in NeMo, Megatron-Bridge and Primus."""

    @after("nemo.lightning.pytorch.strategies.megatron_strategy")
    def nemo(module: Any) -> None:
        _extra_keywords(probe, module.MegatronStrategy)

    @after("megatron.bridge.training.pretrain")
    def bridge(module: Any) -> None:
        _extra_attributes(probe, module)

    @after("primus.backends.megatron.argument_builder")
    def primus(module: Any) -> None:
        _unread_arguments(probe, module.MegatronArgBuilder)

    @after("primus.modules.base_module")
    def legacy_primus(module: Any) -> None:
        _unread_config(probe, module.BaseModule)


def _extra_keywords(probe: Probe, kind: Any) -> None:
    """MegatronStrategy drops what it does not know into **kwargs, which nothing reads."""
    make = kind.__init__
    known = {n for n, p in inspect.signature(make).parameters.items() if p.kind is not p.VAR_KEYWORD}

    @functools.wraps(make)
    def make_and_list(this: Any, *arguments: Any, **options: Any) -> None:
        probe.unread["MegatronStrategy"] = sorted(options.keys() - known)
        make(this, *arguments, **options)

    kind.__init__ = make_and_list


def _extra_attributes(probe: Probe, module: Any) -> None:
    """Bridge's configs are dataclasses without slots: an attribute that is no field of theirs is kept, and inert."""
    run = module.pretrain

    @functools.wraps(run)
    def list_and_run(config: Any, *arguments: Any, **options: Any) -> Any:
        def inert_attributes() -> None:
            probe.unread["ConfigContainer"] = sorted(_not_fields(config))

        probe.guarded(inert_attributes)
        return run(config, *arguments, **options)

    module.pretrain = list_and_run


_NO_FIELDS = ("_", "yarn_")
"""Private ones; and core/models/gpt/gpt_model.py:183 reads yarn_… of any config."""


def _not_fields(config: Any, path: str = "") -> Iterator[str]:
    known = {f.name for f in fields(config)}
    for name, value in vars(config).items():
        if name not in known and not name.startswith(_NO_FIELDS) and not hasattr(type(config), name):
            yield f"{path}{name}"
        elif is_dataclass(value) and not isinstance(value, type) and path.count(".") < 3:
            yield from _not_fields(value, f"{path}{name}.")


class _Arguments(types.SimpleNamespace):
    """Primus' arguments. A copy of it, pickled or not, is a plain namespace."""

    def __reduce__(self) -> Any:
        return types.SimpleNamespace, (), dict(vars(self))


class _Recorded(_Arguments):
    """The same, and it notes what is read of it."""

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("__"):
            reader = sys._getframe(1)
            while reader.f_code.co_name.startswith("<") and reader.f_back is not None:  # a comprehension, a lambda
                reader = reader.f_back
            if reader.f_code.co_name not in _PRIMUS_PRINTS:
                _READ.add(name)
        return object.__getattribute__(self, name)


_READ: set[str] = set()


def _unread_arguments(probe: Probe, builder: Any) -> None:
    """From v26.2 on Primus keeps any key of the user's, and prints it as if it were an argument."""
    build = builder.to_namespace

    @functools.wraps(build)
    def to_namespace(this: Any) -> Any:
        built = build(this)
        probe.guarded(watch, probe, built)
        return probe.arguments or built

    builder.to_namespace = builder.finalize = to_namespace


def _unread_config(probe: Probe, kind: Any) -> None:
    """The legacy trainers have the config's own namespace for arguments, with keys that the config knows and nothing
    reads (v25.9: primus/modules/base_module.py, primus/core/launcher/config.py)."""
    make = kind.__init__

    @functools.wraps(make)
    def make_watched(this: Any, module_name: str, primus_config: Any, *arguments: Any, **options: Any) -> None:
        def replace() -> None:
            modules = primus_config._exp.modules
            watch(probe, getattr(modules, module_name))
            setattr(modules, module_name, probe.arguments)

        probe.guarded(replace)
        make(this, module_name, primus_config, *arguments, **options)

    kind.__init__ = make_watched


def watch(probe: Probe, built: Any) -> None:
    """Put a namespace that notes what is read of it in place of `built`, as probe.arguments. What is read before the
    file is first written is read; then nothing is noted any more."""

    def never_read() -> None:
        if type(probe.arguments) is _Recorded:
            probe.arguments.__class__ = _Arguments
            probe.unread["primus"] = sorted(user_keys() - _READ)

    probe.arguments = _Recorded(**vars(built))
    probe.unread_sources.append(never_read)


def user_keys() -> set[str]:
    """The keys that the user set: the overrides in the files named on the command line, and its own --KEY words."""
    import yaml

    words = iter(sys.argv[1:])
    keys: set[str] = set()
    for word in words:
        name, _, value = word.partition("=")
        if name in ("--config", "--exp"):
            with open(value or next(words), encoding="utf-8") as file:  # noqa: PTH123
                keys |= set(_overrides(yaml.safe_load(file)))
        elif name.startswith("--"):
            keys.add(name[2:])
    return keys - {"data_path", "backend_path", "export_config"}  # of the launcher itself


def _overrides(document: Any) -> Iterator[str]:
    modules = document.get("modules") if isinstance(document, Mapping) else None
    for module in (modules or {}).values():
        overrides = (module.get("overrides") or {}) if isinstance(module, Mapping) else {}
        yield from (name for name, value in overrides.items() if value is not None)  # null asks for nothing
