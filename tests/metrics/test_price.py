"""Prices and carbon intensities: the user's, the dated examples, and what is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conf.compose import choices
from conf.errors import InputError
from metrics import Quantity
from metrics.bill import Prices
from metrics.terms import from_experiment, intensity, joined, read_prices, typed_prices


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
    assert (found.currency, found.of("b200").value, found.of("b200").note) == ("EUR", 4.5, "yours: 2026-11-20 Offer 7")


def test_prices_that_are_none() -> None:
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


def test_files_that_are_no_prices(tmp_path: Path) -> None:
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
    assert intensity("120") == Quantity(120.0, "gCO2e/kWh", "computed", note="yours")
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
    assert intensity("PRT") == Quantity(
        165.5, "gCO2e/kWh", "assumed", note="PRT, average of 2023: codecarbon's global_energy_mix.json"
    )
    with pytest.raises(InputError):
        intensity("ATA")


def test_an_example_that_a_run_was_launched_with_stays_one() -> None:
    oracle = read_prices("oracle")
    group = {"usd_per_gpu_hour": dict(oracle.per_gpu_hour), "date": oracle.date, "source": oracle.source}
    launched = from_experiment(group, "experiment.yaml")
    assert launched is not None
    assert launched.example
    yours = from_experiment({**group, "source": "Offer 7"}, "experiment.yaml")
    assert yours is not None
    assert not yours.example
