"""Power samples: every format that we know, energy by two ways, nothing made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conf.errors import InputError
from parsers import Record, Step
from parsers.power import PowerLog, Sample, over_steps, power_of, read_power, window, with_power

SHARED = Path(__file__).parents[3] / "shared" / "power"
shared = pytest.mark.skipif(not SHARED.exists(), reason=f"{SHARED} is not here")

NOTHING = PowerLog(source="none")
NVIDIA = """timestamp, index, power.draw [W]
2026/09/11 04:19:41.000, 0, 100.00 W
2026/09/11 04:19:42.000, 0, 300.00 W
2026/09/11 04:19:43.000, 0, 300.00 W
"""


def watts(path: Path | str, device: str) -> list[float | None]:
    log = read_power(path) if isinstance(path, Path) else power_of(path)
    assert log is not None
    return [sample.power_w for sample in log.samples if sample.device == device]


def expected(name: str) -> Any:
    return json.loads((SHARED / f"{name}.expected.json").read_text())


@shared
@pytest.mark.parametrize("name", ["nvidia_smi_csv_fixture.csv", "mi355x_amd_smi_csv_fixture.csv"])
def test_csv_of_the_vendors_tools(name: str) -> None:
    want = expected(name)
    assert len(read_power(SHARED / name).samples) == want["rows"]
    assert (watts(SHARED / name, "0"), watts(SHARED / name, "1")) == (want["gpu0_w"], want["gpu1_w"])


@shared
def test_rocm_smi_text() -> None:
    name = "mi355x_rocm_smi_three_lines.txt"
    assert watts(SHARED / name, str(expected(name)["gpu"])) == [expected(name)["power_w"]]


@shared
def test_nvml_jsonl() -> None:
    name = "h100x8_gbs4_native_20260426.gpu_metrics.jsonl"
    want, log = expected(name), read_power(SHARED / name)
    totals: dict[float, float] = {}
    for sample in log.samples:
        assert sample.time_s is not None
        totals[sample.time_s] = totals.get(sample.time_s, 0.0) + (sample.power_w or 0.0)
    first = [s for s in log.samples if s.device == "0"]
    assert (len(totals), len({s.device for s in log.samples})) == (want["samples"], want["gpus"])
    assert (min(totals), max(totals)) == (want["first_timestamp"], want["last_timestamp"])
    assert (first[0].power_w, max(s.power_w or 0 for s in first)) == (want["gpu0_first_w"], want["gpu0_max_w"])
    assert max(totals.values()) == pytest.approx(want["max_total_w"])
    assert sum(totals.values()) / len(totals) == pytest.approx(want["mean_total_w"], rel=1e-6)
    power = window(log)
    assert power is not None
    assert power.energy_integrated_j == pytest.approx(want["mean_total_w"] * (max(totals) - min(totals)), rel=0.03)


@shared
def test_zeus_tells_windows_itself() -> None:
    want = expected("v100_zeus_events.jsonl")
    (interval,) = read_power(SHARED / "v100_zeus_events.jsonl").windows
    assert interval.energy_counter_j == want["first_interval_energy_j"]
    assert (interval.mean_power_w, interval.seconds) == (
        want["first_interval_avg_power_w"],
        want["first_interval_time_s"],
    )
    assert (interval.first_step, interval.last_step) == (0, want["first_interval_steps"] - 1)


@shared
def test_mlperf_reads_a_complete_node() -> None:
    want = expected("lenovo_b200_v5.0_lora_node0.txt")
    log = read_power(SHARED / "lenovo_b200_v5.0_lora_node0.txt")
    values = [sample.power_w for sample in log.samples if sample.power_w is not None]
    assert (log.kind, len(values), min(values), max(values)) == ("node", want["samples"], want["min_w"], want["max_w"])
    assert (values[0], values[-1]) == (want["first_w"], want["last_w"])
    assert sum(values) / len(values) == pytest.approx(want["mean_w_arithmetic"])
    assert [s.time_s for s in log.samples][:: len(values) - 1] == [
        want["first_time_ms"] / 1e3,
        want["last_time_ms"] / 1e3,
    ]
    assert str(want["conversion_eff"]) in log.notes[0]


def test_energy_is_the_area_under_the_samples() -> None:
    power = window(power_of(NVIDIA) or NOTHING)
    assert power is not None
    assert (power.seconds, power.energy_integrated_j, power.energy_counter_j) == (2.0, 500.0, None)


def test_a_missing_cell_or_a_gap_is_not_bridged() -> None:
    missing = power_of(NVIDIA.replace("04:19:42.000, 0, 300.00 W", "04:19:42.000, 0, [N/A]"))
    late = power_of(NVIDIA + "2026/09/11 04:20:43.000, 0, 300.00 W\n")
    for log, mean in ((missing, None), (late, 250.0)):
        power = window(log or NOTHING)
        assert power is not None
        assert (power.energy_integrated_j, power.mean_power_w) == (None, mean)


def test_one_device_without_energy_leaves_the_sum_unknown() -> None:
    log = power_of(NVIDIA + "2026/09/11 04:19:41.000, 1, 9 W\n2026/09/11 04:19:42.000, 1, [N/A]\n")
    power = window(log or NOTHING)
    assert power is not None
    assert (power.gpus, power.energy_integrated_j) == (2, None)


def jsonl(readings: list[tuple[float, float, float]], device: int = 0) -> str:
    keys = ("monotonic_s", "power_w", "energy_j")
    entries = [{**dict(zip(keys, r, strict=True)), "device": device, "tool": "amd-smi"} for r in readings]
    return "".join(json.dumps(entry) + "\n" for entry in entries)


def test_samples_are_cut_to_the_steps_by_the_common_clock(tmp_path: Path) -> None:
    path = tmp_path / "power.jsonl"
    path.write_text(jsonl([(float(t), 100.0, 100.0 * t) for t in range(100)]) + '{"monotonic_s": 1, "pow')
    steps = tuple(Step(step=i, line=i + 1, iteration=i + 1, end_monotonic_s=10.0 + i) for i in range(21))
    record = with_power(Record(id="a", name="a", provenance="measured", status="completed", steps=steps), path)
    (power,) = record.power
    assert (power.first_step, power.last_step, power.seconds, power.gpus) == (1, 20, 20.0, 1)
    assert (power.energy_counter_j, power.energy_integrated_j) == (2000.0, 2000.0)
    assert record.notes == ()


def test_samples_are_cut_to_the_steps_by_the_worlds_clock(tmp_path: Path) -> None:
    path = tmp_path / "power.jsonl"
    path.write_text("".join(json.dumps({"gpu": 0, "time_unix_s": t, "power_w": 100.0}) + "\n" for t in range(99)))
    steps = tuple(Step(step=i, line=i + 1, iteration=i, metrics={"logged_at_unix_s": 10.0 + 2 * i}) for i in range(21))
    record = with_power(Record(id="a", name="a", provenance="imported", status="completed", steps=steps), path, False)
    (power,) = record.power
    assert (power.first_step, power.last_step, power.seconds, power.energy_integrated_j) == (1, 20, 40.0, 4000.0)


def test_of_several_runs_none_gets_the_power_of_a_file_without_their_clock(tmp_path: Path) -> None:
    path = tmp_path / "power.jsonl"
    path.write_text("".join(json.dumps({"gpu": 0, "time_unix_s": t, "power_w": 100.0}) + "\n" for t in range(9)))
    record = Record(id="a", name="a", provenance="imported", status="completed")
    assert [one.energy_integrated_j for one in with_power(record, path).power] == [800.0]
    one_of_two = with_power(record, path, alone=False)
    assert one_of_two.power == ()
    assert "which of the runs drew it is not known" in one_of_two.notes[0]


def test_a_counter_that_disagrees_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "power.jsonl"
    path.write_text(jsonl([(float(t), 100.0, 80.0 * t) for t in range(10)]))
    record = with_power(Record(id="a", name="a", provenance="measured", status="completed"), path)
    assert any("counters say 720 J, integrated power 900 J" in note for note in record.notes)
    assert any("no common clock" in note for note in record.notes)


def test_a_counter_that_goes_back_counts_nothing() -> None:
    samples = [Sample(device="0", time_s=t, power_w=1.0, energy_j=e) for t, e in ((0.0, 5.0), (1.0, 9.0), (2.0, 1.0))]
    power = window(PowerLog(source="amd-smi", samples=tuple(samples)))
    assert power is not None and power.energy_counter_j is None


def test_rocms_other_formats() -> None:
    for text, device, watt in (
        ('[{"gpu": 1, "power": {"socket_power": {"value": 288, "unit": "W"}}}]', "1", 288.0),
        ('{"card0": {"Average Graphics Package Power (W)": "35.0"}}', "0", 35.0),
        ("device,Average Graphics Package Power (W)\ncard2,41.0\n", "2", 41.0),
    ):
        assert watts(text, device) == [watt]


def test_a_unit_that_is_not_watts_is_no_power() -> None:
    log = power_of('[{"gpu": 0, "power": {"socket_power": {"value": 288000, "unit": "mW"}}}]')
    assert log is None or log.samples[0].power_w is None


def test_what_is_no_power_file_says_what_was_looked_for(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="nvidia-smi"):
        read_power(path)


def test_steps_on_another_clock_are_not_aligned() -> None:
    log = power_of(NVIDIA)
    assert log is not None
    assert over_steps(log, [Step(step=i, line=1, iteration=i, end_monotonic_s=float(i)) for i in range(3)]) is None


_SEEDS = [NVIDIA, jsonl([(1.0, 2.0, 3.0)]), '{"event_type": "interval", "payload": {"interval_metrics": {"zeus": {}}}}']


@given(
    st.one_of(
        st.text(), st.sampled_from(_SEEDS).flatmap(lambda s: st.integers(0, len(s)).map(lambda i: s[:i] + s[i // 2 :]))
    )
)
def test_no_text_makes_it_raise(text: str) -> None:
    log = power_of(text)
    if log is not None:
        window(log)
