"""The record of one run: what was asked, what ran, where, and what came of it. It holds no logic about the numbers.

On disk it is `run.json` and, a line a step, `steps.jsonl` (see `parsers/storage.py`). None is unknown, never a default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, Literal

SCHEMA_VERSION = 1

Provenance = Literal["measured", "rehearsed", "estimated", "imported"]
Status = Literal["running", "completed", "failed", "killed", "out_of_memory", "diverged", "hung", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step line. step counts from 0; iteration and lr are as printed; line is where the log says it.

    step_time_s is what the line prints: where a framework logs every k-th iteration, the mean over those k, and
    interval_steps is k where the line or its neighbours tell (1: this very step's).
    lr_used is the rate of this very step. nonfinite names the fields that were printed as nan or inf; they are None.
    metrics: the other numbers of the line (params_norm, load_balancing_loss, mfu_percent …), units in names.
    flags: "field:word" where a field is no plain measurement of this one step; words: interval_mean (over the steps
    since the line before), running_mean, recovered (computed from running means), asynchronous (dispatch, not
    execution), by_order (no number printed), warm_up.
    """

    step: int
    line: int
    iteration: int | None
    lr: float | None = None
    lr_used: float | None = None
    step_time_s: float | None = None
    loss: float | None = None
    grad_norm: float | None = None
    loss_scale: float | None = None
    global_batch_size: int | None = None
    consumed_samples: int | None = None
    tokens_per_s_per_gpu: float | None = None
    tflops_per_gpu: float | None = None
    memory_bytes: int | None = None
    memory_kind: str | None = None
    end_monotonic_s: float | None = None
    skipped: int | None = None
    nan: int | None = None
    interval_steps: int | None = None
    nonfinite: tuple[str, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """One validation point. step: the last training step before it, from 0, where known. split: valid, test, or as
    printed. metrics: the other numbers of the line."""

    line: int
    step: int | None = None
    iteration: int | None = None
    loss: float | None = None
    split: str = "valid"
    seconds: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """Time in which no step was made. kind: checkpoint, evaluation, or as printed. iteration: the one before it."""

    line: int
    kind: str
    seconds: float | None = None
    iteration: int | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """A value that the log states, and the number of its line (from 1). file: of the run, where it is not the log."""

    value: Any
    line: int
    file: str | None = None


@dataclass(frozen=True, slots=True)
class Restart:
    """The run went on, in line `line` of the log, where the first `steps` steps were done; later ones were redone."""

    steps: int
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """Energy of some devices over some time. kind: what the sensor sees, gpu, board or node. Energies and mean power
    are sums over the `gpus` devices: by their own counters, and integrated over samples of power. first_step and
    last_step: the training steps inside the window; None where it is not aligned to steps. source: the tool."""

    kind: str
    source: str
    gpus: int | None = None
    seconds: float | None = None
    energy_counter_j: float | None = None
    energy_integrated_j: float | None = None
    mean_power_w: float | None = None
    first_step: int | None = None
    last_step: int | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """A setting that ran otherwise than it was asked for."""

    setting: str
    requested: Any
    effective: Any

    def __str__(self) -> str:
        return f"{self.setting}: requested {self.requested}, ran {self.effective}"


@dataclass(frozen=True, slots=True)
class Declaration:
    """A setting that one side has on purpose, and why. key: canonical name, or its path in the config."""

    key: str
    value: Any
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One run. requested, effective: by canonical name (conf/vocabulary.yaml). environment: free facts of host, GPU
    and versions. summary: metric to Quantity as an object. started_at, ended_at: ISO 8601, UTC.

    effective is what ran: read from the built objects where a probe did so, else from the log's dump. dumped: what the
    dump alone says. configured: what was built and not run. given: settings and facts that the user stated.
    not_rehearsed: setting or topic to the reason why a rehearsal tells nothing of it. shrunk: setting to what the
    experiment asked for and what a rehearsal ran instead, {"asked": …, "ran": …}; requested is then what ran.
    """

    schema_version: int = SCHEMA_VERSION
    id: str
    name: str
    provenance: Provenance
    status: Status
    cause: str | None = None
    notes: tuple[str, ...] = ()
    last_lines: tuple[str, ...] = ()
    exit_code: int | None = None
    started_at: str | None = None
    ended_at: str | None = None
    wall_time_s: float | None = None
    framework: str | None = None
    framework_version: str | None = None
    platform: str | None = None
    vendor: str | None = None
    hardware: str | None = None
    image: str | None = None
    requested: Mapping[str, Any] = field(default_factory=dict)
    effective: Mapping[str, Reading] = field(default_factory=dict)
    dumped: Mapping[str, Reading] = field(default_factory=dict)
    configured: Mapping[str, Reading] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)
    not_rehearsed: Mapping[str, str] = field(default_factory=dict)
    shrunk: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    differences: tuple[Difference, ...] = ()
    declared: tuple[Declaration, ...] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    log: str | None = None
    dialects: tuple[str, ...] = ()
    validations: tuple[Validation, ...] = ()
    stalls: tuple[Stall, ...] = ()
    restarts: tuple[Restart, ...] = ()
    power: tuple[Power, ...] = ()
    steps: Sequence[Step] = ()

    def setting(self, name: str) -> Any:
        """The effective value of a canonical setting, else what the user gave; None where neither says."""
        reading = self.effective.get(name)
        return self.given.get(name) if reading is None else reading.value


STEP_FIELDS = tuple(f.name for f in fields(Step))
_OBJECTS: Mapping[str, type] = {
    "differences": Difference,
    "declared": Declaration,
    "validations": Validation,
    "stalls": Stall,
    "restarts": Restart,
    "power": Power,
}
_READINGS = ("effective", "dumped", "configured")
_TEXTS = ("notes", "last_lines", "dialects")


def step_to_json(step: Step) -> dict[str, Any]:
    """One line of steps.jsonl, every field present."""
    entry = {name: getattr(step, name) for name in STEP_FIELDS}
    return {**entry, "nonfinite": list(step.nonfinite), "flags": list(step.flags)}


def step_from_json(entry: Mapping[str, Any]) -> Step:
    """Fields of later, additive versions are passed over."""
    known = {name: entry[name] for name in STEP_FIELDS if name in entry}
    texts = {name: tuple(known.get(name, ())) for name in ("nonfinite", "flags")}
    told = {name: value for name, value in known.get("metrics", {}).items() if value is not None}
    return Step(**{**known, **texts, "metrics": told})


def to_json(record: Record) -> dict[str, Any]:
    """run.json: all but the steps."""
    entry = {f.name: getattr(record, f.name) for f in fields(Record) if f.name != "steps"}
    for name in _OBJECTS:
        entry[name] = [_plain(item) for item in entry[name]]
    for name in _TEXTS:
        entry[name] = list(entry[name])
    for name in _READINGS:
        entry[name] = {setting: _reading(reading) for setting, reading in entry[name].items()}
    return entry


def from_json(entry: Mapping[str, Any], steps: Iterable[Step] = ()) -> Record:
    """The record in an object of the current schema version that `run.schema.json` accepts."""
    names = {f.name for f in fields(Record)} - {"steps"}
    known = {name: value for name, value in entry.items() if name in names}
    for name, kind in _OBJECTS.items():
        known[name] = tuple(_build(kind, item) for item in known.get(name, ()))
    for name in _TEXTS:
        known[name] = tuple(known.get(name, ()))
    for name in _READINGS:
        told = known.get(name, {}).items()
        known[name] = {setting: Reading(item["value"], item["line"], item.get("file")) for setting, item in told}
    return Record(**known, steps=tuple(steps))


def _reading(reading: Reading) -> dict[str, Any]:
    """Nearly all are of the log, and there are a hundred of them."""
    entry = {"value": reading.value, "line": reading.line}
    return entry if reading.file is None else {**entry, "file": reading.file}


def _plain(item: Any) -> dict[str, Any]:
    return {f.name: getattr(item, f.name) for f in fields(item)}


def _build(kind: Any, item: Mapping[str, Any]) -> Any:
    return kind(**{name: item[name] for name in _names(kind) if name in item})


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind))
