"""Megatron-LM and Megatron-Core, 2020 to today, NVIDIA's and ROCm's, and our own engine; and what its relatives share.

    iteration       10/      50 | consumed samples:   1280 | elapsed time per iteration (ms): 1234.5 | … |

Forks add fields, Argonne writes key=value, Juelich seconds, Primus "this step/running mean", swiss-ai "1.258B" tokens.
A field whose name is not among the columns goes to the step's metrics. Sources: Megatron-LM megatron/training/
training.py training_log; Megatron-DeepSpeed megatron/training.py; GPT-NeoX megatron/logging.py; Primus
print_rank_last_patches.py and (v25) trainer.py."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

from msgspec.structs import replace

from parsers.driver import Argument, Dialect, Driver, Event, Fact, Resumed, Values
from parsers.record import STEP_FIELDS, Stall, Step, Validation
from parsers.values import POWERS, Column, Place, human, integer, literal, milliseconds, number

# NeMo 2 writes "Training epoch 0, iteration 1/7 |".
_HEAD = re.compile(r"iteration(?<!, iteration)(?: |=)\s{0,20}(\d{1,12})/\s{0,20}(\d{1,12}) {1,3}\|")
# The last field of Megatron's own, and what forks add behind it: to a bar, or to a memory's share in percent.
_COMPLETE = re.compile(r"number[ _]of[ _]nan[ _]iterations[^|]{0,80}(?:\|(?:.{0,4000}[|%])?\s{0,200})?$")
# The two lines to which Primus' own documents shorten it. Apart: with an alternative the pattern is five times slower.
_CONDENSED = re.compile(
    r"TFLOP/s/GPU: [^|]{1,24}\| tokens per GPU \(tokens/s/GPU\): [^|]{1,24}\| lm loss: \d\.[\dE+-]{4,12}\s{0,200}$"
)
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(\.\d{1,6})?")
_COMPOUND = re.compile(r"([^/()]{1,40})(?:/([^/()]{1,40})| \(avg ([^()]{1,40})\))")
_GB = re.compile(r"([\d.]{1,20})GB/(?:([\d.]{1,20})GB/)?(?:([\d.]{1,20})GB/)?([\d.]{1,10})%")
_DUMP_GAP = 60  # lines of others that may stand between two lines of a dump
_LONG_NAME = 45  # from here on the dots that follow a name are gone: megatron/training/arguments.py, _print_args
_TIMERS = 12  # lines after a saved checkpoint in which its timer may stand
_SAVING = re.compile(r"(?<!un)saving checkpoint at iteration {1,12}(\d{1,12}) to ")
_SAVED = re.compile(r"successfully saved checkpoint (?:from|at) iteration {1,12}(\d{1,12}) to ")
_LOADED = re.compile(r"successfully loaded checkpoint from .{1,1000} at iteration (\d{1,12})\s*$")
_SAVE_TIMER = re.compile(r"save-checkpoint \.{2,60}: \(([\d.]{1,20}), ([\d.]{1,20})\)")
_VALIDATION = re.compile(
    r"(?:validation|test) (?:loss|results(?= at iter)) at (?:iteration (\d{1,12})|the end of training for (\w{3,5}))"
)
_VALIDATED = re.compile(r"([A-Za-z_][\w ]{0,40}?)[ _](value|PPL|ppl): ([^ |]{1,30})(?= {0,4}\||\s{1,8}[A-Za-z])")
PARAMETERS = re.compile(
    r"parameters on \(tensor, pipeline\) model parallel rank \((\d{1,6}) ?, ?(\d{1,6})\): (\d{1,18})(?![\w(\[])"
)
_PEAK_MEMORY = re.compile(r"\[Rank (\d{1,6})\] \(after (\d{1,12}) iterations\) memory \((MB|GB)\) \|")
_PEAKS = re.compile(r"(?:^|\|) {0,4}(?:mem-)?max[ -](allocated|reserved)(?:-gigabytes)?: {0,4}([^ |]{1,24})")
# report_memory divides by 1024 * 1024 and prints MB (megatron/training/utils.py); Bridge divides by 1e9 and prints GB.
_PEAK_MEMORY_UNIT = {"MB": 2**20, "GB": 10**9}
_MEMORY = {"hip mem usage/free/total/usage_ratio": "hip", "rocm mem usage/free/total/usage_ratio": "rocm"}


def _tflops(text: str) -> float | None:
    return number(text.removesuffix("TFLOPS"))


def _measured(text: str) -> float | None:
    return number(text) or None  # the EnergyMonitor reads 0.0 where NVML is not there (megatron/core/energy_monitor.py)


POWERS[_tflops] = {"": 0, "TFLOPS": 0}
# By names in small letters and without underscores.
_COLUMNS: Mapping[str, Column] = {
    "consumed samples": ("consumed_samples", integer),
    "consumed tokens": ("consumed_tokens", human),
    "elapsed time per iteration (ms)": ("step_time_s", milliseconds),
    "elapsed time per iteration ms": ("step_time_s", milliseconds),
    "elapsed time per iteration (s)": ("step_time_s", number),
    "throughput per gpu (tflop/s/gpu)": ("tflops_per_gpu", _tflops),
    "throughput per gpu": ("tflops_per_gpu", _tflops),
    "compute per gpu (tflop/s/gpu)": ("tflops_per_gpu", _tflops),
    "compute per gpu": ("tflops_per_gpu", _tflops),
    "tflops": ("tflops_per_gpu", _tflops),
    "tflop/s/gpu": ("tflops_per_gpu", _tflops),
    "approx flops per gpu": ("tflops_per_gpu", _tflops),
    "tokens per gpu (tokens/s/gpu)": ("tokens_per_s_per_gpu", number),
    "tokens/s/gpu inst/harmonic mean": ("tokens_per_s_per_gpu", number),
    "tokens/sec/gpu": ("tokens_per_s_per_gpu", number),
    "tokens per gpu per second (tgs)": ("tokens_per_s_per_gpu", number),
    "tokens per gpu per second tgs": ("tokens_per_s_per_gpu", number),
    "learning rate": ("lr", number),
    "global batch size": ("global_batch_size", integer),
    "lm loss": ("loss", number),
    "lm-loss": ("loss", number),
    "loss scale": ("loss_scale", number),
    "grad norm": ("grad_norm", number),
    "number of skipped iterations": ("skipped", integer),
    "number of nan iterations": ("nan", integer),
    "samples per second": ("samples_per_s", number),
    "samples/sec": ("samples_per_s", number),
    "energy per gpu (j/iter/gpu)": ("energy_per_gpu_j", _measured),
    "power per gpu (w/gpu)": ("power_per_gpu_w", _measured),
}


_ANOTHER = re.compile(r"\[Rank \d|validation|iteration|loss at ")
_FOREIGN = re.compile(r"[\[\]=]|number of .{0,40} iterations|\biteration\b")  # another text stands in a name
# Where a terminal broke a name and its blank was lost.
_TRIMMED = {name.replace(" ", ""): column for name, column in _COLUMNS.items() if " " in name}


class _Target(NamedTuple):
    """Where a field's number goes: a field of Step, or a metric. memory: of which kind the field is four sizes."""

    name: str
    convert: Callable[[str], Any]
    is_metric: bool
    memory: str = ""


