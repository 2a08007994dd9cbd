"""The facts that the probe has read inside the ranks (tprimat_probe.py), made part of a record, ahead of what the log
says.

Its files are read as a stranger's input: of bounded size, checked by the structs below; what is wrong with a file is
reported, never raised."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from conf.frameworks import facts
from conf.vocabulary import vocabulary
from parsers import readings
from parsers.assemble import differences, same, uncut, unreported
from parsers.objects import merged_objects, merged_process
from parsers.read_back import Batch, Object, Process, ReadBack
from parsers.record import Reading, Record, Step
from parsers.text import json_object, writable

FOLDER = "probe"
"""Its files' place in a run directory."""
UNREPORTED = "requested, and not reported by the log"
_MEAN = "loss:interval_mean"
_LOSS_PRINTED = 1e-5  # seven digits, or a mean taken in fp32
LARGEST_FILE = 64 << 20
MOST_FILES = 8192
_MOST_TEXTS = 200
_Count = Annotated[int, Meta(ge=0, lt=2**53)]  # a larger one would not survive as a JSON number elsewhere


class Parameter(Struct, frozen=True, array_like=True):
    """One parameter, or a rank's part of it. name: in the complete model. shape: on this rank. elements: of the
    complete parameter. decays: by weight decay; None is not known."""

    name: str
    shape: Annotated[tuple[_Count, ...], Meta(max_length=8)]
    elements: _Count
    decays: bool | None


class ProbedStep(Struct, frozen=True):
    """One optimizer step. groups: a list of each parameter group, the learning rate first. forwards, samples: of this
    rank, since the step before. tokens_checksum: the sum of the hashes of its samples, modulo 2**52. loss_sum: of the
    mean losses of its `losses` micro-batches. grad_norm: before clipping, as the stack's clip worked it out.
    gradient_squares: sums of squares of what the rank steps, before clipping and after. given, targets: of the first
    and of the last stage."""

    groups: tuple[tuple[Any, ...], ...] = ()
    forwards: _Count | None = None
    samples: _Count | None = None
    tokens_checksum: _Count | None = None
    loss_sum: float | None = None
    losses: _Count | None = None
    grad_norm: float | None = None
    gradient_squares: tuple[float | None, float | None] | None = None
    given: readings.Given | None = None
    targets: readings.Given | None = None

    @property
    def rates(self) -> tuple[float | None, ...]:
        """Return each parameter group's learning rate."""
        return tuple(group[0] if group and type(group[0]) in (int, float) else None for group in self.groups)

    @property
    def weight_decay(self) -> float | None:
        """Return that of the first group which decays, 0 where none does; None: not known."""
        decays = [group[1] if len(group) > 1 and type(group[1]) in (int, float) else None for group in self.groups]
        return None if None in decays or not decays else next((float(decay) for decay in decays if decay), 0.0)


class Chunk(Struct, frozen=True):
    """One model chunk of a rank. parameters: None where they could not be read. layers: global numbers from 1."""

    parameters: tuple[Parameter, ...] | None = None
    layers: tuple[_Count, ...] = ()


class RankFile(readings.Tensors, frozen=True, kw_only=True):
    """A rank's file. ranks: "world", and its index among those that split the same thing. never_read: by taker, names
    that were set and that it never looked at. probe_time_total_s: what the probe took of the rank's time, all in all.
    file: its path in the run directory."""

    rank: _Count
    ranks: Mapping[str, Any] | None = None
    settings: Mapping[str, Any] | None = None
    chunks: tuple[Chunk | None, ...] = ()
    steps: tuple[ProbedStep, ...] = ()
    never_read: Mapping[str, tuple[str, ...]] | None = None
    faults: tuple[str, ...] = ()
    objects: Mapping[str, Object] | None = None
    process: Process | None = None
    probe_time_total_s: float | None = None
    file: str = ""

    @property
    def places(self) -> Mapping[str, int]:
        """Return what of `ranks` can be a place."""
        return {kind: at for kind, at in (self.ranks or {}).items() if type(at) is int and 0 <= at < 2**53}

    def size(self, name: str) -> int | None:
        """Return a setting that counts something."""
        size = (self.settings or {}).get(name)
        return size if type(size) is int else None

    @property
    def parameters(self) -> Sequence[Parameter] | None:
        """Return those of all chunks; None where one lacks them: a part of them is not a count."""
        chunks = [(chunk or Chunk()).parameters for chunk in self.chunks]
        return [parameter for chunk in chunks for parameter in chunk or ()] or None if None not in chunks else None


