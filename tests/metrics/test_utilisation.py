"""MFU and HFU: of the right peak, or not at all; memory; what a run lost and what it drew."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from metrics_made import FLOPS, GPUS, ROOT, made, settings
from msgspec.structs import replace

from conf.errors import ConfigError
from conf.facts import hardware
from metrics import Quantity, find_warmup
from metrics import summarise as figures
from metrics.peak import peak_tflops
from parsers import Power, Reading, Record, Restart, Stall, Step

# The first steps of a NeMo run on 8 H100s, in s: compilation, then a steady pace.
REAL = [
    *[36.89169, 17.98858, 16.46873, 18.26094, 17.25166, 17.82609, 16.32291, 11.85182, 3.27563, 3.31524, 3.25833],
    *[3.28908, 3.44731, 3.30876, 3.18985, 3.15474, 3.41374, 3.37619, 3.12534, 3.20769, 3.16341, 3.12913, 3.16995],
    *[3.21266, 3.19065, 3.24823, 3.24676, 3.16948],
]


def with_settings(record: Record, **other: Any) -> Record:
    ran = {**record.effective, **{name: Reading(value, 1) for name, value in other.items()}}
    return replace(record, effective=ran, requested={**record.requested, **other})


def test_mfu_is_our_flops_over_the_dense_peak_of_what_ran() -> None:
    found = figures(made(20_000))
    tflops = 20_000 * FLOPS / 1e12
    assert found["tflops_per_gpu"].value == pytest.approx(tflops, rel=1e-4)
    assert found["mfu_percent"].value == pytest.approx(100 * tflops / 2516.6, rel=1e-4)
    assert found["mfu_percent"].note == "of 2,517 TFLOP/s, mi355x bf16 dense"
    assert found["mfu_achievable_percent"].value == pytest.approx(100 * tflops / 1565, rel=1e-4)
    assert found["mfu_percent"].source == "log"
    fp8 = figures(with_settings(made(20_000), fp8="hybrid"))["mfu_percent"]
    assert fp8.value == pytest.approx(100 * tflops / 5033.2, rel=1e-4), "of the fp8 peak"


def test_hfu_counts_what_is_recomputed() -> None:
    plain = figures(made(10_000))
    full = figures(with_settings(made(10_000), recompute_granularity="full", recompute_method="uniform"))
    assert plain["hfu_percent"].value == plain["mfu_percent"].value
    assert full["mfu_percent"].value == plain["mfu_percent"].value
    assert 1.3 < (full["hfu_percent"].value or 0) / (plain["hfu_percent"].value or 1) < 4 / 3
    unreported = {k: v for k, v in settings().items() if k != "recompute_granularity"}
    assert figures(made(settings=unreported))["hfu_percent"].note == "unknown: what is recomputed"


def test_an_unknown_gpu_has_no_mfu_and_says_so() -> None:
    """The A100's peak for an unknown device made 563 % of an MI355X: gh:AMD-AGI/Primus/pull/772."""
    found = figures(made(hardware=None, environment={"device_name": "AMD Instinct MI999X"}))
    assert found["mfu_percent"] == Quantity(None, "%", "log", note="unknown GPU")
    assert found["tflops_per_gpu"].value is not None


def test_the_driver_says_what_ran_not_the_request() -> None:
    found = figures(made(hardware="mi325x", environment={"device_name": "AMD Instinct MI300X"}))
    assert "mi300x" in found["mfu_percent"].note
    assert figures(made(hardware="cpu"))["mfu_percent"].value is None, "a CPU has no peak"


def test_a_hardware_file_without_a_source_is_refused_aloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hardware").mkdir()
    text = (ROOT / "conf" / "hardware" / "h100.yaml").read_text(encoding="utf-8")
    ran = text.replace("name: h100", "name: h999").replace("status: verified", "status: recalled")
    (tmp_path / "hardware" / "h999.yaml").write_text(ran, encoding="utf-8")
    monkeypatch.setattr("conf.compose.CONF", tmp_path)
    with pytest.raises(ConfigError, match="from memory"):
        hardware("h999")


def test_half_a_package_has_half_its_peak() -> None:
    assert peak_tflops(hardware("mi250x"), "bf16").value == pytest.approx(191.5), "383 a card; software sees dies"


def test_above_the_peak_is_impossible_and_not_printed() -> None:
    found = figures(made(60_000))["mfu_percent"]
    assert found.value is None
    assert found.note.startswith("impossible: 123 % of 2,517 TFLOP/s, mi355x bf16 dense; check: ")
    assert "tokens counted twice" in found.note
    assert "asynchronous timing" in found.note
    assert "whether fp8 ran, not bf16" in found.note
    assert figures(made(40_000))["mfu_percent"].value == pytest.approx(81.8, rel=1e-3)
    assert figures(made(40_000))["mfu_achievable_percent"].note.startswith("implausible: 132 % of 1,565 TFLOP/s")
    assert "tokens counted twice" not in figures(made(200_000))["mfu_percent"].note, "a factor of 2 explains no 409 %"


