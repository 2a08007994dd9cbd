"""`python -m metrics cost` and `energy`: journey J6 in one line."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from metrics.repeats import mean_of
from parsers import write
from tensorprimat.claims import main
from tests.metrics.metrics_made import made, repeats

PRICES = "price.usd_per_gpu_hour.mi355x=3.10|price.usd_per_gpu_hour.b200=4.75 USD/gpu-hour"
J6 = f"{PRICES}|power_price=0.09|pue=1.25|tokens=15T"
ENERGY = "tokens=15e12|pue=1.25|carbon=FRA|power_price=0.09"


def both(folder: Path) -> None:
    repeats(folder, "mi355x", 10_000, 10_100, 9_900)
    repeats(folder, "b200", 12_000, 12_120, 11_880)


def test_journey_6_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both(tmp_path)
    line = ["cost", str(tmp_path), *J6.split("|"), "carbon=FRA"]
    assert main(line) == 0
    out = capsys.readouterr().out
    for text in ("1.5e+13 tokens", "GPU-hours", "MWh", "tCO2e", "assumed", "break-even", "goodput 90 to 98 %"):
        assert text in out
    assert "not audited here: python -m compare says whether these runs may be compared" in out
    assert main(["cost", str(tmp_path / "b200"), *line[2:]]) == 0
    assert "not audited" not in capsys.readouterr().out, "one option is compared with nothing"
    assert main([*line, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    figures = {o["option"].split()[1]: o["figures"] for o in data["options"]}
    hours = 15e12 / mean_of([10_000, 10_100, 9_900])[0] / 3600
    assert figures["mi355x"]["gpus"]["value"] == pytest.approx(3.10 * hours)
    assert figures["mi355x"]["electricity"]["value"] == pytest.approx(0.09 * hours * 1.4 * 1.25)
    assert figures["mi355x"]["total"]["interval"][0] < figures["mi355x"]["total"]["value"]
    assert figures["mi355x"]["energy_mwh"]["source"] == "assumed"
    assert len(data["break_even"]) == 2


def test_journey_6_for_energy_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a price: energy and CO2 of each option, the power at which one would draw level, and what moves it."""
    both(tmp_path)
    line = ["energy", str(tmp_path), *ENERGY.split("|")]
    assert main(line) == 0
    out = capsys.readouterr().out
    for text in ("MWh", "tCO2e", "electricity", "takes less energy than llama31_8b-b200 b200 ×8 up to", "W/GPU ("):
        assert text in out
    for cause in ("power drawn ±20 %", "goodput 90 to 98 %", "speed, over its interval"):
        assert out.count(cause) == 2
    assert main([*line, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    even = next(one for one in data["break_even"] if "mi355x" in one["option"])
    speeds = mean_of([10_000, 10_100, 9_900])[0] / mean_of([12_000, 12_120, 11_880])[0]
    assert even["power_w_per_gpu"]["value"] == pytest.approx(1000 * speeds)
    assert even["power_w_per_gpu"]["source"] == "assumed"
    assert data["sensitivity_of"] == "energy_kwh"
    found = data["options"][0]
    kwh = found["figures"]["energy_kwh"]["value"]
    ends = {swing["cause"]: (swing["low"]["value"], swing["high"]["value"]) for swing in found["sensitivity"]}
    assert ends["power drawn ±20 %"] == pytest.approx((0.8 * kwh, 1.2 * kwh))
    assert found["figures"]["electricity"]["value"] == pytest.approx(0.09 * kwh)


def test_a_spreadsheet_and_energy_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repeats(tmp_path, "mi355x", 10_000)
    assert main(["cost", str(tmp_path), "price.usd_per_gpu_hour.mi355x=3.10", "--csv"]) == 0
    rows = {row["figure"]: row for row in csv.DictReader(io.StringIO(capsys.readouterr().out))}
    assert float(rows["total"]["value"]) == pytest.approx(3.10 * 1e12 / 10_000 / 3600)
    assert rows["total"]["unit"] == "USD"
    assert main(["energy", str(tmp_path), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["options"][0]["figures"]
    assert figures["energy_j_per_token"]["value"] == pytest.approx(0.14)
    assert not {"price", "total"} & set(figures)


def test_the_price_that_a_run_was_started_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """price.usd_per_gpu_hour.mi355x=3.10 at launch: it lies in the run's own experiment.yaml."""
    repeats(tmp_path, "mi355x", 10_000)
    assert main(["cost", str(tmp_path), "--json"]) == 0
    before = json.loads(capsys.readouterr().out)["options"][0]["figures"]["price"]
    assert (before["value"], before["source"]) == (8.6, "assumed")
    text = "price:\n  usd_per_gpu_hour: {mi355x: 3.1}\n  date: '2026-11'\n  source: null\n"
    (tmp_path / "mi355x" / "0" / "experiment.yaml").write_text(text, encoding="utf-8")
    assert main(["cost", str(tmp_path), "--json"]) == 0
    after = json.loads(capsys.readouterr().out)["options"][0]["figures"]["price"]
    assert (after["value"], after["source"], after["note"]) == (3.1, "given", "2026-11")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("pue=0.5", "pue: cannot be used"),
        ("tokens=-1|goodput=2", "goodput: cannot be used"),
        ("tokens=nan", "tokens: cannot be used"),
        ("power_price=inf", "power_price: cannot be used"),
        ("power_price=1T", "0 to 1,000,000"),
        ("power_price=0.09 EUR/kWh", "another currency than the prices'"),
        ("years=5%", "with years behind it or nothing"),
        ("carbon=400kg", "with gCO2e/kWh or gCO2/kWh or g/kWh behind it"),
        ("capex.usd_per_gpu.mi355x=28000", "needs power_price"),
        ("capex.usd_per_gpu.mi355x=28000|power_price=0|price=oracle", "exclude each other"),
        ("carbon=nowhere", "no such country"),
        ("capex.mi355x=28000|power_price=0", "capex.mi355x: no such key"),
        ("capex.usd_per_gpu.mi355x=3 USD/gpu-hour|power_price=0", "is not a positive number"),
        ("price.eur.mi355x=3", "no such key"),
        ("price=nowhere.yaml", "is not a price file"),
        ("tokns=1T", "did you mean tokens?"),
        ("tokens=1T|tokens=2T", "is given twice"),
        ("--price|mi355x=3.10 USD/gpu-hour", "try: price.usd_per_gpu_hour.mi355x=3.10"),
        ("--power-price|0.09", "try: power_price=0.09"),
    ],
)
def test_bad_input(arguments: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repeats(tmp_path, "mi355x", 10_000)
    assert main(["cost", str(tmp_path), *arguments.split("|")]) == 2
    assert message in capsys.readouterr().err


def test_runs_without_a_speed_and_copies_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(replace(made(), status="failed"), tmp_path / "a")
    assert main(["cost", str(tmp_path)]) == 2
    assert "no run that completed" in capsys.readouterr().err
    for place in "ab":
        write(made(), tmp_path / place)
    assert main(["cost", str(tmp_path)]) == 2
    assert "is the same run as" in capsys.readouterr().err


def test_owned_hardware_and_a_folder_with_an_equals_sign(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repeats(tmp_path / "lr=0.1", "mi355x", 10_000)
    how = ["capex.usd_per_gpu.mi355x=35040 USD", "years=4", "utilisation=50%", "power_price=0 usd/kWh"]
    assert main(["cost", str(tmp_path / "lr=0.1"), *how, "carbon=400gCO2/kWh", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["options"][0]["figures"]
    assert figures["price"]["value"] == pytest.approx(2.0)
    assert "bought for 4 years, 50 % of them at work" in figures["price"]["note"]


def test_two_quotations_without_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    """A typed figure is given, what follows from it computed; the power is that of the data sheet."""
    quotes = "model=llama31_8b gpus=8 tokens_per_s_per_gpu.mi355x=10k tokens_per_s_per_gpu.b200=12500"
    terms = "tokens=1T price.usd_per_gpu_hour.mi355x=2 price.usd_per_gpu_hour.b200=4"
    assert main(["cost", *quotes.split(), *terms.split(), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    mi355x, b200 = ({name: (f["value"], f["source"]) for name, f in o["figures"].items()} for o in result["options"])
    assert mi355x["tokens_per_s_per_gpu"] == (10_000, "given") and mi355x["price"] == (2, "given")
    assert mi355x["total"] == (pytest.approx(2 * 1e12 / 10_000 / 3600), "computed")
    assert mi355x["days"] == (pytest.approx(1e12 / 80_000 / 86400), "computed")
    assert mi355x["power_w_per_gpu"] == (1400, "assumed")
    assert b200["total"][0] == pytest.approx(4 * 1e12 / 12_500 / 3600)
    assert result["break_even"][1]["price"]["value"] == pytest.approx(2 * 12_500 / 10_000)
    assert "B200, any precision, 8 GPUs" in result["options"][1]["published"]["text"]
    assert result["warnings"] == [
        "energy and CO2 are without hosts and network (host_share=25%) and the building (pue=1.25)"
    ]
    assert main(["energy", *quotes.split(), "pue=1.2", "host_share=0"]) == 0
    text = capsys.readouterr().out
    assert "mi355x ×8 (given)" in text and "warning: energy" not in text and "not audited" not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("model=llama31_8b hardware=h100 tokens_per_s_per_gpu=100k", "impossible on h100: 5.147e+10 FLOP a token"),
        (
            "model=llama31_8b hardware=h100 tokens_per_s_per_gpu=100k",
            "try: the speed of one GPU: a node's is that of 8",
        ),
        # of any model
        ("hardware=h100 tokens_per_s_per_gpu=1G", "(h100 fp8 dense) at most 329,800 parameters train so fast"),
        # possible in fp8, but not in what was said
        ("model=llama31_8b hardware=h100 tokens_per_s_per_gpu=20k precision=bf16", "impossible on h100"),
        ("model=llama31_8b tokens_per_s_per_gpu=9k", "needs hardware="),
        ("hardware=h100 tokens_per_s_per_gpu=9k runs/", "a run beside a typed speed"),
        ("hardware=h100 tokens_per_s_per_gpu.b200=9k", "each tokens_per_s_per_gpu.GPU names its own"),
        ("tokens_per_s_per_gpu.h1000=9k", "no such hardware"),
        ("hardware=h100 tokens_per_s_per_gpu=9k seed=1", "seed: no such key"),
        ("hardware=h100 tokens_per_s_per_gpu=0", "above 0"),
    ],
)
def test_a_quotation_that_is_none(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", *arguments.split()]) == 2
    assert message in capsys.readouterr().err


def test_a_quotation_says_what_was_not_checked_or_is_odd(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, text in (
        ("hardware=h100 tokens_per_s_per_gpu=100k", "not checked without the model: at 1,979 TFLOP/s (h100 fp8"),
        ("hardware=h100 precision=fp4 tokens_per_s_per_gpu=9k", "not checked: nobody states the fp4 peak of h100"),
        ("model=llama31_8b hardware=h100 tokens_per_s_per_gpu=17k precision=bf16", "implausible: "),
        ("model=llama31_8b hardware=h100 tokens_per_s_per_gpu=14k precision=bf16", "above all that was published"),
    ):
        assert main(["cost", *arguments.split()]) == 0
        assert text in capsys.readouterr().out, arguments