@lru_cache(maxsize=512)
def _target(name: str) -> _Target | None:
    """Return where a field goes. name: as it stands between two bars, spaces and all."""
    plain = " ".join(name.replace("_", " ").lower().split())
    known = _COLUMNS.get(plain) or _TRIMMED.get(plain.replace(" ", ""))
    if known is not None:
        column, convert = known
        return _Target(column, convert, column not in STEP_FIELDS)
    memory = next((kind for label, kind in _MEMORY.items() if label in name), "")
    metric = re.sub(r"\W+", "_", plain).strip("_")
    metric = f" {metric}" if metric in ("", *STEP_FIELDS) else metric  # see `values.step_fields`
    foreign = _FOREIGN.search(plain) is not None
    return _Target(metric, number, True, memory) if 0 < len(plain) <= 60 and not foreign else None


def _places(text: str) -> list[Place] | None:
    """Return where an iteration line prints its values."""
    match = _HEAD.search(text)
    if match is None:
        return None
    places: list[Place] = [("iteration", int, *match.span(1))]
    before, samples, rate = text[: match.start()].rpartition("samples/sec:")
    if samples:  # GPT-NeoX: "samples/sec: 206.693 | iteration 1/512 | …"
        places += _put(_target(samples[:-1]), rate.replace("|", " "), len(before) + len(samples))
    end = len(text)
    if text.rpartition("|")[2].strip() and _COMPLETE.search(text) is None and _CONDENSED.search(text) is None:
        end = text.rfind("|")  # no bar closes what was cut short, and a number cut short is a wrong number
    at = match.end()
    for part in text[at:end].split("|"):  # "name: value" or "name=value"
        name, colon, printed = part.partition(":")
        if not colon:
            name, _, printed = part.partition("=")
        if (not (colon or printed) and _ANOTHER.search(part)) or "loss at " in part:
            break  # another line, whose end came before this one's
        places += _put(_target(name), printed, at + len(part) - len(printed))
        at += len(part) + 1
    return places


