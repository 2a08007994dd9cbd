"""machine.yaml: what one machine was measured to do. Versioned, with a hash of its own text."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from conf.errors import ConfigError, Problem, made_by
from conf.vocabulary import read_yaml

VERSION = 5
BEHIND = 20
"""Kernels of one element before each that the figure `thread_launch` is of, and which it has in it."""
GROUPED = {"m": 64, "n": 128, "k": 128}
"""Sizes of each product of one expert that the figure `grouped_rate` of a CPU is of."""


class Figure(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One figure. of: what it belongs to (ranks at once, precision, pair). interval: 95 %, None where there were too
    few rounds. formula: how it follows from what was timed; cases and samples: how much of that there was."""

    name: str
    value: float
    unit: str
    formula: str
    of: Mapping[str, int | str] = {}
    interval: tuple[float, float] | None = None
    cases: int = 0
    samples: int = 0


class Training(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A training of the embedded engine on the machine. run: the keys that were typed. step_time_s: the median of so
    many steps; deviation: the standard deviation of one step by it. left_out_s: what the others predict of it."""

    run: tuple[str, ...]
    step_time_s: float
    steps: int
    deviation: float
    left_out_s: float | None = None


def processes_of(training: Training) -> int:
    """Return how many processes a training had."""
    return next(int(word.partition("=")[2]) for word in training.run if word.startswith("gpus_per_node="))


class Validation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How well the figures fitted to some of what was run predict the rest of it, each in turn: the errors of so many.
    target: of the median, and who wants it; met: whether it is below."""

    of: str
    runs: int
    median: float
    percentile_90: float
    target: float
    wanted_by: str

    @property
    def met(self) -> bool:
        return self.median < self.target


class Factor(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """By what the trainings multiply a parameter of estimate. sd: of its logarithm. of: the parameter's value then,
    where it is none of the machine's figures: a later release may ship another."""

    value: float
    sd: float
    of: float | None = None


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A machine as it was measured. device: as the driver spells it. cores: of each node. facts: of torch, driver and
    devices. trainings, factors: what whole steps say beside kernels and links. validation: how well parts predict the
    rest. unknown: figure → why there is none. warnings: what looks wrong with the machine or its figures. nodes: of as
    many ranks each."""

    version: int
    date: str
    host: str
    device: str
    accelerator: bool
    ranks: int
    cores: int
    facts: Mapping[str, Any]
    figures: tuple[Figure, ...]
    trainings: tuple[Training, ...] = ()
    factors: Mapping[str, Factor] = {}
    validation: tuple[Validation, ...] = ()
    unknown: Mapping[str, str] = {}
    warnings: tuple[str, ...] = ()
    nodes: int = 1

    def node_of(self, rank: int) -> int:
        """Return the number of the node that a rank is on."""
        return rank * self.nodes // self.ranks

    def pairs(self, across: bool, name: str = "send_rate") -> list[Figure]:
        """Return the rates, or another figure, of two ranks of one node, or of two."""
        sends = (one for one in self.figures if one.name == name)
        ends = ((one, self.node_of(int(one.of["first"])), self.node_of(int(one.of["second"]))) for one in sends)
        return [one for one, first, second in ends if (first != second) == across]

    def best_flops(self, ranks: float) -> dict[str, float]:
        """Return FLOP/s of the best product of one device by precision, with about so many at work at once."""
        found = [one for one in self.figures if one.name == "gemm_best"]
        counts = {int(one.of["ranks"]) for one in found}
        nearest = min(counts, key=lambda count: (abs(count - ranks), count), default=0)
        return {str(one.of["precision"]): one.value for one in found if one.of["ranks"] == nearest}

    def figure(self, name: str, **of: int | str) -> Figure | None:
        """Return a figure by its name and what it belongs to; None where it was not measured."""
        return next((one for one in self.figures if one.name == name and dict(one.of) == of), None)

    def value(self, name: str, **of: int | str) -> float | None:
        """Return the value of `figure`."""
        found = self.figure(name, **of)
        return None if found is None else found.value

    def of_a_node(self) -> Machine:
        """Return what a file of several nodes says of its first one."""
        ranks = self.ranks // self.nodes
        most = {"ranks": ranks, "first": ranks - 1, "second": ranks - 1}
        own = [one for one in self.figures if all(int(one.of.get(name, 0)) <= most[name] for name in most)]
        return msgspec.structs.replace(self, ranks=ranks, nodes=1, figures=tuple(own))


def write(path: Path, machine: Machine) -> None:
    """Write a machine as a file that `read` reads."""
    from yaml import safe_dump

    values = msgspec.to_builtins(machine)
    text = safe_dump({"hash": _hash(values), **values}, sort_keys=False, width=120, default_flow_style=None)
    path.write_text(text, encoding="utf-8")


def read(path: Path) -> Machine:
    """Return the machine of a file. ConfigError: it is none, of another version, or was changed since."""
    if not path.is_file():
        raise ConfigError(Problem(str(path), "no such file", hint="tprimat measure writes one"))
    with made_by("measure", path):
        values = dict(read_yaml.__wrapped__(path))  # anew: measure may have written it again
    stated, version = values.pop("hash", None), values.get("version", VERSION)
    if version != VERSION:  # before all else: its fields are others
        raise ConfigError(Problem(str(path), "is of another version", str(version), str(VERSION), "measure again"))
    with made_by("measure", path):
        machine = msgspec.convert(values, Machine, strict=False)
    if stated != _hash(msgspec.to_builtins(machine)):
        hint = "measure again, or estimate calibrate"
        raise ConfigError(Problem(str(path), "was changed after it was measured", str(stated), hint=hint))
    return machine


def _hash(values: object) -> str:
    return hashlib.sha256(msgspec.json.encode(values, order="deterministic")).hexdigest()[:16]
