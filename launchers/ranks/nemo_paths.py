"""The attribute paths of a recipe of NeMo: set them, and read all of them. A path names a callback by its class, as in
trainer.callbacks.GarbageCollectionCallback.gc_interval_train; NeMo has a list there."""

from __future__ import annotations

import dataclasses
import enum
import inspect
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import fiddle as fdl
import nemo_run
import torch
from megatron.core.distributed import DistributedDataParallelConfig
from nemo.collections.common.tokenizers.huggingface.auto_tokenizer import AutoTokenizer
from nemo.collections.common.tokenizers.null_tokenizer import NullTokenizer
from nemo.collections.common.tokenizers.sentencepiece_tokenizer import SentencePieceTokenizer
from nemo.collections.common.tokenizers.tiktoken_tokenizer import TiktokenTokenizer
from nemo.collections.llm.recipes.tp_overlap_configs import userbuffers
from nemo.lightning.pytorch.callbacks.deepep import DeepEPCallback
from nemo.lightning.pytorch.callbacks.garbage_collection import GarbageCollectionCallback
from nemo.lightning.pytorch.callbacks.megatron_comm_overlap import MegatronCommOverlapCallback
from nemo.lightning.pytorch.callbacks.megatron_enable_experimental_callback import MegatronEnableExperimentalCallback
from nemo.lightning.pytorch.callbacks.moe_token_drop import MegatronTokenDropCallback
from rank_program import Problem
from vendor_ranks import assign, real_value

OBJECTS = {
    made.__name__: made
    for made in (
        *(DeepEPCallback, GarbageCollectionCallback, MegatronCommOverlapCallback, MegatronTokenDropCallback),
        *(AutoTokenizer, NullTokenizer, SentencePieceTokenizer, TiktokenTokenizer),
        *(MegatronEnableExperimentalCallback, userbuffers.TransformerLayerTPOverlapCfg),
        *(userbuffers.BulkOverlapCfg, userbuffers.PipelineOverlapCfg, userbuffers.RingExchangeOverlapCfg),
    )
}
"""All that {object: NAME, set: {ARGUMENT: value}} in a settings file may make: no other class is ever reached."""
CALLBACKS = "trainer.callbacks."
INSTRUMENTS = {"TimingCallback", "FLOPsMeasurementCallback"}  # they measure alone, and are no part of what is set
_WHOLE = ("tokenizer", "tp_comm_overlap_cfg")  # objects that are set, or not, as one value


def names_of(parent: Any) -> set[str]:
    """Return the names that a Buildable's class really has; **kwargs take any other silently (MegatronStrategy and
    more)."""
    if not isinstance(parent, fdl.Buildable):
        return set(dir(parent))
    return set(_defaults(fdl.get_callable(parent)))


def _defaults(made: Any) -> dict[str, Any]:
    """Return the arguments of a class or function by name, each with its default; None where it has none."""
    if dataclasses.is_dataclass(made):
        return {f.name: _default_of(f) for f in dataclasses.fields(made) if f.init}
    parameters = inspect.signature(made.__init__ if inspect.isclass(made) else made).parameters.values()
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name != "self"]
    return {p.name: None if p.default is p.empty else p.default for p in named}


def _default_of(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default


def assign_paths(recipe: Any, values: Mapping[str, Any]) -> Iterator[Problem]:
    """Set every path of `values` on `recipe`, and make the callbacks among them; yield what cannot be set."""
    callbacks, given = SimpleNamespace(), {p: v for p, v in values.items() if p.startswith(CALLBACKS)}
    yield from assign(recipe, {p: made(v) for p, v in values.items() if p not in given}, names_of)
    for path, value in given.items():
        name, _, rest = path.removeprefix(CALLBACKS).partition(".")
        absent = values.get(CALLBACKS + name, {"object": name}) is None
        if name not in OBJECTS:
            yield Problem(path, "is no callback that a settings file can name", name, ", ".join(sorted(OBJECTS)))
        elif not absent and not hasattr(callbacks, name):
            setattr(callbacks, name, nemo_run.Config(OBJECTS[name]))
        if rest and name in OBJECTS and not absent:
            yield from assign(callbacks, {f"{name}.{rest}": made(value)}, names_of)
    recipe.trainer.callbacks = list(vars(callbacks).values())


def made(value: Any) -> Any:
    """Return nemo_run's Config of {object: NAME, set: {ARGUMENT: value}}; of anything else, itself."""
    if not isinstance(value, dict) or value.get("object") not in OBJECTS:
        return value
    arguments = {name: real_value(made(inner)) for name, inner in value.get("set", {}).items()}
    return nemo_run.Config(OBJECTS[value["object"]], **arguments)


def named_ddp(recipe: Any) -> None:
    """Write out what the string 'megatron' stands for as DDP's config (N:lightning/pytorch/strategies/
    megatron_strategy.py:377)."""
    if recipe.trainer.strategy.ddp == "megatron":
        recipe.trainer.strategy.ddp = nemo_run.Config(DistributedDataParallelConfig, check_for_nan_in_grad=True)


def leaves(value: Any, path: str = "", defaults: bool = True) -> Iterator[tuple[str, Any]]:
    """Yield (path, value) of all that a recipe says; of an object, its class, then what is in it. Values as a settings
    file has them. Instruments are left out. defaults: arguments that nothing is said of, too, as classes have them in
    this environment."""
    if not isinstance(value, fdl.Buildable) or path.endswith(_WHOLE):
        yield path, form(value)
        return
    if path:
        yield path, {"object": fdl.get_callable(value).__name__}
    arguments = (_defaults(fdl.get_callable(value)) if defaults else {}) | value.__arguments__
    for name in sorted(arguments):
        inner = f"{path}.{name}" if path else name
        if inner + "." != CALLBACKS:
            yield from leaves(arguments[name], inner, defaults)
    for callback in arguments.get("callbacks") or ():
        if (name := fdl.get_callable(callback).__name__) not in INSTRUMENTS:
            yield from leaves(callback, CALLBACKS + name, defaults)


def form(value: Any) -> Any:
    """Return a value as a settings file has it."""
    if isinstance(value, fdl.Buildable):
        return _object(fdl.get_callable(value), value.__arguments__)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _object(type(value), {field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    if isinstance(value, enum.Enum):
        return {"enum": f"{type(value).__name__}.{value.name}"}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, list | tuple):
        return [form(item) for item in value]
    return {"function": getattr(value, "__name__", str(value))} if callable(value) else value


def _object(kind: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: form(inner) for name, inner in arguments.items()}
    return {"object": kind.__name__, **({"set": kept} if kept else {})}
