"""Goodput, stalls, tail and jitter, power: what a run lost and what it drew."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from metrics_made import made
from msgspec.structs import replace

from metrics import find_warmup, summarise
from parsers import Power, Record, Restart, Stall, Step

RECORDS = Path(__file__).parents[3] / "shared" / "records"
# The first steps of a NeMo run on 8 H100s, in s: compilation, then a steady pace.
REAL = [
    *[36.89169, 17.98858, 16.46873, 18.26094, 17.25166, 17.82609, 16.32291, 11.85182, 3.27563, 3.31524, 3.25833],
    *[3.28908, 3.44731, 3.30876, 3.18985, 3.15474, 3.41374, 3.37619, 3.12534, 3.20769, 3.16341, 3.12913, 3.16995],
    *[3.21266, 3.19065, 3.24823, 3.24676, 3.16948],
]


def timed(seconds: list[float], **known: object) -> Record:
    steps = tuple(Step(step=i, line=i + 1, iteration=i + 1, step_time_s=s) for i, s in enumerate(seconds))
    return replace(made(), steps=steps, **known)  # type: ignore[arg-type]


def test_the_warmup_of_a_real_run_is_its_first_eight_steps() -> None:
    assert find_warmup(REAL).count == 8
    assert summarise(timed(REAL))["step_time_mean_s"].value == pytest.approx(3.2446, rel=1e-4)


@pytest.mark.skipif(not RECORDS.is_dir(), reason="no ../shared")
@pytest.mark.parametrize(("name", "count"), [("train_nvd_nemo_llama", 8), ("train_amd_prim_llama", 2)])
def test_the_warmup_of_the_predecessors_runs(name: str, count: int) -> None:
    times = json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))["step_times"]
    assert find_warmup(times).count == count


def test_goodput_is_progress_over_wall_time() -> None:
    found = summarise(timed([2.0] * 20, wall_time_s=80.0))
    assert found["goodput_percent"].value == pytest.approx(50.0)
    slow_start = summarise(timed([30.0, 10.0, *[2.0] * 18], wall_time_s=80.0))
    assert slow_start["goodput_percent"].value == pytest.approx(50.0), "warm-up is lost time, not progress"


def test_goodput_above_one_is_a_contradiction() -> None:
    found = summarise(timed([2.0] * 20, wall_time_s=30.0))["goodput_percent"]
    assert found.value is None
    assert found.note == "40.00 s of steps in 30.00 s: one of the two is wrong"
    assert summarise(timed([2.0] * 20))["goodput_percent"].value is None


def test_stalls_are_summed_by_kind_and_unreported_ones_are_unknown() -> None:
    stalls = (Stall(line=1, kind="checkpoint", seconds=3.0), Stall(line=2, kind="evaluation", seconds=1.5))
    more = (*stalls, Stall(line=3, kind="checkpoint", seconds=2.0), Stall(line=4, kind="checkpoint"))
    found = summarise(made(stalls=more, restarts=(Restart(4, 9),)))
    assert found["stall_time_s"].value == 6.5
    assert found["stall_time_s"].note == "checkpoint 5.000 s, evaluation 1.500 s, 1 without a time"
    assert found["restarts"].value == 1
    assert summarise(made())["stall_time_s"].value is None


def test_the_tail_and_the_jitter_of_steps() -> None:
    noise = random.Random(3)
    even = summarise(timed([2.0 + 0.0002 * noise.random() for _ in range(40)]))
    tail = summarise(timed([4.0 if i % 10 == 9 else 2.0 for i in range(42)]))
    assert even["step_time_tail"].value == pytest.approx(1.0, abs=1e-3)
    assert tail["step_time_tail"].value == pytest.approx(2.0)
    assert tail["step_time_jitter_percent"].value == 0.0, "one step in ten is tail, not jitter"
    drift = summarise(timed([2.0 + 0.001 * i for i in range(40)]))
    assert drift["step_time_jitter_percent"].value == pytest.approx(0.05, rel=0.05)
    assert summarise(timed([2.0] * 150))["step_time_p99_s"].value == 2.0
    assert even["step_time_p99_s"].value is None


def test_power_without_a_sensor_is_tdp_and_assumed() -> None:
    found = summarise(made(10_000))
    assert (found["power_w_per_gpu"].value, found["power_w_per_gpu"].source) == (1400.0, "assumed")
    assert found["energy_j_per_token"].value == pytest.approx(0.14)
    assert found["energy_j_per_token"].source == "assumed"
    assert found["tokens_per_wh"].value == pytest.approx(3600 / 0.14)
    assert summarise(made(hardware="cpu"))["power_w_per_gpu"].value is None


def test_measured_power_beats_tdp_and_the_gpus_sensor_its_boards() -> None:
    board = Power(kind="board", source="ipmi", gpus=8, seconds=10.0, energy_counter_j=8 * 10 * 1300.0)
    gpu = Power(kind="gpu", source="amd-smi", gpus=8, seconds=10.0, energy_counter_j=8 * 10 * 1000.0)
    found = summarise(made(10_000, power=(board, gpu)))
    assert (found["power_w_per_gpu"].value, found["power_w_per_gpu"].source) == (1000.0, "measured")
    assert found["power_w_per_gpu"].note == "gpu power by amd-smi; not aligned to the steps: idle time may be in it"
    assert found["energy_j_per_token"].value == pytest.approx(0.1)
    assert found["energy_j_per_token"].source == "log", "as sure as the speed, which the log printed"
    assert summarise(made(10_000, power=(board,)))["power_w_per_gpu"].value == 1300.0
    node = Power(kind="node", source="pdu", gpus=8, seconds=10.0, mean_power_w=12_000.0)
    assumed = summarise(made(power=(node,)))["power_w_per_gpu"]
    assert (assumed.source, assumed.note) == ("assumed", "TDP of mi355x: only the node's power was measured")


def test_zeus_sums_over_all_gpus_of_the_job() -> None:
    window = Power(kind="gpu", source="zeus", seconds=10.0, energy_counter_j=40_000.0, first_step=2, last_step=11)
    assert summarise(made(power=(window,)))["power_w_per_gpu"].value == 40_000 / 10 / 8


def test_a_counter_that_contradicts_the_power_is_not_used() -> None:
    """gh:ml-energy/zeus/issues/181: 187 J against 327 J."""
    window = Power(kind="gpu", source="zeus", gpus=1, seconds=1.0, energy_counter_j=187.0, energy_integrated_j=327.0)
    found = summarise(made(power=(window,)))["power_w_per_gpu"]
    assert found.value == 327.0
    assert "counter is -42.8 % off" in found.note
    close = replace(window, energy_counter_j=320.0)
    assert summarise(made(power=(close,)))["power_w_per_gpu"].value == 320.0


def test_windows_in_the_warmup_or_over_others_do_not_count() -> None:
    def window(first: int, last: int, watts: float, seconds: float = 2.0) -> Power:
        known = {"kind": "gpu", "source": "smi", "gpus": 1, "seconds": seconds}
        return Power(**known, energy_integrated_j=watts * seconds, first_step=first, last_step=last)  # type: ignore[arg-type]

    start, one, two = window(0, 1, 100), window(2, 5, 500), window(6, 11, 700)
    assert summarise(made(power=(start, one, two)))["power_w_per_gpu"].value == 600.0
    assert summarise(made(power=(one, two)))["power_w_per_gpu"].note == "gpu power by smi"
    assert summarise(made(power=(start,)))["power_w_per_gpu"].note == "gpu power by smi; the warm-up among it"
    longest = window(2, 11, 650, 4.0)
    assert summarise(made(power=(start, one, two, longest)))["power_w_per_gpu"].value == 650.0


def test_a_step_that_was_redone_after_a_restart_made_progress_once() -> None:
    once = timed([2.0] * 20, wall_time_s=100.0)
    again = replace(once, steps=(*once.steps[:12], *once.steps[8:]), restarts=(Restart(8, 13),))
    assert summarise(again)["goodput_percent"].value == pytest.approx(40.0)
