"""Probe what is really built and what really steps, inside the rank, whatever the vendor prints.

TPRIMAT_PROBE=DIR: installed by sitecustomize.py, for NeMo, Megatron-Bridge, Primus and the embedded engine alike. Each
rank writes DIR/rank<RANK>.json (parsers/probe.py reads it) after 2, 32, 512 … steps and at the end, so that a killed
run leaves one. It rides along on real runs and cannot hurt one: every fault is caught and kept in the file, nothing
waits for a device (what is only on a device is unknown), and its own time is in the file: of loading, hooks, reading
and writing. Built objects are read once, in the first step."""

from __future__ import annotations

import atexit
import functools
import inspect
import json
import math
import os
import sys
import time
import types
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import tprimat_objects
import tprimat_settings
from tprimat_after_import import FAULTS, after, wrap
from tprimat_parameters import full_numel, global_name
from tprimat_readings import READS, Readings
from tprimat_settings import first_group, megatron_schedule, nemo_schedule, process_groups, stated_aux_loss

VARIABLE = "TPRIMAT_PROBE"
VERSION = 1
STEPS_KEPT = 100_000
FAULTS_KEPT = 20
WRITTEN_AFTER = {2 * 16**k for k in range(8)}
"""Steps: each file repeats those before."""
_CLASSES = {
    "megatron.core.models.gpt.gpt_model": "GPTModel",
    "megatron.core.distributed.distributed_data_parallel": "DistributedDataParallel",
    "megatron.core.optimizer.optimizer": "MegatronOptimizer",
    "megatron.core.optimizer_param_scheduler": "OptimizerParamScheduler",
    "nemo.core.optim.lr_scheduler": "WarmupAnnealHoldPolicy",
    "megatron.core.datasets.megatron_dataset": "MegatronDataset",
}
"""Module → the class whose objects are of interest: on_NAME takes each. A release without it: a fault in the file."""
STEPS_READ = 20 if tprimat_objects.REHEARSES else 8
"""So many first steps are identified, and their losses read: all of a toy (launchers/rehearse.py), few of a real run,
whose time counts."""
MOST_KEPT = 4096
"""Forward passes of one step. More come only where no optimizer's step is seen."""
_VERSIONS = ("torch", "megatron.core", "nemo", "megatron.bridge", "primus", "numpy")


_INSTALLED: list[Probe] = []
FINISH: list[Callable[[], None]] = []
"""To be called by a process that ends without its exit functions, or whose own come first and end the groups."""


def install(started: float) -> Probe:
    """Wait for the vendor to import what the probe reads. Imports nothing heavy. started: by time.perf_counter, when
    this module began to be loaded."""
    folder = Path(os.environ[VARIABLE]).absolute()
    os.environ[VARIABLE] = str(folder)  # children may start elsewhere
    probe = Probe(folder)
    for module, name in _CLASSES.items():
        after(module)(functools.partial(probe.guarded, probe.after_making, name))
    for module, watch in _WATCHED.items():
        after(module)(functools.partial(watch, probe))
    atexit.register(probe.finish)
    FINISH.append(probe.finish)
    _INSTALLED.append(probe)
    probe.seconds = time.perf_counter() - started
    return probe


def begin() -> None:
    """Let this process, which was forked since, be the one that is probed, into the folder that it names."""
    for probe in _INSTALLED:
        probe.folder, probe.process, probe.seconds = Path(os.environ[VARIABLE]).absolute(), os.getpid(), 0.0
        os.environ[VARIABLE] = str(probe.folder)
        probe.rendered = tprimat_objects.rendered(probe.folder.parent)


