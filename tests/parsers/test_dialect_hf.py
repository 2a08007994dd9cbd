"""The Hugging Face Trainer: no step numbers, and losses that are means."""

from __future__ import annotations

import pytest
from helpers import FIXTURES, parse_text, read

from parsers import parse_all
from parsers.events import NewRun
from parsers.record import Step


def entry(loss: float, epoch: float, rest: str = "") -> str:
    return f"{{'loss': {loss}, 'grad_norm': 1.5, 'learning_rate': 5e-05, 'epoch': {epoch}{rest}}}"


def steps(text: str) -> list[Step]:
    return [event for event in read("hf", text) if isinstance(event, Step)]


def test_a_whole_log_whose_epochs_tell_the_steps() -> None:
    (run,) = parse_all(FIXTURES / "hf_trainer.log")
    assert (run.dialect, run.train_iters, run.completed) == ("hf", 97, True)
    assert [(step.step, step.iteration, step.interval_steps) for step in run.steps] == [
        (15, None, None),
        (31, None, 16),
        (47, None, 16),
    ]
    assert all(step.flags == ("loss:interval_mean",) for step in run.steps)
    assert run.steps[0].lr == 4.175257731958763e-05
    assert all(step.lr_used is None for step in run.steps)


def test_header_evaluation_checkpoint_and_summary() -> None:
    (run,) = parse_all(FIXTURES / "hf_trainer.log")
    settings = {name: at.value for name, at in run.effective.items()}
    assert settings == {"micro_batch_size": 8, "global_batch_size": 1024, "num_micro_batches": 16}
    assert [(point.step, point.loss, point.seconds) for point in run.validations] == [(31, 2.75, 7.25)]
    assert [(stall.kind, stall.seconds, stall.iteration) for stall in run.stalls] == [
        ("checkpoint", None, 32),
        ("evaluation", 7.25, None),
    ]
    names = ("train_runtime_s", "train_samples_per_s", "train_loss_mean", "trainable_parameters")
    assert [run.facts[name] for name in names] == [612.25, 163.3, 2.84, 134515008]


def test_bars_before_and_after_tell_a_step() -> None:
    text = "\n".join([
        "  1%|1         | 1/100 [00:27<44:53, 27.20s/it]",
        entry(2.5, 0.01, ", 'num_input_tokens_seen': 1000"),
        "  1%|1         | 1/100 [00:27<44:53, 27.20s/it]",
        entry(2.4, 0.02, ", 'num_input_tokens_seen': 2000"),
        "  2%|2         | 2/100 [00:30<21:45, 13.32s/it]",
        entry(2.3, 0.96, ", 'num_input_tokens_seen': 96000"),  # bars are missing: the tokens tell
    ])  # fmt: skip
    assert [(step.step, step.interval_steps, step.flags) for step in steps(text)] == [
        (0, 1, ()),
        (1, 1, ()),
        (95, 94, ("loss:interval_mean",)),
    ]


def test_where_nothing_tells_the_step_it_is_the_order_and_says_so() -> None:
    found = steps(f"{entry(2.5, 0.1)}\n{entry(2.4, 0.2)}")
    assert [(step.step, step.iteration, step.flags) for step in found] == [
        (0, None, ("step:by_order", "loss:interval_mean")),
        (1, None, ("step:by_order", "loss:interval_mean")),
    ]


def test_an_epoch_that_goes_back_is_another_run() -> None:
    text = f"{entry(2.5, 0.1)}\n{entry(2.4, 0.2)}\n{entry(2.5, 0.1)}\n{entry(2.4, 0.2)}"
    assert sum(isinstance(event, NewRun) for event in read("hf", text)) == 1
    assert [[step.step for step in run.steps] for run in parse_text(text)] == [[0, 1], [0, 1]]


def test_two_runs_in_one_log_keep_what_is_theirs() -> None:
    one = FIXTURES.joinpath("hf_trainer.log").read_text()
    other = one.replace("batch size per device = 8", "batch size per device = 4").replace("612.25", "600.5")
    first, second = parse_text(one + other)
    assert [len(run.steps) for run in (first, second)] == [3, 3]
    assert [run.effective["micro_batch_size"].value for run in (first, second)] == [8, 4]
    assert [run.facts["train_runtime_s"] for run in (first, second)] == [612.25, 600.5]
    assert [len(run.validations) for run in (first, second)] == [1, 1]
    assert first.completed
    assert second.completed


@pytest.mark.parametrize("quote", ["'", '"'])
def test_ms_swift_prints_the_step(quote: str) -> None:
    plain = (
        "{'loss': 1.61, 'grad_norm': 2.5, 'learning_rate': 1e-06, 'token_acc': 0.61, 'epoch': 0.1, "
        "'global_step/max_steps': '5/304', 'percentage': '1.64%', 'elapsed_time': '42s', 'memory(GiB)': 12.5, "
        "'train_speed(iter/s)': 0.119}"
    )
    (step,) = steps(plain.replace("'", quote))
    assert (step.step, step.iteration, step.loss, step.memory_bytes) == (4, 5, 1.61, round(12.5 * 2**30))
    assert step.metrics == {"epoch": 0.1, "token_accuracy": 0.61, "steps_per_s_running_mean": 0.119}
    assert step.memory_kind == "reserved"


def test_megatron_swift_prints_the_iteration() -> None:
    text = (
        "{'loss': 2.5, 'grad_norm': 3.1, 'learning_rate': 1e-05, 'iteration': '5/100', 'elapsed_time': '12s', "
        "'throughput(TFLOP/s/GPU)': 312.5, 'memory(GiB)': 70.1, 'train_speed(s/it)': 2.4}"
    )
    (step,) = steps(text)
    assert (step.step, step.iteration, step.lr, step.step_time_s, step.tflops_per_gpu) == (4, 5, 1e-05, None, None)
    assert step.metrics == {"tflops_per_gpu_running_mean": 312.5, "step_time_s_running_mean": 2.4}


def test_values_in_quotes_as_newer_versions_print_them() -> None:
    (step,) = steps("{'loss': '2.986', 'grad_norm': '0.97', 'learning_rate': '4.175e-05', 'epoch': '0.1638'}")
    assert (step.loss, step.lr, step.metrics) == (2.986, 4.175e-05, {"epoch": 0.1638})


def test_a_nan_loss() -> None:
    (step,) = steps("{'loss': nan, 'grad_norm': nan, 'learning_rate': 0.0, 'epoch': 0.1}")
    assert (step.loss, step.nonfinite) == (None, ("loss", "grad_norm"))


def test_a_summary_alone_is_a_record_without_steps() -> None:
    text = "{'train_runtime': 2577.75, 'train_samples_per_second': 95.3, 'train_loss': 1.0}"
    (run,) = parse_text(text)
    assert (run.dialect, run.steps, run.completed, run.facts["train_runtime_s"]) == ("hf", (), True, 2577.75)


def test_other_bars_are_not_the_training() -> None:
    text = "\n".join([
        "Total optimization steps = 97",
        " 10%|█   | 5/50 [00:27<44:53, 27.20s/it]",
        entry(2.5, 0.1),
        " 12%|█   | 6/50 [00:27<44:53, 27.20s/it]",
    ])  # fmt: skip
    assert steps(text)[0].flags == ("step:by_order", "loss:interval_mean")
