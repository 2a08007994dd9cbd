"""Quantities, warm-up and the summary of a run: numbers that can be checked by hand."""

from __future__ import annotations

import json
import math
import random
import statistics
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from metrics import METRICS, Quantity, find_warmup, shown, summarise, summary_json
from metrics.cli import main
from parsers import Reading, Record, Step, write

SETTINGS = {"seq_length": 100, "world_size": 4, "global_batch_size": 8}


def record(steps: list[Step], settings: dict[str, Any] | None = None, **known: Any) -> Record:
    effective = {name: Reading(value, 1) for name, value in (SETTINGS if settings is None else settings).items()}
    base = Record(id="a", name="a", provenance="measured", status="completed", effective=effective, steps=tuple(steps))
    return replace(base, **known)


def step(iteration: int, seconds: float | None = 2.0, **more: Any) -> Step:
    return Step(step=iteration - 1, line=iteration, iteration=iteration, step_time_s=seconds, **more)


def values(of: Record) -> dict[str, Any]:
    return {name: quantity.value for name, quantity in summarise(of).items()}


def test_numbers_as_people_read_them() -> None:
    texts = {0: "0", 12345.678: "12,350", 0.0123456: "0.01235", 3: "3", 28804800: "28,804,800", 0.99999: "1.0000"}
    unknown = dict.fromkeys((None, math.nan), "unknown")
    for value, text in {**texts, 1.5e-9: "1.500e-09", -2.5: "-2.500", **unknown}.items():
        assert shown(value) == text


def test_a_quantity_survives_json_and_holds_no_nan() -> None:
    quantity = Quantity(1.5, "s", "log", (1.0, 2.0))
    assert Quantity.from_json(json.loads(json.dumps(quantity.to_json()))) == quantity
    assert Quantity.of(float("inf"), "s", "log").value is None
    assert str(Quantity.of(None, "s", "log")) == "unknown"


def test_warmup_is_found_where_it_ends() -> None:
    noise = random.Random(1)
    series = [noise.uniform(12, 37) for _ in range(8)] + [3.2 * noise.gauss(1, 0.01) for _ in range(92)]
    assert find_warmup(series).count == 8
    assert "White 1997" in find_warmup(series).reason


def test_without_warmup_about_the_minimum_is_dropped() -> None:
    counts = []
    for seed in range(200):
        noise = random.Random(seed)
        states = accumulate((noise.gauss(0, 0.01) for _ in range(200)), lambda state, new: 0.6 * state + new)
        counts.append(find_warmup([1 + state for state in states]).count)
    assert statistics.median(counts) <= 10
    assert min(counts) == 2


