"""nanotron: three digits and a letter, and a batch that is in tokens or in samples."""

from __future__ import annotations

import pytest
from helpers import FIXTURES, read

from parsers import parse_all
from parsers.dialects.nanotron import human
from parsers.record import Step


def test_a_whole_log() -> None:
    (run,) = parse_all(FIXTURES / "nanotron_tiny.log")
    assert (run.dialect, run.train_iters) == ("nanotron", 8)
    assert [step.step for step in run.steps] == [0, 1, 2]  # the last line is cut before its loss
    second = run.steps[1]
    assert (second.iteration, second.step_time_s, second.loss, second.grad_norm) == (2, 0.982, 11.1, 10.1)
    assert (second.tokens_per_s_per_gpu, second.tflops_per_gpu) == (66700.0, 1380.0)
    assert second.metrics == {"consumed_tokens": 2.1e6, "tokens_per_s": 1.07e6, "tokens_per_step": 1.05e6}
    assert second.global_batch_size is None
    assert run.steps[2].nonfinite == ("grad_norm", "loss")


def test_a_step_uses_the_rate_of_the_line_before() -> None:
    (run,) = parse_all(FIXTURES / "nanotron_tiny.log")
    assert [step.lr for step in run.steps] == [0.00015, 0.0003, 0.00029]
    assert [step.lr_used for step in run.steps] == [None, 0.00015, 0.0003]


def test_the_training_plan_and_a_checkpoint() -> None:
    (run,) = parse_all(FIXTURES / "nanotron_tiny.log")
    assert {name: at.value for name, at in run.effective.items()} == {
        "micro_batch_size": 4,
        "num_micro_batches": 8,
        "context_parallel_size": 1,
        "seq_length": 2048,
        "global_batch_size": 512,
    }
    assert [(stall.kind, stall.iteration) for stall in run.stalls] == [("checkpoint", 2)]


def test_in_2023_the_batch_was_in_samples() -> None:
    text = (
        "iteration: 5 / 20 | consumed_samples: 640 | consumed_tokens: 1.31M | elapsed_time_per_iteration_ms: 2.0K "
        "| tokens_per_sec: 131K | tokens_per_sec_per_gpu: 16.4K | global_batch_size: 128 | lm_loss: 9.5 | lr: 0.0003 "
        "| model_tflops_per_gpu: 154 | hardware_tflops_per_gpu: 160 |"
    )
    (step,) = (event for event in read("nanotron", text) if isinstance(event, Step))
    assert (step.global_batch_size, step.step_time_s, step.metrics["hardware_tflops_per_gpu"]) == (128, 2.0, 160.0)
    assert "tokens_per_step" not in step.metrics


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8.79K", 8790.0),
        ("480B", 4.8e11),
        ("1.6M", 1.6e6),
        ("0.0001", 0.0001),
        ("15.4", 15.4),
        ("2T", 2e12),
        ("K", None),
        ("", None),
    ],
)
def test_human_numbers(text: str, value: float | None) -> None:
    assert human(text) == value