class Probe:
    """Collect what this process builds and steps. The methods on_… are called by hooks, and may raise."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.process = folder, os.getpid()
        self.faults: list[str] = []
        self.made: dict[str, list[Any]] = {name: [] for name in _CLASSES.values()}
        self.models, self.optimizers = self.made["GPTModel"], self.made["MegatronOptimizer"]
        self.decay_groups: dict[int, list[list[int]]] = {}  # of a torch optimizer: each group's parameters, by id
        self.schedule_counts: list[int] = []
        self.unread: dict[str, list[str]] = {}  # who takes names silently → the names that nothing has read
        self.unread_sources: list[Callable[[], None]] = []
        self.arguments: Any = None  # Primus'
        self.stack: dict[str, Any] = {}  # its own objects, which are no part of Megatron-Core, by a short name
        self.strategy: Any = None  # NeMo's
        self.evaluation: tuple[float, float] | None = None  # Bridge's, as it was requested
        self.bucket_size: int | None = None  # as it was requested: Megatron forgets it where no bucket overlaps
        self.loader: Callable[[], Any] = lambda: None  # the first iterator over the training data
        self.rendered = tprimat_objects.rendered(folder.parent)
        self.ran: dict[str, Any] | None = None
        self.switches: Any = None  # as they were in the first step
        self.failed = self.busy = False
        self.frequencies: list[float] | None = None
        self.description: dict[str, Any] | None = None
        self.steps: list[dict[str, Any]] = []
        self.tokens = Tokens()
        self.given: list[Any] = []
        self.losses: list[Any] = []  # of this step's micro-batches
        self.reads_losses = True
        self.unsettled: list[tuple[dict[str, Any], list[Any], tuple[Any, ...]]] = []
        self.watches: list[Any] = []
        self.first_optimizer: int | None = None
        self.seconds = self.seconds_before = self.since = 0.0
        self.readings = Readings(self) if READS else None

    def guarded(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a function does; whatever it raises is kept, and the run goes on. A forked child is not this
        rank."""
        outermost, self.busy = not self.busy, True
        if outermost:
            self.since = time.perf_counter()
        try:
            return function(*arguments) if os.getpid() == self.process else None
        except Exception as error:  # noqa: BLE001  a probe never hurts a run
            self.fault(function.__name__, error)
            return None
        finally:
            if outermost:
                self.busy = False
                self.seconds += time.perf_counter() - self.since

    def fault(self, where: str, error: object) -> None:
        text = f"{where}: {type(error).__name__}: {error}"[:300]
        if text not in self.faults and len(self.faults) < FAULTS_KEPT:
            self.faults.append(text)

    def after_making(self, name: str, module: Any) -> None:
        """Keep each object of the class `name` of `module`, and pass it to on_NAME, once it is made."""

        def make_and_keep(make: Any, this: Any, *arguments: Any, **options: Any) -> None:
            make(this, *arguments, **options)
            if name == "GPTModel" and not self.made[name]:  # half of what decides a forward pass is no config's
                self.guarded(self.keep_given, name, type(this), arguments, options)
            self.made[name].append(this)
            if hasattr(self, f"on_{name}"):
                self.guarded(getattr(self, f"on_{name}"), this)

        wrap(getattr(module, name), "__init__", make_and_keep)

    def keep_given(self, name: str, kind: type, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        self.stack[name] = tprimat_objects.given(kind, arguments, options)

    @property
    def schedule(self) -> Any:
        """Return the schedule that was made last; None: none yet."""
        made = [*self.made["OptimizerParamScheduler"], *self.made["WarmupAnnealHoldPolicy"]]
        return made[-1] if made else None

    def on_GPTModel(self, model: Any) -> None:  # noqa: N802
        if self.readings is not None:
            self.readings.watch(model)
        if len(self.models) == 1 or model.post_process:  # a virtual stage's chunks see the same micro-batches
            self.watches.append(model.register_forward_hook(self._forward, with_kwargs=True))

    def _forward(self, model: Any, arguments: tuple[Any, ...], options: dict[str, Any], output: Any) -> None:
        """Keep what the model is given, and the losses [samples, sequence] where they are on the host (printed ones
        have seven digits), until the step ends. In the hot path: cannot raise."""
        started = time.perf_counter()
        if model.training and len(self.given) < MOST_KEPT:
            if model is self.models[0]:
                self.given.append(options.get("input_ids", arguments[0] if arguments else None))
            if self.reads_losses and model.post_process:
                if not self.losses:
                    self.reads_losses = getattr(output, "ndim", 0) == 2 and output.device.type == "cpu"
                if self.reads_losses:
                    self.losses.append(output.detach())
        self.seconds += time.perf_counter() - started

    def on_MegatronOptimizer(self, optimizer: Any) -> None:  # noqa: N802
        if optimizer.optimizer is not None:  # later its groups hold shards and copies of the parameters
            groups = optimizer.optimizer.param_groups
            self.decay_groups[id(optimizer.optimizer)] = [[id(p) for p in group["params"]] for group in groups]

    def on_batch(self, iterator: Any, batch: Any) -> None:
        if self.loader() is None and not self.steps and is_training(iterator._dataset):
            self.loader = weakref.ref(iterator)
        self.tokens.handed(iterator, batch)

    def on_step(self, optimizer: Any) -> None:
        if self.first_optimizer is None:
            self.first_optimizer = id(optimizer)
        if id(optimizer) == self.first_optimizer:
            self._next_step()
        if self.readings is not None:
            self.readings.stepping(optimizer)
        if self.steps:
            for group in optimizer.param_groups:
                values = [*map(group.get, ("lr", "weight_decay")), *group.get("betas", (None, None)), group.get("eps")]
                # no tensor, which may be on a device
                self.steps[-1]["groups"].append([v if isinstance(v, int | float) else None for v in values])
        if len(self.steps) <= 2 and id(optimizer) == self.first_optimizer:  # later process groups may be gone
            self.schedule_counts.append(getattr(self.schedule, "num_steps", 0))
            self.describe()
        elif READS and self.switches is not None and len(self.steps) <= STEPS_READ:
            self.guarded(self.on_later_step)

    def on_later_step(self) -> None:
        """Keep with both values what was switched since the first step."""
        if changed := tprimat_objects.changed_since(self.switches, switches(self)):
            fields = ((self.description or {}).get("objects") or {}).get("Switches", {}).get("fields", {})
            fields |= {name: tprimat_objects.json_value(values) for name, values in changed.items()}

    def _next_step(self) -> None:
        done = len(self.steps)
        if self.steps:
            self.steps[-1]["probe_time_s"] = round(self.seconds - self.seconds_before, 7)
        self.seconds_before = self.seconds
        if done in WRITTEN_AFTER:
            self._write()
        given, self.given = self.given, []
        if done < STEPS_KEPT:
            row = {"forwards": len(given) or None, "samples": None, "tokens_checksum": None, "loss_sum": None}
            self.steps.append({**row, "losses": None, "probe_time_s": None, "groups": []})
            if self.readings is not None:
                self.readings.end_batch(self.steps[-1])
            if given or done <= STEPS_READ:
                self.guarded(self.end_of_batch, given)
        if done == STEPS_READ:
            self.reads_losses = False
            if not any(getattr(o.config, "fp16", False) for o in self.optimizers):
                for watch in self.watches:  # only where fp16 skips a step do the forward passes number it
                    watch.remove()

    def end_of_batch(self, given: list[Any]) -> None:
        """Close a step; given: to the model in its forward passes."""
        if self.frequencies is None and self.models and len(self.steps) == 1:
            self.frequencies = frequencies(self.models[0])  # NeMo scales them after it has made the model
        sees = bool(self.models) and self.models[0].pre_process
        tokens = self.tokens.step([tokens for tokens in given if sees and tokens is not None])
        self.unsettled.append((self.steps[-1], self.losses, tokens))
        self.losses = []

    def settle(self) -> None:
        """Sum up what was kept of the steps since the last time: between them it would cost more than all else."""
        unsettled, self.unsettled = self.unsettled, []
        for step in unsettled:
            self.guarded(self.settle_step, *step)

    def settle_step(self, row: dict[str, Any], losses: list[Any], tokens: tuple[Any, ...]) -> None:
        if losses:  # of equal shape, on the host: in float64, where the order of summing shows no more
            means = sys.modules["torch"].stack(losses).double().mean(dim=(1, 2)).tolist()
            row |= {"loss_sum": math.fsum(means), "losses": len(losses)}
        row |= checksum(*tokens)

    def describe(self) -> None:
        if self.description is None:
            self.description = described(self)
        else:  # the second step shows what the schedule counts
            self.description["settings"] |= tprimat_settings.read(**_schedule(self))

    def finish(self) -> None:
        """Write the file, for the last time. Never raises."""
        if self.readings is not None:
            self.guarded(self.readings.read_last)
        if self.models or self.steps or self.faults:
            if os.environ.get("LOCAL_RANK", "0") == "0":  # the others of this node run the same code
                self.ran = self.guarded(tprimat_objects.process, self.rendered)
            self.guarded(self._write)

    def _write(self) -> None:
        """Put the file in place in one piece; its last member is the time until then."""
        for source in (self.settle, *self.unread_sources):
            self.guarded(source)
        if self.description is None:
            self.guarded(self.describe)
        rank = int(os.environ.get("RANK", "0"))
        faults = self.faults + [f"hook {hook} of {module}: {error}" for module, hook, error in FAULTS]
        head = {"version": VERSION, "rank": rank, "faults": faults, "never_read": self.unread, "steps": self.steps}
        head |= {"process": self.ran} if self.ran else {}
        path = self.folder / f"rank{rank}.json"
        part = path.with_name(f".{path.name}.{self.process}")
        try:
            read = {} if self.readings is None else self.readings.content
            text = json.dumps({**head, **(self.description or {}), **read}, default=plain)
            self.folder.mkdir(parents=True, exist_ok=True)
            with part.open("w", encoding="utf-8") as file:
                file.write(text[:-1])
                file.flush()
                file.write(f', "probe_time_total_s": {self.seconds + time.perf_counter() - self.since:.6f}}}\n')
            os.replace(part, path)
        except (OSError, TypeError, ValueError) as error:
            if not self.failed:
                print(f"[tprimat] probe: cannot write below {self.folder}: {error!r}", file=sys.stderr, flush=True)
            self.failed = True


# The objects that were built, as plain values. Nothing here touches a device, but for the RoPE frequencies, which are
# copied once, before the first step.


def described(probe: Probe) -> dict[str, Any]:
    """Return all but the steps. A part that cannot be read is null, and a fault."""
    if probe.frequencies is None and probe.models and not probe.steps:
        probe.frequencies = probe.guarded(frequencies, probe.models[0])
    settings: dict[str, Any] = {}
    for part in (_built, _rope, _batches, _data):
        settings |= probe.guarded(part, probe) or {}
    reports = tprimat_objects.REHEARSES or os.environ.get("RANK", "0") == "0"  # a large run has thousands of ranks
    return {
        "objects": probe.guarded(objects, probe) if reports else None,
        "ranks": probe.guarded(ranks),
        "settings": settings,
        "chunks": [probe.guarded(chunk, model, probe) for model in probe.models],
        "reduction_dtypes": probe.guarded(reduction_dtypes, probe),
        "rope_frequencies": probe.frequencies,
        "input_shape": probe.tokens.shape,
        "first_tokens": probe.tokens.first,
        "tokens_unknown": probe.tokens.unknown,
        "versions": {name: str(v) for name in _VERSIONS if (v := getattr(sys.modules.get(name), "__version__", None))},
    }


def objects(probe: Probe) -> dict[str, Any]:
    """Return the configuration objects of the stack, by a short name (tprimat_objects.py)."""
    made = probe.made
    found = {"TransformerConfig": probe.models[0].config} if probe.models else {}
    if wrapped := made["DistributedDataParallel"]:
        found["DistributedDataParallelConfig"] = wrapped[0].ddp_config
    if probe.optimizers:
        found["OptimizerConfig"] = probe.optimizers[0].config
    if trained := _trained(probe):
        found["GPTDatasetConfig"] = trained[-1].config
    if probe.schedule is not None:
        found[type(probe.schedule).__name__] = probe.schedule
    if probe.arguments is not None:
        found["primus"] = probe.arguments
    if (trainer := getattr(probe.strategy, "trainer", None)) is not None:
        found["Trainer"] = tprimat_objects.lightning(trainer)
    found["Switches"] = probe.switches = probe.guarded(switches, probe)
    if probe.models and (rotary := rotary_embedding(probe.models[0])) is not None:  # as built, whatever configured it
        values = {"rotary_dimensions": 2 * rotary.inv_freq.numel()}
        found["RotaryEmbedding"] = tprimat_objects.Named(type(rotary), values, {})
    described = tprimat_objects.described({**found, **probe.stack})
    if wrapped and wrapped[0].ddp_config.bucket_size is None:
        described["DistributedDataParallelConfig"]["fields"]["bucket_size"] = probe.bucket_size
    return described


def switches(probe: Probe) -> Any:
    """Return the switches of this process as they are now."""
    timers = getattr(probe.models[0].config, "timers", None) if probe.models else None
    trainer = getattr(probe.strategy, "trainer", None)
    trainers = (*_parts(probe.stack.get("ConfigContainer")), probe.arguments, trainer)
    return tprimat_objects.switches(probe.loader(), timers, trainers, probe.evaluation)


def _parts(config: Any) -> tuple[Any, ...]:
    """Return the parts of Bridge's config that say how it trains; newer releases have one for evaluation."""
    return tuple(getattr(config, name, None) for name in ("validation", "train", "checkpoint", "profiling"))


def ranks() -> dict[str, Any]:
    """Return the place of this process in each kind of group, and the number of processes."""
    import torch
    from megatron.core import parallel_state as groups

    kinds = {"tensor": "tensor_model", "pipeline": "pipeline_model", "expert": "expert_model"}
    kinds |= {"data": "data", "context": "context"}
    places = {name: getattr(groups, f"get_{kind}_parallel_rank")() for name, kind in kinds.items()}
    return {"world": torch.distributed.get_world_size(), **places}


def chunk(model: Any, probe: Probe) -> dict[str, Any]:
    """Return one part of this rank's model: [global name, local shape, elements in the complete model, whether it
    decays, dtype, dtype of its main gradient] of each parameter. None: unknown."""
    decays, rows = decayed(probe), []
    for name, parameter in model.named_parameters():
        own, gradient = global_name(model, name), getattr(parameter, "main_grad", None)
        counts = (list(parameter.shape), full_numel(parameter, own, model.config), decays.get(id(parameter)))
        rows.append([own, *counts, parameter.dtype, None if gradient is None else gradient.dtype])
    layers = getattr(getattr(model, "decoder", None), "layers", ())
    numbers = [layer.layer_number for layer in layers]
    return {"class": type(model).__name__, "layers": numbers, "parameters": rows}


def decayed(probe: Probe) -> dict[int, bool]:
    """Return of each parameter, by id, whether the group that it was given to decays."""
    decays: dict[int, bool] = {}
    for optimizer in (o.optimizer for o in probe.optimizers if o.optimizer is not None):
        groups = probe.decay_groups[id(optimizer)]
        if len(groups) == len(optimizer.param_groups):
            for group, members in zip(optimizer.param_groups, groups, strict=True):
                decays |= dict.fromkeys(members, bool(group["weight_decay"] > 0))
    return decays


def reduction_dtypes(probe: Probe) -> list[str]:
    """Return in what the data parallel ranks reduce gradients: the dtypes of Megatron's buffers of them."""
    kinds = ("buffers", "expert_parallel_buffers")
    lists = [getattr(wrapped, kind, None) for wrapped in probe.made["DistributedDataParallel"] for kind in kinds]
    buffers = [buffer for known in lists if isinstance(known, list) for buffer in known]  # of a plain module: a method
    return sorted({str(plain(buffer.grad_dtype)) for buffer in buffers})


def frequencies(model: Any) -> list[float] | None:
    """Return the frequencies of the rotary embedding; None where the model has none, or another kind of them."""
    rotary = rotary_embedding(model)
    return None if rotary is None else rotary.inv_freq.tolist()


def rotary_embedding(model: Any) -> Any:
    """Return Megatron's own module of it, None where the model has none, or another kind."""
    return next((module for module in model.modules() if type(module).__name__ == "RotaryEmbedding"), None)


def plain(value: object) -> Any:
    """Return, for JSON, the name of a dtype, an enum or a function; of any other object that of its type, never str or
    repr, which may wait for a device."""
    if isinstance(value, set):
        return list(value)
    if type(value).__name__ == "dtype":
        return str(value).removeprefix("torch.")
    named = getattr(value, "name", None) or getattr(value, "__name__", None)
    return named if isinstance(named, str) else f"<{type(value).__name__}>"


# Canonical settings (conf/vocabulary.yaml) of what was built and stepped. train_iters, save_interval and the name of
# the data are missing: the request's alone, no built object has them.


def _built(probe: Probe) -> dict[str, Any]:
    objects = {**process_groups(), **_schedule(probe)}
    if probe.models:
        modules = [module for model in probe.models for module in model.modules()]
        objects |= {"gpt": probe.models[0], "model": probe.models[0].config, "modules": modules}
    if wrapped := probe.made["DistributedDataParallel"]:
        objects["ddp"] = wrapped[0].ddp_config
    if probe.optimizers:
        groups = [group for optimizer in probe.optimizers for group in optimizer.param_groups]
        objects |= {"optimizer": probe.optimizers[0].config, **first_group(groups)}
    values = tprimat_settings.read(probe.fault, **objects)
    values.pop("rotary_base", None)  # _rope reads it off the frequencies
    return values | (stated_aux_loss(objects["model"]) if probe.models else {})


def _schedule(probe: Probe) -> dict[str, Any]:
    if probe.schedule is None:
        return {}
    if hasattr(probe.schedule, "base_lrs"):
        known = bool(probe.steps and probe.steps[0]["groups"])
        return nemo_schedule(probe.schedule, probe.steps[0]["groups"][0][0] if known else None)
    # Megatron-LM's schedule counts samples, the engine's steps
    counts = probe.schedule_counts
    return megatron_schedule(probe.schedule, counts[1] - counts[0] if len(counts) > 1 else None)


def _rope(probe: Probe) -> dict[str, Any]:
    """Read RoPE off the frequencies in use: rotary_base ** (-i / n) for i < n, the low ones divided where they are
    scaled as Llama 3.1's are."""
    if not probe.frequencies or len(probe.frequencies) < 2:
        return {}
    stated = float(probe.models[0].rotary_base)
    base = probe.frequencies[1] ** -len(probe.frequencies)
    return {
        # float32 keeps seven digits of a frequency: the attribute is exact where it is that of the frequencies
        "rotary_base": stated if math.isclose(base, stated, rel_tol=1e-3) else round(base, 3),
        **tprimat_settings.rope_scaling(tprimat_settings.rope_factor(probe.frequencies, stated)),
    }


def _batches(probe: Probe) -> dict[str, Any]:
    """Count the batches where steps were made: Megatron's calculator says what was planned."""
    if not probe.steps or probe.tokens.shape is None:
        return {}
    from megatron.core import parallel_state as groups

    micro_batch, part = probe.tokens.shape
    count = probe.steps[0]["forwards"]
    return {
        "micro_batch_size": micro_batch,
        "num_micro_batches": count,
        "global_batch_size": micro_batch * count * groups.get_data_parallel_world_size(),
        "seq_length": part * groups.get_context_parallel_world_size(),
    }


_MASKS = ("eod_mask_loss", "reset_position_ids", "reset_attention_mask")


def _trained(probe: Probe) -> list[Any]:
    """Return the parts of the training data."""
    return [d for d in probe.made["MegatronDataset"] if getattr(d.index_split, "name", None) == "train"]


def _data(probe: Probe) -> dict[str, Any]:
    """Read the training data, and what it masks. A blend is named as in Megatron's --data-path."""
    trained = _trained(probe)
    if not trained:
        return {}
    config = trained[-1].config
    values = {"seed": config.random_seed, "seq_length": config.sequence_length}
    kinds = (type(config.tokenizer), type(getattr(config.tokenizer, "_tokenizer", None)))
    of_ids = any("Null" in kind.__name__ for kind in kinds)  # one of text has a size of its own
    if of_ids and isinstance(size := getattr(config.tokenizer, "vocab_size", None), int):
        values["vocab_size"] = size
    values |= {} if of_ids else _of_text(config.tokenizer)
    values |= {name: value for name in _MASKS if isinstance(value := getattr(config, name, None), bool)}
    if getattr(config, "mock", False):
        return {**values, "data": "mock", "data_path": None}
    split = {} if config.split is None else {"split": config.split}
    return {**values, "data_path": _blended(config) or trained[-1].dataset_path, **split}


def _of_text(tokenizer: Any) -> dict[str, int]:
    """Return the size and special tokens of a tokenizer that has any."""
    names = {"tokenizer_vocab_size": "vocab_size", "tokenizer_eod": "eod", "tokenizer_bos": "bos"}
    own = {to: getattr(tokenizer, name, getattr(tokenizer, f"{name}_id", None)) for to, name in names.items()}
    return {to: value for to, value in own.items() if isinstance(value, int)}


def _blended(config: Any) -> str | None:
    """Return each weight and path of a blend; None: there are no weights."""
    prefixes, weights = config.blend or (config.blend_per_split or [None])[0] or ((), None)
    return " ".join(f"{float(w)!r} {p}" for p, w in zip(prefixes, weights, strict=True)) if weights else None


# Samples: which a step sees, as the sum of a hash of each. Of what the model is given, where that is on the host; else
# of what the training data's loader hands out there, in the same order.


def _watch_loaders(probe: Probe, module: Any) -> None:
    """Hand the probe each batch that a loader gives out, in the process that trains."""

    def step_and_pass(step: Any, this: Any) -> Any:
        batch = step(this)
        probe.guarded(probe.on_batch, this, batch)
        return batch

    wrap(module._BaseDataLoaderIter, "__next__", step_and_pass)


class Tokens:
    """Identify the samples of this rank, step by step. unknown: why the model's cannot be read. shape: of a
    micro-batch's tokens [samples, sequence]. first: the first sample's first ids."""

    def __init__(self) -> None:
        self.unknown: str | None = None
        self.shape: tuple[int, ...] | None = None
        self.first: list[int] | None = None
        self._kept: list[Any] = []
        self._handed: deque[int] = deque()
        self._loader: Callable[[], Any] = lambda: None
        self._steps = 0

    @property
    def reads(self) -> bool:
        return self._steps < STEPS_READ

    def handed(self, iterator: Any, batch: Any) -> None:
        """Take a batch of a loader's iterator. Of several at a time the first is followed: Megatron-Bridge gives each
        virtual stage one of its own, with the same samples."""
        tokens = batch.get("tokens") if isinstance(batch, Mapping) else None
        if not self.reads or tokens is None or tokens.device.type != "cpu" or not is_training(iterator._dataset):
            return
        if self._loader() is None:  # none yet, or that of an epoch that is over
            self._loader = weakref.ref(iterator)
        if self._loader() is iterator:
            if self.first is None:
                self.first = tokens.reshape(-1)[:8].tolist()
            self._handed.extend(sample_hashes(tokens))

    def step(self, batch: Sequence[Any]) -> tuple[int, list[Any], list[int]]:
        """End a step, whose forward passes were given `batch`. Return the number of its samples, the tokens that were
        kept of them, and the hashes of those that a loader handed out."""
        if batch and self.shape is None:
            self.shape, self.unknown = tuple(batch[0].shape), why_unknown(batch[0])
        samples = sum(tokens.shape[0] for tokens in batch)
        kept = list(batch) if self.unknown is None and self.reads else []
        self._steps += 1
        if self.first is None and kept:
            self.first = kept[0].reshape(-1)[:8].tolist()
        handed = [self._handed.popleft() for _ in range(min(samples, len(self._handed)))]
        if not self.reads:
            self._handed.clear()
        return samples, kept, handed


def checksum(samples: int, kept: Sequence[Any], handed: Sequence[int]) -> dict[str, int | None]:
    """Return the row's samples and tokens_checksum. ValueError: the loader handed out others than the model saw."""
    hashes = sample_hashes(*kept)
    if hashes and handed and hashes != handed:
        raise ValueError("the loader handed out other samples than the model saw")
    known = hashes or handed
    complete = samples > 0 and len(known) == samples
    return {"samples": samples or None, "tokens_checksum": sum(known) % 2**52 if complete else None}


def is_training(dataset: Any) -> bool:
    """Return whether this is Megatron's training split, or a blend of such."""
    first = next(iter(getattr(dataset, "datasets", ())), dataset)
    return getattr(getattr(first, "index_split", None), "name", None) == "train"


def why_unknown(tokens: Any) -> str | None:
    """Return why the samples that a model is given cannot be identified; None where they can."""
    if tokens.device.type != "cpu":
        return f"the model's are on {tokens.device.type}, which is not waited for"
    from megatron.core import parallel_state as groups

    if groups.is_initialized() and groups.get_context_parallel_world_size() > 1:
        return "context parallel ranks see parts of the samples"
    return None


def sample_hashes(*batches: Any) -> list[int]:
    """Return a 32-bit hash of each sample of tokens [samples, sequence], on the host: CRC-32 of its ids as little
    endian int64."""
    import numpy as np

    return [zlib.crc32(row) for tokens in batches for row in np.ascontiguousarray(tokens.detach().numpy(), "<i8")]


# Names that were set and that nothing has read: where a stack takes any name, only this shows a misspelt one.


_PRIMUS_PRINTS = {"_print_args", "log_dict_aligned", "merge_namespace", "nested_namespace_to_dict"}
"""These read every argument: to print it, or to copy it."""


def _extra_keywords(probe: Probe, module: Any) -> None:
    """List the keywords that MegatronStrategy drops into **kwargs, which nothing reads."""
    parameters = inspect.signature(module.MegatronStrategy.__init__).parameters.values()
    known = {parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD}

    def make_and_list(make: Any, this: Any, *arguments: Any, **options: Any) -> None:
        probe.unread["MegatronStrategy"] = sorted(options.keys() - known)
        probe.strategy = this
        probe.guarded(probe.keep_given, "MegatronStrategy", type(this), arguments, options)
        make(this, *arguments, **options)

    wrap(module.MegatronStrategy, "__init__", make_and_list)


def _extra_attributes(probe: Probe, module: Any) -> None:
    """List the attributes of Bridge's configs that are no fields of theirs: kept (they have no slots), and inert."""

    def list_and_run(run: Any, config: Any, *arguments: Any, **options: Any) -> Any:
        def inert_attributes() -> None:
            probe.unread["ConfigContainer"] = sorted(_not_fields(config))

        probe.guarded(inert_attributes)
        probe.stack["ConfigContainer"] = config
        probe.evaluation = tprimat_objects.evaluation(_parts(config))  # it sets 0 batches where it finds no data
        return run(config, *arguments, **options)

    wrap(module, "pretrain", list_and_run)


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
    """Primus' arguments. A copy, pickled or not, is a plain namespace."""

    def __reduce__(self) -> Any:
        return types.SimpleNamespace, (), dict(vars(self))


class _Recorded(_Arguments):
    """The same, noting what is read of it."""

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("__"):
            reader = sys._getframe(1)
            while reader.f_code.co_name.startswith("<") and reader.f_back is not None:  # a comprehension, a lambda
                reader = reader.f_back
            if reader.f_code.co_name not in _PRIMUS_PRINTS:
                _READ.add(name)
        return object.__getattribute__(self, name)


_READ: set[str] = set()


def _unread_arguments(probe: Probe, module: Any) -> None:
    """Watch Primus' arguments: from v26.2 on it keeps any key of the user's, and prints it as if it were an
    argument."""

    def to_namespace(build: Any, this: Any) -> Any:
        built = build(this)
        probe.guarded(watch, probe, built)
        return probe.arguments or built

    wrap(module.MegatronArgBuilder, "to_namespace", to_namespace)
    module.MegatronArgBuilder.finalize = module.MegatronArgBuilder.to_namespace


def _unread_config(probe: Probe, module: Any) -> None:
    """Watch the legacy trainers' arguments: the config's own namespace, with keys that the config knows and nothing
    reads (v25.9: primus/modules/base_module.py, primus/core/launcher/config.py)."""

    def make_watched(
        make: Any, this: Any, module_name: str, primus_config: Any, *arguments: Any, **options: Any
    ) -> None:
        def replace() -> None:
            modules = primus_config._exp.modules
            watch(probe, getattr(modules, module_name))
            setattr(modules, module_name, probe.arguments)

        probe.guarded(replace)
        make(this, module_name, primus_config, *arguments, **options)

    wrap(module.BaseModule, "__init__", make_watched)


def _watch_steps(probe: Probe, optim: Any) -> None:
    optim.register_optimizer_step_pre_hook(lambda this, _, __: probe.guarded(probe.on_step, this))


def _watch_buckets(probe: Probe, module: Any) -> None:
    def keep_and_make(make: Any, this: Any, config: Any, ddp_config: Any, *arguments: Any, **options: Any) -> None:
        if not probe.made["DistributedDataParallel"]:  # later chunks of a model share its config
            probe.bucket_size = getattr(ddp_config, "bucket_size", None)
        make(this, config, ddp_config, *arguments, **options)

    wrap(module.DistributedDataParallel, "__init__", keep_and_make)


_WATCHED = {
    "megatron.core.distributed.distributed_data_parallel": _watch_buckets,
    "torch.optim.optimizer": _watch_steps,
    "torch.utils.data.dataloader": _watch_loaders,
    "nemo.lightning.pytorch.strategies.megatron_strategy": _extra_keywords,
    "megatron.bridge.training.pretrain": _extra_attributes,
    "primus.backends.megatron.argument_builder": _unread_arguments,
    "primus.modules.base_module": _unread_config,
}
"""Module → what watches it, when it is imported."""


def watch(probe: Probe, built: Any) -> None:
    """Put a namespace that notes what is read of it in place of `built`, as probe.arguments. What is read before the
    file is first written is read; then nothing is noted any more."""

    def never_read() -> None:
        if type(probe.arguments) is _Recorded:
            object.__setattr__(probe.arguments, "__class__", _Arguments)
            probe.unread["primus"] = sorted(user_keys() - _READ)

    probe.arguments = _Recorded(**vars(built))
    probe.unread_sources.append(never_read)


def user_keys() -> set[str]:
    """Return the keys that the user set: the overrides in the files named on the command line, and its own --KEY
    words."""
    import yaml

    words = iter(sys.argv[1:])
    keys: set[str] = set()
    for word in words:
        name, _, value = word.partition("=")
        if name in ("--config", "--exp"):
            with open(value or next(words), encoding="utf-8") as file:  # noqa: PTH123
                document = yaml.safe_load(file)
            modules = (document.get("modules") if isinstance(document, Mapping) else None) or {}
            parts = [(part.get("overrides") or {}) for part in modules.values() if isinstance(part, Mapping)]
            # null requests nothing
            keys |= {name for part in parts for name, value in part.items() if value is not None}
        elif name.startswith("--"):
            keys.add(name[2:])
    return keys - {"data_path", "backend_path", "export_config"}  # of the launcher itself
