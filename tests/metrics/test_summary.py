"""The figures of a run, by hand: throughput, warm-up, MFU and HFU, memory, power, and what was lost; the command."""

from __future__ import annotations

import json
import math
import random
import statistics
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis
from hypothesis import strategies as st
from msgspec.structs import replace

from conf.errors import ConfigError
from conf.facts import hardware
from metrics import METRICS, Quantity, find_warmup, shown, summarise, summary_json
from metrics.peak import peak_tflops
from metrics.summary import NOT_OF_SPEED, with_impossible
from parsers import Power, Reading, Record, Restart, Stall, Step, read, write
from tensorprimat.claims import main
from tensorprimat.cli import main as tprimat
from tests.metrics.metrics_made import FLOPS, GPUS, ROOT, made, settings

SETTINGS = {"seq_length": 100, "world_size": 4, "global_batch_size": 8}
# The first steps of a NeMo run on 8 H100s, in s: compilation, then a steady pace.
REAL = [
    *[36.89169, 17.98858, 16.46873, 18.26094, 17.25166, 17.82609, 16.32291, 11.85182, 3.27563, 3.31524, 3.25833],
    *[3.28908, 3.44731, 3.30876, 3.18985, 3.15474, 3.41374, 3.37619, 3.12534, 3.20769, 3.16341, 3.12913, 3.16995],
    *[3.21266, 3.19065, 3.24823, 3.24676, 3.16948],
]
NOISE = [2.0 + 0.0002 * random.Random(i).random() for i in range(40)]
EACH, LLAMA = made(10_000), made(20_000)
TFLOPS = 20_000 * FLOPS / 1e12


def small(*steps: Step, stated: dict[str, Any] | None = None, **known: Any) -> Record:
    """Return a run of 4 GPUs with 800 tokens in a step."""
    effective = {name: Reading(value, 1) for name, value in (SETTINGS if stated is None else stated).items()}
    base = Record(id="a", name="a", provenance="measured", status="completed", effective=effective, steps=steps)
    return replace(base, **known)


def step(iteration: int, seconds: float | None = 2.0, **more: Any) -> Step:
    return Step(step=iteration - 1, line=iteration, iteration=iteration, step_time_s=seconds, **more)


def even(count: int = 8, seconds: float | None = 2.0, every: int = 1, **more: Any) -> list[Step]:
    return [step(i, seconds, **more) for i in range(every, (count + 1) * every, every)]


def stamped(*stamps: tuple[int, float]) -> list[Step]:
    """Return steps with our own clock at their ends, which the printed 2 s contradict."""
    return [step(i, 2.0, end_monotonic_s=float(at)) for i, at in stamps]


def llama(seconds: list[float], **known: Any) -> Record:
    """Return a run on a machine without a peak: any speed is possible."""
    return replace(made(hardware="cpu"), steps=tuple(step(i, s) for i, s in enumerate(seconds, start=1)), **known)


def all_steps(of: Record, **more: Any) -> Record:
    return replace(of, steps=tuple(replace(one, **more) for one in of.steps))


def above(gb: int, hardware: str) -> Record:
    """Return a run that took so much of the memory that conf/hardware says its device has."""
    return replace(all_steps(MEMORY, memory_bytes=gb * 10**9), environment={}, hardware=hardware)


def ran(of: Record, **other: Any) -> Record:
    """Return `of` with other settings, requested and read back."""
    read_back = {**of.effective, **{name: Reading(value, 1) for name, value in other.items()}}
    return replace(of, effective=read_back, requested={**of.requested, **other})


def unread(of: Record, *names: str, **other: Any) -> Record:
    """Return `of` as if its log did not report these settings."""
    left = {name: reading for name, reading in of.effective.items() if name not in names}
    return replace(of, effective={**left, **{name: Reading(value, 1) for name, value in other.items()}})


def drawn(kind: str, source: str, **known: Any) -> Power:
    return Power(kind=kind, source=source, **known)  # type: ignore[arg-type]


