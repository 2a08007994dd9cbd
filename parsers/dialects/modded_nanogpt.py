"""modded-nanogpt (train_gpt.py of the speedrun; its log begins with its own source), and OpenAI's parameter-golf.

`step:250/1750 train_loss:4.0972 train_time:22923ms step_avg:91.69ms`, from 1; train_loss until December 2024 only, of
rank 0's last micro-batch. train_time is the time trained so far, without validations, and begins anew after step 10 in
logs before 2025; step_avg is its mean. Both are taken when a step is dispatched, but at a validation after it has run:
no step's own time is printed."""

from __future__ import annotations

from parsers.driver import Dialect
from parsers.values import POWERS, number

_UNITS = {"ms": -3, "s": 0}


def _seconds(text: str) -> float | None:
    """Return the seconds of 22923ms or 22.9s."""
    unit = "ms" if text.endswith("ms") else "s"
    return number(f"{text.removesuffix(unit)}e{_UNITS[unit]}") if text.endswith(unit) else None


POWERS[_seconds] = _UNITS

DIALECT = Dialect(
    framework="modded_nanogpt",
    looks_for="modded-nanogpt: lines 'step:250/1750 … train_time:…ms step_avg:…ms'",
    signs=(b"ms step_avg:", b"s step_avg:"),
    marks=(b" step_avg:",),
    startup=(b"= GPT(", b"|   ", b"Running ", b"peak memory "),
    head=r"\bstep:(\d{1,9})/(\d{1,9}) (?=train_)",
    fields=r"(train_loss|train_time|step_avg):([\d.]{1,20}m?s?(?=\s|$)|nan)",
    columns={
        "train_loss": ("loss", number),
        "train_time": ("train_time_s", _seconds),
        "step_avg": ("step_time_s_running_mean", _seconds),
    },
    complete=r"step_avg:\S{1,16}ms",
    validations=(
        r"\bstep:(?P<iteration>\d{1,9})/\d{1,9} val_loss:(?P<loss>\S{1,20})(?: val_bpb:(?P<bits_per_byte>\S{1,20}))?"
        r"(?: train_time:(?:(?P<train_time_ms>[\d.]{1,16})ms|(?P<train_time_s>[\d.]{1,16})s))?",
    ),
    settings=(
        r"\bmodel\b.{0,20} = GPT\(.{0,80}\b(?:num_layers|n_layer)=(?P<num_layers>\d{1,5})"
        r"(?:, (?:num_heads|n_head)=(?P<num_attention_heads>\d{1,5}))?, (?:model_dim|n_embd)=(?P<hidden_size>\d{1,6})",
    ),
    facts=(
        r"\| {1,6}(?P<device_count>\d{1,3}) {1,4}(?P<device_name>NVIDIA .{1,40}?) {2,30}(?:On|Off) {0,4}\|",
        r"Running [Pp]y[Tt]orch (?P<torch_version>\S{1,40}) compiled",
        r"(?P<completed>peak memory) (?:allocated|consumption): (?P<peak_memory_allocated_mib>\d{1,9}) MiB",
        r"peak memory.{1,60} reserved: (?P<peak_memory_reserved_mib>\d{1,9}) MiB",
    ),
    conversions={"device_count": lambda text: int(text) + 1},  # nvidia-smi lists them from 0: the last one counts
)
