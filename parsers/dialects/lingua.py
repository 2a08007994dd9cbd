"""Lingua (facebookresearch/lingua, apps/main/train.py; also its mamba, mtp, fastRNN and aunet apps).

`0: INFO    24-10-19 18:47:38 - 0:00:49 - step: 1  acc: 0  loss: 12.2087  grad: 1.06e+01  flops: 4.25e+12  wps: …`
and, with all digits, its metrics.jsonl. Counts from 1; a line every logging.freq steps. Every rank prints its own loss,
of its last micro-batch: the lowest rank's counts (metrics.jsonl has the mean of the ranks, `loss/out`). The rate is the
step's own. wps and flops are per GPU, and means since the line before; a checkpoint between counts. `iter` is the GPU's
time of the last micro-batch without its data: no step's time. `mem` is the share of memory that was active."""

from __future__ import annotations

import re
from collections.abc import Iterable

from parsers.driver import Dialect, Driver, Event, Values
from parsers.values import Column, gibibytes, number

_NO_RANK = 1 << 30
_RANK = re.compile(r"(?<!\d)(\d{1,7}): (?:INFO|WARNING) ")


def _teraflops(text: str) -> float | None:
    value = number(text)
    return None if value is None else value / 1e12


class _Driver(Driver):
    """Passes over the lines in which other ranks report the same step."""

    _rank = _NO_RANK  # the lowest that any line named
    _reported: int | None = None

    def step(self, line: int, values: Values, text: str) -> Iterable[Event]:
        if self._is_anothers(text) or values["step"] == self._reported:
            return ()
        self._reported = values["step"]
        return super().step(line, values, text)

    def other(self, line: int, text: str) -> Iterable[Event]:
        self._is_anothers(text)
        return super().other(line, text)

    def _is_anothers(self, text: str) -> bool:
        step = text.find("step: ")
        ranks = _RANK.findall(text, 0, len(text) if step < 0 else step)  # several where a line end came late
        if not ranks:
            return self._rank < _NO_RANK
        self._rank = min(self._rank, *map(int, ranks))
        return int(ranks[-1]) > self._rank


_COLUMNS: dict[str, Column] = {
    **dict.fromkeys(("loss", "loss/out"), ("loss", number)),
    **dict.fromkeys(("grad", "optim/grad_norm"), ("grad_norm", number)),
    **dict.fromkeys(("lr", "optim/lr"), ("lr", number)),
    **dict.fromkeys(("wps", "speed/wps"), ("tokens_per_s_per_gpu", number)),
    **dict.fromkeys(("flops", "speed/FLOPS"), ("tflops_per_gpu", _teraflops)),
    **dict.fromkeys(("iter", "speed/curr_iter_time"), ("micro_batch_gpu_time_s", number)),
    **dict.fromkeys(("data", "speed/data_load_time"), ("data_time_s", number)),
    **dict.fromkeys(("mem", "memory/max_active_pct"), ("memory_active_percent", number)),
    "memory/max_reserved_gib": ("memory_bytes", gibibytes),
    "pow": ("power_w", number),
    "optim/total_tokens": ("consumed_tokens", number),
}

DIALECT = Dialect(
    framework="lingua",
    looks_for="Lingua: 'step: 1  acc: 0  loss: …  grad: …  flops: …  wps: …  iter: …', or its metrics.jsonl",
    signs=(b"  acc: ", b"Running on dp size : ", b', "acc_step": '),
    marks=(b"  acc: ", b', "acc_step": '),
    startup=(
        *(b" total parameters", b"GPU capacity: ", b"Running on dp size : ", b"Setting Data Parallel size to "),
        *(b"Starting job: ", b"State dict saved!", b"Train state reloaded"),
    ),
    head=r'(?:\bstep: |"global_step": )(\d{1,12})(?: {2}acc: \d{1,9} {2}|, "acc_step": \d{1,9}, )(?=loss: |"speed/)',
    fields=r'([\w/]{1,40}"?): {1,12}([^\s,%}]{1,32})',
    columns={**_COLUMNS, **{f'{name}"': column for name, column in _COLUMNS.items()}},
    memory_kind="reserved",
    means={"wps": ("tokens_per_s_per_gpu", "tflops_per_gpu")},
    rate_of=(0,),
    complete=r" pow: {1,12}\S{1,24} W|\}\s*$",
    stalls={"checkpoint": r"\bState dict saved!"},
    settings=(r"Running on dp size : (?P<data_parallel_size>\d{1,7})\s*$",),
    facts=(
        r"GPU capacity: (?P<device_name>.{1,80}?) \(\d{1,4}\) with (?P<device_memory_bytes>[\d.]{1,20})GiB memory",
        r"Model size: (?P<parameters>[\d,]{1,24}) total parameters",
    ),
    driver=_Driver,
    strict=True,
)
