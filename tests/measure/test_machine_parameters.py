"""Parameters that follow from figures, trainings and samples of power: known machines give theirs, sick ones a
cause."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from conf.machine import Figure, Machine, Training, read, write
from launchers.power import FILE
from launchers.rank_modules import rank_module
from measure import power
from measure.cases import Scope, Standard, cases, needed_bytes, too_large
from measure.parameters import against, parameters
from measure.rates import figures, samples_of
from measure.suspicious import suspicious
from measure.validation import validations
from tests.measure.test_rates import SMALL, lines_of, machine

SIZES = {"num_layers": 4, "hidden_size": 128, "ffn_hidden_size": 352, "padded_vocab_size": 512}
STANDARD = Standard("llama_tiny", SIZES, (1, 4), {64: 5e6, 128: 6e6}, 900_000)
WHOLE = Scope(**{**{name: getattr(SMALL, name) for name in SMALL.__dataclass_fields__}, "standard": STANDARD})
TRAINING = ("model=llama_tiny", "training.micro_batch_size=1")


def training(seconds: float, processes: int, batch: int, **split: int) -> Training:
    layout = [f"layout.{name}_model_parallel_size={size}" for name, size in split.items()]
    run = (*TRAINING, f"gpus_per_node={processes}", f"training.global_batch_size={batch}", *layout)
    return Training(run, seconds, 16, 0.05, seconds * 1.1)


def values(found: Any) -> dict[str, float]:
    return {one.name: one.value for one in found}


def test_the_best_batch_gives_throughput_and_utilisation() -> None:
    known = cases(WHOLE)
    lines = lines_of(known)
    samples = samples_of(known, lines, 2)
    own = replace(machine(), figures=tuple(figures(samples)))
    found = values(parameters(own, known, lines))
    steps = [one for one in own.figures if one.name == "training_tokens"]
    assert len(steps) == 4
    assert found["base_throughput"] == max(one.value for one in steps)
    best = max(steps, key=lambda one: one.value)
    rate = own.value("gemm_best", ranks=1, precision="fp32")
    assert rate is not None
    per_token = STANDARD.flops_per_token[int(best.of["seq"])]
    assert found["base_utilisation"] == pytest.approx(best.value * per_token / rate)


def test_jitter_is_of_the_slowest_rank_at_each_step() -> None:
    known = [case for case in cases(WHOLE) if case["kind"] == "jitter" and case["ranks"] == 2]
    even, late = [1.0] * 100, [1.0] * 90 + [3.0] * 10
    lines = [{"case": 0, "round": 0, "rank": rank, "each": each} for rank, each in enumerate((even, late))]
    (found,) = parameters(machine(), known, lines)
    assert found.value == pytest.approx(3.0 / 1.2)
    assert found.interval is not None
    assert found.interval[0] < found.value <= found.interval[1]


def test_the_95th_percentile_is_numpy_s() -> None:
    known = [case for case in cases(WHOLE) if case["kind"] == "jitter" and case["ranks"] == 1]
    lines = [{"case": 0, "round": 0, "rank": 0, "each": [*map(float, range(1, 101))]}]
    (found,) = parameters(machine(), known, lines)
    assert found.value == pytest.approx(95.05 / 50.5)


def test_communication_is_the_slope_over_the_degree_beside_data_parallelism_without_the_bubble() -> None:
    # a sequence takes 0.01 s on two processes and 0.005 s on four; TP adds 30 % a doubling, PP nothing but its bubble
    runs = (
        training(0.12, 2, 12),
        training(0.06, 4, 12),
        training(0.06 * 1.3, 2, 6, tensor=2),
        training(0.03 * 1.6, 4, 6, tensor=4),
        training(0.06 * (1 + 1 / 6), 2, 6, pipeline=2),
        training(0.03 * (1 + 3 / 6), 4, 6, pipeline=4),
        training(9.0, 4, 6, tensor=2, pipeline=2),  # both: of neither
    )
    found = {one.name: one for one in parameters(replace(machine(), trainings=runs), [], [])}
    assert found["communication_tp"].value == pytest.approx(0.3)
    assert found["communication_pp"].value == pytest.approx(0.0, abs=1e-9)
    assert found["communication_tp"].of == {"degrees": "2 4"}
    assert found["communication_tp"].interval is not None
    assert not [*parameters(replace(machine(), trainings=runs[2:4]), [], [])]  # nothing to set them against


def test_a_baseline_gives_the_fabric_s_and_the_device_s_factor() -> None:
    throughput = Figure("base_throughput", 100.0, "tokens/s", "", {}, (90.0, 110.0))
    own = replace(machine(), figures=(*machine().figures, throughput))
    links = [one for one in own.figures if one.name.endswith("_rate") and "all_" in one.name]
    assert links
    slower = tuple(
        replace(one, value=one.value / 2) if one in links or one is throughput else one for one in own.figures
    )
    found = {one.name: one for one in against(replace(own, figures=slower), own)}
    assert found["fabric_factor"].value == pytest.approx(0.5)
    assert found["vendor_factor"].value == pytest.approx(0.5)
    assert found["vendor_factor"].interval == pytest.approx((90 / 110, 110 / 90))


def test_a_baseline_under_another_limit_of_power_gives_the_effect_of_the_cap() -> None:
    def limited(watts: float, tokens: float, joules: float) -> Machine:
        found = (
            Figure("power_limit", watts, "W", ""),
            Figure("base_throughput", tokens, "tokens/s", "", {}, (0.9 * tokens, 1.1 * tokens)),
            Figure("energy_per_token", joules, "J/token", "", {"phase": "training"}),
        )
        return replace(machine(), figures=found)

    whole, capped = limited(700, 100, 7.0), limited(500, 90, 5.6)
    found = {one.of["what"]: one for one in against(capped, whole) if one.name == "power_cap"}
    assert found["base_throughput"].value == pytest.approx(0.9)
    assert found["base_throughput"].interval == pytest.approx((81 / 110, 99 / 90))
    assert found["energy_per_token"].value == pytest.approx(0.8)
    assert [one.of["limit_w"] for one in found.values()] == [500, 500]
    other = replace(capped, device="another")
    for first, second in ((whole, limited(702, 100, 7.0)), (other, whole), (replace(whole, figures=()), whole)):
        assert "power_cap" not in {one.name for one in against(first, second)}


def phase(name: str, begin: float, rank: int = 0, **more: Any) -> str:
    return json.dumps({"phase": name, "rank": rank, "begin_s": begin, "end_s": begin + 6, "calls": 10, **more}) + "\n"


def test_power_is_the_mean_of_samples_within_a_phase_and_a_share_of_the_limit(tmp_path: Path) -> None:
    step = {"phase": "training", "case": {"batch": 4, "seq": 64}}
    (tmp_path / "phases-0.jsonl").write_text(phase("idle", 100) + phase("training", 110) + '{"phase": "cu')
    (tmp_path / "phases-1.jsonl").write_text(phase("idle", 100, 1) + phase("training", 110, 1))
    assert power.figures(tmp_path, [{"phase": "idle"}, step], 700.0)
    samples = [
        {"monotonic_s": 100.2 + second, "device": device, "power_w": 90.0 if second < 8 else 600.0 + 20 * device}
        for second in range(16)
        for device in range(2)
    ]
    (tmp_path / FILE).write_text("\n".join(json.dumps({**one, "tool": "nvidia-smi"}) for one in samples))
    found = {
        (one.name, one.of.get("phase")): one.value for one in power.figures(tmp_path, [{"phase": "idle"}, step], 700.0)
    }
    assert found["power_limit", None] == 700.0
    assert found["power", "idle"] == 90.0
    assert found["power", "training"] == 610.0
    assert found["power_share", "training"] == pytest.approx(610 / 700)
    assert found["energy_per_token", "training"] == pytest.approx(610 * 2 * 6 / (2 * 10 * 4 * 64))
    assert power.done(tmp_path, [{"phase": "idle"}, step])
    assert not power.done(tmp_path, [{"phase": "memory-bound"}])


def test_power_is_of_the_devices_that_work_and_of_the_first_node_s_tokens(tmp_path: Path) -> None:
    step = {"phase": "training", "case": {"batch": 4, "seq": 64}}
    for rank in range(4):  # of two nodes
        (tmp_path / f"phases-{rank}.jsonl").write_text(phase("training", 110, rank))
    watts = {0: 80.0, 1: 600.0, 2: 640.0, 3: None}  # of idle ones, too, and of one that reports nothing
    samples = [
        {"monotonic_s": 110.2 + second, "device": device, "power_w": power_w, "tool": "amd-smi"}
        for second in range(6)
        for device, power_w in watts.items()
    ]
    (tmp_path / FILE).write_text("\n".join(map(json.dumps, samples)))
    found = {one.name: one.value for one in power.figures(tmp_path, [step], 700.0, ranks=2)}
    assert found["power"] == 620.0
    assert found["energy_per_token"] == pytest.approx((600 + 640) * 6 / (2 * 10 * 4 * 64))


def test_clocks_that_fall_under_load_are_named(tmp_path: Path) -> None:
    phases = [{"phase": f"products {share}"} for share in ("25%", "100%")]
    for rank, clocks in enumerate(((1980, 1410), (1980, 1950))):
        texts = [
            phase(one["phase"], 100, rank, clock_mhz=clock, temperature_c=60 + clock % 100)
            for one, clock in zip(phases, clocks, strict=True)
        ]
        (tmp_path / f"phases-{rank}.jsonl").write_text("".join(texts))
    found = tuple(power.figures(tmp_path, phases, None))
    assert [(one.name, one.value) for one in found if one.of["phase"] == "products 100%"] == [
        ("clock", 1.41e9),
        ("temperature", 110),
    ]
    own = replace(machine(), figures=found)
    (said,) = suspicious(own, samples_of(cases(SMALL), [], 2), {})
    assert said.startswith("clocks fall from 1980 to 1410 MHz at 110 °C")
    assert "throttled" in said


def test_clocks_that_ranks_cannot_read_are_those_of_the_vendor_s_tool(tmp_path: Path) -> None:
    (tmp_path / "phases-0.jsonl").write_text(phase("memory-bound", 110))
    samples = [
        {
            "monotonic_s": 110.2 + second,
            "device": device,
            "power_w": 600.0,
            "clock_mhz": clock,
            "temperature_c": degrees,
        }
        for second in range(-5, 6)
        for device, clock, degrees in ((0, 1980 if second else 210, 60 + second), (1, 1410, None))
    ]
    (tmp_path / FILE).write_text("\n".join(map(json.dumps, samples)))
    found = {one.name: one for one in power.figures(tmp_path, [{"phase": "memory-bound"}], None)}
    assert (found["clock"].value, found["temperature"].value) == (1.41e9, 65)
    assert "vendor's tool" in found["clock"].formula
    (tmp_path / FILE).write_text("\n".join(json.dumps({**one, "clock_mhz": None}) for one in samples[::2]))
    assert {one.name for one in power.figures(tmp_path, [{"phase": "memory-bound"}], None)} == {"power", "temperature"}


def test_the_processor_s_own_counter_is_read_also_where_it_begins_again(tmp_path: Path) -> None:
    for number, (joules, watts_limit) in enumerate(((10, 200), (250, 150), (300, 400))):
        zone = tmp_path / f"intel-rapl:{number}"
        zone.mkdir()
        for name, value in (
            ("energy_uj", joules),
            ("max_energy_range_uj", 262),
            ("constraint_0_power_limit_uw", watts_limit),
        ):
            (zone / name).write_text(f"{value * 1_000_000}\n")
    for number, name in enumerate(("package-0", "package-1", "psys")):  # which has both in it
        (tmp_path / f"intel-rapl:{number}" / "name").write_text(f"{name}\n")
    ranks = rank_module("measure_ranks")
    counters = [str(zone) for zone in power.zones(tmp_path)]
    before = ranks._joules(counters)
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("70000000")
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("8000000")
    after = ranks._joules(counters)
    assert [ranks._used(*pair) for pair in zip(before, after, strict=True)] == [60, 20]
    assert power.counter_limit_w(tmp_path) == 350
    (tmp_path / "phases-0.jsonl").write_text(phase("idle", 100, joules=180.0))
    (limit, watts, share) = power.figures(tmp_path, [{"phase": "idle"}], 350)
    assert (limit.value, watts.value) == (350.0, 30.0)
    assert share.value == pytest.approx(30 / 350)


def test_what_is_known_of_part_predicts_the_rest_or_the_table_says_that_it_does_not(tmp_path: Path) -> None:
    known = cases(SMALL)
    samples = samples_of(known, lines_of(known), 2)
    runs = tuple(training(0.1, 2, 6) for _ in range(4))
    rows = {(row.of, row.target): row for row in validations(samples, runs)}
    assert rows["matrix products", 0.15].median < 1e-6
    assert rows["collectives", 0.15].met
    assert not rows["trainings", 0.08].met
    assert rows["trainings", 0.15].met
    assert rows["trainings of 2 processes", 0.2].median == pytest.approx(0.1)
    one = replace(machine(), validation=tuple(rows.values()))
    write(tmp_path / "machine.yaml", one)
    assert read(tmp_path / "machine.yaml") == one


def slow(samples: Any) -> Any:
    return type(samples)(samples.cases, samples.seconds, samples.by_rank * np.array([1.0, 1.1, 1.0, 1.0]))


def figure(name: str, value: float, **of: Any) -> Figure:
    return Figure(name, value, "", "", of, (value, value))


@pytest.mark.parametrize(
    ("added", "cause"),
    [
        (figure("jitter", 2.0), "other programs"),
        (figure("base_utilisation", 1.2), "clocks changed"),
        (figure("communication_tp", -0.4), "was disturbed"),
        (figure("all_reduce_deviation", 0.9), "two protocols"),
        (figure("power_share", 1.2), "limit was changed"),
        (figure("all_to_all_latency", 0.02), "sockets for links"),
        (figure("all_reduce_latency", 1e-8), "the fit is rough"),
        (figure("save_rate", 1e6), "a slow disk"),
        (figure("load_rate", 1e12), "a cache held the file"),
        (figure("triad_rate", 4e12, ranks=1, precision="fp32"), "a wrong data sheet"),
        (figure("gemm_best", 2e15, ranks=1, precision="bf16"), "the data sheet says"),
        (figure("gemm_best", 1e14, ranks=1, precision="bf16"), "clocks or power are capped"),
    ],
)
def test_an_implausible_figure_has_its_likely_cause(added: Figure, cause: str) -> None:
    own: Machine = replace(machine(accelerator=True), figures=(added,))
    samples = samples_of([], [], 1)
    (warning,) = suspicious(own, samples, {"bf16": 989e12}, 3.35e12)
    assert cause in warning


def test_latencies_of_a_cpu_are_longer_than_those_of_gpus() -> None:
    for accelerator, seconds, warned in ((False, 0.02, False), (False, 0.2, True), (True, 0.02, True)):
        own = replace(machine(accelerator=accelerator), figures=(figure("all_gather_latency", seconds),))
        assert bool([*suspicious(own, samples_of([], [], 1), {})]) == warned


def test_rounds_of_a_probe_are_some_time_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = rank_module("measure_ranks")
    slept: list[float] = []
    monkeypatch.setattr(ranks.time, "sleep", slept.append)
    made = []
    for visit in ranks._paused([[0, 1], [0, 0], [1, 0], [1, 1]], 3.0):
        made.append((visit[0], len(slept)))
    assert made == [(0, 0), (0, 0), (1, 1), (1, 1)]
    assert slept == [3.0]
    assert [*ranks._paused([], 3.0)] == []


def test_a_backward_pass_in_bf16_is_as_slow_as_a_cpu_has_it() -> None:
    samples = samples_of([], [], 1)
    for accelerator, precision, value, warned in (
        (False, "bf16", 9.0, False),
        (False, "bf16", 25.0, True),
        (False, "fp32", 9.0, True),
        (True, "bf16", 9.0, True),
    ):
        one = figure("attention_backward", value, ranks=1, precision=precision)
        own = replace(machine(accelerator=accelerator), figures=(one,))
        assert bool([*suspicious(own, samples, {})]) == warned


def test_a_host_that_others_use_is_said() -> None:
    known = cases(SMALL)
    samples = samples_of(known, lines_of(known), SMALL.ranks)
    busy, idle = (replace(machine(), facts={"host_load": load}) for load in (1.4, 0.2))
    assert [text for text in suspicious(busy, samples, {}) if "140 % of the host's cores" in text]
    assert not [text for text in suspicious(idle, samples, {}) if "host's cores" in text]


def test_a_gpu_that_is_slower_than_its_neighbours_and_a_sound_machine() -> None:
    scope = Scope(accelerator=True, ranks=4, cores=16, memory_bytes=80 << 30, full=False)
    known = cases(scope)
    samples = samples_of(known, lines_of(known), 4)
    own = replace(machine(), accelerator=True, ranks=4, figures=tuple(figures(samples)))
    assert not [*suspicious(own, samples, {})]
    (warning,) = suspicious(own, slow(samples), {})
    assert warning.startswith("rank 1 takes 1.10 times as long")


def test_what_needs_more_than_half_of_the_memory_is_said() -> None:
    small = Scope(**{**{name: getattr(WHOLE, name) for name in WHOLE.__dataclass_fields__}, "memory_bytes": 64 << 20})
    left = too_large(small)
    assert {case["kind"] for case in left} >= {"save", "model"}
    assert max(needed_bytes(case) for case in cases(small)) < 32 << 20
    assert len(left) + len(cases(small)) == len(cases(WHOLE))