def test_a_log_that_does_not_report_a_setting_gives_no_mfu() -> None:
    of = made()
    for missing in ("num_layers", "padded_vocab_size", "seq_length", "swiglu", "fp8", "params_dtype"):
        ran = {k: v for k, v in of.effective.items() if k not in (missing, "vocab_size")}
        found = figures(replace(of, effective=ran, requested={}))["mfu_percent"]
        assert found.value is None and found.note, missing


def test_what_was_requested_and_not_read_back_makes_an_assumed_figure() -> None:
    of = made()
    ran = {k: v for k, v in of.effective.items() if k != "num_layers"}
    found = figures(replace(of, effective=ran))
    assert found["flops_per_token"].value == pytest.approx(FLOPS, rel=1e-4)
    assert found["mfu_percent"].source == "assumed"
    assert "not read back: num_layers" in found["flops_per_token"].note
    assert found["tokens_per_s"].source == "log", "the speed itself does not depend on it"


def test_rows_that_were_read_back_come_before_padded_ones_that_were_requested() -> None:
    of = made()
    ran = {k: v for k, v in of.effective.items() if k != "padded_vocab_size"}
    found = figures(replace(of, effective={**ran, "vocab_size": Reading(128_000, 1)}))["flops_per_token"]
    assert found.source == "computed"
    assert found.value == pytest.approx(FLOPS - 6 * 4096 * 256, rel=1e-5)


def test_megatrons_one_query_group_means_nothing_unless_it_was_requested() -> None:
    """arguments.py prints --num-query-groups 1 also without --group-query-attention: plain multi-head attention."""
    of = made()
    ran = {**of.effective, "num_query_groups": Reading(1, 1)}
    imported = replace(of, effective=ran, requested={}, provenance="imported")
    assert figures(imported)["flops_per_token"].note == "unknown: num_query_groups"
    requested = replace(imported, requested={**of.requested, "num_query_groups": 1})
    assert figures(requested)["flops_per_token"].value is not None


def test_the_frameworks_own_figure_is_kept_beside_ours() -> None:
    of = made(10_000)
    printed = 10_000 * 5.7913e10 / 1e12
    steps = tuple(replace(step, tflops_per_gpu=printed) for step in of.steps)
    found = figures(replace(of, steps=steps))["tflops_per_gpu_framework"]
    assert found.value == pytest.approx(printed)
    assert found.source == "log"
    assert found.note == "1.125 × ours, as full_attention counts"
    odd = figures(replace(of, steps=tuple(replace(s, tflops_per_gpu=999.0) for s in of.steps)))
    assert odd["tflops_per_gpu_framework"].note.endswith("by a way of counting that is none of ours")


def test_a_rehearsal_has_neither_tflops_nor_power() -> None:
    of = made(provenance="rehearsed")
    steps = tuple(replace(s, tflops_per_gpu=5.0, tokens_per_s_per_gpu=5.0) for s in of.steps)
    found = figures(replace(of, steps=steps))
    names = ("tflops_per_gpu", "tflops_per_gpu_framework", "mfu_percent", "tokens_per_s_per_gpu", "power_w_per_gpu")
    assert [found[name].value for name in names] == [None] * len(names)


def test_a_rate_or_time_of_dispatch_is_none() -> None:
    """A real MaxText log prints 8,638 TFLOP/s where the host did not wait for the device."""
    flags = ("tokens_per_s_per_gpu:asynchronous", "tflops_per_gpu:asynchronous")
    real = [Step(step=i, line=1, iteration=i, tokens_per_s_per_gpu=100.0, tflops_per_gpu=5.0) for i in range(12)]
    odd = {"tokens_per_s_per_gpu": 1e6, "tflops_per_gpu": 8638.0, "flags": flags}
    steps = (*real[:6], *(replace(step, **odd) for step in real[6:9]), *real[9:])  # type: ignore[arg-type]
    found = figures(replace(made(), steps=steps))
    assert found["tokens_per_s_per_gpu_framework"].value == pytest.approx(100.0)
    assert found["tflops_per_gpu_framework"].value == pytest.approx(5.0)
    of, flags = made(10_000), ("step_time_s:asynchronous",)
    fast = [replace(s, step_time_s=0.001, flags=flags) for s in of.steps[6:9]]
    timed_ = figures(replace(of, steps=(*of.steps[:6], *fast, *of.steps[9:])))
    assert timed_["tokens_per_s_per_gpu"].value == pytest.approx(10_000), "nor is a time of dispatch one of a step"


