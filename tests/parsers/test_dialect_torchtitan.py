"""TorchTitan: rates over the steps since the line before, memory in GiB, every rank printing."""

from __future__ import annotations

from helpers import FIXTURES, read

from parsers import parse_all
from parsers.events import Fact, Resumed, Setting
from parsers.record import Step


def line(iteration: int, rate: str = "tps: 2,528", rest: str = "  tflops: 15.68  mfu: 5.03%") -> str:
    return f"[titan] 2026 - root - INFO - step: {iteration:2}  loss:  3.12459  memory: 26.01GiB(82.96%)  {rate}{rest}"


def steps(*lines: str) -> list[Step]:
    return [event for event in read("torchtitan", "\n".join(lines)) if isinstance(event, Step)]


def test_a_whole_log() -> None:
    (run,) = parse_all(FIXTURES / "torchtitan_tiny.log")
    assert (run.dialect, run.train_iters, run.completed) == ("torchtitan", 20, True)
    first, middle, last = run.steps
    assert [step.step for step in run.steps] == [0, 9, 19]
    assert (first.iteration, first.loss, first.grad_norm, first.interval_steps, first.flags) == (
        1,
        4.09409,
        3.6453,
        1,
        (),
    )
    assert (first.memory_bytes, first.memory_kind) == (round(3.18 * 2**30), "reserved")
    assert (middle.tokens_per_s_per_gpu, middle.tflops_per_gpu, middle.interval_steps) == (121163.0, 65.78, 9)
    assert middle.flags == ("tokens_per_s_per_gpu:interval_mean", "tflops_per_gpu:interval_mean")
    assert (last.loss, last.nonfinite, last.metrics) == (None, ("loss", "grad_norm"), {"memory_percent": 1.71})
    assert all(step.step_time_s is None and step.lr is None for step in run.steps)


def test_settings_and_facts() -> None:
    (run,) = parse_all(FIXTURES / "torchtitan_tiny.log")
    assert {name: at.value for name, at in run.effective.items()} == {
        "tensor_model_parallel_size": 2,
        "pipeline_model_parallel_size": 1,
        "context_parallel_size": 1,
        "expert_model_parallel_size": 2,
        "data_parallel_size": 2,
        "world_size": 4,
        "micro_batch_size": 8,
        "global_batch_size": 16,
        "num_micro_batches": 1,
        "seq_length": 2048,
        "lr_warmup_iters": 2,
    }
    assert run.effective["global_batch_size"].line == 6
    facts = {name: run.facts[name] for name in ("device_name", "vendor", "parameters", "peak_flops_of_printed_mfu")}
    assert facts == {
        "device_name": "NVIDIA GB200",
        "vendor": "nvidia",
        "parameters": 33014016,
        "peak_flops_of_printed_mfu": 2.5e15,
    }
    assert run.facts["device_memory_bytes"] == round(187.28 * 2**30)


def test_validation_and_checkpoint() -> None:
    (run,) = parse_all(FIXTURES / "torchtitan_tiny.log")
    assert [(point.step, point.loss, point.metrics) for point in run.validations] == [
        (9, 1.9001, {"tokens_per_s_per_gpu": 301163.0})
    ]
    assert [(stall.kind, stall.seconds, stall.iteration) for stall in run.stalls] == [("checkpoint", 1.25, 10)]


def test_every_rank_prints_the_same_interval() -> None:
    assert [step.interval_steps for step in steps(line(1), line(1), line(10), line(10), line(20))] == [1, 1, 9, 9, 10]


def test_a_log_that_begins_in_the_middle_or_after_a_checkpoint() -> None:
    assert steps(line(12510))[0].interval_steps is None
    events = read("torchtitan", f"[titan] root - INFO - Training starts at step 12501\n{line(12510)}")
    assert Resumed(12500, 1) in events
    assert [event.interval_steps for event in events if isinstance(event, Step)] == [10]


def test_before_2025_the_loss_was_a_mean_too() -> None:
    found = steps(line(1, "wps: 5,123", "  mfu: 5.03%"), line(10, "wps: 5,123", "  mfu: 5.03%"))
    assert found[1].flags == ("tokens_per_s_per_gpu:interval_mean", "loss:interval_mean")


def test_the_older_mesh_line_leaves_out_axes_of_size_one() -> None:
    events = read("torchtitan", "[INFO ] Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]")
    assert {event.name: event.value for event in events if isinstance(event, Setting)} == {
        "tensor_model_parallel_size": 2,
        "pipeline_model_parallel_size": 1,
        "context_parallel_size": 1,
        "data_parallel_size": 4,
        "world_size": 8,
    }


def test_primus_dump_of_its_configuration() -> None:
    text = (
        "[20251031 07:04:34][rank-1/8][INFO ] arguments training.local_batch_size......................... 4\n"
        "[20251031 07:04:34][rank-1/8][INFO ] arguments training.global_batch_size........................ -1\n"
        "[20251031 07:04:34][rank-1/8][INFO ] arguments optimizer.beta2................................... 0.95\n"
        "[20251031 07:04:34][rank-1/8][INFO ] arguments training.seed..................................... None"
    )
    assert read("torchtitan", text) == [Setting("micro_batch_size", 4, 1), Setting("adam_beta2", 0.95, 3)]


def test_an_unknown_device_is_measured_against_an_a100() -> None:
    text = "[titan] root - WARNING - Peak flops undefined for: NVIDIA GeForce RTX 5090, fallback to A100"
    (fact,) = read("torchtitan", text)
    assert isinstance(fact, Fact)
    assert fact.name == "printed_mfu_against"


def test_a_line_cut_anywhere_does_not_raise() -> None:
    for cut in range(12, len(line(10))):
        read("torchtitan", line(10)[:cut])
