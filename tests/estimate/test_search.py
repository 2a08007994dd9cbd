"""The search: what is best, what no other beats, limits, several GPUs at once."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import msgspec
import numpy as np
import pytest

from conf import load_experiment
from conf.errors import ConfigError
from conf.threads import cores_here
from estimate.figures import estimate
from estimate.search import Limits, Objective, Search, requests_of, search
from estimate.search_text import excluded, few_stages, lines, nearly_full, to_json
from metrics.bill import Terms, bill
from metrics.quantity import shown
from metrics.terms import read_prices
from tests.estimate.jobs import interval_of, value_of

TERMS = Terms(tokens=1e12, prices=read_prices("oracle"))
SMALL = ("model=llama31_8b", "hardware=h100", "training.global_batch_size=64")
BOTH = ("model=llama31_8b", "hardware=h100,mi300x", "training.global_batch_size=64")


@cache
def result(*overrides: str, objective: Objective = "throughput", limits: Limits | None = None) -> Search:
    return search(requests_of(overrides), TERMS, limits, objective)


@pytest.mark.parametrize(
    ("model", "nodes", "hardware"), [("llama31_8b", 1, "h100"), ("llama31_70b", 8, "mi300x"), ("qwen25_7b", 1, "b200")]
)
def test_the_best_is_never_slower_than_the_planned_layout(model: str, nodes: int, hardware: str) -> None:
    overrides = (f"model={model}", f"hardware={hardware}", f"nodes={nodes}")
    best = result(*overrides).best[0]
    planned = estimate(load_experiment(*overrides, f"platform={best.estimate.experiment.platform.name}"))
    assert value_of(planned.figures["peak_memory_device_bytes"]) <= planned.room_bytes
    ours, theirs = (value_of(one.figures["step_time_mean_s"]) for one in (best.estimate, planned))
    assert ours <= theirs * (1 + 1e-9)


def test_405b_on_16384_gpus_has_the_layout_that_meta_trained_it_in() -> None:
    """TP 8, PP 16, the first and the last stage a layer short (arXiv 2407.21783, 3.3.2): 126 layers have no other PP
    beyond 2 that divides 16,384 GPUs."""
    found = result("model=llama31_405b", "hardware=h100", "nodes=2048", "training.global_batch_size=2048")
    layouts = [one.estimate.experiment.layout for one in found.best]
    assert any((each.tensor_model_parallel_size, each.pipeline_model_parallel_size) == (8, 16) for each in layouts[:3])
    assert all(each.account_for_embedding_in_pipeline_split for each in layouts)
    step_time_s = 2048 * 8192 / 16384 * 2.66e12 / 400e12  # 400 TFLOP/s a GPU (Table 4), of 2.66 TFLOP a token
    low, high = interval_of(found.best[0].estimate.figures["step_time_mean_s"])
    assert low <= step_time_s <= high


def test_no_layout_within_the_limits_is_faster_than_the_best_or_beats_one_of_the_front() -> None:
    found = result(*SMALL)
    (space,) = found.spaces
    times, taken = space.time.step_time_s[space.within], space.memory_bytes[space.within]
    assert found.best[0].space.time.step_time_s[found.best[0].index] == times.min()
    for one in found.front:
        time, bytes_ = space.time.step_time_s[one.index], space.memory_bytes[one.index]
        assert not ((times <= time) & (taken <= bytes_) & ((times < time) | (taken < bytes_))).any()
    ahead = [(space.time.step_time_s[one.index], space.memory_bytes[one.index]) for one in found.front]
    covered = np.zeros(len(times), dtype=bool)
    for time, bytes_ in ahead:
        covered |= (times >= time) & (taken >= bytes_)
    assert covered.all()


def test_the_ten_best_are_in_order_and_say_what_they_lose_by() -> None:
    found = result(*SMALL)
    scores = [one.score for one in found.best]
    assert scores == sorted(scores)
    assert len(found.best) == 10
    assert found.best[0].behind == ""
    for one in found.best:
        assert sum(one.parts.values()) == pytest.approx(one.estimate.figures["step_time_mean_s"].value)
    last = found.best[-1]
    longer = max(last.parts, key=lambda name: last.parts[name] - found.best[0].parts[name])
    assert longer in last.behind


def test_a_search_ranks_by_the_times_that_it_prints_where_a_small_batch_pays_for_fewer_threads() -> None:
    found = result("model=llama_tiny", "hardware=cpu", "gpus_per_node=1")
    assert len({float(rate) for rate in np.unique(found.spaces[0].jobs.peak_flops)}) == min(cores_here(), 2)
    for one in found.best:
        printed = value_of(one.estimate.figures["step_time_mean_s"])
        assert one.space.time.step_time_s[one.index] == pytest.approx(printed)


def test_what_is_there_twice_is_one_candidate() -> None:
    assert len(requests_of(("model=llama31_8b", "hardware=h100,h100", "nodes=1,1"))) == 1


@pytest.mark.parametrize("several", ["model=llama31_8b,llama31_70b", "training.global_batch_size=64,128"])
def test_a_search_is_of_one_model_and_batch(several: str) -> None:
    with pytest.raises(ConfigError, match="has several values"):
        requests_of((*BOTH[:2], several) if not several.startswith("model") else (*BOTH[1:], several))


def test_attention_alone_is_done_again_only_where_that_was_typed() -> None:
    """It would take time and free nothing."""
    done_again = {one.estimate.experiment.training.recompute_granularity or "none" for one in result(*SMALL).best}
    assert "selective" not in done_again
    typed = result(*SMALL, "training.recompute_granularity=selective")
    assert {one.estimate.experiment.training.recompute_granularity for one in typed.best} == {"selective"}


@pytest.mark.parametrize("objective", ["throughput", "cost", "energy", "time"])
def test_the_bill_of_the_best_is_the_least_of_each_gpu(objective: Objective) -> None:
    found = result(*BOTH, objective=objective)
    figure = {"throughput": "tokens_per_s_per_gpu", "cost": "total", "energy": "energy_kwh", "time": "days"}[objective]
    values = [value_of(bill(one.estimate.option, TERMS)[figure]) for one in found.of_each]
    best = bill(found.best[0].estimate.option, TERMS)[figure].value
    assert best == pytest.approx(max(values) if objective == "throughput" else min(values))
    assert len(values) == 2


def test_the_ratio_of_two_gpus_has_an_interval_of_both_errors() -> None:
    (ratio,) = result(*BOTH).ratios
    one, other = result(*BOTH).of_each
    intervals = [interval_of(each.estimate.figures["step_time_mean_s"]) for each in (one, other)]
    assert value_of(ratio.ratio) >= 1
    low, high = interval_of(ratio.ratio)
    width = np.hypot(*(np.log(most / least) for least, most in intervals))
    assert np.log(high / low) == pytest.approx(width)


def test_a_best_that_leaves_little_memory_says_so_and_what_to_type() -> None:
    full = result("model=llama31_70b", "hardware=h100", "nodes=8", "precision=fp8")
    taken, room = full.best[0].space.memory_bytes[full.best[0].index], full.best[0].space.room_bytes
    assert 0.95 * room < taken <= room
    (said,) = nearly_full(full.best[0])
    assert "memory is nearly full" in said and "headroom=5%" in said
    roomy = result("model=llama31_70b", "hardware=h100", "nodes=8", "precision=fp8", limits=Limits(headroom=0.05))
    assert not [*nearly_full(roomy.best[0])]


def test_limits_exclude_what_takes_more() -> None:
    free = result(*SMALL)
    days = value_of(bill(free.best[0].estimate.option, TERMS)["days"])
    cost = value_of(bill(free.best[0].estimate.option, TERMS)["total"])
    for limits in (Limits(days=days * 1.02), Limits(cost=cost * 1.02), Limits(headroom=0.3)):
        found = result(*SMALL, limits=limits)
        assert found.best[0].score >= free.best[0].score
        assert found.spaces[0].within.sum() < free.spaces[0].within.sum()
    for limits in (Limits(days=days * 0.9), Limits(cost=cost * 0.9), Limits(power_w=1000)):
        with pytest.raises(ConfigError, match="keeps the limits"):
            result(*SMALL, limits=limits)


def test_a_limit_that_no_layout_keeps_is_said_with_the_least_that_one_takes() -> None:
    days = value_of(bill(result(*SMALL).best[0].estimate.option, TERMS)["days"])
    with pytest.raises(ConfigError, match="keeps the limits") as raised:
        result(*SMALL, limits=Limits(days=days / 2))
    (problem,) = raised.value.problems
    assert problem.found == f"at least {shown(days)} days" and problem.allowed == f"at most {days / 2:g} days"


def test_what_another_limit_excludes_is_not_too_large_alone() -> None:
    """Power excluded all of B200, and the text said that memory did."""
    words = ("model=llama31_8b", "hardware=h100,b200", "nodes=1")
    assert result(*words).unfit is not None
    found = result(*words, limits=Limits(power_w=7000))
    assert found.unfit is not None and "h100" in found.unfit.space.label
    assert "faster but too large" in "\n".join(lines(found, TERMS, words))
    assert to_json(found, TERMS, words)["faster_but_too_large"]["gpus"] == found.unfit.space.label


def test_candidates_are_told_apart_and_those_without_a_layout_said_why() -> None:
    found = result("model=llama31_70b", "hardware=h100,mi355x", "nodes=1", "layout.tensor_model_parallel_size=4,8")
    text = "\n".join(lines(found, TERMS, ()))
    assert "8 × mi355x, bf16, tensor_model_parallel_size 8" in text
    assert "8 × mi355x, bf16, tensor_model_parallel_size 4" in text
    assert len(excluded(found)) == 2
    assert all("fits: the smallest" in one and one.endswith("allowed: 85 GB") for one in excluded(found))


def test_a_candidate_for_which_nothing_is_valid_leaves_the_others() -> None:
    found = result("model=llama31_8b", "hardware=h100", "nodes=1,5")
    assert [space.label for space in found.spaces] == ["8 × h100, bf16"]
    (why,) = excluded(found)
    assert why.startswith("no layout of llama31_8b on 40 GPUs is valid")


def test_layers_that_make_no_pipeline_are_said() -> None:
    words = ("model=deepseek_v3", "hardware=b200", "nodes=16", "training.seq_length=4096", "precision=fp8")
    (text,) = few_stages(result(*words))
    assert text.startswith("61 layers make a pipeline of 1, 2 stages here")
    assert not [*few_stages(result(*BOTH))]


def test_each_layout_of_the_json_has_what_it_was_chosen_by() -> None:
    found = result(*BOTH, objective="cost")
    said = to_json(found, TERMS, BOTH)
    costs = [one["bill"]["total"]["value"] for one in said["best"]]
    assert costs == sorted(costs) and said["tokens"] == TERMS.tokens
    assert {"micro_batch_size", "recompute"} <= said["best"][0].keys()


def test_a_vendors_recipe_is_no_layout_that_a_search_finds() -> None:
    with pytest.raises(ConfigError, match="a recipe brings its own layout"):
        requests_of((*SMALL, "platform=nvidia", "method=max_performance"))


def test_where_nothing_fits_the_smallest_is_named() -> None:
    with pytest.raises(ConfigError, match=r"none of .* valid layouts of llama31_405b .* fits: the smallest, TP8"):
        result("model=llama31_405b", "hardware=h100")


@pytest.mark.parametrize(
    ("framework", "split"),
    [("fsdp2", {"dp"}), ("hf", {"dp"}), ("deepspeed", {"tp", "dp"}), ("torchtitan", {"pp", "cp"})],
)
def test_a_search_has_layouts_that_its_framework_can_run(framework: str, split: set[str]) -> None:
    """`launch` refused the pipelines that were the best of them."""
    (space,) = result(*SMALL, "platform=nvidia", f"framework={framework}").spaces
    sizes = {name: getattr(space.layouts, name).max() for name in ("tp", "pp", "vp", "cp", "sp", "dp")}
    assert all(sizes[name] > 1 for name in split), sizes
    if framework != "torchtitan":
        assert {name for name, most in sizes.items() if most > (name != "sp")} == split


def test_a_search_takes_no_size_that_its_framework_cannot_have() -> None:
    with pytest.raises(ConfigError, match=r"pipeline_model_parallel_size: hf: Trainer has no pipeline"):
        result(*SMALL, "platform=nvidia", "framework=hf", "layout.pipeline_model_parallel_size=2")


def test_a_named_layout_is_no_limit_of_a_search() -> None:
    with pytest.raises(ConfigError, match="layout=tp2: names a layout, which is what a search finds"):
        result(*SMALL, "layout=tp2")


def test_cost_needs_a_price() -> None:
    requests = requests_of(SMALL)
    with pytest.raises(ConfigError, match="no price of h100"):
        search(requests, Terms(tokens=1e12, prices=read_prices("crusoe").__class__("USD")), None, "cost")


def test_the_text_has_the_best_the_front_and_commands_that_launch_takes() -> None:
    found = result(*BOTH)
    text = "\n".join(lines(found, TERMS, BOTH))
    assert str(found.best[0].estimate.experiment.layout) in text
    command = next(line for line in text.splitlines() if line.startswith("1. tprimat launch "))
    e = load_experiment(*command.removeprefix("1. tprimat launch ").split())
    assert str(e.layout) == str(found.best[0].estimate.experiment.layout)
    assert e.hardware == found.best[0].estimate.experiment.hardware
    assert to_json(found, TERMS, BOTH)["best"][0]["command"] in command


@pytest.mark.parametrize(("ends", "decided"), [((0.8, 1.6), False), ((1.1, 1.6), True)])
def test_a_ratio_whose_interval_holds_1_is_said_not_to_be_decided(ends: tuple[float, float], decided: bool) -> None:
    found = result(*BOTH)
    (ratio,) = found.ratios
    ratios = (ratio._replace(ratio=msgspec.structs.replace(ratio.ratio, interval=ends)),)
    text = "\n".join(lines(replace(found, ratios=ratios), TERMS, BOTH))
    assert ("which is not decided" not in text) == decided
