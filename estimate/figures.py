"""An estimate of one experiment as figures: memory, step time, speed, MFU; each with unit, source and
intervals of 95 and 80 %."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from msgspec.structs import replace as changed

from conf.errors import ConfigError
from conf.facts import peak_of
from conf.machine import Machine
from conf.resolve import Experiment
from conf.vocabulary import requested
from estimate.experiment import columns_of, precision_of
from estimate.fitted import Parameters, shipped
from estimate.headroom import room_bytes
from estimate.host import shipped_for
from estimate.jobs import PEAK_OF, Jobs
from estimate.memory import ASSUMED, Memory, memory
from estimate.of_machine import why_a_guess, with_machine
from estimate.predict import Prediction, predict
from estimate.resident import beyond_tensors
from estimate.rows import jobs_of
from metrics.bill import Option, energy_at
from metrics.flops import DEFAULT, flops_per_token
from metrics.peak import achievable_tflops, design_power, peak_tflops, utilisation
from metrics.quantity import Quantity, Source, shown
from metrics.shape import shape_of_model
from parsers.planned import as_planned
from parsers.record import Declaration, Record, RunRecipe
from parsers.storage import encode, run_file

_WHY = "an estimate"
_UNITS = ((86400.0, "days"), (3600.0, "h"), (60.0, "min"))


def gpus_of(e: Experiment) -> str:
    """Return how many GPUs an experiment has, and which: the dies of a package where software sees each as one."""
    return f"{e.layout.world_size:,} × {e.hardware.spelled}{' (dies)' if e.hardware.devices_per_package > 1 else ''}"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A prediction for one experiment, job 0 of all arrays. parameters: those that it is by. figures: by the names of
    metrics.summary, in the order that people read. trained_on: the host whose own trainings its interval is of, if
    any; untrained: why a machine's file says nothing of whole steps."""

    experiment: Experiment
    jobs: Jobs
    parameters: Parameters
    memory: Memory
    time: Prediction
    figures: Mapping[str, Quantity]
    trained_on: str = ""
    untrained: str = ""

    @property
    def option(self) -> Option:
        """Return it as an option of a bill."""
        device, gpus = self.experiment.hardware, self.experiment.layout.world_size
        return Option(
            label=f"{self.experiment.model.name} {device.name} ×{gpus}",
            runs=0,
            hardware=device.name,
            gpus=gpus,
            devices_per_package=device.devices_per_package,
            **{name: self.figures[name] for name in ("tokens_per_s_per_gpu", "power_w_per_gpu", "energy_j_per_token")},
        )

    @property
    def accuracy(self) -> str:
        """Return how wrong it may be, in words: the runs that its interval is of."""
        of = f"published runs of the class {self.time.classes[0]}"
        of = f"trainings on {self.trained_on}" if self.trained_on else of
        text = f"95 % interval by the errors of {int(self.time.rows[0]):,} {of}"
        if not self.time.rows[0] and self.experiment.hardware.name == "cpu":
            return self.untrained or self.time.classes[0]
        text = f"{text}, each predicted by a fit without it" if self.time.rows[0] else self.time.classes[0]
        return "; ".join((text, *self.time.notes[0]))

    @property
    def room_bytes(self) -> float:
        """Return the memory of one GPU."""
        return float(self.jobs.memory_bytes.reshape(-1)[0])

    @property
    def fits(self) -> str:
        """Return fits, tight (what torch allocates fits, but not all that the device shows) or does not fit."""
        allocated, shown_ = (self.figures[f"peak_memory_{kind}_bytes"].value or 0.0 for kind in ("allocated", "device"))
        if shown_ <= self.room_bytes:
            return "fits"
        return "tight" if allocated <= self.room_bytes else "does not fit"

    def record(self) -> Record:
        """Return it as a record, which `compare` shows beside measured ones and leaves out of its verdict."""
        e, recipe = self.experiment, None
        if e.recipe is not None:
            recipe = RunRecipe(e.recipe.name, e.recipe.framework, e.recipe.release, e.recipe.source)
        planned = Record(
            id=e.name,
            name=e.name,
            provenance="planned",
            status="unknown",
            notes=(self.accuracy,),
            framework=e.framework.name,
            framework_version=e.framework.release,
            platform=e.platform.name,
            vendor=e.platform.vendor,
            hardware=e.hardware.name,
            requested=requested(e),
            declared=tuple(Declaration(d.key, d.value, d.reason) for d in e.declared),
            method=e.method,
            batch=e.batch,
            recipe=recipe,
            given={"model": e.model.name},
            environment={"num_nodes": e.nodes},
        )
        summary: Any = {name: quantity.to_json() for name, quantity in self.figures.items()}
        known = changed(as_planned(planned), provenance="estimated", status="completed", summary=summary)
        return changed(known, id=self._id(known))

    def _id(self, known: Record) -> str:
        """Return a readable id that estimates share where all is alike: request, parameters and figures."""
        e, content = self.experiment, encode([run_file(known), self.parameters])
        parts = ("estimated", e.hardware.name, f"x{e.layout.world_size}", *str(e.layout).lower().split())
        return "-".join((e.name, *parts, precision_of(e), sha256(content).hexdigest()[:10]))


