"""MaxText: counts from 0, and prints when a step was dispatched, which is not when it ran."""

from __future__ import annotations

from helpers import FIXTURES, read

from parsers import parse_all
from parsers.events import Fact
from parsers.record import Step


def line(step: int, seconds: float, tflops: float = 300.0) -> str:
    return f"completed step: {step}, seconds: {seconds:.3f}, TFLOP/s/device: {tflops:.3f}, loss: 9.568"


def flagged(*seconds: float) -> list[int]:
    events = read("maxtext", "\n".join(line(step, time) for step, time in enumerate(seconds)))
    return [event.step for event in events if isinstance(event, Step) and "step_time_s:asynchronous" in event.flags]


def test_a_whole_log() -> None:
    (run,) = parse_all(FIXTURES / "maxtext_tiny.log")
    assert (run.dialect, run.train_iters) == ("maxtext", 8)
    assert [step.step for step in run.steps] == list(range(8))
    assert [step.iteration for step in run.steps] == list(range(8))
    third = run.steps[3]
    assert (third.step_time_s, third.tflops_per_gpu, third.tokens_per_s_per_gpu) == (0.812, 234.298, 20177.340)
    assert (third.loss, third.metrics) == (
        11.750,
        {"total_weights": 65536.0, "lm_loss": 11.750, "perplexity": 126753.5},
    )
    assert (run.steps[4].loss, run.steps[4].nonfinite) == (None, ("loss",))


def test_steps_that_were_only_dispatched_are_kept_and_flagged() -> None:
    (run,) = parse_all(FIXTURES / "maxtext_tiny.log")
    flags = ("step_time_s:asynchronous", "tflops_per_gpu:asynchronous", "tokens_per_s_per_gpu:asynchronous")
    assert {step.step: step.flags for step in run.steps if step.flags} == {2: flags, 6: flags}
    assert run.steps[2].tflops_per_gpu == 7317.308


def test_only_what_is_far_below_both_neighbours_is_flagged() -> None:
    assert flagged(50.0, 1.0, 1.1, 1.0) == []  # compilation, then even steps
    assert flagged(1.0, 0.1, 1.0) == [1]
    assert flagged(1.0, 0.1, 0.1, 1.0) == []  # two of a kind: no neighbour shows it
    assert flagged(0.1, 10.0, 10.0) == [0]
    assert flagged(1.0, 1.0, 0.01) == [2]  # the last, against the one before
    assert flagged(1.0) == []


def test_no_device_computes_so_fast() -> None:
    (step,) = (event for event in read("maxtext", line(3, 0.5, 8638.0)) if isinstance(event, Step))
    assert "tflops_per_gpu:asynchronous" in step.flags


def test_settings_facts_and_evaluation() -> None:
    (run,) = parse_all(FIXTURES / "maxtext_tiny.log")
    assert {name: at.value for name, at in run.effective.items()} == {
        "global_batch_size": 16,
        "lr": 3e-05,
        "seq_length": 8192,
        "world_size": 8,
    }
    assert (run.facts["parameters_billion"], run.facts["tflops_per_step_per_device"]) == (3.125, 190.25)
    assert [(point.step, point.loss) for point in run.validations] == [(4, 12.875)]


def test_several_processes_print_the_same_step() -> None:
    events = read("maxtext", "\n".join([line(0, 1.0), line(0, 1.0), line(1, 1.0), line(1, 1.0)]))
    assert [event.step for event in events if isinstance(event, Step)] == [0, 1]


def test_tpus_are_told() -> None:
    text = "Devices: [TpuDevice(id=0, process_index=0, coords=(0,0,0), core_on_chip=0)]"
    assert read("maxtext", text) == [Fact("vendor", "google", 1)]
