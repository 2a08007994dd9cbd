"""Share what the programs of NVIDIA's stacks do inside the ranks: their start, the settings file, attribute paths, the
checks of both, and the GPU or its stand-in.

Imported with the standard library alone; PyYAML, torch and Megatron-Core are imported where a function needs them."""

from __future__ import annotations

import argparse
import dataclasses
import gc
import importlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import rank_program
from rank_program import Problem, Refused, is_first_rank, mark, plain, stop

# behind all else: where the plan put it on PYTHONPATH it is loaded already, and these are the same modules
sys.path.append(str(Path(__file__).with_name("rehearsal")))
import tprimat_standin

Settings = dict[str, Any]
"""The settings file that a renderer wrote (launchers/frameworks/nemo.py, megatron_bridge.py)."""
Names = Callable[[Any], Iterable[str]]
"""The attribute names that an object really has: `plain_names`, or what suits the stack's own config objects."""

NAMED = {
    "AttnBackend": "megatron.core.transformer.enums",
    "CudaGraphScope": "megatron.core.transformer.enums",  # megatron-core 0.16 on
    "silu": "torch.nn.functional",
    "quick_gelu": "megatron.core.fusions.fused_bias_geglu",
    "local_block_spec": "bridge_config",
    "CommOverlapConfig": "megatron.bridge.training.comm_overlap",
    **{
        f"userbuffers_{precision}_{sizes}": "megatron.bridge.training.comm_overlap"
        for precision in ("bf16", "fp8")
        for sizes in (
            "b200_h8192_tp2_mbs1_seqlen8192",
            "b200_h16384_tp4_cp2_mbs1_seqlen8192",
            "h100_h8192_tp4_mbs1_seqlen8192",
            "h100_h16384_tp8_cp2_mbs1_seqlen8192",
        )
    },
    **dict.fromkeys(("float32", "bfloat16", "float16"), "torch"),
}
"""All that {enum: AttnBackend.flash}, {function: silu}, {dtype: float32}, {constant: userbuffers_…} and {object:
CommOverlapConfig, set: {…}} in a settings file may name → its module: no other code is ever reached."""
KINDS = ("enum", "dtype", "function", "constant", "object", "mapping")
"""The spellings of a value that YAML has no form for; {mapping: {a: 1}} is {a: 1}."""


def main(program: str, stack: Callable[[Settings, bool], tuple[str | None, Any]]) -> int:
    """Run one rank of `program`, or check settings files, and return the exit code. stack: takes the settings, and
    whether they are only checked; returns the stand-in's name, if one is needed, and the module that imports the
    vendor's stack (nemo_recipe, bridge_config). Refused ends the program with code 2."""
    rank_program.die_with_parent()
    parser = argparse.ArgumentParser(description=f"one rank of {program}; start it with torchrun")
    parser.add_argument("--settings", required=True, nargs="+", metavar="FILE.yaml")
    parser.add_argument("--check", action="store_true", help="build and check, without training")
    arguments = parser.parse_args()
    if arguments.check:
        gc.disable()  # imports make a million objects and no garbage to search them for
    code = 0
    for path in arguments.settings if arguments.check else arguments.settings[:1]:
        try:
            _run(read_settings(path), stack, arguments.check)
        except Refused as refused:
            message = f"engine: {program}: {len(refused.problems)} reasons not to run {path}"
            code = stop(2, message, refused.problems)
    return code


def _run(settings: Settings, stack: Callable[[Settings, bool], tuple[str | None, Any]], check: bool) -> None:
    stand_in, module = stack(settings, check)
    recipe = module.build(settings, stand_in)
    configured = module.configured(recipe, settings) if check else {}
    if is_first_rank():
        mark("facts", facts(stand_in, *module.DISTRIBUTIONS) | module.VERSIONS)
    if not check:
        module.train(recipe, settings, stand_in)
    elif is_first_rank():
        mark("configured", configured)


