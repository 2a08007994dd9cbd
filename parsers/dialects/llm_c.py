"""llm.c (train_gpt2.cu, train_gpt2.py), its console and its main.log.

`step   12/19560 | loss 9.123456 (+nanz)| norm 2.1234 (+nanz)| lr 8.57e-06 | 2751.01 ms | 47.3% bf16 MFU | 381431 tok/s`
counts from 1, `s:11 trl:9.1235 lr:0.000009 norm:2.12` of main.log from 0. The loss is the mean of all GPUs and
micro-batches (of one GPU where `(acc …)` follows), the rate this step's, the time its own. tok/s is of all GPUs: a
fading mean, but of its own step where Python prints it in brackets, and not known which in brackets with a comma. The
rates of main.log have six decimals. An MFU of -100% is an unknown device's."""

from __future__ import annotations

from parsers.driver import Dialect, Values
from parsers.values import integer, milliseconds, number

_NAME = r"(?=(?:[\d.]{1,20}%? (?:\w{2,5} ){0,2})?(loss|norm|lr|trl|ms|MFU|tok/s)\b)"  # before or behind its number
_NUMBER = r"([\d.]{1,20}(?:e[+-]\d\d)?|-?nan|-?inf)"


def _meaning(values: Values, text: str) -> Values | None:
    if "| " in text or ": train loss" in text:
        values["step"] -= 1
        values["lr_used"] = values.get("lr")
    metrics = values["metrics"]
    if "tok/s)" in text and (own := metrics.pop("tokens_per_s_running_mean", None)) is not None and "ms |" in text:
        metrics["tokens_per_s"] = own
    return values if values["step"] >= 0 else None


DIALECT = Dialect(
    framework="llm_c",
    rate_of=(0,),
    looks_for="llm.c: lines 'step   12/19560 | loss … | norm … | lr … | … ms | …% bf16 MFU | … tok/s', or 's:11 trl:…'",
    signs=(b" tok/s", b" trl:", b"| padded_vocab_size Vp  |"),
    marks=(b" tok/s", b" trl:", b" tel:", b" eval:", b"val loss "),
    startup=(
        *(b"          |", b"batch_size B=", b"grad_accum_steps=", b"accumulation steps: "),
        *(b"iteration time: ", b"iters avg: "),
    ),
    head=r"\bs(?:tep {1,6}|:)(\d{1,9})(?:/(\d{1,9}))?"
    r"(?= \| (?:train )?loss [^|]{1,40}\| norm|: train loss \S{1,20} (?:norm|\()| trl:)",
    first=0,
    fields=rf"(?<![\w.-]){_NAME}(?:[a-z]{{2,4}}[ :]{{1,10}})?{_NUMBER}(?=[ )|%m]|$)",
    columns={
        "loss": ("loss", number),
        "trl": ("loss", number),
        "norm": ("grad_norm", number),
        "lr": ("lr", number),
        "ms": ("step_time_s", milliseconds),
        "MFU": ("mfu_percent", number),
        "tok/s": ("tokens_per_s_running_mean", number),
    },
    adjust=_meaning,
    complete=r"tok/s|norm:(?:\d{1,9}\.\d\d|-?nan)\s{0,9}$|trl:(?:\d{1,4}\.\d{4,6}|-?nan)\s{0,9}$",
    validates_before=True,
    validations=(
        r"(?:^|\s)val loss (?P<loss>\d[\d.]{0,20})(?!\S)",
        r"\bs:(?P<iteration>\d{1,9}) tel:(?P<loss>\S{1,20})",
        r"\bs:(?P<iteration>\d{1,9}) eval:(?P<hellaswag_accuracy>\S{1,20})",
    ),
    stalls={"checkpoint": r"Writing checkpoint at step (?P<iteration>\d{1,9})"},
    entry=r"\| ([\w ()]{1,24}?) {1,24}\| (\S{1,40}) {1,60}\|",
    settings=(
        r"seq_len T=(?P<seq_length>\d{1,9}) ",
        r"num_processes=(?=(?P<world_size>\d{1,6}))(?P<data_parallel_size>\d{1,6}) and",
        r"=> (?:setting grad_accum_steps=|calculated gradient accumulation steps: )(?P<num_micro_batches>\d{1,9})",
    ),
    facts=(
        r"seq_len T=\d{1,9} .{1,60} total_batch_size=(?P<global_batch_tokens>\d{1,12})",
        r"\| device {1,24}\| (?P<device_name>\S.{0,48}?) {1,60}\|",
        r"\| num_parameters {1,24}\| (?P<parameters>\d{1,18}) ",
        r"\| precision {1,24}\| (?P<precision>\w{1,16}) ",
        r"\| train_num_batches {1,24}\| (?P<train_iters>\d{1,12}) ",
        r"\| zero_stage {1,24}\| (?P<zero_stage>\d) ",
        r"(?P<completed>total average iteration time: |final \d{1,9} iters avg: )",
    ),
    conversions={"train_iters": integer},
)
