"""Composer: a record of many lines for a batch."""

from __future__ import annotations

from helpers import FIXTURES, read

from parsers import parse_all
from parsers.record import Step


def test_a_whole_log() -> None:
    (run,) = parse_all(FIXTURES / "composer_tiny.log")
    assert (run.dialect, run.train_iters, run.completed) == ("composer", 3, True)
    assert [(step.step, step.iteration, step.loss) for step in run.steps] == [
        (0, 1, 11.6579),
        (1, 2, None),
        (2, 3, 10.9),
    ]
    first, second, _ = run.steps
    assert (first.memory_bytes, first.memory_kind) == (21_500_000_000, "reserved")
    assert first.metrics["reserved_bytes"] == 20_770_000_000
    assert first.lr == 0.0
    assert second.nonfinite == ("loss",)
    assert second.memory_bytes is None


def test_means_over_the_window_are_no_rates_of_the_step() -> None:
    (run,) = parse_all(FIXTURES / "composer_tiny.log")
    assert run.steps[1].tokens_per_s_per_gpu is None
    assert run.steps[1].metrics["tokens_per_s_per_gpu_running_mean"] == 63194.3697


def test_settings_and_evaluation() -> None:
    (run,) = parse_all(FIXTURES / "composer_tiny.log")
    assert {name: at.value for name, at in run.effective.items()} == {
        "seq_length": 2048,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "num_layers": 4,
        "global_batch_size": 16,
        "world_size": 2,
        "micro_batch_size": 4,
    }
    assert (run.facts["parameters"], run.facts["precision"]) == (3159505, "amp_bf16")
    assert [(point.step, point.loss, point.split) for point in run.validations] == [(1, 10.5, "c4")]


def test_records_under_a_rank_prefix() -> None:
    text = "0: [batch=1/300000000]:\n0:       Train time/batch: 0\n0:       Train loss/train/total: 12.0000\n"
    (step,) = (event for event in read("composer", text) if isinstance(event, Step))
    assert (step.step, step.loss, step.line) == (0, 12.0, 1)


def test_a_duration_in_tokens_or_epochs() -> None:
    for head in ("[token=36700160/99000000]:", "[epoch=2][batch=5/10]:"):
        text = f"{head}\n\t Train time/batch: 34\n\t Train loss/train/total: 8.0000\n"
        (step,) = (event for event in read("composer", text) if isinstance(event, Step))
        assert (step.step, step.iteration, step.loss) == (34, None, 8.0)
    assert not [
        e for e in read("composer", "[epoch=2][batch=5/10]:\n\t Train loss/train/total: 8.0\n") if isinstance(e, Step)
    ]