@given(st.lists(st.floats(1e-6, 1e6), max_size=60))
def test_warmup_is_two_to_half(series: list[float]) -> None:
    count = find_warmup(series).count
    assert min(len(series), 2) <= count <= max(2, len(series) // 2)


@settings(max_examples=30)
@given(st.lists(st.floats(0.5, 50), min_size=4, max_size=30))
def test_warmup_ends_where_the_standard_error_is_smallest(series: list[float]) -> None:
    errors = [statistics.pvariance(series[cut:]) / len(series[cut:]) for cut in range(len(series) // 2 + 1)]
    assert errors[find_warmup(series).count] == pytest.approx(min(errors[2:]), rel=1e-9, abs=1e-12)


def test_throughput_is_tokens_over_wall_time_after_the_warmup() -> None:
    found = values(record([step(1, 9.0), step(2, 9.0), step(3), step(4), step(5)]))
    assert found["warmup_steps"] == 2
    assert found["counted_steps"] == 3
    assert found["tokens_per_s"] == 8 * 100 / 2.0
    assert found["tokens_per_s_per_gpu"] == 100.0
    assert found["step_time_mean_s"] == 2.0


def test_a_log_that_prints_speeds_and_no_times_counts_no_steps() -> None:
    """As TorchTitan's: 0 steps would say that its speed is of none."""
    found = summarise(record([step(i, None, tokens_per_s_per_gpu=128.0) for i in range(1, 9)]))
    assert found["tokens_per_s_per_gpu"] == Quantity(128.0, "tokens/s/GPU", "log")
    assert found["counted_steps"] == Quantity(None, "steps", "computed", note="no step times reported")


def test_our_clock_is_preferred_to_the_printed_time_where_every_step_has_it() -> None:
    of = [step(i, 2.0, end_monotonic_s=100.0 + 4 * i) for i in range(1, 9)]
    assert summarise(record(of))["tokens_per_s"] == Quantity(200.0, "tokens/s", "measured")
    assert summarise(record([*of[:-1], step(8)]))["tokens_per_s"] == Quantity(400.0, "tokens/s", "log")


def test_lines_that_print_the_mean_over_ten_iterations() -> None:
    found = values(record([step(i, 2.0, global_batch_size=8) for i in range(10, 90, 10)]))
    assert found["tokens_per_s"] == 400.0
    assert found["counted_steps"] == 60
    assert found["step_time_mean_s"] == 2.0
    assert found["step_time_median_s"] is None
    assert found["step_time_stdev_s"] is None


def test_a_lost_line_is_no_longer_step() -> None:
    lost = [step(i, consumed_samples=8 * i) for i in (1, 2, 3, 4, 5, 7, 8)]
    found = values(record(lost))
    assert found["tokens_per_s"] == 400.0
    assert found["counted_steps"] == 4


def test_a_clock_that_goes_back_is_reported() -> None:
    stamps = [100.0, 102.0, 104.0, 86.0, 88.0, 90.0]
    found = summarise(record([step(i, 2.0, end_monotonic_s=at) for i, at in enumerate(stamps, start=1)]))
    note = "left out: 1 interval of a clock that went back or stood"
    assert found["counted_steps"].note == found["tokens_per_s_per_gpu"].note == note
    assert found["tokens_per_s_per_gpu"].value == 100.0
    assert summarise(record([step(i, 2.0) for i in range(1, 6)]))["counted_steps"].note == ""


def test_a_restart_or_a_clock_that_was_set_back_is_no_negative_step() -> None:
    restarted = [(1, 2), (2, 4), (3, 6), (4, 8), (3, 1), (4, 3), (5, 5)]
    set_back = [(1, 2), (2, 4), (3, 6), (4, 8), (5, 1), (6, 3), (7, 5)]
    for stamps in (restarted, set_back):
        found = values(record([step(i, 2.0, end_monotonic_s=float(at)) for i, at in stamps]))
        assert found["tokens_per_s"] == 400.0
    assert found["warmup_steps"] + found["counted_steps"] == 6
    resumed = values(record([step(i) for i in (25, 26, 27, 28)]))
    assert resumed["warmup_steps"] + resumed["counted_steps"] == 3, "what its first line covers is unknown"


def test_a_batch_that_is_ramped_up_counts_what_was_consumed() -> None:
    consumed = [8, 16, 24, 40, 56]
    of = record([step(i, consumed_samples=at) for i, at in enumerate(consumed, start=1)])
    assert values(of)["tokens_per_s"] == (56 - 16) * 100 / 6.0


def test_what_is_not_known_is_not_guessed() -> None:
    names = {"tokens_per_s", "tokens_per_s_per_gpu", "step_time_mean_s"}
    both = {"tokens_per_s", "tokens_per_s_per_gpu"}
    for missing, unknown in {**dict.fromkeys(SETTINGS, both), "world_size": both - {"tokens_per_s"}}.items():
        settings = {name: value for name, value in SETTINGS.items() if name != missing}
        found = values(record([step(i) for i in range(1, 9)], settings, requested=SETTINGS))
        assert {name for name in names if found[name] is None} == unknown


def test_too_little_gives_no_speed() -> None:
    for steps in ([], [step(1)], [step(1), step(2)], [step(i, None) for i in range(1, 9)]):
        found = values(record(steps))
        assert (found["tokens_per_s"], found["step_time_mean_s"]) == (None, None)


def test_a_rehearsal_has_losses_and_no_speed() -> None:
    found = values(record([step(i, loss=3.0 / i) for i in range(1, 9)], provenance="rehearsed"))
    assert (found["tokens_per_s"], found["loss_first"], found["loss_last"]) == (None, 3.0, 3.0 / 8)
    assert values(record([step(1, loss=2.0), step(2, nonfinite=("loss",))]))["loss_last"] is None


def test_memory_of_two_kinds_is_not_mixed() -> None:
    one = [step(i, memory_bytes=i, memory_kind="rss") for i in (1, 2)]
    assert summarise(record(one))["peak_memory_bytes"] == Quantity(2, "bytes (rss)", "log")
    ours = [replace(s, end_monotonic_s=2.0 * s.step) for s in one]
    assert summarise(record(ours))["peak_memory_bytes"] == Quantity(2, "bytes (rss)", "measured"), "by our own mark"
    none = [replace(s, memory_bytes=0) for s in one]
    assert values(record(none))["peak_memory_bytes"] is None, "without the vendor's library 0 is printed"
    assert values(record([*one, step(3, memory_bytes=9, memory_kind="allocated")]))["peak_memory_bytes"] is None


def test_the_tail_needs_twenty_steps() -> None:
    assert values(record([step(i) for i in range(1, 21)]))["step_time_p95_s"] is None
    assert values(record([step(i) for i in range(1, 30)]))["step_time_p95_s"] == 2.0


def test_an_estimate_keeps_its_summary_and_no_other_record_does() -> None:
    summary = {"tokens_per_s": Quantity(5.0, "tokens/s", "computed").to_json()}
    assert summarise(record([], summary=summary))["tokens_per_s"].value is None, "its steps are lost"
    estimate = record([], summary=summary, provenance="estimated")
    assert summarise(estimate)["tokens_per_s"] == Quantity(5.0, "tokens/s", "computed")
    assert set(summarise(estimate)) == set(METRICS)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of = record([step(i) for i in range(1, 9)])
    write(replace(of, summary=summary_json(of)), tmp_path / "run")
    assert main([str(tmp_path / "run")]) == 0
    assert "400.0 tokens/s" in capsys.readouterr().out
    assert main([str(tmp_path / "run" / "run.json"), "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)[0]["metrics"]) == list(METRICS)
    assert main([str(tmp_path / "missing")]) == 2
    assert "no run there" in capsys.readouterr().err


def test_runs_below_a_directory_each_with_its_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of = record([step(i) for i in range(1, 9)])
    for place in ("run2", "run10", "run2/attempts/1"):
        write(of, tmp_path / place)
    assert main([str(tmp_path)]) == 0
    heads = [line for line in capsys.readouterr().out.splitlines() if "measured, completed" in line]
    assert [Path(head.partition(" (")[0]).name for head in heads] == ["run2", "run10"]


def test_what_did_not_run_as_requested_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = record([step(1)], {"lr": 0.2, "data": "\x1b[2J", "seed": 1})
    write(replace(other, requested={"lr": 0.1, "data": "mock", "seed": 1, "clip_grad": 1.0}), tmp_path)
    assert main([str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "lr: requested 0.1, ran 0.2" in out
    assert "\x1b" not in out
    assert main([str(tmp_path), "--json"]) == 0
    unlike = json.loads(capsys.readouterr().out)[0]["differences"]
    assert unlike[0] == {"setting": "lr", "requested": 0.1, "effective": 0.2}
    assert len(unlike) == 2


ANY = st.one_of(st.none(), st.floats(-1e308, 1e308), st.sampled_from([0.0, -1.0, 1e-320, 1e308]))


@given(st.lists(st.tuples(ANY, ANY, ANY, ANY, st.integers(-5, 10**15)), max_size=30), ANY)
def test_no_figures_make_a_number_that_cannot_be(rows: list[tuple[Any, ...]], wall_time_s: float | None) -> None:
    names = ("step_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "end_monotonic_s", "consumed_samples")
    steps = [Step(step=i, line=i, iteration=i + 1, **dict(zip(names, row, strict=True))) for i, row in enumerate(rows)]
    for name, found in summarise(record(steps, wall_time_s=wall_time_s)).items():
        if found.value is not None:
            assert math.isfinite(found.value), name
            assert found.value >= 0 or name in ("wall_time_s", "loss_first", "loss_last"), name
            assert "percent" not in name or "jitter" in name or found.value <= 100, name