def window(first: int, last: int, watts: float, seconds: float = 2.0) -> Power:
    energy = watts * seconds
    return drawn("gpu", "smi", gpus=1, seconds=seconds, energy_integrated_j=energy, first_step=first, last_step=last)


def left(name: str) -> dict[str, Any]:
    return {key: value for key, value in SETTINGS.items() if key != name}


FIRST = {"warmup_steps": 2, "counted_steps": 3, "tokens_per_s": 400, "tokens_per_s_per_gpu": 100, "step_time_mean_s": 2}
TENTHS: dict[str, int | None] = {"tokens_per_s": 400, "counted_steps": 60, "step_time_mean_s": 2}
TENTHS |= dict.fromkeys(("step_time_median_s", "step_time_stdev_s"))
SPEEDS = ("tokens_per_s", "step_time_mean_s")
NONE = ("tflops_per_gpu", "tflops_per_gpu_framework", "mfu_percent", "tokens_per_s_per_gpu", "power_w_per_gpu")
NEEDED = ("num_layers", "padded_vocab_size", "seq_length", "swiglu", "fp8", "params_dtype")
TIMED = {i: step(i, 2.0, end_monotonic_s=4.0 * i) for i in range(1, 9)}
BACK = stamped(*enumerate([100.0, 102.0, 104.0, 86.0, 88.0, 90.0], start=1))
RESTARTED = stamped((1, 2), (2, 4), (3, 6), (4, 8), (3, 1), (4, 3), (5, 5))
SET_BACK = stamped((1, 2), (2, 4), (3, 6), (4, 8), (5, 1), (6, 3), (7, 5))
RAMPED = [step(i, consumed_samples=at) for i, at in enumerate([8, 16, 24, 40, 56], start=1)]
REHEARSED = small(*(step(i, loss=3.0 / i) for i in range(1, 9)), provenance="rehearsed")
REHEARSED_8B = all_steps(made(provenance="rehearsed"), tflops_per_gpu=5.0, tokens_per_s_per_gpu=5.0)
SUMMARY = {"tokens_per_s": Quantity(5.0, "tokens/s", "computed").to_json()}
RSS = [step(i, memory_bytes=i, memory_kind="rss") for i in (1, 2)]
SLOW_START, SHORT = llama([30.0, 10.0, *[2.0] * 18], wall_time_s=80.0), llama([2.0] * 20, wall_time_s=30.0)
ONCE = llama([2.0] * 20, wall_time_s=100.0)
AGAIN = replace(ONCE, steps=(*ONCE.steps[:12], *ONCE.steps[8:]), restarts=(Restart(8, 13),))
STALLS = [("checkpoint", 3.0), ("evaluation", 1.5), ("checkpoint", 2.0), ("checkpoint", None)]
STALLED = tuple(Stall(line=1, kind=kind, seconds=seconds) for kind, seconds in STALLS)
RATES = even(12, None, tokens_per_s_per_gpu=100.0, tflops_per_gpu=5.0)
UNEVEN = [replace(one, tokens_per_s_per_gpu=r) for one, r in zip(RATES, [200.0] * 2 + [100.0, 300.0] * 5, strict=True)]
ODD = {"tokens_per_s_per_gpu": 1e6, "tflops_per_gpu": 8638.0}
DISPATCHED = [replace(s, **ODD, flags=tuple(f"{name}:asynchronous" for name in ODD)) for s in RATES[6:9]]
MAXTEXT = replace(made(), steps=(*RATES[:6], *DISPATCHED, *RATES[9:]))
UNTIMED = [replace(s, step_time_s=0.001, flags=("step_time_s:asynchronous",)) for s in EACH.steps[6:9]]
UNKNOWN_GPU = made(hardware=None, environment={"device_name": "AMD Instinct MI999X"})
DRIVER = made(hardware="mi325x", environment={"device_name": "AMD Instinct MI300X"})
NOT_SAID = made(settings={k: v for k, v in settings().items() if k != "recompute_granularity"})
HEADS = replace(unread(made(), num_query_groups=1), requested={}, provenance="imported")
ONE_GROUP = replace(HEADS, requested={**made().requested, "num_query_groups": 1})
THEIRS = all_steps(EACH, tflops_per_gpu=10_000 * 5.7913e10 / 1e12)
DEVICE = made(environment={"device_memory_bytes": 300_000_000_000})
MEMORY = all_steps(DEVICE, memory_bytes=75_000_000_000, memory_kind="allocated")
KINDS = {"max_memory_reserved_bytes": 8e10, "hip_memory_used_bytes": 9e10, "hip_memory_total_bytes": 1.8e11}
ALL_KINDS = replace(MEMORY, environment={}, steps=(replace(MEMORY.steps[0], metrics=KINDS), *MEMORY.steps[1:]))
BOARD = drawn("board", "ipmi", gpus=8, seconds=10.0, energy_counter_j=8 * 10 * 1300.0)
SENSOR = drawn("gpu", "amd-smi", gpus=8, seconds=10.0, energy_counter_j=8 * 10 * 1000.0)
NODE = drawn("node", "pdu", gpus=8, seconds=10.0, mean_power_w=12_000.0)
ZEUS = drawn("gpu", "zeus", seconds=10.0, energy_counter_j=40_000.0, first_step=2, last_step=11)
# gh:ml-energy/zeus/issues/181: 187 J against 327 J
WRONG = drawn("gpu", "zeus", gpus=1, seconds=1.0, energy_counter_j=187.0, energy_integrated_j=327.0)
WARM, ONE, TWO, LONGEST = window(0, 1, 100), window(2, 5, 500), window(6, 11, 700), window(2, 11, 650, 4.0)
FULL = ran(LLAMA, recompute_granularity="full", recompute_method="uniform")
MFU, ANY = 100 * TFLOPS / 2516.6, ...
TOO_FAST = "impossible: tflops_per_gpu of 3,088 TFLOP/s/GPU: 123 % of 2,517 TFLOP/s (mi355x bf16 dense); check: "
NO_FP8 = {name: reading for name, reading in made().effective.items() if name != "fp8"}

