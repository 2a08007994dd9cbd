"""Read a toy of a stack that is not built on Megatron-Core, inside its ranks: what the probe reads of the others
(rehearsal/tprimat_probe.py), into the same file, TPRIMAT_PROBE/rank<RANK>.json (parsers/probe.py reads it).

These programs own their loop, so that they say when there is something to read. Tensors bear Megatron's names, put
together from what the stack keeps apart: the first rank writes the complete ones, as all hold them together. In a
rehearsal alone: on a GPU all of it would wait for the device. Like the probe's, its faults are kept in the file, and
end no run."""

from __future__ import annotations

import json
import math
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from rank_program import plain

sys.path.append(str(Path(__file__).with_name("rehearsal")))
import torch
import torch.distributed as dist
import tprimat_objects
import tprimat_readings
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from tprimat_parameters import Split
from tprimat_readings import Part, decay_of, kept_of, mask_hash, positions_hash, row_hash

VARIABLE = "TPRIMAT_PROBE"
VERSION = 1  # of the file, as tprimat_probe.py has it
IGNORED = -100
"""The label that torch's cross entropy leaves out, unless it is told another."""


def held(parameter: torch.Tensor, what: str) -> torch.Tensor | None:
    """Return the complete weight or gradient of a parameter that holds both."""
    tensor = parameter if what == "weight" else parameter.grad
    return None if tensor is None else complete(tensor)


