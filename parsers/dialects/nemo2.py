"""The dialect of NeMo 2, where it prints a line a step (nemo/lightning/pytorch/callbacks/progress_printer.py).

`Training epoch 0, iteration 1/7 | lr: 0.0005 | global_batch_size: 4 | global_step: 1 | reduced_train_loss: 6.976 | …`
Counts from 0; iteration begins anew with every epoch, global_step does not; 4 significant digits, integers without
a point; which fields there are, and in which order, varies. With a log interval k all but global_step are means over k.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from parsers.dialects.megatron import parameters
from parsers.driver import Dialect, Driver, Values, glued
from parsers.events import Event, Fact, Setting
from parsers.record import Step, Validation
from parsers.text import body
from parsers.values import count, literal, number, step_fields

# nemo/lightning/megatron_init.py, in NeMo 1 modules/common/megatron/megatron_init.py: of rank 0, the ranks of a group.
_GROUP = re.compile(r"Rank 0 has ([a-z ]{4,40}group) ?: ?\[([\d, ]{1,60000})\]")
# NeMo 1 says of each field of Megatron's TransformerConfig that is not in its configuration that it keeps its default.
_DEFAULT = re.compile(r"MegatronGPTModel\(\) does not have field\.name: (\w{1,60}) in its cfg")
_DEFAULTS: Mapping[str, tuple[str, object]] = {
    "num_moe_experts": ("num_experts", None),
    "multi_latent_attention": ("multi_latent_attention", False),
    "mtp_num_layers": ("mtp_num_layers", None),
    "window_size": ("window_size", None),
}
STARTUP = (
    *(b"`Trainer.fit` stopped", b"GLOBAL_RANK: 0, MEMBER", b"Rank 0 has", b"Padded vocab_size"),
    *(b"number of parameters on (tensor", b"OptimizerConfig(", b"DistributedDataParallelConfig("),
    *(b"You are using a CUDA device", b"of microbatches to constant", b"of micro-batches to constant"),
    *(b"distributed_backend=", b": NVIDIA ", b"MegatronGPTModel() does not have field.name: "),
)
SETTINGS = (
    r"GLOBAL_RANK: 0, MEMBER: \d{1,7}/(?P<world_size>\d{1,7})",
    r"Padded vocab_size: (?P<padded_vocab_size>\d{1,9}), original vocab_size: (?P<vocab_size>\d{1,9})",
    r"number of micro-?batches to constant (?P<num_micro_batches>\d{1,7})",
    r"^distributed_backend=(?P<distributed_backend>\w{1,20})\s*$",
)
FACTS = (
    r"You are using a CUDA device \('(?P<device_name>[^']{1,100})'\)",
    r"^GPU \d{1,3}: (?P<device_name>[^()]{1,100}) \(UUID",  # nvidia-smi -L
    r"`Trainer\.fit` stopped: `max_(?P<completed>steps|epochs)=\d{1,12}` reached",
    r"`Trainer\.fit` stopped: `max_steps=(?P<train_iters>\d{1,12})` reached",
)

_HEAD = re.compile(r"Training epoch {1,12}(\d{1,12}), iteration {1,12}(\d{1,12})/(\d{1,12}) ?\|?")
# Which of several is the run's need, and what it is a maximum of.
_MEMORY: Mapping[str, str] = {
    "max_memory_reserved_bytes": "reserved",
    "peak_memory_usage_bytes": "reserved",
    "max_memory_allocated_bytes": "allocated",
}
_MEANS = ("lr", "step_time_s", "loss", "grad_norm", "tokens_per_s_per_gpu", "tflops_per_gpu")
_ALWAYS = {"global_step", "reduced_train_loss"}
_MOST_PIECES = 8
_CUT = (":", "|", ".", "-", "+", "e", ",")
_TAIL = re.compile(r"[\d.e+-]{1,12}")


class NemoDriver(Driver):
    """What NeMo 1 and NeMo 2 both print before they train: process groups, Megatron's config objects, sizes."""

    def other(self, line: int, text: str) -> Iterator[Event]:
        plain = body(text)
        yield from super().other(line, plain)
        yield from parameters(line, plain)
        group, default = _GROUP.search(plain), _DEFAULT.search(plain)
        if group is not None and group[1] in self.dialect.known:
            yield Setting(self.dialect.known[group[1]].name, group[2].count(",") + 1, line)
        if default is not None and default[1] in _DEFAULTS:
            yield Setting(*_DEFAULTS[default[1]], line)
        for kind in ("OptimizerConfig", "DistributedDataParallelConfig"):
            if f"{kind}(" in plain:
                yield from self._config(line, plain.partition(f"{kind}(")[2], kind)

    def _config(self, line: int, text: str, kind: str) -> Iterator[Setting]:
        # A dataclass as Python shows it: of several fields of one name, in nested objects, the first is the config's.
        seen = set()
        for part in text.split(", "):
            name, _, printed = part.partition("=")
            value = literal(printed.rstrip(")").strip("'"))
            setting = self.dialect.known.get(f"{kind}.{name}")
            if setting is not None and name not in seen and value is not None:
                seen.add(name)
                yield Setting(setting.name, value, line)