# A run, a figure of it, its value (about; ... is any), and a part of "UNIT SOURCE: NOTE".
ROWS: list[tuple[Record, str, Any, str]] = [
    # throughput is tokens over wall time after the warm-up
    *((small(step(1, 9.0), step(2, 9.0), *even(5)[2:]), name, value, "") for name, value in FIRST.items()),
    # a log that prints speeds and no times, as TorchTitan's, counts no steps
    (small(*even(8, None, tokens_per_s_per_gpu=128.0)), "tokens_per_s_per_gpu", 128, "tokens/s/GPU log: "),
    (small(*even(8, None, tokens_per_s_per_gpu=128.0)), "counted_steps", None, "no step times reported"),
    # the mean of its rates over equal work is harmonic: 100 and 300 make 150
    (replace(made(), steps=tuple(UNEVEN)), "tokens_per_s_per_gpu", 150, "log: "),
    (replace(made(), steps=tuple(UNEVEN)), "tokens_per_s", 150 * GPUS, ""),
    # our clock is preferred to the printed time, where every step has it
    (small(*TIMED.values()), "tokens_per_s", 200, "tokens/s measured: "),
    (small(*list(TIMED.values())[:-1], step(8)), "tokens_per_s", 400, "tokens/s log: "),
    # lines that print the mean over ten iterations
    *((small(*even(8, 2.0, 10, global_batch_size=8)), name, value, "") for name, value in TENTHS.items()),
    # a lost line is no longer step
    (small(*(step(i, consumed_samples=8 * i) for i in (1, 2, 3, 4, 5, 7, 8))), "tokens_per_s", 400, ""),
    (small(*(step(i, consumed_samples=8 * i) for i in (1, 2, 3, 4, 5, 7, 8))), "counted_steps", 4, ""),
    # a clock that goes back is reported; neither it nor a restart makes a negative step
    (small(*BACK), "tokens_per_s_per_gpu", 100, "left out: 1 interval of a clock that went back or stood"),
    (small(*BACK), "counted_steps", ANY, "left out: 1 interval of a clock that went back or stood"),
    (small(*RESTARTED), "tokens_per_s", 400, ""),
    (small(*SET_BACK), "tokens_per_s", 400, ""),
    (small(*SET_BACK), "counted_steps", 4, ""),
    # what the first line of a resumed run covers is unknown
    (small(*(step(i) for i in (25, 26, 27, 28))), "counted_steps", 1, ""),
    # a batch that is ramped up counts what was consumed
    (small(*RAMPED), "tokens_per_s", (56 - 16) * 100 / 6.0, ""),
    # a rehearsal has losses, and neither speed, TFLOP/s nor power
    *((REHEARSED, *row) for row in (("tokens_per_s", None, ""), ("loss_first", 3.0, ""), ("loss_last", 3.0 / 8, ""))),
    *((REHEARSED_8B, name, None, "") for name in NONE),
    # a last loss that is not finite is unknown
    (small(step(1, loss=2.0), step(2, nonfinite=("loss",))), "loss_last", None, ""),
    # an estimate keeps its summary, and no record whose steps are lost does
    (small(summary=SUMMARY, provenance="estimated"), "tokens_per_s", 5, "tokens/s computed: "),
    (small(summary=SUMMARY), "tokens_per_s", None, ""),
    # a time or rate of dispatch is none: a real MaxText log prints 8,638 TFLOP/s
    (MAXTEXT, "tokens_per_s_per_gpu_framework", 100, ""),
    (MAXTEXT, "tflops_per_gpu_framework", 5, ""),
    (replace(EACH, steps=(*EACH.steps[:6], *UNTIMED, *EACH.steps[9:])), "tokens_per_s_per_gpu", 10_000, ""),
    # too little gives no speed
    *((small(*steps), name, None, "") for steps in ([], even(1), even(2), even(8, None)) for name in SPEEDS),
    # the tail needs twenty steps, the slowest hundredth a hundred; one step in ten is tail, not jitter
    (small(*even(20)), "step_time_p95_s", None, ""),
    (small(*even(29)), "step_time_p95_s", 2, ""),
    (llama(NOISE), "step_time_tail", 1, ""),
    (llama(NOISE), "step_time_p99_s", None, ""),
    (llama([2.0] * 150), "step_time_p99_s", 2, ""),
    (llama([4.0 if i % 10 == 9 else 2.0 for i in range(42)]), "step_time_tail", 2, ""),
    (llama([4.0 if i % 10 == 9 else 2.0 for i in range(42)]), "step_time_jitter_percent", 0, ""),
    # goodput is progress over wall time: warm-up is lost, and a step that was redone after a restart counts once
    (llama([2.0] * 20, wall_time_s=80.0), "goodput_percent", 50, ""),
    (SLOW_START, "goodput_percent", 50, ""),
    (AGAIN, "goodput_percent", 40, ""),
    (SHORT, "goodput_percent", None, "40.00 s of steps in 30.00 s: one of the two is wrong"),
    (llama([2.0] * 20), "goodput_percent", None, ""),
    # stalls are summed by kind, and unreported ones are unknown
    (made(stalls=STALLED), "stall_time_s", 6.5, "log: checkpoint 5.000 s, evaluation 1.500 s, 1 without a time"),
    (made(restarts=(Restart(4, 9),)), "restarts", 1, ""),
    (made(), "stall_time_s", None, ""),
    # MFU is our FLOPs over the dense peak of what ran
    (LLAMA, "tflops_per_gpu", TFLOPS, ""),
    (LLAMA, "mfu_percent", MFU, "% log: of 2,517 TFLOP/s, mi355x bf16 dense"),
    (LLAMA, "mfu_achievable_percent", 100 * TFLOPS / 1565, ""),
    (ran(LLAMA, fp8="hybrid"), "mfu_percent", MFU / 2, "mi355x fp8 dense"),
    # HFU counts what is recomputed
    (LLAMA, "hfu_percent", MFU, ""),
    (FULL, "mfu_percent", MFU, ""),
    (NOT_SAID, "hfu_percent", None, "unknown: what is recomputed"),
    # The A100's peak for an unknown device made 563 % of an MI355X: gh:AMD-AGI/Primus/pull/772.
    (UNKNOWN_GPU, "mfu_percent", None, "% log: unknown GPU"),
    (UNKNOWN_GPU, "tflops_per_gpu", TFLOPS / 2, ""),
    # the driver says what ran, not the request; a CPU has neither a peak nor a TDP
    (DRIVER, "mfu_percent", ANY, "mi300x"),
    (made(hardware="cpu"), "mfu_percent", None, ""),
    (made(hardware="cpu"), "power_w_per_gpu", None, ""),
    # above the peak is impossible and not printed
    *((made(60_000), name, None, TOO_FAST) for name in METRICS if not name.startswith(NOT_OF_SPEED)),
    (made(60_000), "power_w_per_gpu", 1400, "TDP of mi355x"),
    (replace(made(), steps=tuple(even(8, None, tokens_per_s_per_gpu=6e4))), "tokens_per_s", None, TOO_FAST),
    *((made(60_000), "mfu_percent", None, text) for text in ("counted twice", "asynchronous", "fp8 ran, not bf16")),
    (made(60_000), "tokens_per_s", None, "whether hardware=mi355x, precision=bf16, world_size=8 are right"),
    # an unknown precision is judged by the highest peak; a framework may count otherwise, where ours is possible
    (
        replace(made(200_000), effective=NO_FP8, requested={}),
        "tokens_per_s",
        None,
        "102 % of 10,070 TFLOP/s (mi355x fp4",
    ),
    (
        all_steps(LLAMA, tflops_per_gpu=3e3),
        "tflops_per_gpu_framework",
        None,
        "impossible: tflops_per_gpu_framework of 3,0",
    ),
    (all_steps(LLAMA, tflops_per_gpu=3e3), "mfu_percent", MFU, ""),
    (
        all_steps(unread(made(), "num_layers", num_layers=None), tflops_per_gpu=3e3),
        "tokens_per_s",
        None,
        "impossible: ",
    ),
    # fp4 has a peak where a source says so
    (ran(LLAMA, fp4="e2m1"), "mfu_percent", MFU / 4, "mi355x fp4 dense"),
    (replace(ran(LLAMA, fp4="e2m1"), hardware="b300"), "mfu_percent", None, "no fp4 peak is known for b300"),
    (made(40_000), "mfu_percent", 2 * MFU, ""),
    (made(40_000), "mfu_achievable_percent", None, "implausible: 132 % of 1,565 TFLOP/s"),
    # a log that does not report a setting gives no MFU; what was requested alone an assumed one, but no assumed speed
    *((replace(unread(made(), name, "vocab_size"), requested={}), "mfu_percent", None, ": u") for name in NEEDED),
    (unread(made(), "num_layers"), "flops_per_token", FLOPS, "not read back: num_layers"),
    (unread(made(), "num_layers"), "mfu_percent", ANY, "assumed: "),
    (unread(made(), "num_layers"), "tokens_per_s", ANY, "log: "),
    # what is not known is not guessed
    *((small(*even(), stated=left(name), requested=SETTINGS), "tokens_per_s_per_gpu", None, "") for name in SETTINGS),
    *((small(*even(), stated=left(name), requested=SETTINGS), "step_time_mean_s", 2, "") for name in SETTINGS),
    (small(*even(), stated=left("world_size"), requested=SETTINGS), "tokens_per_s", 400, ""),
    (small(*even(), stated=left("seq_length"), requested=SETTINGS), "tokens_per_s", None, ""),
    # rows that were read back come before padded ones that were requested
    (unread(made(), "padded_vocab_size", vocab_size=128_000), "flops_per_token", FLOPS - 6 * 4096 * 256, "computed: "),
    # arguments.py prints --num-query-groups 1 also without --group-query-attention: plain multi-head attention.
    (HEADS, "flops_per_token", None, "unknown: num_query_groups"),
    (ONE_GROUP, "flops_per_token", FLOPS - 6 * 32 * 2 * 4096 * 128 * 7, ""),
    # the framework's own figure is kept beside ours
    (THEIRS, "tflops_per_gpu_framework", 579.13, "log: 1.125 × ours, as full_attention counts"),
    (all_steps(EACH, tflops_per_gpu=999.0), "tflops_per_gpu_framework", 999, "a way of counting that is none of ours"),
    # memory is a share of what the device has, else of its data sheet, of the kind that includes most
    (MEMORY, "peak_memory_percent", 25, "% log: allocated, of 300.0 GB, by the driver"),
    (MEMORY, "memory_headroom_bytes", 225_000_000_000, ""),
    (replace(MEMORY, environment={}), "peak_memory_percent", ANY, "allocated, of 309.2 GB, mi355x"),
    (replace(MEMORY, environment={}), "memory_headroom_bytes", 287.98 * 2**30 - 75e9, "bytes (allocated) log"),
    (above(311, "mi355x"), "peak_memory_percent", None, ": impossible: 101 %"),
    (above(300, "mi350x"), "peak_memory_percent", None, ": unknown: 104 %"),  # GB or GiB, nobody says
    (all_steps(MEMORY, memory_kind="rss"), "peak_memory_percent", None, "% log: host memory"),
    (ALL_KINDS, "peak_memory_allocated_bytes", 7.5e10, ""),
    (ALL_KINDS, "peak_memory_reserved_bytes", 8e10, ""),
    (ALL_KINDS, "peak_memory_device_bytes", 9e10, ""),
    (ALL_KINDS, "peak_memory_percent", 50, "% log: device, of 180.0 GB, by the log"),
    (ALL_KINDS, "memory_headroom_bytes", 9e10, ""),
    (replace(MEMORY, environment={"device_memory_bytes": 10**9}), "peak_memory_percent", None, "impossible: 7500 %"),
    # kinds are not mixed; without the vendor's library 0 is printed; our own mark is a measurement
    (small(*RSS), "peak_memory_bytes", 2, "bytes (rss) log: "),
    (small(*(replace(s, end_monotonic_s=2.0 * s.step) for s in RSS)), "peak_memory_bytes", 2, "(rss) measured: "),
    (small(*(replace(s, memory_bytes=0) for s in RSS)), "peak_memory_bytes", None, ""),
    (small(*RSS, step(3, memory_bytes=9, memory_kind="allocated")), "peak_memory_bytes", None, ""),
    # power without a sensor is TDP and assumed
    (EACH, "power_w_per_gpu", 1400, "assumed: "),
    (EACH, "energy_j_per_token", 0.14, "assumed: "),
    (EACH, "tokens_per_wh", 3600 / 0.14, ""),
    # measured power beats TDP, the GPU's sensor its board's, and a node's is no GPU's
    (made(power=(BOARD, SENSOR)), "power_w_per_gpu", 1000, "gpu power by amd-smi; not aligned to the steps: idle time"),
    (made(power=(BOARD, SENSOR)), "energy_j_per_token", 0.1, "log: "),  # as sure as the speed, which the log printed
    (made(power=(BOARD,)), "power_w_per_gpu", 1300, "measured: "),
    (made(power=(NODE,)), "power_w_per_gpu", 1400, "assumed: TDP of mi355x: only the node's power was measured"),
    # Zeus sums over all GPUs of the job; a counter that contradicts the power is not used
    (made(power=(ZEUS,)), "power_w_per_gpu", 40_000 / 10 / 8, ""),
    (made(power=(WRONG,)), "power_w_per_gpu", 327, "counter is -42.8 % off"),
    (made(power=(replace(WRONG, energy_counter_j=320.0),)), "power_w_per_gpu", 320, ""),
    # windows in the warm-up or over others do not count
    (made(power=(WARM, ONE, TWO)), "power_w_per_gpu", 600, ""),
    (made(power=(ONE, TWO)), "power_w_per_gpu", 600, "measured: gpu power by smi"),
    (made(power=(WARM,)), "power_w_per_gpu", 100, "gpu power by smi; the warm-up among it"),
    (made(power=(WARM, ONE, TWO, LONGEST)), "power_w_per_gpu", 650, ""),
]