def _put(target: _Target | None, printed: str, start: int) -> list[Place]:
    """Return where the numbers of one field stand; also of Primus' "this step/mean" and "this step (avg mean)", whose
    means are windows of its own, and of memory in four parts. start: of `printed` in its line."""
    if target is None:
        return []
    start += len(printed) - len(printed.lstrip())
    printed = printed.strip()
    name, convert, is_metric, memory = target
    if "/" not in printed and "(" not in printed:
        return [(name, convert, start, start + len(printed))]
    if memory:
        return _put_memory(memory, printed, start)
    match = None if is_metric else _COMPOUND.fullmatch(printed)
    if match is None:
        return []
    first, mean = match[1].rstrip(), _Target(f"{name}_running_mean", convert, True)
    second = 2 if match[2] else 3
    return [(name, convert, start, start + len(first)), *_put(mean, match[second], start + match.start(second))]


def _put_memory(kind: str, printed: str, start: int) -> list[Place]:
    match = _GB.fullmatch(printed)
    if match is None:
        return []
    unit = gigabyte(number(match[3] or ""))

    def size(text: str) -> int | None:
        value = number(text)
        return None if value is None or value >= 1e6 or unit is None else round(value * unit)

    used, free, percent = ((start + match.start(i), start + match.end(i)) for i in (1, 2, 4))
    places: list[Place] = [(f"{kind}_memory_used_percent", number, *percent)] if number(match[4]) is not None else []
    memory, end = size(match[3] or ""), start + match.end(3)  # its text, which the unit follows from, stays the same
    if memory is None or size(match[1]) is None:
        return places
    all_of_it: Place = (f"{kind}_memory_total_bytes", lambda text: memory, end, end)
    return [(f"{kind}_memory_used_bytes", size, *used), ("", str, *free), all_of_it, *places]


def _count(values: Values, text: str) -> Values | None:
    """Number the step, from 0, and say what the memory is."""
    values["step"] = values["iteration"] - 1
    if values["step"] < 0:
        return None
    used = values["metrics"].get("hip_memory_used_bytes")
    if used is not None:
        values["memory_bytes"], values["memory_kind"] = used, "hip"
    return values


@lru_cache(maxsize=64)
def gigabyte(total: float | None) -> int | None:
    """Return the bytes of the "GB" in which a GPU's memory reads `total`; None where that does not show.

    Primus v25.9 prints 1e9, later ones 2**30 under the same name. Memory comes in multiples of 8 GiB, of which the
    runtime keeps a little: 191.98 is in GiB, 206.1 in GB."""
    for unit in (2**30, 10**9):
        eighths = (total or 0) * unit / 2**33
        if -1e-6 < round(eighths) - eighths < 0.01 < eighths:
            return unit
    return None