def imported(module: str, what: str, hint: str) -> Any:
    """Import `module`: one of ours that imports the stack, or what every stack needs.
    Raises Refused: `what` is wrong, with the package that is missing."""
    try:
        return importlib.import_module(module)
    # what a stack raises at import where its packages do not fit together
    except (ImportError, AttributeError, TypeError, ValueError, RuntimeError, OSError) as error:
        missing = f"package {error.name} is missing" if isinstance(error, ModuleNotFoundError) else repr(error)
        raise Refused.of("framework.python", what, f"{missing}, in {sys.executable}", "", hint) from error


def read_settings(path: str) -> Settings:
    """Return the settings file. Raises Refused: it cannot be read, or is not a mapping; this Python has no PyYAML,
    which comes with omegaconf, which both stacks need."""
    yaml = imported("yaml", "has neither NeMo nor Megatron-Bridge", "the Python that has the stack, or a container")
    return rank_program.read_mapping(path, yaml.safe_load, yaml.YAMLError)


def real_value(value: Any) -> Any:
    """Return the Python value of what a settings file spells as {KIND: NAME} (KINDS), and of each in a list; of
    anything else, itself.
    Raises Refused: no such kind, or no such name in this environment."""
    if isinstance(value, list):
        return [real_value(item) for item in value]
    if not isinstance(value, dict) or not value:
        return value
    kind, name = next(iter(value.items()))
    if kind not in KINDS:
        raise Refused.of(str(value), "is not a known kind of value", kind, ", ".join(KINDS))
    if kind == "mapping":
        return {key: real_value(item) for key, item in name.items()}
    owner, _, member = name.partition(".")
    try:
        named = getattr(importlib.import_module(NAMED[owner]), owner)
        if kind == "object":
            return named(**{key: real_value(item) for key, item in value["set"].items()})
        return named[member] if member else named
    except (KeyError, AttributeError, ImportError, TypeError) as error:
        raise Refused.of(str(value), f"not in this environment ({error})") from error


def plain_names(parent: Any) -> set[str]:
    """Return fields of a dataclass and attributes that are there; assigning any other name succeeds silently."""
    fields = {field.name for field in dataclasses.fields(parent)} if dataclasses.is_dataclass(parent) else set()
    return fields | {name for name in dir(parent) if not name.startswith("_")}


def assign(root: Any, values: Mapping[str, Any], names: Names, optional: bool = False) -> Iterator[Problem]:
    """Set every path of `values` below `root`; yield what cannot be set. optional: a missing name is no fault."""
    for path, value in values.items():
        *parents, name = path.split(".")
        parent, missing = root, ""
        for depth, part in enumerate(parents, 1):
            if (parent := getattr(parent, part, None)) is None:
                missing = ".".join(parents[:depth])
                break
        valid = set() if missing else set(names(parent))
        if name in valid:
            try:
                setattr(parent, name, real_value(value))
            except (AttributeError, TypeError, ValueError, Refused) as error:
                yield Problem(path, str(error), repr(value))
        elif missing and not optional:
            yield Problem(path, f"{missing} is not there in this recipe")
        elif not optional:
            near = get_close_matches(name, sorted(valid), n=3)
            yield Problem(path, f"{type(parent).__name__} has no such name", name, ", ".join(near), "another release")


def precision(settings: Settings, made_by: Mapping[str, Callable[[], Any]], names: Names) -> tuple[Any, list[Problem]]:
    """Return the stack's object for the requested precision, with what the settings set on it, and what they cannot."""
    factory = settings["precision"]["factory"]
    if factory not in made_by:
        known = ", ".join(sorted(name for name in made_by if "-" not in name))
        return None, [Problem("precision", "this release has no such precision", factory, known)]
    made = made_by[factory]()
    return made, list(assign(made, settings["precision"]["set"], names))


def required(settings: Settings, has_transformer_engine: bool) -> Settings:
    """Return path → plain value of all that must be there, in this environment."""
    without: Settings = {} if has_transformer_engine else settings["set_without_transformer_engine"]
    return {**settings.get("set_by_recipe", {}), **settings["set"], **without}


