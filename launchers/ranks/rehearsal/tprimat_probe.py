"""The probe: what is really built and what really steps, read inside the rank, whatever the vendor prints.

TPRIMAT_PROBE=DIR: installed by sitecustomize.py, for NeMo, Megatron-Bridge, Primus and the embedded engine alike. Each
rank writes DIR/rank<RANK>.json (parsers/probe.py reads it) after 2, 32, 512 … steps and at the end, so that a killed
run leaves one. It rides along on real runs and cannot hurt one: every fault is caught and kept in the file, nothing
waits for a device (what only a device holds is unknown), and its own time is in the file: of loading, hooks, reading
and writing. What is read of built objects is read once, in the first step.
"""

from __future__ import annotations

import atexit
import functools
import json
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tprimat_probe_tokens
import tprimat_probe_unread
from tprimat_after_import import FAULTS, after
from tprimat_probe_read import described, frequencies, group_row, means_of
from tprimat_probe_settings import schedule
from tprimat_probe_tokens import MOST_HELD, STEPS_LOOKED_AT, Tokens

VARIABLE = "TPRIMAT_PROBE"
VERSION = 1
STEPS_KEPT = 100_000
FAULTS_KEPT = 20
WRITTEN_AFTER = {2 * 16**k for k in range(8)}
"""Steps: each file repeats those before."""
_CLASSES = {
    "megatron.core.models.gpt.gpt_model": ("GPTModel", "on_model"),
    "megatron.core.distributed.distributed_data_parallel": ("DistributedDataParallel", "on_wrapped"),
    "megatron.core.optimizer.optimizer": ("MegatronOptimizer", "on_optimizer"),
    "megatron.core.optimizer_param_scheduler": ("OptimizerParamScheduler", "on_schedule"),
    "nemo.core.optim.lr_scheduler": ("WarmupAnnealHoldPolicy", "on_schedule"),
    "megatron.core.datasets.megatron_dataset": ("MegatronDataset", "on_dataset"),
}
"""Of each module the class whose making tells something, and who is told. A release without it: a fault in the file."""


def install(started: float) -> Probe:
    """Wait for the vendor to import what the probe looks at. Imports nothing heavy. started: by time.perf_counter, when
    this module began to be loaded, less what was spent before."""
    folder = Path(os.environ[VARIABLE]).absolute()
    os.environ[VARIABLE] = str(folder)  # children may start elsewhere
    probe = Probe(folder)
    for module, (name, method) in _CLASSES.items():
        after(module)(functools.partial(probe.guarded, "after_making", name, method))

    @after("torch.optim.optimizer")
    def steps(optim: Any) -> None:
        optim.register_optimizer_step_pre_hook(lambda this, _, __: probe.guarded("on_step", this))

    tprimat_probe_tokens.install(probe)
    tprimat_probe_unread.install(probe)
    atexit.register(probe.finish)
    _PROBES.append(probe)
    probe.seconds = time.perf_counter() - started
    return probe


_PROBES: list[Probe] = []


def finish() -> None:
    """Write the file now: for a process that will end without its exit functions. Never raises."""
    for probe in _PROBES:
        probe.finish()


