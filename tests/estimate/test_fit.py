"""Fitting and calibrating: nothing of a judged run reaches its prediction, and what contradicts is not learned from."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest

from conf.errors import ConfigError
from estimate import held_out as splits
from estimate.calibrate import calibrate
from estimate.explained import sensitivities
from estimate.fit import at, fit, points, priors, problem_of, scatter, solved, weights
from estimate.fitted import FEW, Parameters, read, shipped, write
from estimate.held_out import Runs, configurations, folds, held_out
from estimate.jobs import Numbers
from estimate.measured import SHIPPED, read_runs
from estimate.predict import DISTANCES, WIDER, error_of, predict
from estimate.step_time import CHUNK, step_time
from tests.estimate.measured_rows import COLLECTED, built
from tests.estimate.test_step_time import job, many


def some(count: int = 24) -> Runs:
    """Return every so-manieth of the shipped runs."""
    runs = read_runs()
    mask = np.zeros(runs.jobs.count, dtype=bool)
    mask[:: runs.jobs.count // count] = True
    return runs.take(mask)


@pytest.mark.skipif(not COLLECTED.is_file(), reason="the collected table is not part of the repository")
def test_the_shipped_runs_are_the_usable_ones_of_those_collected() -> None:
    if os.environ.get("UPDATE_GOLDEN"):
        SHIPPED.write_text(built(), encoding="utf-8")
    assert SHIPPED.read_text(encoding="utf-8") == built()


def test_a_configuration_is_never_in_two_folds_and_every_run_is_in_one() -> None:
    keys = configurations(read_runs().jobs)
    split = folds(keys, 5)
    assert {*split.tolist()} == set(range(5))
    assert len({*zip(keys, split.tolist(), strict=True)}) == len({*keys})


def test_an_unknown_feature_does_not_part_a_configuration() -> None:
    jobs = read_runs().jobs
    marked = replace(jobs, cuda_graphs=np.where(np.arange(jobs.count) % 2, np.nan, 1.0))
    assert configurations(marked) == configurations(jobs)


def test_replicas_alone_make_no_configuration() -> None:
    """Weak scaling hardly changes a step: half as many GPUs in the fit would give away what nobody was to know."""
    jobs = read_runs().jobs
    more = replace(jobs, data_parallel_size=2 * jobs.data_parallel_size, global_batch_size=2 * jobs.global_batch_size)
    split = replace(jobs, tensor_model_parallel_size=2 * jobs.tensor_model_parallel_size)
    assert configurations(more) == configurations(jobs)
    assert not {*configurations(split)[:1]} & {*configurations(jobs)[:1]}


def test_each_fold_starts_from_the_priors_and_sees_no_run_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    runs, seen = some(), []

    def watched(jobs: object, times: Numbers, *rest: object) -> Parameters:
        seen.append(times)
        return msgspec.structs.replace(priors(shipped()))

    monkeypatch.setattr(splits, "fit", watched)
    split = folds(configurations(runs.jobs), 3)
    held = held_out(runs, split, shipped())
    for fold, times in enumerate(seen):
        assert not {*times.tolist()} & {*runs.step_time_s[split == fold].tolist()}
    np.testing.assert_allclose(held.error, np.log(step_time(runs.jobs, priors(shipped())).total / runs.step_time_s))


def test_priors_hold_nothing_of_a_fit() -> None:
    bare = priors(shipped())
    assert not bare.offsets and not bare.errors and not bare.measured
    assert all(value.value == value.prior for value in bare.values.values())


def test_a_gpu_is_measured_in_the_precisions_of_its_runs() -> None:
    """Its bf16 is no measured one where all runs are in fp8, though their output layers are in bf16."""
    runs = read_runs().jobs
    pairs = zip(runs.hardware.tolist(), runs.precision.tolist(), strict=True)
    assert {*shipped().measured} == {f"gemm_efficiency.{device}.{precision}" for device, precision in pairs}
    (notes,) = predict(job(stack="primus-26.5", hardware="mi300x", precision="bf16"), shipped()).notes
    assert "no measured run on mi300x in bf16: its efficiency is a prior" in notes


def test_a_fit_depends_on_the_runs_alone_and_comes_nearer_to_them_than_its_priors() -> None:
    runs = some()
    cold = fit(runs.jobs, runs.step_time_s, runs.alike, shipped(), "test")
    again = fit(runs.jobs, runs.step_time_s, runs.alike, priors(shipped()), "test")
    assert cold.values == again.values
    before, after = (np.abs(np.log(step_time(runs.jobs, p).total / runs.step_time_s)) for p in (priors(cold), cold))
    assert np.median(after) < np.median(before) / 2
    assert all(0 < cold.of(name) <= 1 for name, kind in cold.kinds.items() if kind.most and not kind.each)


def test_shipped_parameters_are_within_physics_and_survive_a_file(tmp_path: Path) -> None:
    known = shipped()
    assert all(
        value.value <= (known.kinds[name].most or np.inf) for name, value in known.values.items() if name in known.kinds
    )
    write(tmp_path / "own.yaml", known)
    assert read(tmp_path / "own.yaml") == known


def test_one_run_moves_its_stack_and_nothing_else() -> None:
    own = job(stack="nemo-25.04.02")
    expected = predict(own).step_time_s
    learned = calibrate(shipped(), own, expected * 1.05)
    assert learned.used.all() and not learned.warnings
    assert learned.parameters.values == shipped().values
    assert predict(own, learned.parameters).step_time_s == pytest.approx(expected * 1.05, rel=0.01)


def test_one_run_is_not_taken_for_all_that_its_stack_is() -> None:
    """A part of it is its own: what the formulas leave out of that configuration."""
    own = job(stack="nemo-25.04.02")
    expected = predict(own).step_time_s
    learned = calibrate(shipped(), own, expected * 1.07)
    share = np.log(predict(own, learned.parameters).step_time_s / expected) / np.log(1.07)
    assert 0.8 < share < 0.92


def test_runs_with_experts_weigh_less_in_a_fit() -> None:
    dense, routed = scatter(job()), scatter(job("qwen3_30b_a3b"))
    assert dense < 0.6 * routed


def test_three_runs_refine_products_and_six_communication() -> None:
    chosen = many(200)
    jobs = replace(chosen.take(np.flatnonzero(chosen.hardware == "h100")[:6]), stack=np.array("own-1.0"))
    times = step_time(jobs, shipped()).total * np.array([1.1, 1.12, 1.08, 1.1, 1.05, 1.15])
    for count, communication in ((3, False), (6, True)):
        learned = calibrate(shipped(), jobs.take(slice(0, count)), times[:count])
        changed = {
            n.split(".")[0] for n, v in learned.parameters.values.items() if v.value != shipped().of(*n.split("."))
        }
        assert "gemm_efficiency" in changed
        assert any(name.startswith("exposed_") for name in changed) == communication
        assert all(name == "gemm_efficiency" or name.startswith("exposed_") for name in changed)


def test_a_throttled_run_is_named_and_not_learned_from() -> None:
    own = job(stack="nemo-25.04.02")
    three = Runs(own, np.ones(1), (), ()).jobs
    jobs = replace(three, global_batch_size=np.array([512.0, 1024.0, 2048.0]))
    times = step_time(jobs, shipped()).total * np.array([1.0, 2.5, 1.01])
    learned = calibrate(shipped(), jobs, times, ("runs/a", "runs/b", "runs/c"))
    assert learned.used.tolist() == [True, False, True]
    assert "throttling" in learned.warnings[0] and learned.warnings[0].startswith("runs/b was not learned from")


def test_more_peak_means_less_time_in_the_sensitivities() -> None:
    of = {swing.name: swing.change for swing in sensitivities(job(), shipped())}
    assert of["gemm efficiency"] < of["attention efficiency"] < 0 < of["gemm backward"]


def test_intervals_of_simulated_errors_hold_as_many_as_they_say() -> None:
    random = np.random.default_rng(3)
    distance = np.array(["like", "model", "work", "work"], dtype=object).repeat(4000)
    wider = np.zeros((16000, len(WIDER)), dtype=bool)
    wider[12000:, 0] = True
    scales = np.repeat([0.1, 0.25, 0.5, 0.8], 4000)
    rows, classes = np.arange(16000), (("kind", "all"),) * 16000
    held = splits.HeldOut(random.normal(0, scales), rows, classes, distance, wider, rows)
    known = splits.with_errors(msgspec.structs.replace(shipped(), errors={}, wider={}), held)
    fresh = splits.HeldOut(random.normal(0, scales), held.row, held.classes, distance, wider, rows)
    inside = np.abs(fresh.error) <= splits.widths(fresh, known)
    for level, share in enumerate(splits.LEVELS):
        for start in range(0, 16000, 4000):
            assert np.mean(inside[level, start : start + 4000]) == pytest.approx(share, abs=0.03)


@pytest.mark.parametrize("count", [1, 60, CHUNK + 100])
def test_parameters_at_several_points_are_those_of_each(count: int) -> None:
    """In one chunk of jobs and in two, and of one job that is no array."""
    runs, known = some(60), priors(shipped())
    jobs = job() if count == 1 else runs.jobs.take(np.arange(count) % 60)
    problem = problem_of(jobs, known)
    several = np.random.default_rng(0).normal(0, 0.5, (3, len(problem.names)))
    together = step_time(jobs, points(known, problem, several)).total
    for found, x in zip(together, several, strict=True):
        np.testing.assert_allclose(found, step_time(jobs, at(known, problem, x)).total, rtol=1e-12)


def test_a_fit_ends_where_no_step_of_one_parameter_lessens_its_loss() -> None:
    """The loss is the one that is stated: soft L1 of the logarithms, and the priors."""
    runs, known = some(60), priors(shipped())
    problem, weight = problem_of(runs.jobs, known), weights(runs.alike) / scatter(runs.jobs)
    target = np.log(runs.step_time_s)
    found, _ = solved(runs.jobs, target, weight, known, problem)
    count = len(problem.names)

    def loss(x: Numbers) -> float:
        slower, whole = problem.factors(x[count:])
        parts = step_time(runs.jobs, at(known, problem, x[:count]), None, slower, whole)
        error = weight * (np.log(parts.total) - target)
        return float(np.sum(np.sqrt(1 + error * error) - 1) + x @ x / 2)

    most = np.log(problem.most / problem.prior) / problem.sd
    for index in range(0, found.size, 5):
        for change in (-0.2, 0.2):
            moved = found.copy()
            moved[index] += change
            within = index >= count or moved[index] <= most[index]
            assert not within or loss(moved) > loss(found), index


def test_errors_that_come_together_count_as_fewer() -> None:
    random, groups = np.random.default_rng(4), np.arange(400) // 40
    alone = random.normal(0, 1, 400)
    together = alone + random.normal(0, 2, 10)[groups]
    assert splits.independent(alone, groups) > 200
    assert 8 < splits.independent(together, groups) < 30
    assert splits.quantile(np.abs(together), 0.8, 12.0) > splits.quantile(np.abs(together), 0.8)


def test_of_a_kind_that_nobody_measured_so_far_off_the_next_distance_says_more_than_other_kinds() -> None:
    errors = {name: dict(each) for name, each in shipped().errors.items()}
    farther = errors["software"]["moe"]
    for name in ("model", "release", "precision", "machine", "work"):
        errors[name].pop("moe", None)
    known = msgspec.structs.replace(shipped(), errors=errors)
    name, error = error_of(known, "work", ("moe", "all"))
    assert name == "moe" and error.half_80 == farther.half_80 > errors["work"]["all"].half_80


def test_what_is_farther_never_has_a_narrower_interval() -> None:
    known = shipped()
    for classes in (("dense, sm_9x", "dense", "all"), ("moe", "all"), ("lora", "all"), ("all",)):
        errors = [error_of(known, name, classes)[1] for name, *_ in DISTANCES]
        for nearer, farther in pairwise([(error.half_80, error.half_95) for error in errors]):
            assert farther[0] >= nearer[0] > 0 and farther[1] >= nearer[1] > 0
    assert {*known.errors} == {name for name, *_ in DISTANCES} and {*known.wider} == {*WIDER, FEW}


def test_a_framework_that_is_known_from_other_work_is_no_near_one() -> None:
    nvidia, amd = (predict(job(stack="primus-26.5", hardware=gpu)) for gpu in ("h100", "mi300x"))
    halves = [float(np.log(each.high_95_s[0] / each.step_time_s[0])) for each in (nvidia, amd)]
    near = error_of(shipped(), "like", ("dense, sm_9x",))[1].half_95
    assert halves[1] > halves[0] > 1.3 * near, "Primus' one measured run is a mixture of experts"
    assert "dense job of megatron on any GPU of amd" in amd.notes[0][0]


def test_parameters_that_do_not_say_how_wrong_they_are_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "old.yaml", msgspec.structs.replace(shipped(), wider={}))
    with pytest.raises(ConfigError, match="how wrong"):
        read(tmp_path / "old.yaml")


def test_a_longer_sequence_than_any_measured_has_a_wider_interval() -> None:
    known = msgspec.structs.replace(shipped(), reach={"seq_length": 4096.0})
    within, longer = (predict(job(stack="nemo-25.04.02", seq_length=length), known) for length in (4096.0, 8192.0))
    ratio = [np.log(each.high_80_s[0] / each.step_time_s[0]) for each in (within, longer)]
    assert ratio[1] == pytest.approx(ratio[0] * known.wider["reach"].by[0])