def read_files(folder: Path) -> tuple[list[RankFile], list[str]]:
    """Return the files of `folder`, by rank, and what is wrong with those that cannot be used."""
    files: dict[int, RankFile] = {}
    wrong: list[str] = []
    try:
        paths = sorted(folder.glob("rank*.json"))
    except OSError as error:
        return [], [f"{folder.name}: {error.strerror}"]
    if len(paths) > MOST_FILES:
        wrong.append(f"{len(paths)} files; the first {MOST_FILES} are read")
    for path in paths[:MOST_FILES]:
        result = _read(path)
        if isinstance(result, str):
            wrong.append(f"{path.name}: {result}")
        else:
            files[result.rank] = result
    return [files[rank] for rank in sorted(files)], wrong[:_MOST_TEXTS]


def _read(path: Path) -> RankFile | str:
    """Return the file, or why it cannot be used."""
    try:
        if not path.is_file():
            return "is not a file"
        if path.stat().st_size > LARGEST_FILE:
            return f"is larger than {LARGEST_FILE >> 20} MiB"
        entry = json_object(path.read_text(encoding="utf-8", errors="replace"), constant=lambda _: None)
        content = msgspec.convert(entry, RankFile)
    except OSError as error:
        return error.strerror or str(error)
    except msgspec.ValidationError as error:
        return f"is not a complete file of the probe: {error}"
    if entry is None or entry.get("version") != 1:
        return f"is of version {(entry or {}).get('version')}, which is not known here"
    return replace(content, file=f"{path.parent.name}/{path.name}")


def with_probe(record: Record, folder: Path, expected: Collection[int] | None = None) -> Record:
    """Return `record` with the probe's files in `folder`; as it is where there is no such folder.

    effective: the probe's settings ahead of the log's, which stay in dumped. environment: parameters,
    parameters_decayed and parameters_undecayed of the complete model (absent where a stage left no file),
    parameters_by_rank (by global rank, in place of a log's by tensor and pipeline rank), probe_never_read (None: not
    known), probe_time_s (what the probe itself took, by its own timer, in the rank where it took most). Each step:
    lr_used, and metrics["tokens_checksum"] where every sample of the global batch was seen. expected: the ranks that
    ran (all by default); one without a file is a note. Never raises."""
    return with_files(record, *read_files(folder), expected) if folder.is_dir() else record


def with_files(
    record: Record, files: Sequence[RankFile], wrong: Iterable[str], expected: Collection[int] | None = None
) -> Record:
    """Return the same of files that were read, as `read_files` returns them."""
    notes = [f"probe: {text}" for text in wrong]
    notes += [f"probe on rank {file.rank}: {fault}" for file in files for fault in file.faults[:_MOST_TEXTS]]
    notes += _missing(files, expected)
    if not files:
        return replace(record, notes=(*record.notes, *notes))
    probed, apart = _settings(files, notes)
    effective = {name: reading for name, reading in {**record.effective, **probed}.items() if name not in apart}
    effective = uncut(effective, record.environment)
    steps = _steps(record, files, notes)
    counted = writable(_counted(files, effective, notes))
    if times := [file.probe_time_total_s for file in files if file.probe_time_total_s is not None]:
        counted["probe_time_s"] = max(times)
    read_back = replace(_read_back(files, notes), **_of_the_stack(files, notes))
    kept = (note for note in record.notes if not note.startswith(UNREPORTED))
    return replace(
        record,
        read_back=None if read_back == ReadBack() else read_back,
        effective=effective,
        differences=differences(record.requested, effective),
        environment={**record.environment, **counted, "probe_never_read": _never_read(files, record)},
        steps=steps,
        notes=(*kept, *unreported(record.requested, effective), *notes),
    )


