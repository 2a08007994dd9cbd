"""Money, energy and CO2 of a training by hand: bills, break-even, what moves a total, pooled repeats, prices."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from conf.compose import choices
from conf.errors import InputError
from metrics import Quantity
from metrics.bill import ENERGY, Option, Prices, Terms, bill, break_evens, option_of, options, swings
from metrics.repeats import mean_of
from metrics.terms import from_experiment, intensity, joined, read_prices, typed_prices
from parsers import find_runs, write
from tests.metrics.metrics_made import made, repeats, settings

PRICES = Prices("USD", {"mi355x": 3.0, "b200": 5.0, "mi250x": 2.0})


def option(hardware: str = "mi355x", speed: float = 10_000, watts: float = 1000, **known: Any) -> Option:
    rate = Quantity(speed, "tokens/s/GPU", "measured", known.pop("interval", None))
    power = Quantity(watts, "W/GPU", "measured")
    energy = rate.under(watts, "J/token")
    of = {"label": hardware, "runs": 3, "gpus": 8, "devices_per_package": 1, "energy_j_per_token": energy, **known}
    return Option(hardware=hardware, tokens_per_s_per_gpu=rate, power_w_per_gpu=power, **of)


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
    for name in ("energy_kwh", "energy_mwh", "energy_j_per_token", "tokens_per_wh", "electricity", "carbon_t"):
        assert found[name].note.startswith("hosts 20 % on top, PUE 1.25"), name
    assert bill(option(), terms(goodput=0.9))["energy_j_per_token"].note == "GPUs alone, PUE 1, goodput 90 %"


def test_lost_time_is_paid_for() -> None:
    full, lossy = bill(option(), terms()), bill(option(), terms(goodput=0.5))
    for name in ("total", "days"):
        assert lossy[name].value == pytest.approx(2 * (full[name].value or 0))


def test_prices_and_tdp_are_of_packages_and_speeds_of_dies() -> None:
    """An MI250X is two devices to software and one to whoever bills it."""
    found = bill(option("mi250x", 10_000, 280, devices_per_package=2), terms())
    hours = 1e12 / 20_000 / 3600
    assert found["gpu_hours"].value == pytest.approx(hours)
    assert found["gpus"].value == pytest.approx(2.0 * hours)
    assert found["energy_mwh"].value == pytest.approx(0.56 * hours / 1000)


def test_co2_of_making_the_gpu_by_its_share_of_the_hours() -> None:
    found = bill(option(), terms(carbon=intensity("0"), embodied_kg_per_gpu_hour=8760 / (0.5 * 8760)))
    assert found["carbon_t"].value == 0
    assert found["carbon_embodied_t"].value == pytest.approx(2 * 1e12 / 10_000 / 3600 / 1000)
    assert found["carbon_total_t"].value == found["carbon_embodied_t"].value


def test_what_is_unknown_stays_unknown() -> None:
    nobody = bill(option("h100"), terms())
    assert nobody["total"] == Quantity(None, "USD", "assumed", note="no price of h100")
    assert nobody["gpu_hours"].value is not None
    unknown = Quantity(None, "tokens/s/GPU", "measured")
    slow = replace(option(), tokens_per_s_per_gpu=unknown, gpus=None, energy_j_per_token=unknown.under(1000, "J/token"))
    lost = bill(slow, terms(power_price=0.1))
    assert {name for name, q in lost.items() if q.value is not None} == {"price", "power_w_per_gpu"}
    assert bill(option(), terms())["carbon_t"].note == "no carbon given"


def test_an_example_price_is_assumed_and_stays_so() -> None:
    example = read_prices("oracle")
    found = bill(option(), terms(prices=example))
    assert {found[name].source for name in ("price", "gpus", "total", "tokens_per_currency")} == {"assumed"}
    assert found["price"].note.startswith("an example, not your price: 2026 Oracle OCI list prices")
    yours = bill(option(), terms())
    assert [yours[name].source for name in ("price", "gpus", "total", "days")] == ["given", *["computed"] * 3]


MINE, RIVAL = option("mi355x", 10_000, 1400), option("b200", 12_000, 1000)


def test_break_even_is_where_the_totals_meet() -> None:
    at = terms(power_price=0.1)
    even, _ = break_evens([MINE, RIVAL], at)
    assert even.up_to.value is not None
    prices = replace(PRICES, per_gpu_hour={**PRICES.per_gpu_hour, "mi355x": even.up_to.value})
    there = [bill(o, replace(at, prices=prices))["total"].value for o in (MINE, RIVAL)]
    assert there[0] == pytest.approx(there[1])
    assert even.rival == "b200"
    assert even.up_to.note == "no interval: too few runs"


def test_break_even_has_the_interval_of_both_speeds() -> None:
    mine = option("mi355x", 10_000, interval=(9_900, 10_101))
    rival = option("b200", 12_000, interval=(11_880, 12_121))
    price = break_evens([mine, rival], terms())[0].up_to
    assert price.value == pytest.approx(5.0 * 10 / 12)
    low, high = price.interval or (0, 0)
    assert high / low == pytest.approx(math.exp(2 * math.hypot(0.01, 0.01)), rel=1e-3)


def test_no_price_makes_up_for_too_much_electricity() -> None:
    hungry, rival = option("mi355x", 100, 1400), option("b200", 100_000, 100)
    even, _ = break_evens([hungry, rival], terms(power_price=10))
    assert (even.up_to.value, even.up_to.note) == (None, "at no price: its electricity alone costs more")
    assert break_evens([option()], terms()) == ()


def test_energy_breaks_even_where_both_draw_as_much() -> None:
    at = terms(pue=1.25, host_share=0.2, goodput=0.9)
    level = break_evens([MINE, RIVAL], at, ENERGY)[0].up_to
    assert level.value == pytest.approx(1000 * 10 / 12)
    assert level.unit == "W/GPU"
    there = [bill(o, at)["energy_kwh"].value for o in (option("mi355x", 10_000, level.value or 0), RIVAL)]
    assert there[0] == pytest.approx(there[1])
    dies = [option("mi250x", 10_000, 280, devices_per_package=2), RIVAL]
    assert break_evens(dies, at, ENERGY)[0].up_to.value == pytest.approx(1000 * 10 / 12), "of one device"


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
    unknown = Quantity(None, "J/token", "assumed")
    assert swings(option(watts=math.nan, energy_j_per_token=unknown), terms(), ENERGY) == ()


def test_repeats_are_pooled_and_one_run_has_no_interval(tmp_path: Path) -> None:
    repeats(tmp_path, "mi355x", 10_000, 10_100, 9_900)
    repeats(tmp_path, "b200", 12_000)
    write(structs.replace(made(), status="failed"), tmp_path / "failed")
    write(structs.replace(made(), provenance="rehearsed"), tmp_path / "rehearsed")
    found = {o.hardware: o for o in options(find_runs([str(tmp_path)]))}
    assert set(found) == {"mi355x", "b200"}
    mean, interval = mean_of([10_000, 10_100, 9_900])
    assert found["mi355x"].tokens_per_s_per_gpu.value == pytest.approx(mean)
    assert found["mi355x"].tokens_per_s_per_gpu.interval == pytest.approx(interval)
    assert (found["b200"].runs, found["b200"].tokens_per_s_per_gpu.interval) == (1, None)


def test_the_interval_of_energy_is_that_of_speed_and_power_together() -> None:
    """Runs that draw more where they are faster: joules for a token are surer than either."""

    def figures(speed: float, watts: float) -> dict[str, Quantity]:
        rate, power = Quantity(speed, "tokens/s/GPU", "log"), Quantity(watts, "W/GPU", "measured")
        return {"tokens_per_s_per_gpu": rate, "power_w_per_gpu": power, "energy_j_per_token": rate.under(watts, "J")}

    runs = [figures(10_000, 1000), figures(10_300, 1031), figures(9_700, 969)]
    found = option_of("a", [made()] * 3, runs)
    kwh, days = bill(found, terms())["energy_kwh"], bill(found, terms())["days"]
    assert kwh.value == pytest.approx(0.1 * 1e12 / 3.6e6, rel=1e-3)
    assert kwh.interval == pytest.approx(
        [i * 1e12 / 3.6e6 for i in mean_of([0.1, 1031 / 10_300, 969 / 9_700])[1] or ()]
    )
    width = [(q.interval[1] - q.interval[0]) / (q.value or 1) for q in (kwh, days) if q.interval]
    assert width[0] < 0.1 * width[1]
    alone = option_of("an estimate", [made()], [{name: q for name, q in runs[0].items() if "energy" not in name}])
    assert alone.energy_j_per_token.value == pytest.approx(0.1)


def test_options_of_one_name_are_labelled_by_what_was_requested(tmp_path: Path) -> None:
    sizes = [("a", 1, 2, 3e-4), ("b", 2, 1, 3e-4), ("c", 2, 1, 6e-4)]
    for place, tp, dp, lr in sizes:
        requested = settings(tensor_model_parallel_size=tp, data_parallel_size=dp, lr=lr)
        write(structs.replace(made(settings=requested), id=place), tmp_path / place)
    labels = [found.label for found in options(find_runs([str(tmp_path)]))]
    one = "llama31_8b-amd mi355x ×8"
    assert labels == [f"{one} (TP1 DP2 lr=0.0003)", f"{one} (TP2 DP1 lr=0.0003)", f"{one} (TP2 DP1 lr=0.0006)"]
    labels = [found.label for found in options(find_runs([str(tmp_path / "a"), str(tmp_path / "b")]))]
    assert labels == [f"{one} (TP1)", f"{one} (TP2)"]


def test_a_mean_over_the_runs_that_know_would_be_selected(tmp_path: Path) -> None:
    repeats(tmp_path, "mi355x", 10_000, 10_100)
    write(structs.replace(made(steps=0), id="lost", requested=made().requested), tmp_path / "mi355x" / "lost")
    (found,) = options(find_runs([str(tmp_path)]))
    assert found.runs == 3
    assert found.tokens_per_s_per_gpu.value is None


def test_at_which_price_i_would_win_is_known_without_mine() -> None:
    even = break_evens([option("mi325x", 10_000), option("b200", 12_000), option("mi355x", 10_000)], terms())
    assert {one.option: one.rival for one in even} == {"mi325x": "mi355x", "mi355x": "b200", "b200": "mi355x"}
    prices = {one.option: one.up_to.value for one in even}
    assert prices == pytest.approx({"mi325x": 3.0, "mi355x": 5.0 / 1.2, "b200": 3.6})


def test_a_total_with_assumed_electricity_says_so() -> None:
    guessed = replace(option(), energy_j_per_token=Quantity(0.14, "J/token", "assumed", note="TDP of mi355x"))
    assert bill(guessed, terms(power_price=0.1))["total"].note == "TDP of mi355x"
    assert bill(guessed, terms())["total"].source == "computed"


def test_every_example_price_is_dated_and_sourced() -> None:
    for name in choices("price"):
        if name != "none":
            found = read_prices(name)
            assert found.example and found.date and found.currency == "USD"
            assert "@" in (found.source or ""), "the commit that it was read at"


def test_prices_as_they_are_typed() -> None:
    for amount in ("3.10", "3.1 USD/gpu-hour", "3.10 usd/GPU-hour", "3.1 USD/gpuh"):
        assert typed_prices({"usd_per_gpu_hour.mi355x": amount}) == Prices("USD", {"mi355x": 3.10})


def test_prices_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "quotes.yaml"
    file.write_text("eur_per_gpu_hour: {b200: 4.5}\ndate: 2026-11-20\nsource: Offer 7\n", encoding="utf-8")
    found = read_prices(str(file))
    assert (found.currency, found.of("b200").value, found.of("b200").note) == ("EUR", 4.5, "2026-11-20 Offer 7")


def test_prices_that_are_none(tmp_path: Path) -> None:
    wrong = {"3.10 USD": "in USD/gpu-hour", "3 EUR/gpu-hour": "in USD/gpu-hour"}
    wrong |= dict.fromkeys(("28000 USD/gpu", "0", "-3", "nan", "3,10"), "is not a positive number")
    cases = [("usd_per_gpu_hour.mi355x", amount, message) for amount, message in wrong.items()]
    for key, amount, message in (
        *cases,
        ("_per_gpu_hour.mi355x", "3.10", "prices without a currency"),
        ("usd_per_gpu_hour.mi35x", "3.10", "did you mean mi355x\\?"),
        ("usd_per_gpu.mi355x", "3.10", "no such key"),
    ):
        with pytest.raises(InputError, match=message):
            typed_prices({key: amount})
    amounts = ("usd_per_gpu_hour: {b200: x}", "usd_per_gpu_hour: {}", "usd_per_gpu_hour: {b200: true}", "b200: 4.5")
    two = "{usd_per_gpu_hour: {b200: 1}, eur_per_gpu_hour: {b200: 1}}"
    for text in (*amounts, two, "[]", "a: [", "price: 3"):
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
    ours = Prices("EUR", {"b200": 4.0, "mi300x": 2.0}, source="a list", example=True)
    assert joined([("a", ours), ("b", dollars)]) == dollars
    assert joined([("a", ours), ("b", ours)]) == ours


def test_carbon_by_figure_by_country_and_by_none() -> None:
    assert intensity("120") == Quantity(120.0, "gCO2e/kWh", "given")
    assert intensity("fra").value == pytest.approx(56.0, abs=0.1)
    assert (intensity("FRA").source, "2023" in intensity("FRA").note) == ("assumed", True)
    for wrong in ("-1", "nan", "XXX"):
        with pytest.raises(InputError):
            intensity(wrong)


def test_codecarbons_table_is_read_and_never_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "codecarbon"
    (folder / "data" / "private_infra").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('imported')", encoding="utf-8")
    table = {"PRT": {"carbon_intensity": 165.5, "year": 2023}, "ATA": {"carbon_intensity": None, "year": 2023}}
    (folder / "data" / "private_infra" / "global_energy_mix.json").write_text(json.dumps(table), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    note = "PRT, average of 2023: codecarbon's global_energy_mix.json"
    assert intensity("PRT") == Quantity(165.5, "gCO2e/kWh", "assumed", note=note)
    with pytest.raises(InputError):
        intensity("ATA")


def test_an_example_that_a_run_was_launched_with_stays_one() -> None:
    oracle = read_prices("oracle")
    group = {"usd_per_gpu_hour": dict(oracle.per_gpu_hour), "date": oracle.date, "source": oracle.source}
    launched, yours = (from_experiment({**group, **own}, "e") for own in ({}, {"source": "Offer 7"}))
    assert launched and launched.example
    assert yours and not yours.example
