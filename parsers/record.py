"""The record of one run: what was requested, what ran, where, and what came of it. No logic about the numbers.

On disk it is `run.json` and, a line a step, `steps.jsonl` (see `parsers/storage.py`). None is unknown, never a default.
These structs are the one description of both files: msgspec checks what is read by them, and the JSON Schemas beside
this file are made from them (`UPDATE_GOLDEN=1 pytest tests/parsers/test_parsers_record.py` rewrites them). Changes
within a version only add fields that have a default; a reader passes over fields that it does not know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Annotated, Any, Literal, TypedDict

from msgspec import Meta, Struct
from msgspec.structs import astuple

from parsers.read_back import ReadBack

SCHEMA_VERSION = 2
LARGEST = 2**63 - 1
"""No integer of ours is larger: numpy and other readers of our files have 64 bits."""

Integer = Annotated[int, Meta(ge=-LARGEST, le=LARGEST)]
Count = Annotated[int, Meta(ge=0, le=LARGEST)]
Positive = Annotated[int, Meta(ge=1, le=LARGEST)]
NotNegative = Annotated[float, Meta(ge=0)]
_OR_NULL = Meta(extra_json_schema={"additionalProperties": {"type": ["number", "null"]}})  # nan is written as null

Provenance = Literal["measured", "rehearsed", "planned", "estimated", "imported"]
Status = Literal["running", "completed", "failed", "killed", "out_of_memory", "diverged", "hung", "unknown"]
Sensor = Literal["gpu", "board", "node"]
ImageSource = Literal["runtime", "environment", "given"]


class Step(Struct, frozen=True, kw_only=True, gc=False):
    """One step line. step counts from 0; iteration and lr are as printed; line is where the log says it.

    step_time_s is what the line prints: where a framework logs every k-th iteration, the mean over those k, and
    interval_steps is k where the line or its neighbours show it (1: this very step's).
    lr_used is the rate of this very step. nonfinite names the fields that were printed as nan or inf; they are None.
    metrics: the other numbers of the line (params_norm, load_balancing_loss, mfu_percent …), units in names.
    flags: "field:word" where a field is no plain measurement of this one step; words: interval_mean (over the steps
    since the line before), running_mean, recovered (computed from running means), asynchronous (dispatch, not
    execution), by_order (no number printed), rounded (a number of three digits), warm_up."""

    step: Integer
    line: Positive
    iteration: Integer | None
    lr: float | None = None
    lr_used: float | None = None
    step_time_s: float | None = None
    loss: float | None = None
    grad_norm: float | None = None
    loss_scale: float | None = None
    global_batch_size: Count | None = None
    consumed_samples: Count | None = None
    tokens_per_s_per_gpu: float | None = None
    tflops_per_gpu: float | None = None
    memory_bytes: Count | None = None
    memory_kind: str | None = None
    end_monotonic_s: float | None = None
    skipped: Count | None = None
    nan: Count | None = None
    interval_steps: Positive | None = None
    nonfinite: tuple[str, ...] = ()
    metrics: Annotated[Mapping[str, float], _OR_NULL] = {}
    flags: tuple[str, ...] = ()

    @property
    def numbered(self) -> bool:
        """Return whether `step` is the step's number. Lines without one are counted, and each may stand for several
        steps: then the loss is a mean over these."""
        unsure = {"loss:interval_mean", "step:rounded"} & set(self.flags)
        return "step:by_order" not in self.flags or not unsure


class Validation(Struct, frozen=True, kw_only=True, gc=False):
    """One validation point. step: the last training step before it, from 0, where known. split: valid, test, or as
    printed. metrics: the other numbers of the line."""

    line: Positive
    step: Integer | None = None
    iteration: Integer | None = None
    loss: float | None = None
    split: str = "valid"
    seconds: float | None = None
    metrics: Mapping[str, float | None] = {}


class Stall(Struct, frozen=True, kw_only=True, gc=False):
    """Time in which no step was made. kind: checkpoint, evaluation, or as printed. iteration: the one before it."""

    line: Positive
    kind: str
    seconds: NotNegative | None = None
    iteration: Integer | None = None


class Reading(Struct, frozen=True, omit_defaults=True, gc=False):
    """A value that the log states, and the number of its line (from 1). file: of the run, where it is not the log."""

    value: Any
    line: Positive
    file: str | None = None


class Restart(Struct, frozen=True, gc=False):
    """The run went on, in line `line` of the log, where the first `steps` steps were done; later ones were redone."""

    steps: Count
    line: Positive


class Power(Struct, frozen=True, kw_only=True, gc=False):
    """Energy of some devices over some time. kind: what the sensor sees, gpu, board or node. Energies and mean power
    are sums over the `gpus` devices: by their own counters, and integrated over samples of power. first_step and
    last_step: the training steps inside the window; None where it is not aligned to steps. source: the tool."""

    kind: Sensor
    source: str
    gpus: Positive | None = None
    seconds: NotNegative | None = None
    energy_counter_j: NotNegative | None = None
    energy_integrated_j: NotNegative | None = None
    mean_power_w: NotNegative | None = None
    first_step: Count | None = None
    last_step: Count | None = None


class Difference(Struct, frozen=True, gc=False):
    """A setting that ran otherwise than requested."""

    setting: str
    requested: Any
    effective: Any

    def __str__(self) -> str:
        return f"{self.setting}: requested {self.requested}, ran {self.effective}"


class Declaration(Struct, frozen=True, gc=False):
    """A setting that one side has on purpose, and why. key: canonical name, or its path in the config."""

    key: str
    value: Any
    reason: str


class Departure(Struct, frozen=True, gc=False):
    """A setting that is not as in the vendor's own recipe. path: in the vendor's spelling. why: what decides it."""

    path: str
    vendor: Any
    here: Any
    why: str


class RunRecipe(Struct, frozen=True, gc=False):
    """The vendor's published recipe that a run follows. release: of the framework; source: repository, commit, file and
    line. departures: all in which the run differs from what the vendor's own code makes of it."""

    name: str
    framework: str
    release: str
    source: str
    departures: tuple[Departure, ...] = ()


class _Figure(TypedDict):
    value: float | None
    unit: str
    source: Literal["measured", "log", "given", "computed", "spec", "assumed"]
    interval: tuple[float, ...] | None


class Figure(_Figure, total=False):
    """A `metrics.Quantity` as an object. interval: its lower and upper bound with 95 %, interval_80 with 80 %. note:
    what it was computed from, or why it is unknown."""

    note: str
    interval_80: tuple[float, ...] | None


class Shrunk(TypedDict):
    """A setting of a rehearsal: as the experiment requested it, and what ran instead."""

    asked: Any
    ran: Any


class StepsFile(Struct, frozen=True, kw_only=True):
    """The steps.jsonl for which a run.json was written. count: of its steps; first, last: their numbers, from 0, None
    without steps; bytes: its size; sha256: of its bytes."""

    count: Count
    first: Integer | None
    last: Integer | None
    bytes: Count
    sha256: str


class RunFile(Struct, frozen=True, kw_only=True, tag_field="schema_version", tag=SCHEMA_VERSION):
    """run.json: one run, all but its steps. requested, effective: by canonical name (conf/vocabulary.yaml).
    environment: free facts of host, GPU and versions. started_at, ended_at: ISO 8601, UTC.
    image: what it ran in; image_source: who says so: the runtime that started it, the environment inside or the line of
    the program that starts it, or only the user, unverified. image_digest: as the runtime had it.

    effective is what ran: read from the built objects where a probe did so, else from the log's dump. dumped: what the
    dump alone says. configured: what was built and did not run. given: settings and facts that the user stated.
    Of a plan it is what was requested and declared: nothing ran. method: identical (one layout and one set of switches
    on all sides) or max_performance (each side its vendor's recipe); batch: whose global batch runs, identical or
    vendor. variables: those of the environment that were set for the run's speed; null: not known.

    not_rehearsed: setting or topic to the reason why a rehearsal says nothing of it. shrunk: setting to what the
    experiment requested and what a rehearsal ran instead, {"asked": …, "ran": …}; requested is then what ran.
    read_back: of a rehearsal, what the probe read of its tensors, batches, optimizer, objects and process.
    steps_file: what steps.jsonl must be; null: not known, as the record is older than this field."""

    id: str
    name: str
    provenance: Provenance
    status: Status
    cause: str | None = None
    notes: tuple[str, ...] = ()
    last_lines: tuple[str, ...] = ()
    exit_code: Integer | None = None
    started_at: str | None = None
    ended_at: str | None = None
    wall_time_s: NotNegative | None = None
    framework: str | None = None
    framework_version: str | None = None
    platform: str | None = None
    vendor: str | None = None
    hardware: str | None = None
    image: str | None = None
    image_digest: str | None = None
    image_source: ImageSource | None = None
    requested: Mapping[str, Any] = {}
    effective: Mapping[str, Reading] = {}
    dumped: Mapping[str, Reading] = {}
    configured: Mapping[str, Reading] = {}
    given: Mapping[str, Any] = {}
    not_rehearsed: Mapping[str, str] = {}
    shrunk: Mapping[str, Shrunk] = {}
    differences: tuple[Difference, ...] = ()
    declared: tuple[Declaration, ...] = ()
    method: str | None = None
    batch: str | None = None
    recipe: RunRecipe | None = None
    variables: Mapping[str, str] | None = None
    environment: Mapping[str, Any] = {}
    summary: Mapping[str, Figure] = {}
    log: str | None = None
    dialects: tuple[str, ...] = ()
    validations: tuple[Validation, ...] = ()
    stalls: tuple[Stall, ...] = ()
    restarts: tuple[Restart, ...] = ()
    power: tuple[Power, ...] = ()
    read_back: ReadBack | None = None
    steps_file: StepsFile | None = None


class Record(RunFile, frozen=True, kw_only=True):
    """One run with its steps, in ascending order."""

    steps: Sequence[Step] = ()

    def setting(self, name: str) -> Any:
        """Return the effective value of a canonical setting, else what the user stated; None where neither is known."""
        reading = self.effective.get(name)
        return self.given.get(name) if reading is None else reading.value


class Run(Struct, frozen=True):
    """A record, and the directory that it came from."""

    path: str
    record: Record


STEP_FIELDS = Step.__struct_fields__
_ALL_AT_ONCE = 10_000
"""Steps of which all columns are made together: of more they take too much room."""


def numbered(steps: Sequence[Step]) -> Sequence[Step]:
    """Return the steps whose number is known: no others stand beside those of another run."""
    counted = any("step:by_order" in flags for flags in columns(steps, "flags")[0])
    return [step for step in steps if step.numbered] if counted else steps


class Steps(tuple[Step, ...]):
    """The steps of a run that are looked at field by field, again and again: a column is made once."""

    def column(self, name: str) -> Sequence[Any]:
        """Return the field `name` of every step."""
        made: dict[str, Sequence[Any]] = self.__dict__
        if name not in made and 0 < len(self) <= _ALL_AT_ONCE:  # all of them, in the time that three take
            made.update(zip(STEP_FIELDS, zip(*map(astuple, self), strict=True), strict=True))
        elif name not in made:
            made[name] = (*map(attrgetter(name), self),)
        return made[name]


def columns(steps: Sequence[Step], *names: str) -> list[Sequence[Any]]:
    """Return the fields `names` of every step, each as a column of its own: as the steps have it where they do."""
    column = getattr(steps, "column", None)
    return [column(name) if column else (*map(attrgetter(name), steps),) for name in names]


def rows(steps: Sequence[Step], *names: str) -> Iterator[tuple[Any, ...]]:
    """Yield the fields `names`, two or more, of one step after the other."""
    own = getattr(steps, "rows", None)
    return iter(own(*names) if own else zip(*columns(steps, *names), strict=True))