class _Before(NamedTuple):
    step: int
    iteration: int | None


class _Driver(NemoDriver):
    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect)
        self._previous: _Before | None = None
        self._open: Values | None = None  # the first step, while the log interval is not known
        self._fields = 0
        self._names: list[str] = []
        self._wraps = True  # until the first line shows that it stands on one
        self._waiting: list[str] = []
        self._waiting_at = 0
        self._train_iters: int | None = None
        self._val_loss: float | None = None

    def feed(self, number: int, text: str) -> Iterable[Event]:
        parts = glued(_HEAD, text)
        return self._line(number, text) if len(parts) < 2 else [e for part in parts for e in self._line(number, part)]

    def _line(self, number: int, text: str) -> Iterable[Event]:
        head = _HEAD.search(text)
        if head is not None:
            before = tuple(self._release())
            if self._wraps or text.count("|") < self._fields or text.endswith(_CUT):
                return (*before, *self._wait(number, text[head.start() :]))
            return (*before, *self._events(number, text, head))
        if self._waiting and len(self._waiting) < _MOST_PIECES and _continues(body(text)):
            return self._wait(self._waiting_at, body(text))
        return (*self._release(), *self.other(number, text))

    def end(self) -> Iterable[Event]:
        events = tuple(self._release())
        values, self._open = self._open, None
        if values is None:
            return events
        _average(values, None)
        return (*events, self._settled(values))

    def _release(self) -> Iterable[Event]:
        waiting, self._waiting = self._waiting, []
        text = "".join(waiting)
        head = _HEAD.search(text)
        if head is None:
            return ()
        self._wraps = len(waiting) > 1
        return self._events(self._waiting_at, text, head)

    def _wait(self, number: int, text: str) -> Iterable[Event]:
        # A terminal that wraps cuts anywhere: what is less than the line before, or the first of all, may go on in
        # the next line.
        self._waiting.append(text)
        self._waiting_at = number
        text = "".join(self._waiting)
        names = _names(text)
        shorter = names == self._names[: len(names)] and names != self._names
        if self._wraps or shorter or text.rstrip().endswith(_CUT) or not set(names) >= _ALWAYS:
            self.wants = 1
            return ()
        return self._release()

    def _events(self, line: int, text: str, head: re.Match[str]) -> Iterator[Event]:
        values = _values(text, head)
        if values is None:
            return
        values["line"] = line
        if text.count("|") != self._fields:
            self._fields, self._names = text.count("|"), _names(text)
        total = int(head[3]) + 1  # the printer's total - 1; that of an epoch where training has no max_steps
        if values["step"] < total != self._train_iters:
            self._train_iters = total
            yield Fact("train_iters", total, line)
        # val_loss stays on the lines until the next validation: it is new where it changes, and came before this step.
        loss = values["metrics"].pop("val_loss", None)
        others = {name: values["metrics"].pop(name) for name in tuple(values["metrics"]) if name.startswith("val_")}
        if loss is not None and loss != self._val_loss:
            before = (None, None) if self._previous is None else (self._previous.step, self._previous.iteration)
            self._val_loss = loss
            yield Validation(line=line, step=before[0], iteration=before[1], loss=loss, metrics=others)
        if self._open is not None:
            first, self._open = self._open, None
            _average(first, _gap(first["step"], values["step"]))
            yield self._settled(first)
        if _is_own(values):
            values["interval_steps"] = 1
        elif self._previous is None and values["step"]:
            self._open = values
            return
        else:
            _average(values, _gap(self._previous.step, values["step"]) if self._previous is not None else 1)
        yield self._settled(values)

    def _settled(self, values: Values) -> Step:
        step = Step(**values)
        self._previous = _Before(step.step, step.iteration)
        return step