class Probe:
    """What has been seen in this process. The methods on_… are called by hooks, and may raise."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.process = folder, os.getpid()
        self.faults: list[str] = []
        self.models: list[Any] = []
        self.wrapped: list[Any] = []
        self.optimizers: list[Any] = []
        self.decay_groups: dict[int, list[list[int]]] = {}  # of a torch optimizer: each group's parameters, by id
        self.schedule: Any = None
        self.schedule_counts: list[int] = []
        self.dataset: Any = None
        self.unread: dict[str, list[str]] = {}  # who takes names silently → the names that nothing has read
        self.unread_sources: list[Callable[[], None]] = []
        self.arguments: Any = None  # Primus'
        self.failed = self.busy = False
        self.frequencies: list[float] | None = None
        self.description: dict[str, Any] | None = None
        self.described = ""  # the same as JSON, once it was written
        self.steps: list[dict[str, Any]] = []
        self.tokens = Tokens()
        self.given: list[Any] = []
        self.losses: list[Any] = []  # of this step's micro-batches
        self.losses_told = True
        self.unsettled: list[tuple[dict[str, Any], list[Any], Callable[[], dict[str, Any]]]] = []
        self.watches: list[Any] = []
        self.first_optimizer: int | None = None
        self.seconds = self.seconds_before = self.since = 0.0

    def guarded(self, method: str | Callable[..., None], *arguments: Any) -> None:
        """Call a method; whatever it raises is kept, and the run goes on. A forked child is not this rank."""
        outermost, self.busy = not self.busy, True
        if outermost:
            self.since = time.perf_counter()
        try:
            if os.getpid() == self.process:
                (getattr(self, method) if isinstance(method, str) else method)(*arguments)
        except Exception as error:  # noqa: BLE001  a probe never hurts a run
            self.fault(method if isinstance(method, str) else method.__name__, error)
        if outermost:
            self.busy = False
            self.seconds += time.perf_counter() - self.since

    def fault(self, where: str, error: object) -> None:
        """Keep a fault, each once."""
        text = f"{where}: {type(error).__name__}: {error}"[:300]
        if text not in self.faults and len(self.faults) < FAULTS_KEPT:
            self.faults.append(text)

    def after_making(self, name: str, method: str, module: Any) -> None:
        """Tell `method` of each object of the class `name` of `module` once it is made."""
        kind = getattr(module, name)
        make = kind.__init__

        @functools.wraps(make)
        def make_and_tell(this: Any, *arguments: Any, **options: Any) -> None:
            make(this, *arguments, **options)
            self.guarded(method, this)

        kind.__init__ = make_and_tell

    def on_model(self, model: Any) -> None:
        self.models.append(model)
        if len(self.models) == 1 or model.post_process:  # a virtual stage's chunks see the same micro-batches
            self.watches.append(model.register_forward_hook(self._forward, with_kwargs=True))

    def _forward(self, model: Any, arguments: tuple[Any, ...], options: dict[str, Any], output: Any) -> None:
        """In the hot path: keeps what the model is given, and the losses [samples, sequence] where they are on the
        host (printed ones have seven digits), until the step ends; cannot raise."""
        started = time.perf_counter()
        if model.training and len(self.given) < MOST_HELD:
            if model is self.models[0]:
                self.given.append(options.get("input_ids", arguments[0] if arguments else None))
            if self.losses_told and model.post_process:
                if not self.losses:
                    self.losses_told = getattr(output, "ndim", 0) == 2 and output.device.type == "cpu"
                if self.losses_told:
                    self.losses.append(output.detach())
        self.seconds += time.perf_counter() - started

    def on_wrapped(self, wrapped: Any) -> None:
        self.wrapped.append(wrapped)

    def on_optimizer(self, optimizer: Any) -> None:
        self.optimizers.append(optimizer)
        if optimizer.optimizer is not None:  # later its groups hold shards and copies of the parameters
            groups = optimizer.optimizer.param_groups
            self.decay_groups[id(optimizer.optimizer)] = [[id(p) for p in group["params"]] for group in groups]

    def on_schedule(self, schedule: Any) -> None:
        self.schedule = schedule

    def on_dataset(self, dataset: Any) -> None:
        if getattr(dataset.index_split, "name", None) == "train":
            self.dataset = dataset

    def on_batch(self, iterator: Any, batch: Any) -> None:
        if self.tokens.looks:
            self.tokens.handed(iterator, batch)

    def on_step(self, optimizer: Any) -> None:
        if self.first_optimizer is None:
            self.first_optimizer = id(optimizer)
        if id(optimizer) == self.first_optimizer:
            self._next_step()
        if self.steps:
            self.steps[-1]["groups"] += [group_row(group) for group in optimizer.param_groups]
        if len(self.steps) <= 2 and id(optimizer) == self.first_optimizer:  # later process groups may be gone
            self.schedule_counts.append(getattr(self.schedule, "num_steps", 0))
            self.describe()

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
            if given or done <= STEPS_LOOKED_AT:
                self.guarded("end_of_batch", given)
        if done == STEPS_LOOKED_AT:
            self.losses_told = False
            if not any(getattr(o.config, "fp16", False) for o in self.optimizers):
                for watch in self.watches:  # only where fp16 skips a step do the forward passes number it
                    watch.remove()

    def end_of_batch(self, given: list[Any]) -> None:
        """given: to the model in this step's forward passes."""
        if self.frequencies is None and self.models and len(self.steps) == 1:
            self.frequencies = frequencies(self.models[0])  # NeMo scales them after it has made the model
        if self.models and self.models[0].pre_process:
            self.tokens.given([tokens for tokens in given if tokens is not None])
        self.unsettled.append((self.steps[-1], self.losses, self.tokens.step()))
        self.losses = []

    def settle(self) -> None:
        """Sum up what was held of the steps since the last time: between them it would cost more than all else."""
        unsettled, self.unsettled = self.unsettled, []
        for step in unsettled:
            self.guarded("settle_step", *step)

    def settle_step(self, row: dict[str, Any], losses: list[Any], tokens: Callable[[], dict[str, Any]]) -> None:
        row |= {"loss_sum": math.fsum(means_of(losses)) if losses else None, "losses": len(losses) or None}
        row |= tokens()

    def describe(self) -> None:
        if self.description is None:
            self.description = described(self)
        else:  # the second step tells what the schedule counts
            self.description["settings"] |= schedule(self)
        self.described = ""

    def finish(self) -> None:
        """Write the file, for the last time. Never raises."""
        if self.models or self.steps or self.faults:
            self.guarded("_write")

    def _write(self) -> None:
        for source in ("settle", *self.unread_sources):
            self.guarded(source)
        if self.description is None:
            self.guarded("describe")
        rank = int(os.environ.get("RANK", "0"))
        faults = self.faults + [f"hook {hook} of {module}: {error}" for module, hook, error in FAULTS]
        head = {"version": VERSION, "rank": rank, "faults": faults, "never_read": self.unread, "steps": self.steps}
        try:
            self.described = self.described or _inner(self.description or {})
            text = ", ".join(filter(None, (_inner(head), self.described)))
            self._replace(self.folder / f"rank{rank}.json", text)
        except (OSError, TypeError, ValueError) as error:
            if not self.failed:
                print(f"[tprimat] probe: cannot write below {self.folder}: {error!r}", file=sys.stderr, flush=True)
            self.failed = True

    def _replace(self, path: Path, text: str) -> None:
        """Put an object of these members at `path` in one piece; the last is the time until then."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{self.process}")
        with part.open("w", encoding="utf-8") as file:
            file.write("{" + text)
            file.flush()
            file.write(f', "probe_time_total_s": {self.seconds + time.perf_counter() - self.since:.6f}}}\n')
        os.replace(part, path)


def _inner(members: dict[str, Any]) -> str:
    """As JSON, without the braces."""
    return json.dumps(members, default=_no_value)[1:-1]


def _no_value(value: object) -> str:
    return f"<{type(value).__name__}>"
