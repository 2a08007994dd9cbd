"""layout=searched: a launch in the layouts that a search found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from conf.errors import ConfigError
from estimate.fitted import shipped, write
from estimate.searched import with_searched
from tensorprimat.launch import main

CASE = ("model=llama31_8b", "platform=nvidia", "hardware=h100")


def test_the_best_three_are_the_first_three_of_the_search(capsys: pytest.CaptureFixture[str]) -> None:
    from estimate.cli import search

    assert search([*CASE, "--json"]) == 0
    best = [one["layout"] for one in json.loads(capsys.readouterr().out)["best"][:3]]
    assert main(["-m", *CASE, "layout=searched,searched:2,searched:3", "dry_run=true"]) == 0
    plans = capsys.readouterr().out.split("\n\n")
    for place, (layout, plan) in enumerate(zip(best, plans, strict=True), 1):
        assert f"explicit: {layout}\n" in plan
        assert f"layout searched: number {place} in predicted speed" in plan and "step time" in plan


def test_what_is_not_searched_stays_as_it_was_typed() -> None:
    assert list(with_searched([*CASE, "layout=tp2"])) == [((*CASE, "layout=tp2"), None)]
    (first, why), (second, said) = with_searched([*CASE, "layout=searched,tp2"])
    assert (first, why) == ((*CASE, "layout=tp2"), None)
    assert said and not any(text.startswith("layout=") for text in second)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["layout=searched:11"], "the best 10 are kept"),
        (["layout=searched:0"], "1 to 10"),
        (["layout=searched:abc"], "is no place of a search"),
        (["layout=searched:99999"], "is no place of a search"),
        (["layout=searched", "method=max_performance"], "a recipe brings its own layout"),
        (["layout=searched", "nodes=1,2"], "these are several"),
        (["layout=searched", "training.seed=1,2"], "these are several"),
    ],
)
def test_what_cannot_be_searched_is_refused(words: list[str], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        list(with_searched([*CASE, *words]))


def test_a_searched_layout_is_of_the_parameters_that_the_estimate_is_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With links of a tenth of their speed another layout is the best."""
    from estimate.cli import main as estimate
    from estimate.cli import search

    known = shipped()
    slow = {n: replace(v, value=v.value / 10) if "link_efficiency" in n else v for n, v in known.values.items()}
    write(tmp_path / "slow.yaml", replace(known, values=slow))
    own = f"calibrated={tmp_path / 'slow.yaml'}"
    layouts = []
    for words in ([*CASE, own], [*CASE]):
        assert search([*words, "--json"]) == 0
        layouts.append(json.loads(capsys.readouterr().out)["best"][0]["layout"])
        assert estimate([*words, "layout=searched", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["layout"] == layouts[-1]
    assert layouts[0] != layouts[1]


@pytest.mark.parametrize("command", ["search", "plan"])
def test_a_search_is_of_no_place(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    from estimate.cli import main as estimate

    assert estimate([command, *CASE, "layout=searched:2"]) == 2
    assert "is a place among what a search finds" in capsys.readouterr().err


def test_several_take_a_multirun(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*CASE, "layout=searched,searched:2", "dry_run=true"]) == 2
    assert "-m before them" in capsys.readouterr().err


def test_an_estimate_takes_a_searched_layout_and_a_search_what_a_launch_was_typed_with(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from estimate.cli import main as estimate
    from estimate.cli import search

    assert search([*CASE, "layout=searched", "--json"]) == 0
    second = json.loads(capsys.readouterr().out)["best"][1]
    assert estimate([*CASE, "layout=searched:2", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["layout"] == second["layout"]
    assert shown["figures"]["step_time_mean_s"]["value"] == second["figures"]["step_time_mean_s"]["value"]
    assert any("number 2 in predicted speed" in note for note in shown["notes"])
