"""DeepSpeed: two lines a report, a running mean beside the step's own rate."""

from __future__ import annotations

from helpers import FIXTURES, read

from parsers import parse_all
from parsers.record import Step


def test_a_whole_log() -> None:
    (run,) = parse_all(FIXTURES / "deepspeed_tiny.log")
    assert (run.dialect, run.facts["framework_version"]) == ("deepspeed", "0.9.0")
    assert [(step.step, step.iteration, step.lr) for step in run.steps] == [(9, 10, 5e-05), (19, 20, 4.999e-05)]
    first = run.steps[0]
    assert (first.memory_bytes, first.memory_kind) == (round(10.5 * 2**30), "allocated")
    assert first.metrics == {
        "skipped_total": 2.0,
        "samples_per_s": 252.5,
        "samples_per_s_running_mean": 251.25,
        "allocated_bytes": round(3.25 * 2**30),
    }
    assert first.step_time_s is None
    assert first.loss is None


def test_its_configuration() -> None:
    (run,) = parse_all(FIXTURES / "deepspeed_tiny.log")
    assert {name: at.value for name, at in run.effective.items()} == {
        "num_micro_batches": 2,
        "clip_grad": 1.0,
        "global_batch_size": 128,
        "micro_batch_size": 8,
        "data_parallel_size": 8,
    }
    assert run.facts["zero_optimization_stage"] == 3


def test_the_pipeline_engine_averages_since_the_line_before() -> None:
    text = (
        "steps: 10 loss: 2.3456 iter time (s): 1.250 samples/sec: 30.4\n"
        "steps: 20 loss: nan iter time (s): 1.150 samples/sec: 33.4"
    )
    first, second = (event for event in read("deepspeed", text) if isinstance(event, Step))
    assert (first.loss, first.step_time_s, first.interval_steps) == (2.3456, 1.25, None)
    assert (second.loss, second.nonfinite, second.interval_steps) == (None, ("loss",), 10)
    assert first.flags == second.flags == ("step_time_s:interval_mean",)


def test_the_pipeline_engine_with_more_losses_or_a_total() -> None:
    for text in (
        "steps: 200 loss: 5.5508 lm loss: 5.5103 moe loss: 0.0405 iter time (s): 0.936 samples/sec: 136.706",
        "step:   200 /  1000 loss: 5.5508 iter time (s): 0.936 samples/sec: 136.706 eta: 01:10",
    ):
        (step,) = (event for event in read("deepspeed", text) if isinstance(event, Step))
        assert (step.step, step.loss, step.step_time_s) == (199, 5.5508, 0.936)


def test_a_rate_alone_is_no_step() -> None:
    assert read("deepspeed", "[Rank 0] step=10, skipped=2, lr=[5e-05, 5e-05], mom=[(0.9, 0.95)]") == []
