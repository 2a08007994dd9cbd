"""nanochat (scripts/base_train.py, mid_train.py, chat_sft.py), and autoresearch, which is made of it.

`step 00012/21400 (0.06%) | loss: 8.123456 | lrm: 0.33 | dt: 1234.56ms | tok/sec: 424,617 | mfu: 46.90 | total time: …`
Pretraining counts from 0; mid-training and SFT, which print no total, from 1. The loss is a mean that fades (0.9 a
step) of rank 0's last micro-batch: only the "Training loss" of SFT before 2026 is one step's. lrm multiplies the
rates of all groups; dt is the step's own; tok/sec is of all GPUs. mfu was against H100s whatever ran until 2026, and is
0.00 where the peak is not known. A validation prints bits per byte, and is made before the step of its number."""

from __future__ import annotations

import re
from collections.abc import Iterator

from parsers.driver import Dialect, Driver, Event, Setting, Values
from parsers.values import commas, count, milliseconds, number, real

_TOKENS = re.compile(r"(micro-batch / rank: \d{1,9} x \d{1,9} =|micro-batch:) ([\d,]{1,20})")


def _meaning(values: Values, text: str) -> Values | None:
    """Count mid-training and SFT from 0, too; drop what stands for an unknown peak."""
    metrics = values["metrics"]
    if not metrics.get("mfu_percent"):
        metrics.pop("mfu_percent", None)
    if "loss: nan" in text:  # a mean never forgets it
        values["nonfinite"] = ("loss",)
    if f"{values['iteration']:05d}/" not in text and "remaining: " not in text:
        values["step"] = values["iteration"] - 1 if "| total time: " in text else -1  # cut: whose it is is not known
    return values if values["step"] >= 0 else None


class _Driver(Driver):
    """Divides the printed tokens of all ranks by those of one."""

    _rank = 0

    def other(self, line: int, text: str) -> Iterator[Event]:
        yield from super().other(line, text)
        match = _TOKENS.search(text)
        tokens = int(commas(match[2]) or 0) if match is not None else 0
        if match is None or not tokens:
            return
        if "=" in match[1]:
            self._rank = tokens
        elif self._rank:
            yield Setting("world_size", tokens // self._rank, line)
            yield Setting("data_parallel_size", tokens // self._rank, line)


DIALECT = Dialect(
    framework="nanochat",
    looks_for="nanochat: lines 'step 00012/21400 (0.06%) | loss: … | lrm: … | dt: …ms'",
    signs=(b"| lrm: ", b"/scripts/base_train.py", b"/scripts/mid_train.py", b"/scripts/chat_sft.py"),
    marks=(b"| lrm: ", b"| Validation ", b"| CORE metric: "),
    startup=(
        *(b"GPU: ", b"COMPUTE_DTYPE: ", b"Vocab size: ", b"Model config: ", b"num_layers: ", b"model_dim: "),
        *(b"num_heads: ", b"num_kv_heads: ", b'"n_', b'"sequence_len"', b"Number of parameters: ", b"total      "),
        *(b"micro-batch", b"radient accumulation steps", b"Resuming optimization", b"Saved model", b"Peak memory"),
        *(b"Total training time: ", b"num_steps: ", b"ributed world size: ", b"xamples per step: ", b"Device batch"),
    ),
    head=r"(?<![a-z_])[Ss]tep (\d{5,9})(?:/(\d{5,9})(?= \()|/\d{5,9})?"
    r"(?= {1,4}(?:\([\d.]{1,8}%\) {1,4})?\| (?:Training )?loss: )",
    first=0,
    fields=r"(\(|[A-Za-z_][\w/ ]{0,15}(?=: ))(?:: {1,4})?(-?[\d.,]{1,20}(?=ms?\b|[ %|)]|$)|nan|inf)",
    # (the first is the share done; what is cut lacks its unit)
    columns={
        "loss": ("loss_running_mean", number),
        "Training loss": ("loss", number),
        "grad norm": ("grad_norm", number),
        "lrm": ("lr_multiplier", number),
        "dt": ("step_time_s", milliseconds),
        "tok/sec": ("tokens_per_s", commas),
        "mfu": ("mfu_percent", number),
        "bf16_mfu": ("mfu_percent", number),
    },
    adjust=_meaning,
    complete=r"total time: [\d.]{1,12}m|remaining: {1,4}\d{1,6}s|num_tokens: ",
    validates_before=True,
    validations=(
        r"\bStep (?P<iteration>\d{5,9}) \| Validation (?:loss: (?P<loss>\S{1,24})|bpb: (?P<bits_per_byte>\S{1,24}))",
        r"\bStep (?P<iteration>\d{5,9}) \| CORE metric: (?P<core_metric>\S{1,24})",
    ),
    stalls={"checkpoint": r"Saved model (?:parameters|checkpoint|file)? ?to"},
    resumed=r"Resuming optimization from step (?P<done>\d{1,9})",
    entry=r"""(?:^|[\s{,"'])(\w{1,32})["']?: (\d{1,12})(?=[,}\s]|$)""",
    settings=(
        r"micro-batch / rank: (?P<micro_batch_size>\d{1,9}) x (?P<seq_length>\d{1,9}) =",
        r"radient accumulation steps: (?P<num_micro_batches>\d{1,9})",
        r"Distributed world size: (?=(?P<world_size>\d{1,9}))(?P<data_parallel_size>\d{1,9})",
        r"Target examples per step: (?P<global_batch_size>\d{1,9})",
        r"Device batch size: (?P<micro_batch_size>\d{1,9})",
        r"\bVocab size: (?P<vocab_size>[\d,]{1,12})",
    ),
    facts=(
        r"Total batch size (?P<global_batch_tokens>[\d,]{1,20})",
        r"\bGPU: (?P<device_name>.{1,60}?) \| Peak FLOPS \(BF16\): (?P<peak_flops_of_printed_mfu>\S{1,16})",
        r"COMPUTE_DTYPE: torch\.(?P<compute_dtype>\w{1,16})",
        r"(?:Number of parameters|\btotal {5,20}): (?P<parameters>[\d,]{1,24})",
        r"Peak memory usage: (?P<peak_memory_allocated_mib>[\d.]{1,16})MiB",
        r"(?P<completed>Total training time: )",
        r"\bnum_steps: {1,12}(?P<train_iters>\d{1,9})",
    ),
    conversions={
        "completed": lambda text: "all",
        "vocab_size": lambda text: int(commas(text) or 0) or None,
        "global_batch_tokens": count,
        "peak_flops_of_printed_mfu": number,
        "peak_memory_allocated_mib": lambda text: real(number(text)) or None,
    },
    driver=_Driver,
)