def estimate(e: Experiment, parameters: Parameters | None = None, machine: Machine | None = None) -> Estimate:
    """Return the prediction for `e`, by the shipped parameters or calibrated ones, and by what was measured on its
    machine. ConfigError: hardware of which too little is known, or another machine."""
    guessed = shipped() if machine else shipped_for([e.hardware.name])
    columns, known = columns_of(e), guessed if parameters is None else parameters
    if machine is not None:
        columns, known = with_machine(e, machine, columns, known)
    jobs = jobs_of([columns])
    bytes_, time = memory(jobs), predict(jobs, known)
    tokens = e.training.global_batch_size * e.training.seq_length / e.layout.world_size
    seconds = _seconds(e, time, tokens)
    speed = seconds.under(tokens, "tokens/s/GPU", _WHY)
    figures = {**_speeds(e, seconds, speed), **_sizes(e, jobs, bytes_, machine), **_power(e, speed)}
    host, untrained = "", ""
    if machine and (guess := why_a_guess(e, machine)):
        what = "a guess: the machine's file has its kernels and links, but not what whole steps take"
        untrained = f"{what} ({guess[0]}): {guess[1]}"
    elif machine:
        host = machine.host
    return Estimate(e, jobs, known, bytes_, time, figures, host, untrained)


def _seconds(e: Experiment, time: Prediction, tokens: float) -> Quantity:
    """Return the step time with its intervals, no end of which is faster than the peak. tokens: of one GPU."""
    mean, peak = float(time.step_time_s[0]), peak_of(e.hardware, PEAK_OF[precision_of(e)])
    least = tokens * _per_token(e) / (peak[1] * 1e12) if peak else 0.0
    wide, narrow = (
        (min(max(float(low[0]), least), mean), float(high[0]))
        for low, high in ((time.low_95_s, time.high_95_s), (time.low_80_s, time.high_80_s))
    )
    return changed(Quantity.of(mean, "s", "computed", _WHY), interval=wide, interval_80=narrow)


def _per_token(e: Experiment) -> float:
    return flops_per_token(shape_of_model(e.model), e.training.seq_length)


def _speeds(e: Experiment, seconds: Quantity, speed: Quantity) -> dict[str, Quantity]:
    per_token = _per_token(e)
    tflops = speed.times(per_token / 1e12, "TFLOP/s/GPU", note=DEFAULT.name)
    peak = peak_of(e.hardware, PEAK_OF[precision_of(e)])
    name = peak[0] if peak else None
    return {
        "step_time_mean_s": seconds,
        "tokens_per_s_per_gpu": speed,
        "tokens_per_s": speed.times(e.layout.world_size, "tokens/s", note=_WHY),
        "tflops_per_gpu": tflops,
        "mfu_percent": _share(tflops, peak_tflops(e.hardware, name)),
        "mfu_achievable_percent": _share(tflops, achievable_tflops(e.hardware, name)),
    }


