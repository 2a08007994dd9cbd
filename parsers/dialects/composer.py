"""Composer and llm-foundry (composer/loggers/console_logger.py): one number a line, a record a batch.

`[batch=36/100]:` and below it `Train time/batch: 35`, `Train loss/train/total: 7.9516`, …, four digits after the
point: a learning rate of 0.0000 is below 0.00005, not zero. batch counts from 1, time/batch from 0. The throughput/
figures are means over speed_monitor's window and appear once it is full. Memory is in units of 1e9 bytes
(memory_monitor.py).

Up to 0.11 (2022) each number stands behind a head of its own: `[batch=35/100]: loss/train/total: 7.9516`. A step begins
with trainer/global_step, counted from 0; what is behind its last batch (rate, wall clock) has the next batch in its
head. Evaluations begin so, too. Memory is in bytes, up to 0.12."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from parsers.driver import Dialect, Driver, Event, Fact, Setting
from parsers.record import Step, Validation
from parsers.text import body
from parsers.values import commas, count, integer, number, step_fields, whole

_HEAD = re.compile(r"(?:\[epoch=(\d{1,9})\])?\[(batch|token|sample)=(\d{1,18})(?:/(\d{1,18}))?\]:\s*$")
_EVAL_HEAD = re.compile(r"\[Eval batch=(\d{1,12})/(\d{1,12})\] Eval on (.{1,80}?) data:?\s*$")
_ALONE = re.compile(
    r"(?:\[epoch=(\d{1,9})\])?\[(batch|token|sample)=(\d{1,18})(?:/(\d{1,18}))?\]: ([\w./-]{1,120}): (\S{1,60})\s{0,9}$"
)
_ENTRY = re.compile(r"^\s{0,20}(Train|Eval) ([\w./ -]{1,120}): (\S{1,60})\s*$")


def _gigabytes(text: str) -> int | None:
    exact = integer(text)
    return whole(number(text), 10**9) if exact is None else exact


def _allocated(text: str) -> int | None:
    return None if text.isdecimal() else _gigabytes(text)  # the sum of all that was ever allocated


class _Driver(Driver):
    """Gathers the entries below a head; the next head, or the log's end, closes the record."""

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect)
        self._head_of_record: re.Match[str] | None = None
        self._at = 0
        self._evaluates = False
        self._entries: dict[str, str] = {}
        self._last: tuple[int, int | None] | None = None

    def feed(self, number: int, text: str) -> Iterable[Event]:
        if self._head_of_record is not None and "/" in text:
            entry = _ENTRY.match(text) or _ENTRY.match(body(text))  # every entry that is read has a "/" in its name
            if entry is not None:
                which, name, printed = entry.groups()
                if (which == "Eval") == self._evaluates and len(self._entries) < 400:
                    self._entries.setdefault(name, printed)
                return ()
        head = _HEAD.search(text) or _EVAL_HEAD.search(text)
        if head is None and (alone := _ALONE.search(text)) is not None:
            return self._entry(number, alone)
        if head is None:
            return self.other(number, body(text))
        events = tuple(self.end())
        self._head_of_record, self._at, self._evaluates = head, number, "Eval" in head[0]
        return events

    def end(self) -> Iterable[Event]:
        head, entries = self._head_of_record, self._entries
        self._head_of_record, self._entries = None, {}
        if head is None or not entries:
            return ()
        if head.re is not _ALONE:
            return self._validation(head, entries) if "Eval" in head[0] else self._batch(head, entries)
        if "loss/train/total" in entries:
            return self._batch(head, entries)
        splits = [
            name.split("/")[1] for name in entries if name.startswith("metrics/") and "metrics/train/" not in name
        ]
        return [self._point(entries, splits[0])] if splits else ()

    def _entry(self, number: int, match: re.Match[str]) -> Iterable[Event]:
        """Return the events of a number behind a head of its own."""
        events = tuple(self.end()) if match[5] == "trainer/global_step" else ()
        if self._head_of_record is None or not self._entries:
            self._head_of_record, self._at = match, number
        if len(self._entries) < 400:
            self._entries.setdefault(match[5], match[6])
        return events

    def other(self, line: int, text: str) -> Iterator[Event]:
        # The last line of llm-foundry's train.py.
        done = text.strip() == "Done." or text.rstrip().endswith(".train: Done.")
        if done and (self._last or self._head_of_record):
            yield Fact("completed", True, line)
        yield from super().other(line, text)

    def _batch(self, head: re.Match[str], entries: dict[str, str]) -> Iterator[Event]:
        batches = head[2] == "batch" and head[1] is None
        iteration = int(head[3]) if batches else None
        columns = self.dialect.columns
        values = step_fields((*columns[name], printed) for name, printed in entries.items() if name in columns)
        if values.get("step") is None:
            if iteration is None or (step := iteration - (head.re is _HEAD)) < 0:
                return
            values["step"] = step
        if batches and head[4] is not None:
            yield Fact("train_iters", int(head[4]), self._at)
        micro = entries.get("trainer/device_train_microbatch_size", "")
        if micro.isdecimal():
            yield Setting("micro_batch_size", int(micro), self._at)
        rates = [printed for name, printed in entries.items() if name.startswith("lr-") and name.endswith("/group0")]
        values["lr"] = number(rates[0]) if len(rates) == 1 else None
        values["memory_kind"] = "reserved" if values.get("memory_bytes") is not None else None
        self._last = values["step"], iteration
        yield Step(line=self._at, iteration=iteration, interval_steps=1, **values)

    def _validation(self, head: re.Match[str], entries: dict[str, str]) -> Iterator[Event]:
        if head[1] != head[2]:
            return  # under way
        yield self._point(entries, head[3])

    def _point(self, entries: dict[str, str], split: str) -> Validation:
        step, iteration = self._last or (None, None)
        printed = {name: number(text) for name, text in entries.items() if name.startswith("metrics/")}
        metrics = {name.rpartition("/")[2]: value for name, value in printed.items() if value is not None}
        loss = metrics.get("LanguageCrossEntropy")
        return Validation(line=self._at, step=step, iteration=iteration, loss=loss, split=split, metrics=metrics)