def _is_own(values: Mapping[str, Any]) -> bool:
    """Whether consumed_samples shows that the values are the step's own: it is (global_step + 1) * global_batch_size
    then, and a line that was lost or grepped away changes nothing about it."""
    own = (values["step"] + 1) * (values.get("global_batch_size") or 0)
    return bool(own) and values.get("consumed_samples") == own


def _gap(before: int, after: int) -> int | None:
    return after - before if after > before else None


def _average(values: Values, gap: int | None) -> None:
    """Add what follows from the steps since the line before: with a log interval k, k divides iteration + 1."""
    if gap == 1:
        values["interval_steps"] = 1
        return
    values["lr_used"] = values["consumed_samples"] = None
    if gap is not None and (values["iteration"] + 1) % gap == 0:
        values["interval_steps"] = gap
        values["flags"] = tuple(f"{name}:interval_mean" for name in _MEANS if values.get(name) is not None)


def _values(text: str, head: re.Match[str]) -> Values | None:
    parts = text[head.end() :].rstrip().split("|")
    if parts[-1].endswith("."):
        parts.pop()  # "46.": a number cut short, and a wrong one
    pairs = [part.rstrip().rpartition(": ") for part in parts]
    values = step_fields([(name.lstrip(), printed) for name, _, printed in pairs], DIALECT.columns)
    iteration = int(head[2])
    if values.get("step") is None:
        if head[1] != "0":
            return None  # in a later epoch the iteration alone does not give the step
        values["step"] = iteration
    values["iteration"] = iteration
    # The parameter groups' rate, logged before the scheduler steps: the one that this step uses (nvidia.md, section 4).
    values["lr_used"] = values.get("lr")
    for name, kind in _MEMORY.items() if values["metrics"] else ():
        # 0 bytes is what a stand-in for torch.cuda answers: no measurement.
        if values["metrics"].get(name):
            values["memory_bytes"], values["memory_kind"] = int(values["metrics"][name]), kind
            break
    return values


def _names(text: str) -> list[str]:
    return [part.rpartition(":")[0].strip() for part in text.split("|")[1:] if ":" in part]


def _continues(text: str) -> bool:
    """Whether a line can be the rest of a wrapped one: fields that we know, or the tail of a number."""
    first, bar, _ = text.strip().partition("|")
    name = first.rpartition(": ")[0].strip()
    known = bool(name) and any(column.endswith(name) for column in DIALECT.columns)
    return known or (bool(bar) and len(first) < 40) or bool(_TAIL.fullmatch(first))


def _parse(text: str) -> Values | None:
    head = _HEAD.search(text)
    return None if head is None else _values(text, head)


DIALECT = Dialect(
    framework="nemo",
    rate_of=(0,),
    looks_for="NeMo 2: lines 'Training epoch 0, iteration 1/7 | lr: … | global_step: … | reduced_train_loss: …'",
    signs=(b"Training epoch ",),
    marks=(b"Training epoch ", b"heckpoint save for step", b"Global Checkpoint Save"),
    startup=STARTUP,
    columns={
        "lr": ("lr", number),
        "global_step": ("step", count),
        "global_batch_size": ("global_batch_size", count),
        "reduced_train_loss": ("loss", number),
        "grad_norm": ("grad_norm", number),
        "consumed_samples": ("consumed_samples", count),
        "train_step_timing in s": ("step_time_s", number),
        "tokens_per_sec_per_gpu": ("tokens_per_s_per_gpu", number),
        "TFLOPS_per_GPU": ("tflops_per_gpu", number),
        "tflops_per_sec_per_gpu": ("tflops_per_gpu", number),
        **{name: (name, number) for name in ("val_loss", "val_ppl", "val_acc", "val_mse")},
        "max_memory_reserved": ("max_memory_reserved_bytes", count),
        "max_memory_allocated": ("max_memory_allocated_bytes", count),
        "peak_memory_usage": ("peak_memory_usage_bytes", count),
        "memory_allocated": ("memory_allocated_bytes", count),
    },
    settings=SETTINGS,
    facts=FACTS,
    stalls={
        "checkpoint": (
            r"Global Checkpoint Save : Rank: 0 : Iteration: (?P<iteration>\d{1,12}) .{0,80}"
            r"Save duration: (?P<seconds>[\d.]{1,20})s"
        ),
        "asynchronous checkpoint": (r"heckpoint save for step (?P<iteration>\d{1,12}) .{0,600}finalized successfully"),
    },
    driver=_Driver,
    parse=_parse,
)