def _of_the_stack(files: Sequence[RankFile], notes: list[str]) -> dict[str, Any]:
    """Return the parts of read_back that are of the stack itself: its objects, its code."""
    apart: list[str] = []
    objects = merged_objects([(file.rank, file.objects) for file in files], apart)
    process = merged_process([(file.rank, file.process) for file in files], apart)
    notes += apart
    return {"objects": objects, "process": process}


def _never_read(files: Sequence[RankFile], record: Record) -> list[str] | None:
    """Return names that were set and that no rank read; None where the stack takes any name, and the probe reports
    none."""
    names = [set().union(*file.never_read.values()) for file in files if file.never_read]
    known = facts(record.framework)
    if not names:
        return [] if known.get("strict") else None
    on_a_cpu = known.get("unread_on_a_cpu", ()) if record.provenance == "rehearsed" else ()
    return sorted(set.intersection(*names) - {*known.get("unread", ()), *on_a_cpu})


def _missing(files: Sequence[RankFile], expected: Collection[int] | None) -> Iterator[str]:
    world = range(max((file.places.get("world", 0) for file in files), default=0))  # a file may claim any size
    ranks, ran = {file.rank for file in files}, world if expected is None else sorted(expected)
    absent = len(ran) - sum(rank in ran for rank in ranks)
    if not files:
        yield "probe: no rank left a file"
    elif absent:
        first = islice((str(rank) for rank in ran if rank not in ranks), 8)
        yield f"probe: {absent} of {len(ran)} ranks left no file: {', '.join(first)}{', …' * (absent > 8)}"


def _settings(files: Sequence[RankFile], notes: list[str]) -> tuple[dict[str, Reading], set[str]]:
    """Return one value for all ranks, and the settings of which they report different ones."""
    known = vocabulary()
    readings: dict[str, Reading] = {}
    apart: set[str] = set()
    for file in files:
        for name, value in (file.settings or {}).items():
            if name not in known or name in apart or isinstance(value, dict | list):
                continue
            first = readings.setdefault(name, Reading(value, 1, file.file))
            if not same(first.value, value):
                notes.append(f"probe: ranks disagree on {name}: {first.value} in {first.file}, {value} in {file.file}")
                apart.add(name)
    return {name: readings[name] for name in known if name in readings and name not in apart}, apart


def _counted(files: Sequence[RankFile], effective: Mapping[str, Reading], notes: list[str]) -> dict[str, Any]:
    """Return the parameters of the complete model, and of each rank."""
    built = {file.rank: file.parameters for file in files if file.parameters is not None}
    by_rank = {str(rank): sum(math.prod(p.shape) for p in parameters) for rank, parameters in built.items()}
    counts: dict[str, Any] = {"parameters_by_rank": by_rank}
    layers = {number for file in files for chunk in file.chunks if chunk for number in chunk.layers}
    wanted = effective.get("num_layers")
    if wanted is None or len(built) < len(files) or not _all_stages(files, effective):
        return counts
    if len(layers) != wanted.value:
        notes.append(f"probe: {len(layers)} layers were built, of {wanted.value} that the config names")
        return counts
    parameters: dict[str, Parameter] = {}
    for parameter in (parameter for of_rank in built.values() for parameter in of_rank):
        first = parameters.setdefault(parameter.name, parameter)
        if (first.elements, first.decays) != (parameter.elements, parameter.decays):
            notes.append(f"probe: ranks report different sizes or decays of {parameter.name}")
            return counts
    counts["parameters"] = sum(parameter.elements for parameter in parameters.values())
    if all(parameter.decays is not None for parameter in parameters.values()):
        for decays, name in ((True, "parameters_decayed"), (False, "parameters_undecayed")):
            counts[name] = sum(parameter.elements for parameter in parameters.values() if parameter.decays is decays)
    return counts


def _all_stages(files: Iterable[RankFile], effective: Mapping[str, Reading]) -> bool:
    """Return whether each stage has a file of each part of its experts; tensor and data parallel ranks repeat them."""
    sizes = [effective.get(f"{kind}_model_parallel_size") for kind in ("pipeline", "expert")]
    stages, experts = (1 if size is None else size.value for size in sizes)
    if type(stages) is not int or type(experts) is not int:
        return False
    seen = {(file.places.get("pipeline", -1), file.places.get("expert", -1)) for file in files}
    return sum(stage in range(stages) and expert in range(experts) for stage, expert in seen) == stages * experts


