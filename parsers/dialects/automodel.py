"""NeMo Automodel (nemo_automodel/recipes/llm/train_ft.py, log_train_metrics; also its vlm, kd and dllm recipes).

`step 9 | epoch 0 | loss 0.6974 | grad_norm 1.5436 | lr 1.00e-05 | mem 24.90 GiB | tps 11278.56(1409.82/gpu) | …`
and the same in its training.jsonl. A line a step, of that step. Counts from 0, version 0.1.0 from 1. The rate is the
next step's: the scheduler has stepped before the line. Memory is the highest allocated since the line before. `/gpu` is
over the data-parallel ranks (from 0.2 on, and the context's): with tensor or pipeline parallelism it is no GPU's."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from parsers.driver import Dialect, Driver, Event, Fact, Setting, Values
from parsers.record import Validation
from parsers.values import Column, gibibytes, number, real

_SEVERAL_GPUS = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")


def _per_gpu(text: str) -> float | None:
    return number(text.partition("/")[0])


def _timed(values: Values, text: str) -> Values:
    """Add the step's time where both of its tokens and tokens a second are printed: in training.jsonl."""
    metrics = values["metrics"]
    tokens, rate = metrics.get("tokens_per_step"), metrics.get("tokens_per_s")
    if tokens and rate:
        values["step_time_s"] = real(tokens / rate)
    return values


class _Driver(Driver):
    """Knows from the first step line where the count begins, and from the configuration what `/gpu` is."""

    _first: int | None = None
    _splits = False  # several GPUs share a data-parallel rank
    _scheduled = True  # a scheduler of the learning rate was built

    def feed(self, number: int, text: str) -> Iterable[Event]:
        step, sign, validation = text.partition("[val] ")  # in one line where a line end came late
        return (
            (*super().feed(number, step), *super().feed(number, sign + validation))
            if sign
            else super().feed(number, text)
        )

    def step(self, line: int, values: Values, text: str) -> Iterable[Event]:
        if self._first is None or values["iteration"] == 0:
            self._first = int(values["iteration"] == 1)
        values["step"] -= self._first
        if values["step"] < 0:
            return ()
        if self._splits and (rate := values.pop("tokens_per_s_per_gpu", None)) is not None:
            values["metrics"]["tokens_per_s_per_data_rank"] = rate
        return super().step(line, values, text)

    def other(self, line: int, text: str) -> Iterable[Event]:
        self._scheduled = self._scheduled and "LR scheduler: <unavailable>" not in text
        for event in super().other(line, text):
            if isinstance(event, Setting) and event.name in _SEVERAL_GPUS and isinstance(event.value, int):
                self._splits = self._splits or event.value > 1
            if isinstance(event, Validation) and event.step is not None:
                event = replace(event, step=event.step - (self._first or 0))
            if isinstance(event, Fact) and event.name == "framework_version" and event.value.startswith("0.1.0"):
                self._first = 1
            # Max train steps is a ceiling: how many there will be is what a scheduler was built with.
            if not (isinstance(event, Fact) and event.name == "train_iters" and "Max " in text and self._scheduled):
                yield event


_COLUMNS: dict[str, Column] = {
    "loss": ("loss", number),
    "grad_norm": ("grad_norm", number),
    "lr": ("lr", number),
    "mem": ("memory_bytes", gibibytes),
    "(": ("tokens_per_s_per_gpu", _per_gpu),
    "tps_per_gpu": ("tokens_per_s_per_gpu", number),
    "tps": ("tokens_per_s", number),
    "num_tokens_per_step": ("tokens_per_step", number),
    "mfu": ("mfu_percent", number),
    "ce_loss": ("cross_entropy", number),
    "kd_loss": ("distillation_loss", number),
    "dllm_loss": ("diffusion_loss", number),
}
_CONFIGURED = (
    *(("global_batch_size", "global_batch_size"), ("local_batch_size", "micro_batch_size")),
    *(("tp_size", "tensor_model_parallel_size"), ("pp_size", "pipeline_model_parallel_size")),
    *(("cp_size", "context_parallel_size"), ("ep_size", "expert_model_parallel_size")),
)

DIALECT = Dialect(
    framework="automodel",
    looks_for="NeMo Automodel: 'step 9 | epoch 0 | loss … | grad_norm … | lr … | mem … GiB | tps …(…/gpu) | …'",
    signs=(b" | num_label_tokens ", b'"num_label_tokens": ', b" | kd_ratio ", b"nemo_automodel"),
    marks=(b" | epoch ", b'"tps_per_gpu": '),
    startup=(
        *(b"World size: ", b"- nemo_automodel: ", b"Total parameters: ", b"Model name: ", b"Max train steps: "),
        *(b"Building LR scheduler with ", b"LR scheduler: <unavailable>", b"- Gradient accumulation steps: "),
        *(f"{key}: ".encode() for key, _ in _CONFIGURED),
        *(b"  lr: ", b"  min_lr: ", b"  weight_decay: "),
    ),
    # Not: a validation, and the line of 2025 with "mem: ", whose steps are batches.
    head=r'(?:(?<!\] )(?<!" \| )\bstep |\{"step": )(\d{1,12})'
    r"(?: \| epoch \d{1,9} \| (?=loss )(?!.{0,160}(?:\| lr \S{1,12} \| num_label_tokens|\| mem: ))"
    r'|, "epoch": (?=.{0,600}"tps_per_gpu": ))',
    first=0,
    # A value that nothing closes may be cut: the last of a line is not read.
    fields=r'"?([a-z_]{1,24}(?= |": )|\()(?:": )?\s?([^\s(|,}]{1,24})(?= GiB \|| \||, "|\}|\(\d)',
    columns=_COLUMNS,
    memory_kind="allocated",
    adjust=_timed,
    rate_of=(1,),
    prints_next_rate=True,
    complete=r"\| (?:num_label_tokens|temperature|mode) \S{1,24}|/gpu\)\s*$|\}\s*$",
    validations=(r"\[val\].{0,80}?\bstep (?P<iteration>\d{1,12}) \| epoch \d{1,9} \| loss (?P<loss>\S{1,24})",),
    settings=(
        r"World size: (?P<world_size>\d{1,7})\s*$",
        *(rf"\s\s{key}: (?P<{name}>\d{{1,9}})\s*$" for key, name in _CONFIGURED),
        *(rf"^[^|]{{0,60}}\s\s{name}: (?P<{name}>[\d.e+-]{{1,24}})\s*$" for name in ("lr", "min_lr", "weight_decay")),
        r"Gradient accumulation steps: (?P<num_micro_batches>\d{1,9})\s*$",
        r"LR scheduler with total_steps=\d{1,12}, warmup_steps=(?P<lr_warmup_iters>\d{1,12}),"
        r" decay_style=(?P<lr_decay_style>[A-Za-z_]{1,24})",
    ),
    facts=(
        r"LR scheduler with total_steps=(?P<train_iters>\d{1,12})\b",
        r"- Max train steps: (?P<train_iters>\d{1,12})\s*$",
        r"- nemo_automodel: (?P<framework_version>\d\S{0,40}) \(",
        r"Total parameters: (?P<parameters>[\d,]{1,24})\s*$",
        r"Model name: (?P<model>\S{1,120})\s*$",
    ),
    driver=_Driver,
    strict=True,
)