class MegatronDriver(Driver):
    """Iteration lines, argument dump, validation, checkpoints, memory: what all of the family print."""

    _dump = 0
    _previous: Step | None = None
    _previous_time_s: float | None = None
    _saving: tuple[int, Sequence[float]] = -1, ()  # iteration, and when it began
    _saved: Stall | None = None
    _usual: int | None = None  # steps from line to line, the fewest so far
    _coarse = False  # rates are
    _timer = ""  # of the last checkpoint since the last step: every rank may print it

    def read(self, line: int, text: str, match: re.Match[str] | None = None) -> Iterable[Event]:
        match = match or _HEAD.search(text)
        if match is None and self._dump and "end of arguments" not in text:
            return self._argument(line, text)
        return super().read(line, text, match)

    def end(self) -> Iterable[Event]:
        return (*super().end(), *self._stalled())

    def _is_complete(self, text: str) -> bool:
        return super()._is_complete(text) or _CONDENSED.search(text) is not None

    def value(self, name: str, printed: str) -> Any:
        """Return the value of an argument. A hook: forks print some in their own way."""
        if name == "num_experts":  # DeepSpeed's is a list, [1] by default: a dense model (megatron/arguments.py)
            printed = "None" if printed == "[1]" else printed.removeprefix("[").removesuffix("]")
        return literal(printed)

    def other(self, line: int, text: str) -> Iterator[Event]:
        if "arguments --" in text:
            ended = "end of arguments" in text
            if ended and self._dump:
                yield Fact("dump_complete", True, line)
            self._dump = self.wants = 0 if ended else _DUMP_GAP
        elif "checkpoint" in text:
            yield from self._checkpoint(line, text)
        elif "elapsed" in text and "|" in text:
            self.lost()
        else:
            for pattern, make in ((PARAMETERS, parameters), (_VALIDATION, _validation), (_PEAK_MEMORY, _peak_memory)):
                if match := pattern.search(text):
                    yield from make(match, line)
            yield from super().other(line, text)

    def lost(self) -> None:
        """Take note of the rest of an iteration line: what the next one covers is not known."""
        self._previous = None

    def _stalled(self) -> tuple[Stall, ...]:
        """Return a checkpoint that no timer followed."""
        saved, self._saved = self._saved, None
        return () if saved is None else (saved,)

    def step(self, line: int, values: Values, text: str) -> Iterable[Event]:
        """Return the step, with what the lines before say of it, and before it what it shows of them."""
        before, self._dump, self._timer = self._previous, 0, ""
        if values["step"] == 0:
            self._total = None  # every run has its own
        covered = 0 if before is None else values["step"] - before.step
        if covered >= 1:
            values["interval_steps"] = self._covers(covered)
        if covered > 1 and values["interval_steps"]:
            values["flags"] = ("step_time_s:interval_mean", "loss:interval_mean")
        self._coarse = self._coarse or "learning_rate=" in text  # to six decimals
        if self._coarse:
            values["lr_used"] = None
        values["line"] = line
        step = Step(**values)
        if step.step <= 1:
            # The stamp next to the iteration; one in full seconds is too coarse.
            times, before_s = _times(text.partition("iteration")[0], coarse=False), self._previous_time_s
            if step.step == 1 and before is not None and times and before_s is not None:
                step = _second_iteration(step, before, times[-1] - before_s)
            self._previous_time_s = times[-1] if times else None
        self._previous = step
        return (step,) if self._saved is None else (*self._stalled(), step)

    def _covers(self, since: int) -> int | None:
        """Return over how many steps a line's means go, `since` the line before; None where one must have been lost."""
        self._usual = min(since, self._usual or since)
        return since if since < 2 * self._usual else None

    def _argument(self, line: int, text: str) -> Iterator[Event]:
        """Yield "  name ...... value" after any prefix; dots fill up to column 48, or there are none."""
        self._dump -= 1
        # Plain string operations: a regular expression for "a word before dots" is quadratic in one long word.
        head, dots, rest = text.partition(" ..")
        name, value = (head.split() or [""])[-1], rest.lstrip(".")
        if not dots:
            words = text.split(None, 12)
            long = [i for i, word in enumerate(words[:-1]) if len(word) >= _LONG_NAME and word.isidentifier()]
            name, value = (words[long[0]], " ".join(words[long[0] + 1 :]).removeprefix(". ")) if long else ("", "")
        if name.isidentifier():
            self._dump = _DUMP_GAP
            value = value.strip()  # forks fill up behind it, too
            if value:  # else the log may be cut here
                yield Argument(name, self.value(name, value.rstrip(".") if value.endswith("....") else value), line)
        self.wants = self._dump

    def _checkpoint(self, line: int, text: str) -> Iterator[Event]:
        saving, saved, loaded = _SAVING.search(text), _SAVED.search(text), _LOADED.search(text)
        timer = _SAVE_TIMER.search(text)
        if loaded is not None:
            yield Resumed(int(loaded[1]), line)
        elif saving is not None:
            self._saving = int(saving[1]), _times(text[: saving.start()])[-1:]
        elif saved is not None:
            (iteration, begun_s), ended_s = self._saving, _times(text[: saved.start()])[-1:]
            known = iteration == int(saved[1]) and begun_s and ended_s
            seconds = ended_s[0] - begun_s[0] if known else None
            self.wants, self._saving = max(self.wants, _TIMERS), (-1, ())
            self._saved = Stall(line=line, kind="checkpoint", seconds=seconds, iteration=int(saved[1]))
        elif timer is not None and timer[0] != self._timer and (longest := number(timer[2])) is not None:
            self._timer = timer[0]
            (stall,) = self._stalled() or (Stall(line=line, kind="checkpoint"),)
            yield stall if stall.seconds is not None else replace(stall, seconds=longest / 1000)