DIALECT = Dialect(
    framework="composer",
    looks_for="Composer: records '[batch=1/100]:' with lines 'Train loss/train/total: …'",
    signs=(
        *(b"Train loss/train/", b"Train time/batch: ", b"]: loss/train/total: ", b"]: trainer/global_step: "),
        b" composer.trainer.trainer: ",  # before the first step, too
    ),
    marks=(b"[batch=", b"[token=", b"[sample=", b"Eval ", b" Train "),
    startup=(
        b"Done.",
        *(b"max_seq_len: ", b"d_model: ", b"n_heads: ", b"n_layers: ", b"global_train_batch_size: "),
        *(b"precision: amp", b"train_microbatch_size: ", b"sharding_strategy: ", b"n_gpus: ", b"n_params: "),
        *(b"num_gpus_per_node: ", b"num_nodes: "),
    ),
    columns={
        "time/batch": ("step", count),
        "trainer/global_step": ("step", count),
        "loss/train/total": ("loss", number),
        "memory/peak_reserved_mem": ("memory_bytes", _gigabytes),
        "memory/reserved_mem": ("reserved_bytes", _gigabytes),
        "memory/allocated_mem": ("allocated_bytes", _allocated),
        "metrics/train/LanguageCrossEntropy": ("cross_entropy", number),
        "throughput/tokens_per_sec": ("tokens_per_s_running_mean", commas),
        "throughput/device/tokens_per_sec": ("tokens_per_s_per_gpu_running_mean", commas),
        "throughput/batches_per_sec": ("steps_per_s_running_mean", number),
        "throughput/device/flops_per_sec": ("flops_per_s_per_gpu_running_mean", number),
        "throughput/device/mfu": ("mfu_running_mean", number),
        "l2_norm/grad/global": ("grad_norm", number),
    },
    entry=r"^\s{0,12}(\w{1,40}): ((?!\$\{)\S{1,60})\s*$",
    printed_facts={
        **{name: name for name in ("precision", "sharding_strategy", "num_nodes")},
        "n_params": "parameters",
        "num_gpus_per_node": "gpus_per_node",
    },
    driver=_Driver,
)