def complete(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of which each rank may hold a part, whole."""
    return tensor.detach().full_tensor() if isinstance(tensor, DTensor) else tensor.detach()


class Source:
    """A model that is read. named: gives complete tensors, by the stack's own names, Megatron's ones. of: returns, of a
    parameter, its complete "weight" or "gradient" on every rank; None: it has none. cut: as tensor_cut, where parts of
    tensor parallel ranks are no DTensors."""

    def __init__(
        self,
        model: torch.nn.Module,
        named: Callable[[Mapping[str, torch.Tensor]], Iterable[tuple[str, torch.Tensor]]],
        of: Callable[[torch.Tensor, str], torch.Tensor | None] = held,
        cut: Callable[[torch.Tensor], tuple[int, int]] | None = None,
    ) -> None:
        self.model, self.named, self.of, self.cut = model, named, of, cut or tensor_cut

    def read(self, what: str) -> list[tuple[str, torch.Tensor]]:
        """Return the name and the complete tensor of each parameter."""
        read = ((name, self.of(parameter, what)) for name, parameter in self.model.named_parameters())
        return [*self.named({name: tensor for name, tensor in read if tensor is not None})]

    def chunk(self, decays: Mapping[int, bool], layers: int) -> dict[str, Any]:
        """Return the model as tprimat_probe.chunk does: [name, shape, elements, whether it decays] of each parameter;
        None: parts of it do, and others do not. Of what data parallel ranks cut the shape is that before. decays: by a
        parameter's id."""
        facts, codes = [(False, 0, 1)], {}
        for name, parameter in self.model.named_parameters():
            if (tensor := self.of(parameter, "weight")) is not None:
                facts.append((decays.get(id(parameter), False), *self.cut(parameter)))
                codes[name] = torch.full(tensor.shape, facts.index(facts[-1]))  # what a stack keeps apart is joined
        rows = []
        for name, of in self.named(codes):
            known = [facts[code] for code in of.unique().tolist()]
            shape, (_, dim, size) = [*of.shape], known[0]
            shape[dim] //= size
            rows.append([name, shape, of.numel(), known[0][0] if len({fact[0] for fact in known}) == 1 else None])
        return {"class": type(self.model).__name__, "layers": [*range(1, layers + 1)], "parameters": rows}


def tensor_cut(parameter: torch.Tensor) -> tuple[int, int]:
    """Return along which dimension a parameter is cut over how many tensor parallel ranks."""
    if isinstance(parameter, DTensor) and "tp" in (names := parameter.device_mesh.mesh_dim_names or ()):
        at = names.index("tp")
        if (dim := getattr(parameter.placements[at], "dim", None)) is not None:
            return dim, parameter.device_mesh.size(at)
    return 0, 1


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of a tensor that this rank holds; it shares its memory."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def cut_as(parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Return a gradient cut over the ranks as its parameter is: tensor parallelism may leave another sum of it."""
    if isinstance(parameter, DTensor) and isinstance(gradient, DTensor) and parameter.placements != gradient.placements:
        return gradient.redistribute(parameter.device_mesh, parameter.placements)
    return gradient


class Readings:
    """Read one training, in a rehearsal: elsewhere nothing is read. The program calls `watch` and `begin` before the
    first step, `gradients` in each step when they are reduced and not yet clipped, and `finish` after the last one."""

    def __init__(self) -> None:
        self.on = bool(os.environ.get(VARIABLE)) and tprimat_readings.READS
        self.folder = Path(os.environ.get(VARIABLE, "")).absolute()
        self.faults: list[str] = []
        self.steps: list[dict[str, Any]] = []
        self.row: dict[str, Any] = {"forwards": 0, "given": {}, "targets": {}}
        self.content: dict[str, Any] = {"drawn": [], "first_weights": [], "first_gradients": [], "last_weights": []}
        self.source: Source | None = None
        self.places: Mapping[str, int] = {}
        self.seq_length = self.layers = 0
        self.chunk: dict[str, Any] | None = None
        self.read_in_step = False
        self.decaying: list[tuple[Any, ...]] = []
        self.rendered = tprimat_objects.rendered(self.folder.parent) if self.on else {}
        self.seconds = 0.0

    def guarded(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a function does; whatever it raises is kept, and the run goes on."""
        began = time.perf_counter()
        try:
            return function(*arguments)
        except Exception as error:  # noqa: BLE001  a probe never hurts a run
            self.faults.append(f"{function.__name__}: {type(error).__name__}: {error}"[:300])
            return None
        finally:
            self.seconds += time.perf_counter() - began

    def watch(self, model: torch.nn.Module, seq_length: int, layers: int) -> None:
        """Read what the model is given, and what its outputs are compared with, from now on."""
        if not self.on:
            return
        self.seq_length, self.layers = seq_length, layers
        model.register_forward_pre_hook(self._forward, with_kwargs=True)
        cross_entropy = functional.cross_entropy

        def read_and_compare(scores: Any, targets: Any, *arguments: Any, **options: Any) -> Any:
            self.guarded(self.read_targets, targets, options.get("ignore_index", IGNORED))
            return cross_entropy(scores, targets, *arguments, **options)

        setattr(functional, "cross_entropy", read_and_compare)  # noqa: B010  it is no attribute to mypy
        register_optimizer_step_pre_hook(lambda optimizer, *_: self.guarded(self.before_step, optimizer))
        register_optimizer_step_post_hook(lambda optimizer, *_: self.guarded(self.after_step, optimizer))

    def begin(self, source: Source, objects: Mapping[str, Any], decays: Mapping[int, bool], **places: int) -> None:
        """Read the first weights, which are the stack's own, too. objects: the stack's own, that configure it, by a
        short name. decays: see `decays_of`. places: of this rank among those that split the same thing."""
        self.source, self.places = source, places
        if self.on:
            self.guarded(self._begin, objects, decays)

    def _begin(self, objects: Mapping[str, Any], decays: Mapping[int, bool]) -> None:
        assert self.source is not None
        self.chunk = self.source.chunk(decays, self.layers)
        self.content["first_weights"] = self.content["drawn"] = self.rows("weight")
        switches = tprimat_objects.switches(None, None, ())
        self.content["objects"] = tprimat_objects.described({**objects, "Switches": switches})

    def rows(self, what: str) -> list[list[Any]]:
        """Return the rows of all tensors on the first rank; a part of the work is every rank's."""
        assert self.source is not None
        whole = self.source.read(what)
        if dist.get_rank():
            return []
        parts = (Part(name, tensor, Split(1, 0, None), False, 0, tensor.numel()) for name, tensor in whole)
        return [part.row(part.parameter) for part in parts]

    def _forward(self, model: torch.nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        if model.training:
            self.guarded(self.read_given, options.get("input_ids", arguments[0] if arguments else None), options)

    def read_given(self, tokens: torch.Tensor, inputs: Mapping[str, Any]) -> None:
        """Add one micro-batch [samples, sequence]."""
        self.row["forwards"] += 1
        place = self.row["forwards"] + tprimat_readings._PLACES * self.places.get("data", dist.get_rank())
        order = zlib.crc32(tokens.detach().long().contiguous().numpy()) * place
        positions = positions_hash(inputs.get("position_ids"), tokens)
        hashes = {"tokens": row_hash(tokens), "order": order, "position_ids": positions}
        tprimat_readings._add(
            self.row["given"], samples=tokens.shape[0], attention_mask=mask_hash(inputs, tokens), **hashes
        )

    def read_targets(self, targets: torch.Tensor, ignored: int) -> None:
        """Add the targets [samples × sequence] of one micro-batch, whichever of them the stack compares."""
        samples = local(targets).reshape(-1, self.seq_length)
        counted = samples != ignored
        tprimat_readings._add(
            self.row["targets"],
            samples=samples.shape[0],
            labels=row_hash(samples),
            loss_mask=row_hash(counted),
            masked=int(counted.numel() - counted.sum()),
        )

    def gradients(self, parameters: Iterable[torch.Tensor] = (), whole: bool = False) -> None:
        """Read the gradients of a step before they are clipped; a second time in one step it does nothing. parameters:
        which hold them, where a sum of their squares is to be known. whole: each rank has all of them, and their norm
        is to be known, too, as the stack does not tell it."""
        if self.on and not self.read_in_step:
            self.read_in_step = True
            self.guarded(self._gradients, [*parameters], whole)

    def _gradients(self, parameters: list[torch.Tensor], whole: bool) -> None:
        if not self.steps:
            self.content["first_gradients"] = self.rows("gradient")
        if parameters:
            self.row["gradient_squares"] = [squares(parameters), 0.0]
        if whole:
            self.row["grad_norm"] = math.sqrt(self.row["gradient_squares"][0])

    def before_step(self, optimizer: Any) -> None:
        """Close a step: its batch, and what the optimizer steps with. ZeRO steps one group after the other."""
        if hasattr(optimizer, "optimizers"):  # a container, which steps those in it
            return
        groups = [
            [group["lr"], group["weight_decay"], *group["betas"], group["eps"]] for group in optimizer.param_groups
        ]
        if self.steps and not self.row["forwards"]:
            self.steps[-1]["groups"] += groups
        else:
            self._close(groups)
        if (known := self.steps[-1].get("gradient_squares")) is not None:
            known[1] += squares(p for group in optimizer.param_groups for p in group["params"])
        if len(self.steps) == 1:
            kept = kept_of(optimizer)
            self.decaying += [(local(p), local(before), local(cut_as(p, g)), group) for p, before, g, group in kept]

    def _close(self, groups: list[list[float]]) -> None:
        self.read_in_step = False
        row, self.row = self.row, {"forwards": 0, "given": {}, "targets": {}}
        seen = {"samples": row["given"].get("samples"), "tokens_checksum": row["given"].get("tokens")}
        self.steps.append({**row, **seen, "groups": groups})

    def after_step(self, optimizer: Any) -> None:
        """Read the optimizer after the first step."""
        if len(self.steps) != 1 or hasattr(optimizer, "optimizers"):
            return
        kind = type(optimizer)
        kept: dict[str, str] = {}
        for state in optimizer.state.values():
            kept |= {name: str(v.dtype).removeprefix("torch.") for name, v in state.items() if torch.is_tensor(v)}
        before = self.content.get("optimizer", {"groups": []})["groups"]
        groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
        self.content["optimizer"] = {
            "kind": f"{kind.__module__}.{kind.__qualname__}",
            "arguments": dict(optimizer.defaults),
            "groups": [*before, *groups],
            "state": kept,
            "decay": decay_of(self.decaying),
        }

    def finish(self, settings: Mapping[str, Any]) -> None:
        """Read the last weights, and write the file. settings: as they were read back."""
        if not self.on:
            return
        self.content["last_weights"] = self.guarded(self.rows, "weight") or []
        if os.environ.get("LOCAL_RANK", "0") == "0":  # the others of this node run the same code
            self.content["process"] = self.guarded(tprimat_objects.process, self.rendered)
        rank = dist.get_rank()
        kinds = dict.fromkeys(("tensor", "pipeline", "expert", "context"), 0) | {"data": rank, **self.places}
        head = {"version": VERSION, "rank": rank, "faults": self.faults[:20], "never_read": {}, "steps": self.steps}
        head |= {"ranks": {"world": dist.get_world_size(), **kinds}, "settings": settings, "chunks": [self.chunk]}
        self.folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps({**plain(head), **plain(self.content), "probe_time_total_s": round(self.seconds, 6)})
        part = self.folder / f".rank{rank}.json.{os.getpid()}"
        part.write_text(text, encoding="utf-8")
        part.replace(self.folder / f"rank{rank}.json")


def squares(parameters: Iterable[torch.Tensor]) -> float:
    """Return the sum of squares of the gradients that this rank holds."""
    return sum(tprimat_readings._squares(local(p.grad)) for p in parameters if p.grad is not None)


def decays_of(optimizer: Any) -> dict[int, bool]:
    """Return of each parameter, by id, whether its group decays."""
    return {id(p): group["weight_decay"] > 0 for group in optimizer.param_groups for p in group["params"]}
