"""nanotron (src/nanotron/trainer.py, train_step_logs).

`iteration: 211364 / 1500000 | consumed_tokens: 480B | time_per_iteration_ms: 8.79K | tokens_per_sec_per_gpu: 699 | …`
Counts from 1. Numbers have 3 significant digits and a letter (human_format: K M B T, powers of 1,000); the time is the
iteration's own, after a barrier. global_batch_size is in tokens since 2024, in samples before.
The first rank prints its Config before, as Python shows a dataclass: `parallelism=ParallelismArgs(dp=1,` on a line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial

from parsers.driver import Cut, Dialect, Driver, Event, Setting, Values
from parsers.values import POWERS, human, literal, whole

_human_ms = partial(human, shift=-3)
POWERS[_human_ms] = {letter: power - 3 for letter, power in POWERS[human].items()}


def _batch(values: Values, text: str) -> Values | None:
    """Say which unit the batch is in: rate times time is the tokens of a step, to three digits."""
    if values.get("loss") is None and "loss" not in values["nonfinite"]:
        return None  # cut before the loss
    metrics = values["metrics"]
    batch = metrics.pop("printed_batch_size", None)
    tokens_per_step = metrics.get("tokens_per_s", 0.0) * (values.get("step_time_s") or 0.0)
    if batch is not None and tokens_per_step:
        if abs(batch - tokens_per_step) < 0.03 * tokens_per_step:
            metrics["tokens_per_step"] = batch
        elif 0 <= batch < 1000:  # above, human_format has rounded it
            values["global_batch_size"] = int(batch)
    return values


_PREFIX = re.compile(r"\[\w{1,10}(\|DP=[^\]]{1,120})\]: ?")
# A field and what it has: an object, which opens, or a value; else a bracket.
_TOKEN = re.compile(
    r"(\w{1,60})=(?:\w{1,60}(\()|('[^']{0,300}'|<[^<>]{0,300}>|[^\s,()\[\]'<]{1,60}))|[()]|'[^']{0,300}'"
)
_GAP = 60  # lines of others that may stand between two of the Config
_DEEPEST = 30


class _Driver(Driver):
    """Reads the Config: which field stands in which object."""

    _left = 0
    _rank = ""
    _path: tuple[str, ...] = ()
    _read = ""  # the last line of the Config

    def step(self, line: int, values: Values, text: str) -> Iterable[Event]:
        step = super().step(line, values, text)
        if "Saving checkpoint at " not in text:
            return step
        # A line's end came late: its number may go on in the next one.
        return (*step, *(tuple(super().other(line, text)) or (Cut("checkpoint", None, line),)))

    def other(self, line: int, text: str) -> Iterator[Event]:
        prefix = _PREFIX.search(text)
        if prefix is not None and text.startswith("Config(", prefix.end()) and text != self._read:
            self._left, self._rank, self._path = _GAP, prefix[1], ()
        if not self._left:
            yield from super().other(line, text)
        elif prefix is None or prefix[1] != self._rank:
            self._left -= 1
        elif text != self._read:  # it may be printed twice
            self._left, self._read = _GAP, text
            yield from self._fields(line, text, prefix.end())
        self.wants = max(self.wants, self._left)

    def _fields(self, line: int, text: str, start: int) -> Iterable[Event]:
        for token in _TOKEN.finditer(text, start):
            name, opens, printed = token.groups()
            if opens or token[0] == "(":
                self._path = (*self._path, name or "")
            elif token[0] == ")":
                self._path = self._path[:-1]
            elif name:
                setting = self.dialect.known.get(".".join((*self._path[1:], name)))
                value = literal(printed.strip("'"))
                if setting is not None and value is not None:
                    yield Setting(setting.name, value, line)
            if not 0 < len(self._path) <= _DEEPEST:
                self._left = 0
                return


DIALECT = Dialect(
    framework="nanotron",
    rate_of=(1,),
    looks_for="nanotron: lines 'iteration: 10 / 100 | consumed_tokens: … | time_per_iteration_ms: …'",
    signs=(b" | consumed_tokens: ",),
    marks=(b"consumed_tokens: ", b"Saving checkpoint at "),
    startup=(b" | grad_accum: ", b"]: Config(", b" | batch_accum: ", b" | ep: "),
    head=r"iteration: {1,12}(\d{1,12}) / {1,12}(\d{1,12}) \|",
    fields=r"(\w{1,40}): ([^\s|]{1,30})",
    columns={
        "lm_loss": ("loss", human),
        "lr": ("lr", human),
        "grad_norm": ("grad_norm", human),
        "time_per_iteration_ms": ("step_time_s", _human_ms),
        "elapsed_time_per_iteration_ms": ("step_time_s", _human_ms),
        "tokens_per_sec_per_gpu": ("tokens_per_s_per_gpu", human),
        "model_tflops_per_gpu": ("tflops_per_gpu", human),
        "hardware_tflops_per_gpu": ("hardware_tflops_per_gpu", human),
        "tokens_per_sec": ("tokens_per_s", human),
        "consumed_tokens": ("consumed_tokens", human),
        "global_batch_size": ("printed_batch_size", human),
        "z_loss": ("z_loss", human),
        "cuda_max_memory_reserved": ("memory_bytes", lambda text: whole(human(text))),
        "cuda_memory_allocated": ("allocated_bytes", human),
    },
    memory_kind="reserved",
    prints_next_rate=True,  # training_step ends with lr_scheduler.step(), the line comes after
    adjust=_batch,
    complete=r"^(?=.{0,65536}lm_loss: ).{0,65536}tflops_per_gpu: \S",
    stalls={"checkpoint": r"Saving checkpoint at .{0,300}?/?(?P<iteration>\d{1,12})\s*$"},
    # The training plan: mbs: 4 | grad_accum: 8 | cp: 1 | sequence_length: 2048 | … | start_iteration_step: 0 | …
    entry=r"(?:^|[ |])(\w{1,40}): (\d{1,18})(?= \||\s*$)",
    printed_facts={"train_steps": "train_iters"},
    driver=_Driver,
    resumed=r"grad_accum: .{1,300}start_iteration_step: (?P<done>\d{1,12})",
)
