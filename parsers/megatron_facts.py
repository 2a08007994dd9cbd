"""The other lines of the Megatron family: argument dump, parameters, validation, memory, layout and type in prose."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec.structs import replace

from parsers.events import Fact, Setting
from parsers.record import Step, Validation
from parsers.values import number as number_of

_LONG_NAME = 45  # from here on the dots that follow a name are gone: megatron/training/arguments.py, _print_args
_PARAMETERS = re.compile(
    r"number of parameters on \(tensor, pipeline\) model parallel rank \((\d{1,6}) ?, ?(\d{1,6})\): (\d{1,18})"
)
_VALIDATION = re.compile(
    r"(?:validation|test) (?:loss|results) at (?:iteration (\d{1,12})|the end of training for (\w{3,5}))"
)
_VALUE = re.compile(r"([A-Za-z_][\w ]{0,40}?)[ _](value|PPL|ppl): ([^ |]{1,30})")
_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(\.\d{1,6})?")
_MEMORY = re.compile(r"\[Rank (\d{1,6})\] \(after (\d{1,12}) iterations\) memory \((MB|GB)\) \|")
_MEMORY_FIELDS = {
    "max allocated": "max_allocated_bytes",
    "max reserved": "max_reserved_bytes",
    "mem-max-allocated-gigabytes": "max_allocated_bytes",
    "mem-max-reserved-gigabytes": "max_reserved_bytes",
}
# report_memory divides by 1024 * 1024 and prints MB (megatron/training/utils.py); Bridge divides by 1e9 and prints GB.
_MEMORY_UNIT = {"MB": 2**20, "GB": 10**9}
_DTYPE = re.compile(r"using torch\.(\w{1,20}) for parameters \.\.\.")
_PADDED = re.compile(r"padded vocab \(size: \d{1,9}\) with \d{1,9} dummy tokens \(new size: (\d{1,9})\)")
_WORLD = {
    "world_size": re.compile(r"using world size: (\d{1,7})"),
    "data_parallel_size": re.compile(r"data-parallel[- ]size: (\d{1,7})"),
    "context_parallel_size": re.compile(r"(?<!hierarchical )context-parallel[- ]size: (\d{1,7})"),
    "tensor_model_parallel_size": re.compile(r"(?<!encoder-)tensor-model-parallel[- ]size: (\d{1,7})"),
    "pipeline_model_parallel_size": re.compile(r"(?<!encoder-)pipeline-model-parallel[- ]size: (\d{1,7})"),
}


def argument(text: str) -> tuple[str, str] | None:
    """Name and value of "  name ...... value" after any prefix: dots fill up to column 48, long names have none."""
    # Plain string operations: a regular expression for "a word before dots" is quadratic in a line of one long word.
    head, dots, rest = text.partition(" ..")
    if dots:
        name, value = head.split()[-1] if head.split() else "", rest.lstrip(".")
    else:
        words = text.split(None, 12)
        long = [i for i, word in enumerate(words[:-1]) if len(word) >= _LONG_NAME and word.isidentifier()]
        if not long:
            return None
        name, value = words[long[0]], " ".join(words[long[0] + 1 :]).removeprefix(". ")
    return (name, value.strip()) if name.isidentifier() else None


def second_iteration(step: Step, first: Step, between_s: float) -> Step:
    """Iteration 2 where its time is the mean of the first two: newer Megatron does not reset its timers and losses
    after iteration 1 (training_log, should_reset). The lines' own time stamps tell which it is."""
    printed, before = step.step_time_s, first.step_time_s
    if first.iteration != 1 or printed is None or before is None:
        return step
    own = 2 * printed - before
    if own <= 0 or abs(between_s - own) > 0.25 * abs(between_s - printed):
        return step
    flags = ("step_time_s:recovered", "tflops_per_gpu:interval_mean", "loss:interval_mean")
    metrics = {**step.metrics, "step_time_s_running_mean": printed}
    return replace(step, step_time_s=own, flags=flags, metrics=metrics, interval_steps=None)


def parameters(line: int, text: str) -> Iterator[Fact]:
    """How many parameters a rank holds."""
    found = _PARAMETERS.search(text)
    if found is not None:
        yield Fact("parameters_by_rank", {f"{found[1]},{found[2]}": int(found[3])}, line)


def validation(line: int, text: str) -> Iterator[Validation]:
    """A validation or test point, after an iteration or at the end of training."""
    found = _VALIDATION.search(text)
    if found is None:
        return
    values: dict[str, float] = {}
    for name, what, printed in _VALUE.findall(text[found.end() :]):
        value = number_of(printed)
        if value is not None:
            values[f"{name.strip().replace(' ', '_')}_{what.lower()}"] = value
    loss = values.pop("lm_loss_value", None)
    test = "test" in found[0] or found[2] == "test" or "on test set" in text
    iteration = int(found[1]) if found[1] else None
    step = None if iteration is None else iteration - 1
    split = "test" if test else "valid"
    yield Validation(line=line, step=step, iteration=iteration, loss=loss, split=split, metrics=values)


def memory(line: int, text: str) -> Iterator[Fact]:
    """The highest memory of a rank, by rank, in bytes."""
    found = _MEMORY.search(text)
    if found is None:
        return
    for part in text[found.end() :].split("|"):
        name, _, printed = part.partition(":")
        target, value = _MEMORY_FIELDS.get(name.strip()), number_of(printed.strip())
        if target is not None and value is not None:
            yield Fact(target, {found[1]: round(value * _MEMORY_UNIT[found[3]])}, line)


def prose(line: int, text: str) -> Iterator[Setting]:
    """What is said of layout, vocabulary and the type of the parameters outside the dump."""
    dtype = _DTYPE.search(text)
    if dtype is not None:
        yield Setting("params_dtype", dtype[1], line)
    padded = _PADDED.search(text)
    if padded is not None:
        yield Setting("padded_vocab_size", int(padded[1]), line)
    if "using world size" in text:
        for name, pattern in _WORLD.items():
            found = pattern.search(text)
            if found is not None:
                yield Setting(name, int(found[1]), line)


def seconds_of(text: str) -> float | None:
    """Seconds that the first time stamp of a line tells, from some fixed day on."""
    found = _TIME.search(text)
    if found is None:
        return None
    from datetime import datetime

    try:
        moment = datetime(*(int(part) for part in found.groups()[:6]))  # type: ignore[arg-type]
    except ValueError:
        return None
    return (moment - datetime(2000, 1, 1)).total_seconds() + float(found[7] or 0)