def test_a_log_that_prints_rates_and_no_times() -> None:
    """TorchTitan's tps. The mean over equal work is harmonic: 100 and 300 tokens/s make 150."""
    rates = [*[200.0] * 2, *[100.0, 300.0] * 5]
    steps = tuple(Step(step=i, line=i + 1, iteration=i + 1, tokens_per_s_per_gpu=r) for i, r in enumerate(rates))
    found = figures(replace(made(), steps=steps))
    assert found["tokens_per_s_per_gpu"].value == pytest.approx(150.0)
    assert found["tokens_per_s_per_gpu"].source == "log"
    assert found["tokens_per_s"].value == pytest.approx(150.0 * GPUS)


def test_memory_is_a_share_of_what_the_device_has() -> None:
    of = made(environment={"device_memory_bytes": 300_000_000_000})
    steps = tuple(replace(s, memory_bytes=75_000_000_000, memory_kind="allocated") for s in of.steps)
    found = figures(replace(of, steps=steps))
    assert found["peak_memory_percent"] == Quantity(25.0, "%", "log", note="allocated, of 300.0 GB, by the driver")
    assert found["memory_headroom_bytes"].value == 225_000_000_000
    sheet = figures(replace(of, environment={}, steps=steps))["peak_memory_percent"]
    assert sheet.note == "allocated, of 288.0 GB, mi355x"
    host = figures(replace(of, steps=tuple(replace(s, memory_kind="rss") for s in steps)))["peak_memory_percent"]
    assert host == Quantity(None, "%", "log", note="host memory")
    more = {"max_memory_reserved_bytes": 8e10, "hip_memory_used_bytes": 9e10, "hip_memory_total_bytes": 1.8e11}
    device = figures(replace(of, environment={}, steps=(replace(steps[0], metrics=more), *steps[1:])))
    names = ("peak_memory_allocated_bytes", "peak_memory_reserved_bytes", "peak_memory_device_bytes")
    assert [device[name].value for name in names] == [7.5e10, 8e10, 9e10]
    assert device["peak_memory_percent"] == Quantity(50.0, "%", "log", note="device, of 180.0 GB, by the log")
    assert device["memory_headroom_bytes"].value == 9e10
    small = figures(replace(of, environment={"device_memory_bytes": 10**9}, steps=steps))["peak_memory_percent"]
    assert small.value is None
    assert small.note.startswith("impossible: 7500 %")


def test_the_warmup_of_a_real_run_is_its_first_eight_steps() -> None:
    assert (find_warmup(REAL).count, figures(timed(REAL))["warmup_steps"].value) == (8, 8)


def timed(seconds: list[float], **known: object) -> Record:
    steps = tuple(Step(step=i, line=i + 1, iteration=i + 1, step_time_s=s) for i, s in enumerate(seconds))
    return replace(made(), steps=steps, **known)  # type: ignore[arg-type]


def test_goodput_is_progress_over_wall_time() -> None:
    found = figures(timed([2.0] * 20, wall_time_s=80.0))
    assert found["goodput_percent"].value == pytest.approx(50.0)
    slow_start = figures(timed([30.0, 10.0, *[2.0] * 18], wall_time_s=80.0))
    assert slow_start["goodput_percent"].value == pytest.approx(50.0), "warm-up is lost time, not progress"


def test_goodput_above_one_is_a_contradiction() -> None:
    found = figures(timed([2.0] * 20, wall_time_s=30.0))["goodput_percent"]
    assert found.value is None
    assert found.note == "40.00 s of steps in 30.00 s: one of the two is wrong"
    assert figures(timed([2.0] * 20))["goodput_percent"].value is None


def test_stalls_are_summed_by_kind_and_unreported_ones_are_unknown() -> None:
    stalls = (Stall(line=1, kind="checkpoint", seconds=3.0), Stall(line=2, kind="evaluation", seconds=1.5))
    more = (*stalls, Stall(line=3, kind="checkpoint", seconds=2.0), Stall(line=4, kind="checkpoint"))
    found = figures(made(stalls=more, restarts=(Restart(4, 9),)))
    assert found["stall_time_s"].value == 6.5
    assert found["stall_time_s"].note == "checkpoint 5.000 s, evaluation 1.500 s, 1 without a time"
    assert found["restarts"].value == 1
    assert figures(made())["stall_time_s"].value is None


