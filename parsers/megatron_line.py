"""The iteration line of the Megatron family, 2020 to today, in all its spellings.

    iteration       10/      50 | consumed samples:   1280 | elapsed time per iteration (ms): 1234.5 | … |

Forks add fields, Argonne writes key=value, Juelich seconds, Primus "this step/running mean". A field whose name is not
in the table goes to the step's metrics. Sources: Megatron-LM megatron/training/training.py training_log; Megatron-
DeepSpeed megatron/training.py; GPT-NeoX megatron/logging.py; Primus print_rank_last_patches.py and (v25) trainer.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from parsers.record import Step
from parsers.values import integer, is_nonfinite, number

# NeMo 2 writes "Training epoch 0, iteration 1/7 |".
_ITERATION = re.compile(r"(?<!, )iteration(?: |=)\s{0,20}(\d{1,12})/\s{0,20}(\d{1,12}) {1,3}\|")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[ T](\d\d):(\d\d):(\d\d\.\d{1,6})")
# What ends a line though no bar closes it.
_LAST_FIELDS = ("number of nan iterations",)
_COMPOUND = re.compile(r"([^/()]{1,40})(?:/([^/()]{1,40})| \(avg ([^()]{1,40})\))")
_GB = re.compile(r"([\d.]{1,20})GB/(?:[\d.]{1,20}GB/)?(?:([\d.]{1,20})GB/)?([\d.]{1,10})%")

_Convert = Callable[[str], "float | int | None"]


@dataclass(frozen=True, slots=True)
class _Field:
    target: str
    convert: _Convert
    metric: bool = False


def _milliseconds(text: str) -> float | None:
    return number(f"{text}e-3")  # the decimal point moves in the text: 4403.9 / 1000 is no 4.4039 to a float


_FIELDS: dict[str, _Field] = {
    "consumed samples": _Field("consumed_samples", integer),
    "elapsed time per iteration (ms)": _Field("step_time_s", _milliseconds),
    "elapsed time per iteration ms": _Field("step_time_s", _milliseconds),
    "elapsed time per iteration (s)": _Field("step_time_s", number),
    "throughput per gpu (tflop/s/gpu)": _Field("tflops_per_gpu", number),
    "throughput per gpu": _Field("tflops_per_gpu", number),
    "compute per gpu (tflop/s/gpu)": _Field("tflops_per_gpu", number),
    "compute per gpu": _Field("tflops_per_gpu", number),
    "tflops": _Field("tflops_per_gpu", number),
    "approx flops per gpu": _Field("tflops_per_gpu", number),
    "tokens per gpu (tokens/s/gpu)": _Field("tokens_per_s_per_gpu", number),
    "tokens/s/gpu inst/harmonic mean": _Field("tokens_per_s_per_gpu", number),
    "tokens per gpu per second (tgs)": _Field("tokens_per_s_per_gpu", number),
    "tokens per gpu per second tgs": _Field("tokens_per_s_per_gpu", number),
    "learning rate": _Field("lr", number),
    "global batch size": _Field("global_batch_size", integer),
    "lm loss": _Field("loss", number),
    "loss scale": _Field("loss_scale", number),
    "grad norm": _Field("grad_norm", number),
    "number of skipped iterations": _Field("skipped", integer),
    "number of nan iterations": _Field("nan", integer),
    "samples per second": _Field("samples_per_s", number, metric=True),
    "samples/sec": _Field("samples_per_s", number, metric=True),
    "energy per gpu (j/iter/gpu)": _Field("energy_per_gpu_j", number, metric=True),
    "power per gpu (w/gpu)": _Field("power_per_gpu_w", number, metric=True),
}
_MEMORY = {"hip mem usage/free/total/usage_ratio": "hip", "rocm mem usage/free/total/usage_ratio": "rocm"}
# Megatron's EnergyMonitor reads 0.0 where NVML is not there (megatron/core/energy_monitor.py).
_ZERO_IS_UNKNOWN = ("energy_per_gpu_j", "power_per_gpu_w")


@lru_cache(maxsize=512)
def _field_of(name: str) -> _Field | None:
    """name: as it stands between two bars, spaces and all."""
    plain = " ".join(name.replace("_", " ").lower().split())
    known = _FIELDS.get(plain)
    if known is not None or not plain or len(plain) > 60:
        return known
    return _Field(re.sub(r"\W+", "_", plain).strip("_"), number, metric=True)


@dataclass(frozen=True, slots=True)
class _Number:
    """A number in a field: its text, and where it goes: a field of the step or a metric."""

    text: str
    target: str
    convert: _Convert
    metric: bool = False


@dataclass(slots=True)
class Line:
    """An iteration line: `train_iters` it counts to, and what its fields hold."""

    number: int
    text: str
    iteration: int
    train_iters: int
    end: int
    values: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    nonfinite: list[str] = field(default_factory=list)
    last_name: str = ""
    last_closed: bool = True

    @property
    def whole(self) -> bool:
        """Whether nothing of it can stand in the next line."""
        return (self.last_closed and "nan" in self.values) or _plain(self.last_name) in _LAST_FIELDS

    @property
    def time_s(self) -> float | None:
        """Seconds of the day by the time stamp next to the iteration; one of whole seconds is too coarse."""
        stamps = _TIME.findall(self.text[: self.end])
        if not stamps:
            return None
        hours, minutes, seconds = stamps[-1]
        return int(hours) * 3600 + int(minutes) * 60 + float(seconds)


def step_of(line: Line, **more: Any) -> Step:
    """The step in an iteration line; `more`: what other lines tell of it."""
    values = {**line.values, **more}
    return Step(
        step=line.iteration - 1,
        line=line.number,
        iteration=line.iteration,
        nonfinite=tuple(line.nonfinite),
        metrics=line.metrics,
        **values,
    )


def read_line(number: int, text: str) -> Line | None:
    """The iteration line in `text`, None if there is none."""
    found = _ITERATION.search(text)
    if found is None or found[1] == "0":
        return None
    line = Line(number, text, int(found[1]), int(found[2]), found.end())
    _, samples, rate = text[: found.start()].rpartition("samples/sec:")
    if samples:  # GPT-NeoX: "samples/sec: 206.693 | iteration 1/512 | …"
        _take(line, "samples/sec", rate.replace("|", " ").strip())
    parts = text[found.end() :].split("|")
    last = parts.pop()
    for part in parts:
        _read_part(line, part)
    # No bar closes what was cut short, and a number cut short is a wrong number.
    if last.strip():
        line.last_name = re.split(r"[:=]", last, maxsplit=1)[0]
        line.last_closed = last.rstrip().endswith("%") or _field_of(line.last_name) is None
        if line.whole:
            _read_part(line, last)
    return line


def _read_part(line: Line, part: str) -> None:
    name, colon, printed = part.partition(":")
    if not colon:
        name, _, printed = part.partition("=")
    _take(line, name, printed.strip())


def _take(line: Line, name: str, printed: str) -> None:
    """Put the numbers of a field where they belong."""
    plain = _field_of(name)
    if plain is None:
        return
    numbers = _compound(name, plain, printed) if "/" in printed or "(" in printed else (_single(plain, printed),)
    for entry in numbers:
        value = entry.convert(entry.text)
        into: dict[str, Any] = line.metrics if entry.metric else line.values
        if value is None:
            line.nonfinite += [entry.target] if is_nonfinite(entry.text) else []
        elif value == 0 and entry.target in _ZERO_IS_UNKNOWN:
            continue
        elif entry.target == "hip_memory_used_bytes":
            line.values.update(memory_bytes=value, memory_kind="hip")
        if value is not None or not entry.metric:
            into[entry.target] = value


def _single(plain: _Field, printed: str) -> _Number:
    return _Number(printed.removesuffix("TFLOPS"), plain.target, plain.convert, plain.metric)


def _compound(name: str, plain: _Field, printed: str) -> Iterator[_Number]:
    """Primus: "this step/mean", "this step (avg mean)", memory in four parts. The means are windows of its own."""
    kind = next((kind for label, kind in _MEMORY.items() if label in name), None)
    if kind is not None:
        yield from _memory(kind, printed)
        return
    found = _COMPOUND.fullmatch(printed)
    if found is not None and not plain.metric:
        yield _Number(found[1].strip(), plain.target, plain.convert)
        yield _Number((found[2] or found[3]).strip(), f"{plain.target}_running_mean", plain.convert, metric=True)


def _memory(kind: str, printed: str) -> Iterator[_Number]:
    found = _GB.fullmatch(printed.strip())
    if found is None:
        return
    unit = gigabyte(number(found[2] or ""))
    if unit is not None:
        yield _Number(found[1], f"{kind}_memory_used_bytes", _bytes_of(unit), metric=True)
        yield _Number(found[2], f"{kind}_memory_total_bytes", _bytes_of(unit), metric=True)
    yield _Number(found[3], f"{kind}_memory_used_percent", number, metric=True)


@lru_cache(maxsize=4)
def _bytes_of(unit: int) -> _Convert:
    def convert(text: str) -> int | None:
        value = number(text)
        return None if value is None else round(value * unit)

    return convert


def gigabyte(total: float | None) -> int | None:
    """Bytes of the "GB" in which a GPU's whole memory reads `total`; None where that does not tell.

    Primus v25.9 prints 1e9, later ones 2**30 under the same name. Memory comes in multiples of 8 GiB, of which the
    runtime keeps a little: 191.98 is in GiB, 206.1 in GB.
    """
    if not total:
        return None
    for unit in (2**30, 10**9):
        eighths = total * unit / 2**33
        if -1e-6 < round(eighths) - eighths < 0.01 < eighths:
            return unit
    return None


def _plain(name: str) -> str:
    return " ".join(name.replace("_", " ").lower().split())
