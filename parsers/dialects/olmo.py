"""OLMo-core (olmo_core/train/callbacks/console_logger.py) and OLMo before it (allenai/OLMo, olmo/train.py).

`[step=10/2000,epoch=1,eta=5h11m]` and below it one number a line, `    train/CE loss=6.234`; between, marks of steps
without numbers. Counts from 1. All is the step's own, but for "(actual avg)" and OLMo's speeds, means since the start
or over a window. BPS is a step's rate: its time is 1/BPS, checkpoints and evaluations between included. Four digits;
a learning rate below 0.001 has one or two. GiB; OLMo's MB are 1e6 bytes, its maximum is since the start. MFU is against
an A100 where the device is not known. OLMo-core states batches in tokens: in samples where the sequence is known."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from parsers.driver import Dialect, Driver, Event, Fact
from parsers.record import Stall, Step, Validation
from parsers.text import body
from parsers.values import Column, commas, count, gibibytes, human, number, real, step_fields, whole

_HEAD = re.compile(r"\[step=(\d{1,12})/(\d{1,12}|\?{3})(?:, ?epoch=\d{1,9})?(?:, ?eta=[\w()., -]{1,40})?\]")
_EVALUATION = re.compile(r"Finished (.{1,80}?) evals in ([\d.]{1,12}) seconds\. Metrics:\s*$")
_ENTRY = re.compile(  # behind any prefix; a comma ends a setting
    r"(?:^|\s)((?:train|optim|throughput|gpu_memory|[sS]ystem)/[\w/ ().%-]{1,80})=(\S{0,39}[^\s,])\s*$"
)
_METRIC = re.compile(r"^\s{2,24}(\w[\w/ ().%+-]{1,100})=(\S{0,39}[^\s,])\s*$")


def _letters(text: str) -> float | None:
    """Return a number as `format_float` of OLMo-core prints it: 52,428,800, 1.049B, 441.0T."""
    return human(text.replace(",", ""))


def _teraflops(text: str) -> float | None:
    return number(text[:-1]) if text.endswith("T") else None


def _seconds(rate: str) -> float | None:
    value = commas(rate)
    return real(1 / value) if value else None


class _Driver(Driver):
    """Gathers the numbers below a head; the next head, or the log's end, closes the record. Of marks without numbers
    the last one counts: metrics are collected late, and come after the marks of the steps that followed."""

    _at: tuple[re.Match[str], int] | None = None
    _mark: tuple[int, int] | None = None
    _last = 0

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect)
        self._entries: dict[str, str] = {}

    def feed(self, number: int, text: str) -> Iterable[Event]:
        heads = [*_HEAD.finditer(text), *_EVALUATION.finditer(text)]
        events = [event for head in heads for event in self._open(number, head)]
        evaluates = self._at is not None and "evals in" in self._at[0][0]
        rest = text[heads[-1].end() :] if heads else text
        entry = (_METRIC.match(body(rest)) if evaluates else _ENTRY.search(rest)) if self._at and "=" in rest else None
        if entry is not None and len(self._entries) < 400:
            self._entries.setdefault(entry[1], entry[2])
        if heads or entry is not None:
            self.wants = 2 * evaluates
            return events
        return (*self._resumed(number, text), *self.other(number, text))

    def _open(self, number: int, head: re.Match[str]) -> list[Event]:
        events = [*self._close()]
        self._at = head, number
        return events

    def end(self) -> Iterable[Event]:
        events = tuple(self._close())
        mark, self._mark = self._mark, None
        if mark is None or mark[0] <= self._last:
            return events
        self._last = mark[0]
        return (*events, Step(step=mark[0] - 1, iteration=mark[0], line=mark[1]))

    def other(self, line: int, text: str) -> Iterator[Event]:
        if "Training for " in text or "Will resume training" in text:  # another start
            yield from self.end()
            self._last = 0
        yield from super().other(line, text)

    def _close(self) -> Iterator[Event]:
        at, entries = self._at, self._entries
        self._at, self._entries = None, {}
        if at is None:
            return
        head, line = at
        if "evals in" in head[0]:
            yield from self._validation(head, line, entries) if entries else ()
            return
        iteration = int(head[1])
        if head[2].isdecimal():
            yield Fact("train_iters", int(head[2]), line)
        columns = self.dialect.columns
        values = step_fields((*columns[name], printed) for name, printed in entries.items() if name in columns)
        if not values["metrics"] and len(values) == 2:
            self._mark = max(self._mark or (0, 0), (iteration, line))
        elif iteration > 0:
            self._last = iteration
            if values.get("memory_bytes") is not None:
                values["memory_kind"] = "allocated" if "System/Peak GPU Memory (MB)" in entries else "reserved"
            yield Step(step=iteration - 1, iteration=iteration, line=line, interval_steps=1, **values)

    def _validation(self, head: re.Match[str], line: int, entries: dict[str, str]) -> Iterator[Event]:
        metrics = {name: value for name, text in entries.items() if (value := _letters(text)) is not None}
        losses = [value for name, value in metrics.items() if name.endswith("CE loss")]
        loss = losses[0] if len(losses) == 1 else None
        iteration, seconds = max(self._last, (self._mark or (0,))[0]) or None, number(head[2])
        yield Stall(line=line, kind="evaluation", iteration=iteration, seconds=seconds)
        step = None if iteration is None else iteration - 1
        yield Validation(
            line=line, step=step, iteration=iteration, loss=loss, split=head[1], seconds=seconds, metrics=metrics
        )


_CORE: dict[str, Column] = {
    "train/CE loss": ("loss", commas),
    "train/PPL": ("perplexity", _letters),
    "train/Z loss": ("z_loss", number),
    "train/load balancing loss": ("load_balancing_loss", number),
    "optim/total grad norm": ("grad_norm", _letters),
    "optim/step skipped": ("skipped", count),
    "optim/LR": ("lr", number),
    "optim/LR (group 0)": ("lr", number),
    "throughput/device/TPS": ("tokens_per_s_per_gpu", _letters),
    "throughput/device/TPS (actual avg)": ("tokens_per_s_per_gpu_running_mean", _letters),
    "throughput/device/BPS": ("step_time_s", _seconds),
    "throughput/device/MFU": ("mfu_percent", number),
    "throughput/device/flopsPS": ("tflops_per_gpu", _teraflops),
    "throughput/device/data loading (s)": ("data_time_s", number),
    "throughput/total tokens": ("consumed_tokens", _letters),
}
_MEMORY: dict[str, Column] = {
    "GPU reserved mem (GiB)": ("memory_bytes", gibibytes),
    "GPU active mem (GiB)": ("active_bytes", gibibytes),
}
_OLMO: dict[str, Column] = {
    "train/CrossEntropyLoss": ("loss", commas),
    "train/Perplexity": ("perplexity", commas),
    "train/ZLoss": ("z_loss", number),
    "optim/total_grad_norm": ("grad_norm", commas),
    "throughput/total_tokens": ("consumed_tokens", commas),
    "throughput/device/tokens_per_second": ("tokens_per_s_per_gpu_running_mean", commas),
    "throughput/device/batches_per_second": ("steps_per_s_running_mean", commas),
    "System/Peak GPU Memory (MB)": ("memory_bytes", lambda text: whole(commas(text), 10**6)),
}
_COLUMNS = _CORE | _OLMO | {f"{of}/{name}": at for of in ("gpu_memory", "system") for name, at in _MEMORY.items()}

DIALECT = Dialect(
    framework="olmo",
    looks_for="OLMo-core, OLMo: '[step=1/2000,epoch=1]' with lines 'train/CE loss=…' or 'train/CrossEntropyLoss=…'",
    signs=(b"train/CE loss=", b"train/CrossEntropyLoss=", b"olmo_core.train"),
    marks=(b"[step=", b" evals in ", b"train/", b"optim/", b"throughput/", b"gpu_memory/", b"ystem/"),
    startup=(
        *(b"Training complete", b"Training for ", b"Will resume training from step ", b"GPU capacity: "),
        *(b"Device peak Flops/s: ", b"d_model=", b"n_layers=", b"n_heads=", b"n_kv_heads=", b"sequence_length="),
        *(b"batch_size=", b"max_grad_norm=", b"Saving checkpoint for step "),
    ),
    columns=_COLUMNS,
    rate_of=(0,),
    resumed=r"Will resume training from step (?P<done>\d{1,12}),",
    stalls={"checkpoint": r"Saving checkpoint for step (?P<iteration>\d{1,12}) to "},
    settings=(
        r"^.{0,120}? {2}d_model=(?P<hidden_size>\d{1,9}),?\s*$",
        r"^.{0,120}? {2}n_layers=(?P<num_layers>\d{1,9}),?\s*$",
        r"^.{0,120}? {2}n_heads=(?P<num_attention_heads>\d{1,9}),?\s*$",
        r"^.{0,120}? {2}n_kv_heads=(?P<num_query_groups>\d{1,9}),?\s*$",
        r"^.{0,120}? {2}sequence_length=(?P<seq_length>\d{1,9}),?\s*$",
        r"^.{0,120}? {2}max_grad_norm=(?P<clip_grad>[\d.]{1,16}),?\s*$",
    ),
    facts=(
        r"^.{0,120}? {2}global_batch_size=(?P<global_batch_tokens>\d{1,12}),?\s*$",
        r"^.{0,120}? {2}rank_microbatch_size=(?P<micro_batch_tokens>\d{1,12}),?\s*$",
        r"(?P<completed>Training complete)\s*$",
        r"GPU capacity: (?P<device_name>.{1,80}?) with (?P<device_memory_bytes>[\d.]{1,20})GiB memory",
        r"Device peak Flops/s: (?P<peak_flops_of_printed_mfu>\d{1,24})",
    ),
    conversions={"peak_flops_of_printed_mfu": number},
    driver=_Driver,
)