def _share(tflops: Quantity, peak: Quantity) -> Quantity:
    """Return the share of a peak, with the intervals of the speed."""
    share = utilisation(tflops, peak)
    if not share.value or not tflops.value:
        return share
    scaled = tflops.times(share.value / tflops.value, "%")
    return changed(share, interval=scaled.interval, interval_80=scaled.interval_80)


def _sizes(e: Experiment, jobs: Jobs, bytes_: Memory, machine: Machine | None) -> dict[str, Quantity]:
    allocated, shown_ = float(bytes_.allocated.max()), float(bytes_.on_device.max())
    source: Source = "assumed"
    beside = f"with {', '.join(ASSUMED)}, which are assumed"
    if machine is not None and (own := beyond_tensors(machine, jobs, allocated)):
        shown_ += own - float(bytes_.context.max())
        beside = (
            f"with {shown(own / 1e6, 3)} MB that the process takes beyond its tensors, as measured on {machine.host}"
        )
        beside += f"; {', '.join(ASSUMED[1:])} are assumed" if machine.accelerator else ""
        source = "assumed" if machine.accelerator else "computed"
    what = "what torch allocates"
    return {
        "peak_memory_bytes": Quantity(allocated, "bytes (allocated)", "computed", note=what),
        "peak_memory_allocated_bytes": Quantity(allocated, "bytes", "computed", note=what),
        "peak_memory_device_bytes": Quantity(shown_, "bytes", source, note=beside),
        **_room(e, shown_, source),
    }


def _room(e: Experiment, taken: float, source: Source) -> dict[str, Quantity]:
    """Return which share of its GPU `taken` bytes are, and what they leave: below zero where they do not fit. Nothing
    on a CPU, whose processes share the host's memory."""
    if (room := room_bytes(e)) is None:
        return {}
    note = f"device, of {room / 1e9:,.1f} GB, {e.hardware.name}"
    return {
        "peak_memory_percent": Quantity(100 * taken / room, "%", source, note=note),
        "memory_headroom_bytes": Quantity(room - taken, "bytes (device)", source, note=note),
    }


def _power(e: Experiment, speed: Quantity) -> dict[str, Quantity]:
    power = design_power(e.hardware, _WHY)
    energy = energy_at(speed, power)
    return {
        "power_w_per_gpu": power,
        "energy_j_per_token": energy,
        "tokens_per_wh": energy.under(3600, "tokens/Wh", energy.note),
    }


def step_time_text(e: Experiment) -> str:
    """Return the step time of `e`, how long all its steps take, and how wrong both may be; or why they are unknown."""
    if e.hardware.vendor is None:
        return f"not known: of a {e.hardware.name} a measured run says more than a prior (estimate calibrate)"
    try:
        predicted = estimate(e)
    except ConfigError as error:
        return f"not known: {error.problems[0].what}"
    step, steps = predicted.figures["step_time_mean_s"], e.training.train_iters
    if step.value is None or step.interval is None:
        return f"not known: a rate of {e.hardware.name} that it follows from is missing"
    low, high = step.interval
    whole = [duration(steps * value) for value in (step.value, low, high)]
    ends = f"{shown(low, 3)} to {shown(high, 3)} with 95 %"
    return (
        f"{step} predicted ({ends}); {steps:,} steps take {whole[0]} ({whole[1]} to {whole[2]}). {predicted.accuracy}"
    )


def duration(seconds: float) -> str:
    """Return a time in the unit that people would use."""
    unit, name = next(((n, name) for n, name in _UNITS if seconds >= 2 * n), (1.0, "s"))
    return f"{shown(seconds / unit, 3)} {name}"
