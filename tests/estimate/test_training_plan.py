"""Training plans: failures, checkpoints, the bill, scaling, time to a target."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from conf import load_experiment
from estimate.cli import main
from estimate.figures import estimate
from estimate.search import Limits, requests_of, search
from estimate.training_plan import (
    MOST_GPUS,
    Plan,
    assumptions,
    checkpoints,
    goodput_of,
    lines,
    plan_of,
    plans,
    scaling,
    to_json,
)
from metrics.bill import Terms, bill
from metrics.terms import intensity, read_prices
from tests.estimate.jobs import interval_of, value_of
from tests.estimate.test_calibrated import machine

_H100 = ("platform=nvidia", "hardware=h100", "gpus_per_node=8")
TERMS = Terms(tokens=1e12, prices=read_prices("oracle"), carbon=intensity("FRA"))


@cache
def planned(*overrides: str) -> Plan:
    return plan_of(estimate(load_experiment(*overrides)), TERMS)


def small(hardware: str = "h100") -> Plan:
    return planned("model=llama31_8b", "platform=nvidia", f"hardware={hardware}", "gpus_per_node=8")


def test_the_published_training_loses_as_much_as_it_said() -> None:
    parameters = 405_853_388_800
    saved = checkpoints(14 * parameters, 16_384)
    assert saved.mtbf_s == pytest.approx(54 * 86_400 / 419)
    assert 0.90 < saved.goodput < 0.95  # arXiv 2407.21783: higher than 90 %


@pytest.mark.parametrize("gpus", [64, 16_384, 100_000])
def test_no_other_interval_leaves_much_more(gpus: int) -> None:
    saved = checkpoints(5.7e12, gpus)
    mtbf, save, restart = saved.mtbf_s, saved.save_s, assumptions().restart_s
    intervals = saved.interval_s * np.geomspace(0.1, 10, 200)
    goodput = intervals / (mtbf * np.exp(restart / mtbf) * np.expm1((intervals + save) / mtbf))
    assert goodput.max() - saved.goodput < 2e-3
    assert saved.goodput < 1


def test_the_bill_has_the_goodput_that_failures_leave() -> None:
    plan = small()
    without = bill(plan.estimate.option, TERMS)
    for name in ("days", "total", "energy_mwh", "carbon_t"):
        value, (low, high) = value_of(plan.figures[name]), interval_of(plan.figures[name])
        assert value == pytest.approx(value_of(without[name]) / plan.checkpoints.goodput)
        assert low < value < high
    own = plan_of(plan.estimate, replace(TERMS, goodput=0.5, own_goodput=True)).figures
    assert own["days"].value == pytest.approx(2 * value_of(without["days"]))


def test_embodied_carbon_is_the_users_or_a_published_one_or_none() -> None:
    assert "carbon_embodied_t" not in small("h200").figures
    a100 = small("a100")
    known = assumptions().embodied
    kg = (known.board_kg_per_gpu["a100"] + known.host_kg_per_gpu) / (known.years * 8760)
    hours = value_of(a100.figures["gpu_hours"])
    assert a100.figures["carbon_embodied_t"].value == pytest.approx(hours * kg / 1000)
    assert "127.6 kg of a GPU with its board, published" in a100.figures["carbon_embodied_t"].note
    own = plan_of(small().estimate, replace(TERMS, embodied_kg_per_gpu_hour=0.1)).figures
    assert own["carbon_embodied_t"].value == pytest.approx(value_of(own["gpu_hours"]) * 1e-4)


def test_more_gpus_never_train_more_tokens_a_gpu() -> None:
    points = scaling(small().estimate.experiment, weak=True)
    assert MOST_GPUS - small().estimate.experiment.layout.world_size < points[-1].gpus <= MOST_GPUS
    speeds = [point.tokens_per_s_per_gpu for point in points]
    assert speeds == sorted(speeds, reverse=True)
    assert [point.goodput for point in points] == sorted((point.goodput for point in points), reverse=True)
    strong = scaling(small().estimate.experiment, weak=False)
    assert {point.global_batch_size for point in strong} == {128}
    assert strong[0].tokens_per_s_per_gpu == pytest.approx(points[0].tokens_per_s_per_gpu)
    assert all(a.tokens_per_s_per_gpu <= b.tokens_per_s_per_gpu for a, b in zip(strong, points, strict=False))


def test_time_to_a_target_only_where_its_tokens_were_published() -> None:
    layout = ("layout.tensor_model_parallel_size=8", "layout.pipeline_model_parallel_size=9")
    large = planned("model=llama31_405b", "platform=nvidia", "nodes=72", "training.global_batch_size=1152", *layout)
    speed = value_of(large.estimate.figures["tokens_per_s"])
    seconds = 289_640 * 8192 / speed / large.checkpoints.goodput
    assert large.to_target.value == pytest.approx(seconds / 86_400)
    e = small().estimate.experiment
    known = small().to_target
    seconds = 344_064 * e.training.seq_length / value_of(small().estimate.figures["tokens_per_s"])
    assert known.value == pytest.approx(seconds / small().checkpoints.goodput / 86_400)
    assert "344,064 samples as runs of MLPerf took at batch 128" in known.note


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (("model=llama31_8b", "training.global_batch_size=512"), "16 to 128: training.global_batch_size=128"),
        (("model=llama31_8b", "training.seq_length=4096"), "at 8,192 tokens a sequence: training.seq_length=8192"),
        (("model=qwen25_3b",), "MLPerf trains no qwen25_3b to a target"),
    ],
)
def test_why_the_time_to_a_target_is_unknown(overrides: tuple[str, ...], why: str) -> None:
    plan = planned("platform=nvidia", "hardware=h100", "gpus_per_node=8", "layout=data_parallel", *overrides)
    assert plan.to_target.value is None and why in plan.to_target.note
    assert f"time to a target loss   unknown: {plan.to_target.note}" in "\n".join(lines([plan], TERMS))
    assert to_json([plan], TERMS)["plans"][0]["to_target"]["note"] == plan.to_target.note


def test_a_batch_beyond_the_published_ones_names_them_and_the_nearest() -> None:
    overrides = ("model=llama31_405b", "hardware=gb200", "nodes=128")
    (request,) = requests_of(overrides)
    (plan,) = plans(search([request], TERMS), TERMS)
    why = "a batch of 128 is beyond a factor of 2 of those that runs of MLPerf had, 448 to 1,536"
    assert plan.to_target.note == f"{why}: training.global_batch_size=448"


def test_plans_of_several_candidates_and_their_text() -> None:
    overrides = ("model=llama31_8b", "hardware=h100,mi300x", "training.global_batch_size=64")
    made = plans(search(requests_of(overrides), TERMS, objective="cost"), TERMS)
    assert len(made) == 2
    assert value_of(made[0].figures["total"]) <= value_of(made[1].figures["total"])
    text = "\n".join(lines(made, TERMS))
    assert "a failure every" in text
    assert "weak scaling" in text
    assert len(to_json(made, TERMS)["scaling"]["weak"]) > 10


def test_a_candidate_without_a_layout_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "model=llama31_70b", "hardware=h100,b300", "nodes=1"]) == 0
    assert "on 8 × h100, bf16 fits: the smallest, " in capsys.readouterr().out


def test_a_limit_is_kept_with_the_goodput_that_failures_leave() -> None:
    requests = requests_of(("model=llama31_70b", "hardware=mi300x", "nodes=8"))
    days = value_of(plans(search(requests, TERMS), TERMS)[0].figures["days"])
    for share, is_kept in ((1.0001, True), (0.9999, False)):
        (space,) = search(requests, TERMS, Limits(goodput=goodput_of(TERMS))).spaces
        assert bool((space.needed["days"][space.within] <= days * share).any()) == is_kept


def test_embodied_carbon_is_spread_over_the_hours_that_the_user_states() -> None:
    hours = replace(TERMS, working_hours=8760.0)
    usual, own = (value_of(plan_of(small().estimate, terms).figures["carbon_embodied_t"]) for terms in (TERMS, hours))
    assert own == pytest.approx(4 * usual)


def test_failures_and_days_are_of_packages() -> None:
    """Software sees each of the two dies of an MI250X as a GPU."""
    plan = planned("model=llama31_8b", "platform=amd", "hardware=mi250x", "layout=data_parallel")
    assert plan.checkpoints.mtbf_s == small().checkpoints.mtbf_s * 2
    assert plan.figures["days"].note == "on 4 GPUs (8 dies)"
    die = planned("model=llama32_1b", "platform=amd", "hardware=mi250x", "layout=data_parallel", "gpus_per_node=1")
    assert die.figures["days"].note == "on 1 GPU"


def test_a_batch_is_scaled_over_all_gpus_that_divide_it() -> None:
    """96 sequences in stages of eight chunks go over 96 GPUs, which are no power of two times 8."""
    sizes = {"tensor": 1, "pipeline": 2, "virtual_pipeline": 8}
    names = [f"layout.{name}_model_parallel_size={size}" for name, size in sizes.items()]
    words = (*_H100, "model=llama31_8b", "nodes=1", "layout=data_parallel", "training.global_batch_size=96")
    e = load_experiment(*words, *names)
    assert [point.gpus for point in scaling(e, weak=False)] == [8, 16, 24, 32, 48, 96]
    assert load_experiment(*words, *names, "nodes=12").layout.num_micro_batches == 2


def test_a_goodput_of_all_is_the_users_own() -> None:
    whole = plan_of(small().estimate, replace(TERMS, goodput=1.0, own_goodput=True))
    assert value_of(whole.figures["days"]) < value_of(small().figures["days"])
    assert "100 % as given" in "\n".join(lines([whole], replace(TERMS, own_goodput=True)))


@pytest.mark.parametrize("twice", ["hardware=h100,h100", "nodes=1,1"])
def test_a_candidate_that_is_there_twice_is_one(twice: str, capsys: pytest.CaptureFixture[str]) -> None:
    once = ("hardware=h100", "nodes=1")
    words = ["model=llama31_8b", *(text for text in once if text[:5] != twice[:5]), twice, "--json"]
    assert main(["plan", *words]) == 0
    (plan,) = json.loads(capsys.readouterr().out)["plans"]
    assert plan["gpus"] == 8


def test_the_curves_go_on_from_the_plan_with_calibrated_parameters() -> None:
    e = load_experiment("model=llama31_8b", "platform=nvidia", "hardware=h100", "gpus_per_node=8")
    plan = plan_of(estimate(e, machine(0.7)), TERMS)
    for curve in to_json([plan], TERMS)["scaling"].values():
        assert curve[0]["tokens_per_s_per_gpu"] == pytest.approx(
            value_of(plan.estimate.figures["tokens_per_s_per_gpu"])
        )


def test_a_goodput_of_the_user_counts_in_the_curves_too() -> None:
    own = replace(TERMS, goodput=0.5, own_goodput=True)
    plan = plan_of(small().estimate, own)
    assert {point["goodput"] for curve in to_json([plan], own)["scaling"].values() for point in curve} == {0.5}
    assert "0.5" not in {f"{point.goodput:g}" for point in scaling(small().estimate.experiment, weak=True)}
