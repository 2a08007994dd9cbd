"""nanotron (src/nanotron/trainer.py, train_step_logs).

`iteration: 211364 / 1500000 | consumed_tokens: 480B | time_per_iteration_ms: 8.79K | tokens_per_sec_per_gpu: 699 | …`
Counts from 1. Numbers have 3 significant digits and a letter (human_format: K M B T, powers of 1,000); the time is the
iteration's own, after a barrier. global_batch_size is in tokens since 2024, in samples before."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from parsers.driver import Dialect, Values
from parsers.values import POWERS, number, whole

_POWERS: Mapping[str, int] = {"": 0, **{letter: 3 * power for power, letter in enumerate("KMBTPE", 1)}}


def human(text: str, shift: int = 0) -> float | None:
    """Return the number behind 8.79K, 480B, 0.0001, times a power of ten: the point moves in the text."""
    letter = text[-1:] if text[-1:] in _POWERS else ""
    power, digits = _POWERS[letter] + shift, text.removesuffix(letter)
    return number(f"{digits}e{power}" if power else digits)


_human_ms = partial(human, shift=-3)
POWERS[human] = _POWERS
POWERS[_human_ms] = {letter: power - 3 for letter, power in _POWERS.items()}


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


DIALECT = Dialect(
    framework="nanotron",
    rate_of=(1,),
    looks_for="nanotron: lines 'iteration: 10 / 100 | consumed_tokens: … | time_per_iteration_ms: …'",
    signs=(b" | consumed_tokens: ",),
    marks=(b"consumed_tokens: ", b"Saving checkpoint at "),
    startup=(b" | grad_accum: ",),
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
    resumed=r"grad_accum: .{1,300}start_iteration_step: (?P<done>\d{1,12})",
)