def _steps(record: Record, files: Sequence[RankFile], notes: list[str]) -> Sequence[Step]:
    """Return the record's steps with the rate that each used, the checksum of its tokens, its loss where known, and in
    a rehearsal the norm of its gradients."""
    rates, losses, norms = _rates(files, notes), _losses(files), _norms(files, notes)
    metrics: dict[str, Mapping[int, float]] = {
        "tokens_checksum": _tokens(files),
        "weight_decay": _weight_decays(files),
        "clip_coefficient": _clips(files),
    }
    first = record.restarts[-1].steps if record.restarts else 0
    steps = []
    for step in record.steps:
        n = step.step - first
        if n in rates:
            step = replace(step, lr_used=rates[n])
        if n in norms:
            step = replace(step, grad_norm=norms[n])
        if known := {name: float(values[n]) for name, values in metrics.items() if n in values}:
            step = replace(step, metrics={**step.metrics, **known})
        steps.append(_with_loss(step, losses.get(n), losses.get(n - 1)))
    return tuple(steps)


def _norms(files: Sequence[RankFile], notes: list[str]) -> dict[int, float]:
    """Return the norm of the gradients before clipping by step, as all ranks have it."""
    of_ranks = _in_all([file for file in files if file.steps], lambda step: step.grad_norm)
    norms = {n: readings.agreed(values) for n, values in of_ranks.items()}
    if wrong := [n for n, norm in norms.items() if norm is None and None not in of_ranks[n]]:
        notes.append(f"probe: ranks disagree on the gradient norm of {len(wrong)} steps, from step {min(wrong)} on")
    return {n: norm for n, norm in norms.items() if norm is not None}


def _weight_decays(files: Sequence[RankFile]) -> dict[int, float]:
    of_ranks = _in_all([file for file in files if file.steps], lambda step: step.weight_decay)
    decays = {n: readings.agreed(values) for n, values in of_ranks.items()}
    return {n: decay for n, decay in decays.items() if decay is not None}


def _clips(files: Sequence[RankFile]) -> dict[int, float]:
    of_ranks = _in_all([file for file in files if file.steps], lambda step: step.gradient_squares)
    coefficients = {n: readings.clip_coefficient(values) for n, values in of_ranks.items()}
    return {n: coefficient for n, coefficient in coefficients.items() if coefficient is not None}


def _with_loss(step: Step, loss: float | None, before: float | None) -> Step:
    """Return `step` with the loss read, where the log has none, nearly this one, or the mean with the step before,
    which newer Megatron prints for the second step."""
    if loss is None:
        return step
    near = [loss] if before is None else [loss, (loss + before) / 2]
    printed = step.loss is not None and _MEAN not in step.flags
    if printed and not any(math.isclose(step.loss or 0.0, one, rel_tol=_LOSS_PRINTED) for one in near):
        return step
    return replace(step, loss=loss, flags=tuple(flag for flag in step.flags if flag != _MEAN))


def _losses(files: Sequence[RankFile]) -> dict[int, float]:
    """Return the mean loss of the global batch by step, from 0, of the last stage's ranks: summed so that their order
    does not matter. Not where labels are masked: then it is no plain mean, and not what the log says."""
    last_stage = [file for file in files if file.places.get("tensor") == 0 and any(step.losses for step in file.steps)]
    by_step = _in_all(_one_each(last_stage), lambda step: (step.loss_sum, step.losses))
    complete = {n: losses for n, losses in by_step.items() if all(loss is not None and count for loss, count in losses)}
    return {n: math.fsum(loss for loss, _ in of) / sum(count for _, count in of) for n, of in complete.items()}


def _rates(files: Sequence[RankFile], notes: list[str]) -> dict[int, float]:
    """Return the rate used by step, from 0. Of ranks that stop at different steps, those that all made."""
    of_ranks = [_by_number(file, lambda step: step.rates[0] if step.rates else None) for file in files if file.steps]
    if not of_ranks:
        return {}
    rates = {number: rate for number, rate in of_ranks[0].items() if rate is not None}
    wrong = {n for n, rate in rates.items() if any(other.get(n, rate) != rate for other in of_ranks[1:])}
    if wrong:
        notes.append(f"probe: ranks disagree on the learning rate of {len(wrong)} steps, from step {min(wrong)} on")
    apart = [n for n, rates_of in _by_number(files[0], lambda step: step.rates).items() if len(set(rates_of)) > 1]
    if apart:
        notes.append(f"probe: parameter groups step at different rates, from step {min(apart)} on; the first's is kept")
    return {number: rate for number, rate in rates.items() if number not in wrong}