def _second_iteration(step: Step, first: Step, between_s: float) -> Step:
    """Return iteration 2 with its own time where the printed one is the mean of the first two: newer Megatron does not
    reset its timers and losses after iteration 1 (training_log, should_reset). The lines' time stamps show which it is.
    """
    printed, before = step.step_time_s, first.step_time_s
    if first.iteration != 1 or printed is None or before is None:
        return step
    own = 2 * printed - before
    if own <= 0 or abs(between_s - own) > 0.25 * abs(between_s - printed):
        return step
    flags = ("step_time_s:recovered", "tflops_per_gpu:interval_mean", "loss:interval_mean")
    metrics = {**step.metrics, "step_time_s_running_mean": printed}
    return replace(step, step_time_s=own, flags=flags, metrics=metrics, interval_steps=None)


def parameters(match: re.Match[str], line: int) -> Iterator[Fact]:
    """Yield how many parameters a rank holds."""
    yield Fact("parameters_by_rank", {f"{match[1]},{match[2]}": int(match[3])}, line)


def _validation(match: re.Match[str], line: int) -> Iterator[Validation]:
    """Yield a validation or test point, after an iteration or at the end of training."""
    printed = [(name, what, number(text)) for name, what, text in _VALIDATED.findall(match.string[match.end() :])]
    values = {f"{name.strip().replace(' ', '_')}_{what.lower()}": x for name, what, x in printed if x is not None}
    loss = values.pop("lm_loss_value", None)
    test = "test" in match[0] or match[2] == "test" or "on test set" in match.string
    iteration = int(match[1]) if match[1] else None
    step, split = None if iteration is None else iteration - 1, "test" if test else "valid"
    yield Validation(line=line, step=step, iteration=iteration, loss=loss, split=split, metrics=values)


def _peak_memory(match: re.Match[str], line: int) -> Iterator[Fact]:
    """Yield the highest memory of a rank, by rank, in bytes."""
    for kind, printed in _PEAKS.findall(match.string[match.end() :]):
        if (value := number(printed)) is not None:
            yield Fact(f"max_{kind}_bytes", {match[1]: round(value * _PEAK_MEMORY_UNIT[match[3]])}, line)


def _times(text: str, coarse: bool = True) -> list[float]:
    """Return the time stamps of a line in seconds since some fixed day. coarse: also those in full seconds."""
    times = []
    for day, clock, fraction in _TIME.findall(text):
        with suppress(ValueError):
            moment = datetime.fromisoformat(f"{day}T{clock}") - datetime(2000, 1, 1)
            times += [moment.total_seconds() + float(fraction or 0)] if fraction or coarse else []
    return times


_WORLD = r"using world size: .{0,300}?"
DIALECT = Dialect(
    framework="megatron",
    rate_of=(1,),
    clock="megatron",  # of all that print its own timer
    looks_for="Megatron: lines 'iteration N/ TOTAL | consumed samples: … |', or its '---- arguments ----' dump",
    signs=(b"iteration ", b"iteration=", b" arguments --"),
    marks=(b"iteration",),
    startup=(
        *(b") memory (", b" training is done]", b" at the end of training for ", b"- arguments ---"),
        *(b"number of parameters on", b"using world size", b" for parameters ...", b" padded vocab (size"),
    ),
    family="megatron",
    head=_HEAD.pattern,
    complete=_COMPLETE.pattern,
    complete_by_length=True,  # in 2020 there was no such field
    columns=_COLUMNS,
    # train_step ends with opt_param_scheduler.step and training_log comes after it (megatron/training/training.py).
    prints_next_rate=True,
    facts=(r"(?P<completed>training is done)\]",),
    settings=(
        r"using torch\.(?P<params_dtype>\w{1,20}) for parameters \.\.\.",
        r"padded vocab \(size: \d{1,9}\) with \d{1,9} dummy tokens \(new size: (?P<padded_vocab_size>\d{1,9})\)",
        r"using world size: (?P<world_size>\d{1,7})",
        _WORLD + r"data-parallel[- ]size: (?P<data_parallel_size>\d{1,7})",
        _WORLD + r"(?<!hierarchical )context-parallel[- ]size: (?P<context_parallel_size>\d{1,7})",
        _WORLD + r"(?<!encoder-)tensor-model-parallel[- ]size: (?P<tensor_model_parallel_size>\d{1,7})",
        _WORLD + r"(?<!encoder-)pipeline-model-parallel[- ]size: (?P<pipeline_model_parallel_size>\d{1,7})",
    ),
    driver=MegatronDriver,
    places=_places,
    strict=True,
    adjust=_count,
)