@pytest.mark.parametrize(("of", "name", "value", "text"), ROWS, ids=[f"{i} {row[1]}" for i, row in enumerate(ROWS)])
def test_a_figure(of: Record, name: str, value: Any, text: str) -> None:
    figure = summarise(of)[name]
    assert value is ANY or figure.value == (None if value is None else pytest.approx(value, rel=1e-4))
    assert text in f"{figure.unit} {figure.source}: {figure.note}"


def test_figures_that_are_bounded() -> None:
    assert 1.3 < (summarise(FULL)["hfu_percent"].value or 0) / MFU < 4 / 3
    drift = summarise(llama([2.0 + 0.001 * i for i in range(40)]))["step_time_jitter_percent"]
    assert drift.value == pytest.approx(0.05, rel=0.05), "a drift is no jitter"
    assert "tokens counted twice" not in summarise(made(200_000))["mfu_percent"].note, "a factor of 2 explains no 409 %"


def test_half_a_package_has_half_its_peak() -> None:
    """MI250X: 383 TFLOP/s a card, 191.5 a die, and software sees dies."""
    assert peak_tflops(hardware("mi250x"), "bf16").value == pytest.approx(191.5)


def test_a_hardware_file_without_a_source_is_refused_aloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hardware").mkdir()
    text = (ROOT / "conf" / "hardware" / "h100.yaml").read_text(encoding="utf-8")
    recalled = text.replace("name: h100", "name: h999").replace("status: verified", "status: recalled")
    (tmp_path / "hardware" / "h999.yaml").write_text(recalled, encoding="utf-8")
    monkeypatch.setattr("conf.compose.CONF", tmp_path)
    with pytest.raises(ConfigError, match="from memory"):
        hardware("h999")


