"""The dialect of Megatron-LM and Megatron-Core, 2021 to today, and of our own engine.

Not read yet: validation lines, timers, per-rank memory reports.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from parsers.events import Argument, Event, Fact, Reader
from parsers.record import Step
from parsers.values import integer, is_nonfinite, literal, number

FRAMEWORK = "megatron"
LOOKS_FOR = "Megatron: lines 'iteration N/ TOTAL | consumed samples: … |', or its '---- arguments ----' dump"

_ITERATION = re.compile(r"iteration\s{1,20}(\d{1,12})/\s{0,20}(\d{1,12}) \|")
_PARAMETERS = re.compile(
    r"number of parameters on \(tensor, pipeline\) model parallel rank \((\d{1,6}), (\d{1,6})\): (\d{1,18})"
)
# Printed after the last iteration (megatron/training/training.py, print_datetime("after training is done")).
_COMPLETED = "[after training is done]"


def _milliseconds(text: str) -> float | None:
    value = number(text)
    return None if value is None else value / 1000


_FIELDS: Mapping[str, tuple[str, Callable[[str], float | int | None]]] = {
    "consumed samples": ("consumed_samples", integer),
    "elapsed time per iteration (ms)": ("step_time_s", _milliseconds),
    "throughput per GPU (TFLOP/s/GPU)": ("tflops_per_gpu", number),
    "learning rate": ("lr", number),
    "global batch size": ("global_batch_size", integer),
    "lm loss": ("loss", number),
    "loss scale": ("loss_scale", number),
    "grad norm": ("grad_norm", number),
    "number of skipped iterations": ("skipped", integer),
    "number of nan iterations": ("nan", integer),
}


def read_step(line: int, text: str) -> Step | None:
    """The step that this one line tells, without what only its neighbours tell."""
    found = _found(text)
    return None if found is None else _step(line, text, found)


def reader() -> Reader:
    """A reader for one log."""
    return _Reader()


class _Reader:
    def __init__(self) -> None:
        self._in_dump = False
        self._previous: Step | None = None

    def feed(self, number: int, text: str) -> Iterator[Event]:
        found = _found(text)
        if found is not None:
            yield Fact("train_iters", int(found[2]), number)
            self._previous = self._with_lr_used(_step(number, text, found))
            yield self._previous
        elif "arguments ----" in text:
            self._in_dump = "end of arguments" not in text
        elif self._in_dump:
            yield from _argument(number, text)
        elif _COMPLETED in text:
            yield Fact("completed", True, number)
        elif "number of parameters on" in text:
            yield from _parameters(number, text)

    def _with_lr_used(self, step: Step) -> Step:
        # Megatron prints the rate after scheduler.step, which is the next step's (training.py: train_step ends with
        # opt_param_scheduler.step, training_log comes after): what this step used stands in the line before.
        previous = self._previous
        follows = previous is not None and previous.iteration == step.iteration - 1
        return replace(step, lr_used=previous.lr) if follows and previous is not None else step


def _found(text: str) -> re.Match[str] | None:
    return _ITERATION.search(text) if "iteration" in text else None


def _step(line: int, text: str, found: re.Match[str]) -> Step:
    iteration = int(found[1])
    values: dict[str, Any] = {}
    nonfinite: list[str] = []
    # Every field is closed by a bar: what follows the last one is a number cut short, and a wrong number.
    for part in text[found.end() :].split("|")[:-1]:
        name, _, printed = part.partition(":")
        if name.strip() in _FIELDS:
            target, convert = _FIELDS[name.strip()]
            values[target] = convert(printed.strip())
            if is_nonfinite(printed.strip()):
                nonfinite.append(target)
    return Step(step=iteration - 1, line=line, iteration=iteration, nonfinite=tuple(nonfinite), **values)


def _argument(line: int, text: str) -> Iterator[Argument]:
    # "  name ...... value": dots fill up to column 48 (megatron/training/arguments.py, _print_args). Plain string
    # operations: a regular expression for "a word before dots" is quadratic in a line of one long word.
    head, dots, rest = text.partition(" ..")
    name = head.split()[-1] if head.split() else ""
    if dots and name.isidentifier():
        yield Argument(name, literal(rest.lstrip(".").strip()), line)


def _parameters(line: int, text: str) -> Iterator[Fact]:
    found = _PARAMETERS.search(text)
    if found is not None:
        yield Fact("parameters_by_rank", {f"{found[1]},{found[2]}": int(found[3])}, line)
