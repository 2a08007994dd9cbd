"""Figures of MLPerf results that follow from MLCommons' rules, and what the rules do not say."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from metrics.bill import Prices, Terms, priced
from metrics.quantity import Quantity
from metrics.rules import by_rules, gpus_of
from metrics.summary import summarise
from parsers import Record
from parsers.record import Reading, Validation
from tests.metrics.metrics_made import made, settings

LORA = "llama2_70b_lora"


def result(benchmark: str = LORA, rate: float = 2.0, division: str = "closed", **known: Any) -> Record:
    """Return a run whose log has samples per second between its evaluations, and no step."""
    facts = {"mlperf_submission_benchmark": benchmark, "mlperf_submission_division": division, "num_nodes": 1}
    settings, facts = known.pop("settings", {}), facts | known.pop("facts", {})
    points = tuple(Validation(line=n, metrics={"samples_per_s": rate}) for n in (1, 2))
    effective = {name: Reading(value, 1) for name, value in settings.items()}
    named = {"hardware": "mi300x", "provenance": "imported", **known}
    return made(steps=0, settings={}, effective=effective, environment=facts, validations=points, **named)


def test_tokens_per_gpu_from_the_log_alone() -> None:
    figures = summarise(result())
    speed, total = figures["tokens_per_s_per_gpu"], figures["tokens_per_s"]
    assert (total.value, total.source) == (2 * 8192, "computed")
    assert (speed.value, speed.source) == (2 * 8192 / 8, "assumed")
    assert "8,192 tokens a sample by MLPerf's rules for llama2_70b_lora" in speed.note
    assert "GPUs assumed: 1 node of 8 × mi300x" in speed.note and "GPUs" not in total.note
    assert figures["samples_per_s"].source == "log"
    assert figures["flops_per_token"].value is None  # frozen weights take fewer than the formula counts


def test_stated_gpus_count_and_are_not_assumed() -> None:
    stated = result(settings={"world_size": 4})
    speed = summarise(stated)["tokens_per_s_per_gpu"]
    assert (speed.value, speed.source) == (2 * 8192 / 4, "computed")
    assert (gpus_of(stated), gpus_of(result())) == (4, 8)


def test_the_cost_of_the_run_to_its_target() -> None:
    """8 GPUs for half an hour at 3 dollars."""
    record = result(facts={"mlperf_time_to_train_s": 1800.0})
    terms = Terms(tokens=1e12, prices=Prices("USD", {"mi300x": 3.0}))
    cost = priced(record, summarise(record), terms)["cost_to_target"]
    assert cost.value == pytest.approx(12)
    assert (cost.unit, cost.source) == ("USD", "assumed")  # for its number of GPUs
    stated = result(settings={"world_size": 4}, facts={"mlperf_time_to_train_s": 1800.0})
    cost = priced(stated, summarise(stated), terms)["cost_to_target"]
    assert cost.value == pytest.approx(6)
    assert cost.source == "computed"
    assert priced(result(), summarise(result()), terms)["cost_to_target"].value is None


def test_a_pretraining_has_its_models_operations_with_the_benchmarks_vocabulary() -> None:
    figures = summarise(result("gpt_oss_20b", hardware="mi355x"))
    assert figures["flops_per_token"].source == "computed"
    assert figures["tflops_per_gpu"].source == "assumed"  # for its number of GPUs
    assert by_rules(result("gpt_oss_20b")).record.setting("vocab_size") == 128256


@pytest.mark.parametrize(
    ("case", "known"),
    [
        ("the open division", {"division": "open"}),
        ("a benchmark without a row", {"benchmark": "resnet"}),
        ("samples of any length, whatever the longest", {"benchmark": "bert", "settings": {"seq_length": 512}}),
        ("no number of nodes", {"facts": {"num_nodes": None}}),
        ("a GPU of which boards differ", {"hardware": "h100"}),
        ("no GPU", {"hardware": None}),
    ],
)
def test_what_no_rule_says_stays_unknown(case: str, known: dict[str, Any]) -> None:
    assert summarise(result(**known))["tokens_per_s_per_gpu"].value is None, case


def test_a_shape_that_the_user_stated_is_given_and_one_that_was_requested_assumed() -> None:
    known = made(settings={}, provenance="imported", requested={})
    figures = summarise(replace(known, given=settings()))
    assert {figures[name].source for name in ("flops_per_token", "tflops_per_gpu", "mfu_percent")} == {"given"}
    length = {"seq_length": Reading(8192, 1)}
    requested = replace(known, requested=settings(), effective=length)
    assert summarise(requested)["flops_per_token"].source == "assumed"


def test_a_mark_leaves_a_figure_its_intervals() -> None:
    figure = Quantity(2.0, "s", "computed", (1.0, 4.0), "own", (1.5, 3.0))
    marked = by_rules(result()).mark("tokens_per_s_per_gpu", figure)
    assert (marked.interval, marked.interval_80, marked.source) == (figure.interval, figure.interval_80, "assumed")
    assert marked.note.startswith("8,192 tokens a sample") and marked.note.endswith("; own")
