"""Money, energy and CO2 of a training: by hand, at the user's price, and from the command line in one line."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from metrics_made import made, repeats

from conf.compose import choices
from conf.errors import InputError
from metrics import Quantity
from metrics.bill import Embodied, Terms, bill, owned
from metrics.carbon import intensity
from metrics.cli import main
from metrics.options import Option, options
from metrics.price import Prices, from_overrides, joined, read_prices
from metrics.repeats import mean_of
from metrics.whatif import break_evens, swings
from parsers import find_runs, write

PRICES = Prices("USD", {"mi355x": 3.0, "b200": 5.0, "mi250x": 2.0})


def option(hardware: str = "mi355x", speed: float = 10_000, watts: float = 1000, **known: Any) -> Option:
    rate = Quantity(speed, "tokens/s/GPU", "measured", known.pop("interval", None))
    power = Quantity(watts, "W/GPU", "measured")
    of = {"runs": 3, "gpus": 8, "devices_per_package": 1, **known}
    return Option(label=hardware, hardware=hardware, tokens_per_s_per_gpu=rate, power_w_per_gpu=power, **of)


def terms(**known: Any) -> Terms:
    return Terms(**{"tokens": 1e12, "prices": PRICES, **known})


def test_a_bill_by_hand() -> None:
    found = bill(option(), terms(power_price=0.1, pue=1.25, host_share=0.2, carbon=intensity("100")))
    hours = 1e12 / 10_000 / 3600
    kwh = hours * 1.0 * 1.2 * 1.25
    expected = {
        "gpu_hours": hours,
        "days": hours / 8 / 24,
        "gpus": 3 * hours,
        "energy_mwh": kwh / 1000,
        "energy_j_per_token": kwh * 3.6e6 / 1e12,
        "tokens_per_wh": 1e12 / kwh / 1000,
        "electricity": 0.1 * kwh,
        "total": 3 * hours + 0.1 * kwh,
        "cost_per_trillion_tokens": 3 * hours + 0.1 * kwh,
        "tokens_per_currency": 1e12 / (3 * hours + 0.1 * kwh),
        "carbon_t": 100 * kwh / 1e6,
    }
    assert {name: found[name].value for name in expected} == pytest.approx(expected)
    assert found["total"].unit == "USD"
    assert found["total"].source == "computed"


def test_lost_time_is_paid_for() -> None:
    whole, lossy = bill(option(), terms()), bill(option(), terms(goodput=0.5))
    assert (lossy["total"].value or 0) == pytest.approx(2 * (whole["total"].value or 0))
    assert (lossy["days"].value or 0) == pytest.approx(2 * (whole["days"].value or 0))


def test_prices_and_tdp_are_of_packages_and_speeds_of_dies() -> None:
    """An MI250X is two devices to software and one to whoever bills it."""
    found = bill(option("mi250x", 10_000, 280, devices_per_package=2), terms())
    hours = 1e12 / 20_000 / 3600
    assert found["gpu_hours"].value == pytest.approx(hours)
    assert found["gpus"].value == pytest.approx(2.0 * hours)
    assert found["energy_mwh"].value == pytest.approx(0.56 * hours / 1000)


def test_hardware_that_is_bought() -> None:
    price = owned(Prices("USD", {"mi355x": 35_040.0}), years=4, utilisation=0.5)
    assert price.of("mi355x").value == pytest.approx(2.0)
    assert price.currency == "USD"


def test_co2_of_making_the_gpu_by_its_share_of_the_hours() -> None:
    made_ = Embodied(kg_per_gpu=8760, years=1, utilisation=0.5)
    found = bill(option(), terms(carbon=intensity("0"), embodied=made_))
    assert found["carbon_t"].value == 0
    assert found["carbon_embodied_t"].value == pytest.approx(2 * 1e12 / 10_000 / 3600 / 1000)
    assert found["carbon_total_t"].value == found["carbon_embodied_t"].value


def test_what_is_unknown_stays_unknown() -> None:
    nobody = bill(option("h100"), terms())
    assert nobody["total"] == Quantity(None, "USD", "assumed", note="no price of h100")
    assert nobody["gpu_hours"].value is not None
    slow = replace(option(), tokens_per_s_per_gpu=Quantity(None, "tokens/s/GPU", "measured"), gpus=None)
    lost = bill(slow, terms(power_price=0.1))
    assert {name for name, q in lost.items() if q.value is not None} == {"price", "power_w_per_gpu"}
    assert bill(option(), terms())["carbon_t"].note == "no --carbon given"


def test_an_example_price_is_assumed_and_stays_so() -> None:
    example = read_prices("oracle")
    found = bill(option(), terms(prices=example))
    assert {found[name].source for name in ("price", "gpus", "total", "tokens_per_currency")} == {"assumed"}
    assert found["price"].note.startswith("an example, not your price: 2026 Oracle OCI list prices")
    yours = bill(option(), terms())
    assert {yours[name].source for name in ("price", "gpus", "total")} == {"computed"}


@pytest.mark.parametrize("name", [name for name in choices("price") if name != "none"])
def test_every_example_price_is_dated_and_sourced(name: str) -> None:
    found = read_prices(name)
    assert found.example
    assert found.date
    assert "@" in (found.source or ""), "the commit that it was read at"
    assert found.currency == "USD"


@pytest.mark.parametrize(
    "text",
    ["mi355x=3.10,b200=4.75 USD/gpu-hour", "mi355x=3.10, b200=4.75 usd/GPU-hour", "mi355x=3.1,b200=4.75 USD/gpuh"],
)
def test_prices_as_they_are_typed(text: str) -> None:
    assert read_prices(text) == Prices("USD", {"mi355x": 3.10, "b200": 4.75})
    assert from_overrides(["price.usd_per_gpu_hour.mi355x=3.10"]) == Prices("USD", {"mi355x": 3.10})


def test_prices_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "quotes.yaml"
    file.write_text("eur_per_gpu_hour: {b200: 4.5}\ndate: 2026-11-20\nsource: Offer 7\n", encoding="utf-8")
    found = read_prices(str(file))
    assert (found.currency, found.of("b200").value, found.of("b200").note) == ("EUR", 4.5, "yours: 2026-11-20 Offer 7")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("mi355x=3.10", "prices without a currency"),
        ("mi355x=3.10 USD", "prices without a currency"),
        ("mi355x=28000 USD/gpu", "prices without a currency"),
        ("mi355x=0 USD/gpu-hour", "is not a positive number"),
        ("mi355x=-3 USD/gpu-hour", "is not a positive number"),
        ("mi355x=nan USD/gpu-hour", "is not a positive number"),
        ("mi355x=3,10 USD/gpu-hour", "no such hardware"),
        ("mi35x=3.10 USD/gpu-hour", "did you mean mi355x?"),
        ("nothing.yaml", "names no price file"),
    ],
)
def test_prices_that_are_none(text: str, told: str) -> None:
    with pytest.raises(InputError, match=told.replace("?", r"\?")):
        read_prices(text)


@pytest.mark.parametrize(
    "text",
    [
        "b200: 4.5",
        "usd_per_gpu_hour: {b200: x}",
        "usd_per_gpu_hour: {}",
        "[]",
        "usd_per_gpu_hour: {b200: true}",
        "{usd_per_gpu_hour: {b200: 1}, eur_per_gpu_hour: {b200: 1}}",
        "a: [",
        "price: 3",
    ],
)
def test_files_that_are_no_prices(text: str, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(InputError):
        read_prices(str(tmp_path / "p.yaml"))


def test_prices_of_runs_must_agree() -> None:
    dollars, euros = Prices("USD", {"b200": 5.0}), Prices("EUR", {"b200": 5.0})
    more = Prices("USD", {"mi355x": 3.0})
    assert joined([("a", dollars), ("b", more)]) == Prices("USD", {"b200": 5.0, "mi355x": 3.0})
    with pytest.raises(InputError, match="another currency"):
        joined([("a", dollars), ("b", euros)])
    with pytest.raises(InputError, match="another price of b200"):
        joined([("a", dollars), ("b", Prices("USD", {"b200": 6.0}))])


def test_carbon_by_figure_by_country_and_by_none() -> None:
    assert intensity("120") == Quantity(120.0, "gCO2e/kWh", "computed", note="yours")
    assert intensity("fra").value == pytest.approx(56.0, abs=0.1)
    assert (intensity("FRA").source, "2023" in intensity("FRA").note) == ("assumed", True)
    for wrong in ("-1", "nan", "XXX"):
        with pytest.raises(InputError):
            intensity(wrong)


def test_break_even_is_where_the_totals_meet() -> None:
    mine, rival = option("mi355x", 10_000, 1400), option("b200", 12_000, 1000)
    at = terms(power_price=0.1)
    even = next(found for found in break_evens([mine, rival], at) if found.option == "mi355x")
    prices = replace(PRICES, per_gpu_hour={**PRICES.per_gpu_hour, "mi355x": even.price.value})
    there = [bill(o, replace(at, prices=prices))["total"].value for o in (mine, rival)]
    assert there[0] == pytest.approx(there[1])
    assert even.rival == "b200"
    assert even.price.note == "no interval: too few runs"


def test_break_even_has_the_interval_of_both_speeds() -> None:
    mine = option("mi355x", 10_000, interval=(9_900, 10_101))
    rival = option("b200", 12_000, interval=(11_880, 12_121))
    price = next(found for found in break_evens([mine, rival], terms()) if found.option == "mi355x").price
    assert price.value == pytest.approx(5.0 * 10 / 12)
    low, high = price.interval or (0, 0)
    assert high / low == pytest.approx(math.exp(2 * math.hypot(0.01, 0.01)), rel=1e-3)


def test_no_price_makes_up_for_too_much_electricity() -> None:
    hungry, rival = option("mi355x", 100, 1400), option("b200", 100_000, 100)
    even = next(f for f in break_evens([hungry, rival], terms(power_price=10)) if f.option == "mi355x")
    assert even.price.value is None
    assert even.price.note == "at no price: its electricity alone costs more"
    assert break_evens([option()], terms()) == ()


def test_what_moves_the_total() -> None:
    total = bill(option(), terms())["total"].value or 0
    found = {swing.cause: swing for swing in swings(option(), terms())}
    assert list(found) == ["price ±20 %", "goodput 90 to 98 %"]
    assert found["price ±20 %"].low.value == pytest.approx(0.8 * total)
    assert found["price ±20 %"].high.value == pytest.approx(1.2 * total)
    assert found["goodput 90 to 98 %"].high.value == pytest.approx(total / 0.9)
    more = swings(option(interval=(9_000, 11_000)), terms(power_price=0.1))
    assert {"speed, over its interval", "power price ±20 %", "power drawn ±20 %"} <= {swing.cause for swing in more}
    assert [s.width for s in more] == sorted((s.width for s in more), reverse=True)


@given(st.floats(1, 1e6), st.floats(0.01, 1e3), st.floats(1, 3), st.floats(0.01, 1), st.floats(1e6, 1e15))
def test_a_dollar_buys_what_a_trillion_costs(speed: float, price: float, pue: float, goodput: float, n: float) -> None:
    at = terms(prices=Prices("USD", {"mi355x": price}), pue=pue, goodput=goodput, tokens=n, power_price=0.1)
    found = bill(option(speed=speed), at)
    each, trillion = found["tokens_per_currency"].value or 0, found["cost_per_trillion_tokens"].value or 0
    assert each * trillion == pytest.approx(1e12)


def test_repeats_are_pooled_and_one_run_has_no_interval(tmp_path: Path) -> None:
    repeats(tmp_path, "mi355x", 10_000, 10_100, 9_900)
    repeats(tmp_path, "b200", 12_000)
    write(replace(made(), status="failed"), tmp_path / "failed")
    write(replace(made(), provenance="rehearsed"), tmp_path / "rehearsed")
    found = {o.hardware: o for o in options(find_runs([str(tmp_path)]))}
    assert set(found) == {"mi355x", "b200"}
    mean, interval = mean_of([10_000, 10_100, 9_900])
    assert found["mi355x"].tokens_per_s_per_gpu.value == pytest.approx(mean)
    assert found["mi355x"].tokens_per_s_per_gpu.interval == pytest.approx(interval)
    assert (found["b200"].runs, found["b200"].tokens_per_s_per_gpu.interval) == (1, None)


def test_a_mean_over_the_runs_that_know_would_be_selected(tmp_path: Path) -> None:
    repeats(tmp_path, "mi355x", 10_000, 10_100)
    write(replace(made(steps=0), id="lost", requested=made().requested), tmp_path / "mi355x" / "lost")
    (found,) = options(find_runs([str(tmp_path)]))
    assert found.runs == 3
    assert found.tokens_per_s_per_gpu.value is None


J6 = "--price|mi355x=3.10,b200=4.75 USD/gpu-hour|--power-price|0.09|--pue|1.25|--tokens|15e12"


def test_journey_6_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repeats(tmp_path, "mi355x", 10_000, 10_100, 9_900)
    repeats(tmp_path, "b200", 12_000, 12_120, 11_880)
    line = ["cost", str(tmp_path), *J6.split("|"), "--carbon", "FRA"]
    assert main(line) == 0
    out = capsys.readouterr().out
    for text in ("1.5e+13 tokens", "GPU-hours", "MWh", "tCO2e", "assumed", "break-even", "goodput 90 to 98 %"):
        assert text in out
    assert main([*line, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    figures = {o["option"].split()[1]: o["figures"] for o in data["options"]}
    hours = 15e12 / mean_of([10_000, 10_100, 9_900])[0] / 3600
    assert figures["mi355x"]["gpus"]["value"] == pytest.approx(3.10 * hours)
    assert figures["mi355x"]["electricity"]["value"] == pytest.approx(0.09 * hours * 1.4 * 1.25)
    assert figures["mi355x"]["total"]["interval"][0] < figures["mi355x"]["total"]["value"]
    assert figures["mi355x"]["energy_mwh"]["source"] == "assumed"
    assert len(data["break_even"]) == 2


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
    assert (after["value"], after["source"], after["note"]) == (3.1, "computed", "yours: 2026-11")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--pue|0.5", "--pue: is out of range"),
        ("--tokens|-1|--goodput|2", "--goodput: is out of range"),
        ("--tokens|nan", "--tokens: is out of range"),
        ("--power-price|inf", "--power-price: is out of range"),
        ("--capex|mi355x=28000 USD/gpu", "needs --power-price"),
        ("--capex|mi355x=28000 USD/gpu|--power-price|0|--price|oracle", "exclude each other"),
        ("--carbon|nowhere", "no such country"),
        ("--capex|oracle|--power-price|0", "--capex: prices without a currency"),
        ("--capex|mi355x=3 USD/gpu-hour|--power-price|0", "--capex: prices without a currency"),
        ("price.eur.mi355x=3", "no such key"),
    ],
)
def test_bad_input(arguments: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repeats(tmp_path, "mi355x", 10_000)
    assert main(["cost", str(tmp_path), *arguments.split("|")]) == 2
    assert told in capsys.readouterr().err


def test_runs_without_a_speed_cost_nothing_that_is_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(replace(made(), status="failed"), tmp_path / "a")
    assert main(["cost", str(tmp_path)]) == 2
    assert "no run that completed" in capsys.readouterr().err


def test_a_folder_with_an_equals_sign_is_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repeats(tmp_path / "lr=0.1", "mi355x", 10_000)
    assert main(["cost", str(tmp_path / "lr=0.1"), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["options"]) == 1


def test_a_copy_is_no_repeat(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place in "ab":
        write(made(), tmp_path / place)
    assert main(["cost", str(tmp_path)]) == 2
    assert "is the same run as" in capsys.readouterr().err


def test_codecarbons_table_is_read_and_never_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "codecarbon"
    (folder / "data" / "private_infra").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('imported')", encoding="utf-8")
    table = {"PRT": {"carbon_intensity": 165.5, "year": 2023}, "ATA": {"carbon_intensity": None, "year": 2023}}
    (folder / "data" / "private_infra" / "global_energy_mix.json").write_text(json.dumps(table), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert intensity("PRT") == Quantity(
        165.5, "gCO2e/kWh", "assumed", note="PRT, average of 2023: codecarbon's global_energy_mix.json"
    )
    with pytest.raises(InputError):
        intensity("ATA")


def test_owned_hardware_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repeats(tmp_path, "mi355x", 10_000)
    how = ["--capex", "mi355x=35040 USD/gpu", "--years", "4", "--utilisation", "0.5", "--power-price", "0"]
    assert main(["cost", str(tmp_path), *how, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["options"][0]["figures"]
    assert figures["price"]["value"] == pytest.approx(2.0)
    assert "bought for 4 years, 50 % of them at work" in figures["price"]["note"]