def test_the_tail_and_the_jitter_of_steps() -> None:
    noise = random.Random(3)
    even = figures(timed([2.0 + 0.0002 * noise.random() for _ in range(40)]))
    tail = figures(timed([4.0 if i % 10 == 9 else 2.0 for i in range(42)]))
    assert even["step_time_tail"].value == pytest.approx(1.0, abs=1e-3)
    assert tail["step_time_tail"].value == pytest.approx(2.0)
    assert tail["step_time_jitter_percent"].value == 0.0, "one step in ten is tail, not jitter"
    drift = figures(timed([2.0 + 0.001 * i for i in range(40)]))
    assert drift["step_time_jitter_percent"].value == pytest.approx(0.05, rel=0.05)
    assert figures(timed([2.0] * 150))["step_time_p99_s"].value == 2.0
    assert even["step_time_p99_s"].value is None


def test_power_without_a_sensor_is_tdp_and_assumed() -> None:
    found = figures(made(10_000))
    assert (found["power_w_per_gpu"].value, found["power_w_per_gpu"].source) == (1400.0, "assumed")
    assert found["energy_j_per_token"].value == pytest.approx(0.14)
    assert found["energy_j_per_token"].source == "assumed"
    assert found["tokens_per_wh"].value == pytest.approx(3600 / 0.14)
    assert figures(made(hardware="cpu"))["power_w_per_gpu"].value is None


def test_measured_power_beats_tdp_and_the_gpus_sensor_its_boards() -> None:
    board = Power(kind="board", source="ipmi", gpus=8, seconds=10.0, energy_counter_j=8 * 10 * 1300.0)
    gpu = Power(kind="gpu", source="amd-smi", gpus=8, seconds=10.0, energy_counter_j=8 * 10 * 1000.0)
    found = figures(made(10_000, power=(board, gpu)))
    assert (found["power_w_per_gpu"].value, found["power_w_per_gpu"].source) == (1000.0, "measured")
    assert found["power_w_per_gpu"].note == "gpu power by amd-smi; not aligned to the steps: idle time may be in it"
    assert found["energy_j_per_token"].value == pytest.approx(0.1)
    assert found["energy_j_per_token"].source == "log", "as sure as the speed, which the log printed"
    assert figures(made(10_000, power=(board,)))["power_w_per_gpu"].value == 1300.0
    node = Power(kind="node", source="pdu", gpus=8, seconds=10.0, mean_power_w=12_000.0)
    assumed = figures(made(power=(node,)))["power_w_per_gpu"]
    assert (assumed.source, assumed.note) == ("assumed", "TDP of mi355x: only the node's power was measured")


def test_zeus_sums_over_all_gpus_of_the_job() -> None:
    window = Power(kind="gpu", source="zeus", seconds=10.0, energy_counter_j=40_000.0, first_step=2, last_step=11)
    assert figures(made(power=(window,)))["power_w_per_gpu"].value == 40_000 / 10 / 8


def test_a_counter_that_contradicts_the_power_is_not_used() -> None:
    """gh:ml-energy/zeus/issues/181: 187 J against 327 J."""
    window = Power(kind="gpu", source="zeus", gpus=1, seconds=1.0, energy_counter_j=187.0, energy_integrated_j=327.0)
    found = figures(made(power=(window,)))["power_w_per_gpu"]
    assert found.value == 327.0
    assert "counter is -42.8 % off" in found.note
    close = replace(window, energy_counter_j=320.0)
    assert figures(made(power=(close,)))["power_w_per_gpu"].value == 320.0


def test_windows_in_the_warmup_or_over_others_do_not_count() -> None:
    def window(first: int, last: int, watts: float, seconds: float = 2.0) -> Power:
        known = {"kind": "gpu", "source": "smi", "gpus": 1, "seconds": seconds}
        return Power(**known, energy_integrated_j=watts * seconds, first_step=first, last_step=last)  # type: ignore[arg-type]

    start, one, two = window(0, 1, 100), window(2, 5, 500), window(6, 11, 700)
    assert figures(made(power=(start, one, two)))["power_w_per_gpu"].value == 600.0
    assert figures(made(power=(one, two)))["power_w_per_gpu"].note == "gpu power by smi"
    assert figures(made(power=(start,)))["power_w_per_gpu"].note == "gpu power by smi; the warm-up among it"
    longest = window(2, 11, 650, 4.0)
    assert figures(made(power=(start, one, two, longest)))["power_w_per_gpu"].value == 650.0


def test_a_step_that_was_redone_after_a_restart_made_progress_once() -> None:
    once = timed([2.0] * 20, wall_time_s=100.0)
    again = replace(once, steps=(*once.steps[:12], *once.steps[8:]), restarts=(Restart(8, 13),))
    assert figures(again)["goodput_percent"].value == pytest.approx(40.0)
