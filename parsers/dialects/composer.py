"""The dialect of Composer and llm-foundry (composer/loggers/console_logger.py): one number a line, a record a batch.

`[batch=36/100]:` and below it `Train time/batch: 35`, `Train loss/train/total: 7.9516`, …, four digits after the
point: a learning rate of 0.0000 is below 0.00005, not zero. batch counts from 1, time/batch from 0. The throughput/
figures are means over speed_monitor's window and appear once it is full. Memory is in units of 1e9 bytes
(memory_monitor.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from conf.vocabulary import printed
from parsers.events import Event, Fact, Reader, Setting
from parsers.fields import Column, commas, number, step_fields, whole
from parsers.record import Step, Validation
from parsers.text import body
from parsers.values import literal

FRAMEWORK = "composer"
LOOKS_FOR = "Composer: records '[batch=1/100]:' with lines 'Train loss/train/total: …'"
SIGNS = (b"Train loss/train/", b"Train time/batch: ")
MARKS = (b"[batch=", b"[token=", b"[sample=", b"Eval ", b" Train ")
STARTUP = (
    b"Done.",
    *(b"max_seq_len: ", b"d_model: ", b"n_heads: ", b"n_layers: ", b"global_train_batch_size: ", b"precision: amp"),
    *(b"train_microbatch_size: ", b"sharding_strategy: ", b"n_gpus: ", b"n_params: ", b"num_gpus_per_node: "),
    b"num_nodes: ",
)
COMPANION = False

_HEAD = re.compile(r"(?:\[epoch=(\d{1,9})\])?\[(batch|token|sample)=(\d{1,18})(?:/(\d{1,18}))?\]:\s*$")
_EVAL_HEAD = re.compile(r"\[Eval batch=(\d{1,12})/(\d{1,12})\] Eval on (.{1,80}?) data:?\s*$")
_ENTRY = re.compile(r"^\s{0,20}(Train|Eval) ([\w./ -]{1,120}): (\S{1,60})\s*$")
_CONFIG = re.compile(r"^\s{0,12}(\w{1,40}): (\S{1,60})\s*$")


def _gigabytes(text: str) -> int | None:
    value = number(text)
    return None if value is None else round(value * 1e9)


_COLUMNS: Mapping[str, Column] = {
    "time/batch": ("step", whole),
    "time/sample": ("consumed_before", whole),
    "loss/train/total": ("loss", number),
    "memory/peak_reserved_mem": ("memory_bytes", _gigabytes),
    "memory/reserved_mem": ("reserved_bytes", _gigabytes),
    "memory/allocated_mem": ("allocated_bytes", _gigabytes),
    "metrics/train/LanguageCrossEntropy": ("cross_entropy", number),
    "throughput/tokens_per_sec": ("tokens_per_s_running_mean", commas),
    "throughput/device/tokens_per_sec": ("tokens_per_s_per_gpu_running_mean", commas),
    "throughput/batches_per_sec": ("steps_per_s_running_mean", number),
    "throughput/device/flops_per_sec": ("flops_per_s_per_gpu_running_mean", number),
    "throughput/device/mfu": ("mfu_running_mean", number),
    "l2_norm/grad/global": ("grad_norm", number),
}
_ENTRY_HINT = "/"  # every entry that is read has one in its name
_MOST_ENTRIES = 400
_FACTS: Mapping[str, str] = {
    "n_params": "parameters",
    "precision": "precision",
    "sharding_strategy": "sharding_strategy",
    "num_gpus_per_node": "gpus_per_node",
    "num_nodes": "num_nodes",
}


def read_step(line: int, text: str) -> Step | None:
    """None: no line tells a step, the record below its head does."""
    return None


def reader() -> Reader:
    """A reader for one log."""
    return _Reader()


class _Reader:
    def __init__(self) -> None:
        self.wants = 0
        self._head: re.Match[str] | None = None
        self._evaluates = False
        self._at = 0
        self._entries: dict[str, str] = {}
        self._total: int | None = None
        self._micro: str | None = None
        self._last: tuple[int, int | None] | None = None

    def feed(self, number: int, text: str) -> Iterable[Event]:
        if self._head is not None and _ENTRY_HINT in text:
            entry = _ENTRY.match(text) or _ENTRY.match(body(text))
            if entry is not None:
                if (entry[1] == "Eval") == self._evaluates and len(self._entries) < _MOST_ENTRIES:
                    self._entries.setdefault(entry[2], entry[3])
                return ()
        train, evaluation = _HEAD.search(text), _EVAL_HEAD.search(text)
        if train is None and evaluation is None:
            return self._other(number, text)
        told = tuple(self.end())
        self._head, self._evaluates, self._at = train or evaluation, train is None, number
        return told

    def end(self) -> Iterable[Event]:
        head, entries = self._head, self._entries
        self._head, self._entries = None, {}
        if head is None or not entries:
            return ()
        return self._validated(head, entries) if self._evaluates else self._told(head, entries)

    def _told(self, head: re.Match[str], entries: dict[str, str]) -> Iterator[Event]:
        values = _values(head, entries)
        if values is None:
            return
        batches = head[2] == "batch" and head[1] is None
        total = int(head[4]) if batches and head[4] is not None else None
        if total is not None and total != self._total:
            self._total = total
            yield Fact("train_iters", total, self._at)
        micro = entries.get("trainer/device_train_microbatch_size")
        if micro is not None and micro != self._micro and micro.isdecimal():
            self._micro = micro
            yield Setting("micro_batch_size", int(micro), self._at)
        self._last = values["step"], values["iteration"]
        yield Step(line=self._at, **values)

    def _validated(self, head: re.Match[str], entries: dict[str, str]) -> Iterator[Event]:
        if head[1] != head[2]:
            return  # under way
        step, iteration = self._last or (None, None)
        names = {name: number(shown) for name, shown in entries.items() if name.startswith("metrics/")}
        found = {name.rpartition("/")[2]: value for name, value in names.items() if value is not None}
        loss = found.get("LanguageCrossEntropy")
        yield Validation(line=self._at, step=step, iteration=iteration, loss=loss, split=head[3], metrics=found)

    def _other(self, line: int, text: str) -> Iterator[Event]:
        plain = body(text)
        # The last line of llm-foundry's train.py.
        if (plain.strip() == "Done." or plain.rstrip().endswith(".train: Done.")) and (
            self._last is not None or self._head is not None
        ):
            yield Fact("completed", True, line)
        found = _CONFIG.match(plain)
        if found is None or found[2].startswith("${"):
            return
        value = literal(found[2])
        if found[1] in printed(FRAMEWORK) and isinstance(value, int) and not isinstance(value, bool):
            yield Setting(printed(FRAMEWORK)[found[1]].name, value, line)
        elif found[1] in _FACTS:
            yield Fact(_FACTS[found[1]], value, line)


def _values(head: re.Match[str], entries: Mapping[str, str]) -> dict[str, Any] | None:
    values = step_fields(entries.items(), _COLUMNS)
    iteration = int(head[3]) if head[2] == "batch" and head[1] is None else None
    if values.get("step") is None:
        if iteration is None or iteration < 1:
            return None
        values["step"] = iteration - 1
    values["iteration"] = iteration
    rates = [shown for name, shown in entries.items() if name.startswith("lr-") and name.endswith("/group0")]
    values["lr"] = number(rates[0]) if len(rates) == 1 else None
    values["interval_steps"] = 1
    values["memory_kind"] = "reserved" if values.get("memory_bytes") is not None else None
    values["metrics"].pop("consumed_before", None)
    return values