def test_warmup_is_found_where_it_ends() -> None:
    noise = random.Random(1)
    series = [noise.uniform(12, 37) for _ in range(8)] + [3.2 * noise.gauss(1, 0.01) for _ in range(92)]
    assert (find_warmup(series).count, find_warmup(REAL).count) == (8, 8)
    assert "White 1997" in find_warmup(series).reason


def test_without_warmup_about_the_minimum_is_dropped() -> None:
    counts = []
    for seed in range(200):
        noise = random.Random(seed)
        states = accumulate((noise.gauss(0, 0.01) for _ in range(200)), lambda state, new: 0.6 * state + new)
        counts.append(find_warmup([1 + state for state in states]).count)
    assert statistics.median(counts) <= 10
    assert min(counts) == 2


@hypothesis(max_examples=60)
@given(st.lists(st.floats(1e-6, 1e6), max_size=60))
def test_warmup_is_two_to_half(series: list[float]) -> None:
    count = find_warmup(series).count
    assert min(len(series), 2) <= count <= max(2, len(series) // 2)


@hypothesis(max_examples=30)
@given(st.lists(st.floats(0.5, 50), min_size=4, max_size=30))
def test_warmup_ends_where_the_standard_error_is_smallest(series: list[float]) -> None:
    errors = [statistics.pvariance(series[cut:]) / len(series[cut:]) for cut in range(len(series) // 2 + 1)]
    assert errors[find_warmup(series).count] == pytest.approx(min(errors[2:]), rel=1e-9, abs=1e-12)


NUMBER = st.one_of(st.none(), st.floats(-1e308, 1e308), st.sampled_from([0.0, -1.0, 1e-320, 1e308]))


@given(st.lists(st.tuples(NUMBER, NUMBER, NUMBER, NUMBER, st.integers(-5, 10**15)), max_size=30), NUMBER)
def test_no_figures_make_a_number_that_cannot_be(rows: list[tuple[Any, ...]], wall_time_s: float | None) -> None:
    names = ("step_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "end_monotonic_s", "consumed_samples")
    steps = [Step(step=i, line=i, iteration=i + 1, **dict(zip(names, row, strict=True))) for i, row in enumerate(rows)]
    for name, found in summarise(small(*steps, wall_time_s=wall_time_s)).items():
        if found.value is not None:
            assert math.isfinite(found.value), name
            assert found.value >= 0 or name in ("wall_time_s", "loss_first", "loss_last"), name
            assert "percent" not in name or "jitter" in name or found.value <= 100, name


def test_numbers_as_people_read_them() -> None:
    texts: dict[float | None, str] = {
        0: "0",
        12345.678: "12,350",
        0.0123456: "0.01235",
        3: "3",
        28804800: "28,804,800",
        0.99999: "1.0000",
    }
    texts |= {1.5e-9: "1.500e-09", -2.5: "-2.500", None: "unknown", math.nan: "unknown"}
    for value, text in texts.items():
        assert shown(value) == text


def test_a_quantity_survives_json_and_holds_no_nan() -> None:
    quantity = Quantity(1.5, "s", "log", (1.0, 2.0))
    assert Quantity.from_json(json.loads(json.dumps(quantity.to_json()))) == quantity
    assert Quantity.of(float("inf"), "s", "log").value is None
    assert str(Quantity.of(None, "s", "log")) == "unknown"


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of = small(*even())
    write(replace(of, summary=summary_json(of)), tmp_path / "run")
    assert main([str(tmp_path / "run")]) == 0
    assert "400.0 tokens/s" in capsys.readouterr().out
    assert main([str(tmp_path / "run" / "run.json"), "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)[0]["metrics"]) == list(METRICS)
    assert main([str(tmp_path / "missing")]) == 2
    assert "no run there" in capsys.readouterr().err


def test_runs_below_a_directory_each_with_its_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of = small(*even())
    for place in ("run2", "run10", "run2/attempts/1"):
        write(of, tmp_path / place)
    assert main([str(tmp_path)]) == 0
    heads = [line for line in capsys.readouterr().out.splitlines() if "measured, completed" in line]
    assert [Path(head.partition(" (")[0]).name for head in heads] == ["run2", "run10"]


def test_what_did_not_run_as_requested_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = small(step(1), stated={"lr": 0.2, "data": "\x1b[2J", "seed": 1})
    write(replace(other, requested={"lr": 0.1, "data": "mock", "seed": 1, "clip_grad": 1.0}), tmp_path)
    assert main([str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "lr: requested 0.1, ran 0.2" in out
    assert "\x1b" not in out
    assert main([str(tmp_path), "--json"]) == 0
    unlike = json.loads(capsys.readouterr().out)[0]["differences"]
    assert unlike[0] == {"setting": "lr", "requested": 0.1, "effective": 0.2}
    assert len(unlike) == 2


def test_a_record_says_what_is_impossible_in_it_by_the_same_check(tmp_path: Path) -> None:
    (note,) = with_impossible(made(60_000)).notes
    assert note.startswith(TOO_FAST)
    assert with_impossible(made(40_000)).notes == ()
    lines = (ROOT / "tests" / "parsers" / "fixtures" / "lingua_tiny.log").read_text(encoding="utf-8")
    for flops, words in (("1.97e+14", False), ("1.97e+16", True)):
        log = tmp_path / "h100.log"
        log.write_text(lines.replace("e+14 ", f"{flops[4:]} "), encoding="utf-8")
        assert tprimat(["parse", str(log), "-o", str(tmp_path / flops)]) == 0
        said = "impossible: tflops_per_gpu_framework of" in " ".join(read(tmp_path / flops).notes)
        assert said is words