def needs_transformer_engine(settings: Settings, context_path: str) -> Iterator[Problem]:
    """Yield what of `settings` cannot run without it. context_path: where context_parallel_size is set."""
    if settings["precision"]["factory"] not in ("fp32", "bf16_mixed"):
        what = "fp8 needs TransformerEngine, which is not here"
        yield Problem("precision", what, settings["precision"]["factory"], "bf16, fp32", "precision=bf16")
    if settings["set"][context_path] > 1 and not tprimat_standin.is_active():
        what = "a split sequence needs TransformerEngine's attention, which is not here"
        yield Problem("layout.context_parallel_size", what, allowed="1")


def changed(path: str, value: Any, now: Any, who: str) -> Iterator[Problem]:
    """Yield a problem where `path` was set to `value` and is something else now. After a null anything is right."""
    if value is not None and plain(now) != plain(real_value(value)):
        yield Problem(path, f"was set, and {who} has changed it", str(plain(now)), str(plain(value)))


def stand_in_for(device: str, check: bool = False) -> str | None:
    """Install the stand-in where the run is meant for a CPU or rehearsed, or is only checked where no GPU is. Returns
    its name, or None where it is not needed. Call it before the stack is imported.
    Raises Refused: this machine is not what the run is meant for."""
    if device == "cpu" or os.environ.get(tprimat_standin.MODE) or tprimat_standin.is_active():
        name = tprimat_standin.install()
        if name is None:
            raise Refused.of("platform", "meant for a CPU, and an accelerator is visible here")
        return name
    import torch

    if check and not torch.cuda.is_available():
        return tprimat_standin.install()
    devices, ranks = torch.cuda.device_count(), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if not torch.cuda.is_available() or torch.version.hip:
        here = f"torch {torch.__version__} sees no NVIDIA GPU here"
        raise Refused.of("platform", here, "", "", "a torch built for CUDA, or platform=cpu")
    if ranks > devices:
        raise Refused.of("gpus_per_node", "more ranks than visible GPUs", str(ranks), f"1 to {devices}")
    return None


def facts(stand_in: str | None, framework: str, *distributions: str) -> dict[str, Any]:
    """Return what this process runs on; None: there is none, or it is unknown. stand_in: what replaces torch.cuda.
    framework: the distribution whose version is the framework's."""
    import torch

    return {
        **rank_program.installed("megatron-core", "transformer-engine", framework, *distributions),
        "framework_version": rank_program.installed(framework)[framework.replace("-", "_")],
        **rank_program.machine_facts(torch.cuda.is_available() and stand_in is None),
        "stand_in": stand_in,
    }


def of_tokenizer(tokenizer: Any) -> dict[str, Any]:
    """Return the size and special tokens of a stack's own tokenizer of text, by canonical name."""
    names = {"tokenizer_vocab_size": ("vocab_size",), "tokenizer_eod": ("eod",), "tokenizer_bos": ("bos_id", "bos")}
    found = {to: [getattr(tokenizer, name, None) for name in own] for to, own in names.items()}
    return {to: next((value for value in values if value is not None), None) for to, values in found.items()}


_CLOCK = {"paused_s": 0.0, "since": 0.0}


def pause(over: bool = False) -> None:
    """Stop the clock of the steps' marks, while a validation runs, or let it go on."""
    now = time.monotonic()
    if over:
        _CLOCK["paused_s"] += now - _CLOCK["since"]
    _CLOCK["since"] = now


def mark_step(stand_in: str | None, step: int, lr_used: float, loss: Any, grad_norm: Any) -> None:
    """Print the mark of a finished step, from 0, in full precision and on a monotonic clock. loss, grad_norm: tensors,
    numbers or None."""
    loss, grad_norm = (None if value is None else float(value) for value in (loss, grad_norm))
    end = time.monotonic() - _CLOCK["paused_s"]  # reading the numbers above has waited for them
    bad = loss is not None and not math.isfinite(loss)
    values = {"step": step, "lr_used": lr_used, "loss": loss, "grad_norm": grad_norm, "end_monotonic_s": end}
    mark("step", {**values, **({} if stand_in else rank_program.peak_memory()), **({"nonfinite": True} if bad else {})})
