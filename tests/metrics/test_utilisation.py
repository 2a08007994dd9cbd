"""MFU and HFU: of the right peak, or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from metrics_made import FLOPS, GPUS, ROOT, made, settings
from msgspec.structs import replace

from conf.errors import ConfigError
from metrics import Quantity
from metrics import summarise as figures
from metrics.peak import hardware, peak_tflops
from parsers import Reading, Record, Step


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


def test_fp8_is_compared_with_the_fp8_peak() -> None:
    found = figures(with_settings(made(20_000), fp8="hybrid"))
    assert found["mfu_percent"].value == pytest.approx(100 * 20_000 * FLOPS / 5033.2e12, rel=1e-4)


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
    monkeypatch.setattr("metrics.peak.CONF", tmp_path)
    monkeypatch.setattr("metrics.peak.choices", lambda group: ("h999",))
    with pytest.raises(ConfigError, match="from memory"):
        hardware("h999")


def test_half_a_package_has_half_its_peak() -> None:
    """MI250X: 383 TFLOP/s a card, 191.5 a die, and software sees dies."""
    assert peak_tflops(hardware("mi250x"), "bf16").value == pytest.approx(191.5)


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


def test_a_time_of_dispatch_is_no_step_time() -> None:
    of = made(10_000)
    fast = [replace(s, step_time_s=0.001, flags=("step_time_s:asynchronous",)) for s in of.steps[6:9]]
    steps = (*of.steps[:6], *fast, *of.steps[9:])
    assert figures(replace(of, steps=steps))["tokens_per_s_per_gpu"].value == pytest.approx(10_000)


def test_a_rate_of_dispatch_is_no_rate() -> None:
    """A real MaxText log prints 8,638 TFLOP/s where the host did not wait for the device."""
    flags = ("tokens_per_s_per_gpu:asynchronous", "tflops_per_gpu:asynchronous")
    real = [Step(step=i, line=1, iteration=i, tokens_per_s_per_gpu=100.0, tflops_per_gpu=5.0) for i in range(12)]
    odd = {"tokens_per_s_per_gpu": 1e6, "tflops_per_gpu": 8638.0, "flags": flags}
    steps = (*real[:6], *(replace(step, **odd) for step in real[6:9]), *real[9:])  # type: ignore[arg-type]
    found = figures(replace(made(), steps=steps))
    assert found["tokens_per_s_per_gpu_framework"].value == pytest.approx(100.0)
    assert found["tflops_per_gpu_framework"].value == pytest.approx(5.0)


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
    sheet = figures(replace(of, environment={}, steps=steps))
    assert sheet["peak_memory_percent"].note == "allocated, of 288.0 GB, mi355x"
    host = figures(replace(of, steps=tuple(replace(s, memory_kind="rss") for s in steps)))
    assert host["peak_memory_percent"] == Quantity(None, "%", "log", note="host memory")
    more = {"max_memory_reserved_bytes": 8e10, "hip_memory_used_bytes": 9e10, "hip_memory_total_bytes": 1.8e11}
    device = figures(replace(of, environment={}, steps=(replace(steps[0], metrics=more), *steps[1:])))
    names = ("peak_memory_allocated_bytes", "peak_memory_reserved_bytes", "peak_memory_device_bytes")
    assert [device[name].value for name in names] == [7.5e10, 8e10, 9e10]
    assert device["peak_memory_percent"] == Quantity(50.0, "%", "log", note="device, of 180.0 GB, by the log")
    assert device["memory_headroom_bytes"].value == 9e10
    small = figures(replace(of, environment={"device_memory_bytes": 10**9}, steps=steps))["peak_memory_percent"]
    assert small.value is None
    assert small.note.startswith("impossible: 7500 %")