def _read_back(files: Sequence[RankFile], notes: list[str]) -> ReadBack:
    """Return the numbers that were read of the complete toy; of a real run there are none."""
    decays = [decay for _, decay in sorted(_weight_decays(files).items())]
    of_groups = sorted(_in_all([file for file in files if file.steps], lambda step: step.rates).items())
    rates = [readings.distinct(chain.from_iterable(of_ranks)) for _, of_ranks in of_groups]
    return ReadBack(
        drawn=readings.tensors(files, "drawn", notes),
        first_weights=readings.tensors(files, "first_weights", notes),
        first_gradients=readings.tensors(files, "first_gradients", notes),
        last_weights=readings.tensors(files, "last_weights", notes),
        first_outputs=readings.outputs(files),
        batches=_batches(files),
        optimizer=readings.optimizer(files, decays, rates, notes),
    )


def _batches(files: Sequence[RankFile]) -> tuple[Batch, ...]:
    """Return what the models were given, by step, of steps that all ranks which see it report."""
    first = [file for file in files if file.places.get("tensor") == 0]
    inputs = _one_each([file for file in first if any(step.given for step in file.steps)])
    last = _one_each([file for file in first if any(step.targets for step in file.steps)])
    given = _in_all(inputs, lambda step: step.given or readings.Given())
    targets = _in_all(last, lambda step: step.targets or readings.Given())
    size = next((file.size("global_batch_size") for file in first), None) or 0
    return tuple(
        readings.batch(n, given.get(n, ()), targets.get(n, ()), size) for n in sorted({*given, *targets}) if n < 2**53
    )


def _one_each(files: Sequence[RankFile]) -> list[RankFile]:
    """Return one file of each part of the batch; none where a part has none."""
    seeing = {(file.places.get("data"), file.places.get("context")): file for file in reversed(files)}
    sizes = [file.size(f"{kind}_parallel_size") or 0 for file in files[-1:] for kind in ("data", "context")]
    return [*seeing.values()] if seeing and len(seeing) == math.prod(sizes) else []


def _tokens(files: Sequence[RankFile]) -> dict[int, int]:
    """Return the checksum of the global batch by step, from 0, of steps that every data parallel rank reports."""
    whole = [file for file in files if not any(file.places.get(name, 1) for name in ("tensor", "pipeline", "context"))]
    seeing = {file.places["data"]: file for file in reversed(whole) if "data" in file.places}
    first = seeing.get(0)
    if first is None or len(seeing) != first.size("data_parallel_size"):
        return {}
    sums: dict[int, int] = {}
    for number, parts in _in_all(seeing.values(), lambda step: (step.tokens_checksum, step.samples)).items():
        tokens, samples = zip(*parts, strict=True)
        if None not in (*tokens, *samples) and sum(samples) == first.size("global_batch_size"):
            sums[number] = sum(tokens) % 2**52
    return sums


def _in_all(files: Iterable[RankFile], value: Callable[[ProbedStep], Any]) -> dict[int, list[Any]]:
    """Return value(step) of each file by the number of the step, for those that all files have."""
    of_ranks = [_by_number(file, value) for file in files]
    if not of_ranks:
        return {}
    return {n: [of_rank[n] for of_rank in of_ranks] for n in set.intersection(*map(set, of_ranks))}


def _by_number(file: RankFile, value: Callable[[ProbedStep], Any]) -> dict[int, Any]:
    """Return value(step) by the number of the step: one that was skipped (fp16) made forward passes and no optimizer
    step."""
    usual = min((step.forwards for step in file.steps if step.forwards), default=None)
    number, values = -1, {}
    for step in file.steps:
        number += step.forwards // usual if usual and step.forwards else 1
        values[number] = value(step)
    return values
