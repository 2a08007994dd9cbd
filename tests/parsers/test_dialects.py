"""Test what lines of a dialect mean that its log in fixtures/ does not have (that one's golden:
test_dialect_noise.py)."""

from __future__ import annotations

from typing import Any

import pytest

from parsers.driver import Fact, NewRun, Resumed, Setting
from parsers.values import human
from tests.parsers.helpers import FIXTURES, parse_text, read, steps_of

BY_ORDER, LOSS_MEAN = "step:by_order", "loss:interval_mean"


def maxtext(step: int, seconds: float, tflops: float = 300.0) -> str:
    return f"completed step: {step}, seconds: {seconds:.3f}, TFLOP/s/device: {tflops:.3f}, loss: 9.568"


def titan(iteration: int, rate: str = "tps: 2,528", rest: str = "  tflops: 15.68  mfu: 5.03%") -> str:
    return f"[titan] 2026 - root - INFO - step: {iteration:2}  loss:  3.12459  memory: 26.01GiB(82.96%)  {rate}{rest}"


def hf(loss: float, epoch: float, rest: str = "") -> str:
    return f"{{'loss': {loss}, 'grad_norm': 1.5, 'learning_rate': 5e-05, 'epoch': {epoch}{rest}}}"


SWIFT = (
    "{'loss': 1.61, 'grad_norm': 2.5, 'learning_rate': 1e-06, 'token_acc': 0.61, 'epoch': 0.1, "
    "'global_step/max_steps': '5/304', 'percentage': '1.64%', 'elapsed_time': '42s', 'memory(GiB)': 12.5, "
    "'train_speed(iter/s)': 0.119}"
)
SWIFT_STEP = {
    "step": 4,
    "iteration": 5,
    "loss": 1.61,
    "memory_bytes": round(12.5 * 2**30),
    "memory_kind": "reserved",
    "metrics": {"epoch": 0.1, "token_accuracy": 0.61, "steps_per_s_running_mean": 0.119},
}
# What is tried: dialect, lines, and fields of their steps.
CASES: dict[str, tuple[str, str, list[dict[str, Any]]]] = {
    "a record under a rank's prefix": (
        "composer",
        "0: [batch=1/300000000]:\n0:       Train time/batch: 0\n0:       Train loss/train/total: 12.0000\n",
        [{"step": 0, "loss": 12.0, "line": 1}],
    ),
    **{
        f"a duration in {unit}": (
            "composer",
            f"{head}\n\t Train time/batch: 34\n\t Train loss/train/total: 8.0000\n",
            [{"step": 34, "iteration": None, "loss": 8.0}],
        )
        for unit, head in {"tokens": "[token=36700160/99000000]:", "epochs": "[epoch=2][batch=5/10]:"}.items()
    },
    "a batch of an epoch alone": ("composer", "[epoch=2][batch=5/10]:\n\t Train loss/train/total: 8.0\n", []),
    "the pipeline engine averages since the line before": (
        "deepspeed",
        "steps: 10 loss: 2.3456 iter time (s): 1.250 samples/sec: 30.4\n"
        "steps: 20 loss: nan iter time (s): 1.150 samples/sec: 33.4",
        [
            {"loss": 2.3456, "step_time_s": 1.25, "interval_steps": None, "flags": ("step_time_s:interval_mean",)},
            {"loss": None, "nonfinite": ("loss",), "interval_steps": 10, "flags": ("step_time_s:interval_mean",)},
        ],
    ),
    **{
        f"the pipeline engine with {what}": ("deepspeed", text, [{"step": 199, "loss": 5.5508, "step_time_s": 0.936}])
        for what, text in {
            "more losses": "steps: 200 loss: 5.5508 lm loss: 5.51 moe loss: 0.04 iter time (s): 0.936 samples/sec: 136",
            "a total": "step:   200 /  1000 loss: 5.5508 iter time (s): 0.936 samples/sec: 136.706 eta: 01:10",
        }.items()
    },
    "the first steps come before throughput is measured": (
        "deepspeed",
        "\n".join(
            f"[Rank 0] step={n}, skipped=0, lr=[{n}e-05, {n}e-05], mom=[(0.9, 0.95)]"
            + f"\nepoch=0/micro_step={n}/global_step={n}, RunningAvgSamplesPerSec=10.5, CurrSamplesPerSec=10.5"
            * (n > 2)
            for n in range(1, 5)
        ),
        [{"step": n, "lr_used": None} for n in range(4)],
    ),
    "a rate alone": ("deepspeed", "[Rank 0] step=10, skipped=2, lr=[5e-05, 5e-05], mom=[(0.9, 0.95)]", []),
    "no device computes so fast": (
        "maxtext",
        maxtext(3, 0.5, 8638.0),
        [{"flags": ("step_time_s:asynchronous", "tflops_per_gpu:asynchronous")}],
    ),
    "several processes print a step": (
        "maxtext",
        "\n".join([maxtext(0, 1.0), maxtext(0, 1.0), maxtext(1, 1.0), maxtext(1, 1.0)]),
        [{"step": 0}, {"step": 1}],
    ),
    "in 2023 the batch was in samples": (
        "nanotron",
        "iteration: 5 / 20 | consumed_samples: 640 | consumed_tokens: 1.31M | elapsed_time_per_iteration_ms: 2.0K "
        "| tokens_per_sec: 131K | tokens_per_sec_per_gpu: 16.4K | global_batch_size: 128 | lm_loss: 9.5 | lr: 0.0003 "
        "| model_tflops_per_gpu: 154 | hardware_tflops_per_gpu: 160 |",
        [
            {
                "global_batch_size": 128,
                "step_time_s": 2.0,
                "metrics": {"consumed_tokens": 1.31e6, "tokens_per_s": 131e3, "hardware_tflops_per_gpu": 160.0},
            }
        ],
    ),
    "every rank prints the interval": (
        "torchtitan",
        "\n".join([titan(1), titan(1), titan(10), titan(10), titan(20)]),
        [{"interval_steps": interval} for interval in (1, 1, 9, 9, 10)],
    ),
    "a rank without the last stage": ("torchtitan", titan(9).replace("3.12459", "-1.00000"), [{"loss": None}]),
    "a log that begins in the middle": ("torchtitan", titan(12510), [{"interval_steps": None}]),
    "a log that begins after a checkpoint": (
        "torchtitan",
        f"[titan] root - INFO - Training starts at step 12501\n{titan(12510)}",
        [{"interval_steps": 10}],
    ),
    "before 2025 the loss was a mean too": (
        "torchtitan",
        f"{titan(1, 'wps: 5,123', '  mfu: 5.03%')}\n{titan(10, 'wps: 5,123', '  mfu: 5.03%')}",
        [{"flags": ()}, {"flags": ("tokens_per_s_per_gpu:interval_mean", LOSS_MEAN)}],
    ),
    "bars before and after show the step, and where bars are missing the tokens": (
        "hf",
        "  1%|1         | 1/100 [00:27<44:53, 27.20s/it]\n"
        + hf(2.5, 0.01, ", 'num_input_tokens_seen': 1000")
        + "\n  1%|1         | 1/100 [00:27<44:53, 27.20s/it]\n"
        + hf(2.4, 0.02, ", 'num_input_tokens_seen': 2000")
        + "\n  2%|2         | 2/100 [00:30<21:45, 13.32s/it]\n"
        + hf(2.3, 0.96, ", 'num_input_tokens_seen': 96000"),
        [
            {"step": 0, "interval_steps": 1, "flags": ()},
            {"step": 1, "interval_steps": 1, "flags": ()},
            {"step": 95, "interval_steps": None, "flags": (LOSS_MEAN,)},
        ],
    ),
    "where nothing shows the step it is the order": (
        "hf",
        f"{hf(2.5, 0.1)}\n{hf(2.4, 0.2)}",
        [{"step": step, "iteration": None, "flags": (BY_ORDER, LOSS_MEAN)} for step in (0, 1)],
    ),
    "other bars are not the training's": (
        "hf",
        "Total optimization steps = 97\n 10%|█   | 5/50 [00:27<44:53, 27.20s/it]\n"
        + hf(2.5, 0.1)
        + "\n 12%|█   | 6/50 [00:27<44:53, 27.20s/it]",
        [{"flags": (BY_ORDER, LOSS_MEAN)}],
    ),
    "ms-swift prints the step": ("hf", SWIFT, [SWIFT_STEP]),
    "ms-swift with other quotation marks": ("hf", SWIFT.replace("'", '"'), [SWIFT_STEP]),
    "Megatron-SWIFT prints the iteration": (
        "hf",
        "{'loss': 2.5, 'grad_norm': 3.1, 'learning_rate': 1e-05, 'iteration': '5/100', 'elapsed_time': '12s', "
        "'throughput(TFLOP/s/GPU)': 312.5, 'memory(GiB)': 70.1, 'train_speed(s/it)': 2.4}",
        [
            {
                "step": 4,
                "iteration": 5,
                "lr": 1e-05,
                "step_time_s": None,
                "tflops_per_gpu": None,
                "metrics": {"tflops_per_gpu_running_mean": 312.5, "step_time_s_running_mean": 2.4},
            }
        ],
    ),
    "values in quotes as newer versions print them": (
        "hf",
        "{'loss': '2.986', 'grad_norm': '0.97', 'learning_rate': '4.175e-05', 'epoch': '0.1638'}",
        [{"loss": 2.986, "lr": 4.175e-05, "metrics": {"epoch": 0.1638}}],
    ),
    "a loss that is nan": (
        "hf",
        "{'loss': nan, 'grad_norm': nan, 'learning_rate': 0.0, 'epoch': 0.1}",
        [{"loss": None, "nonfinite": ("loss", "grad_norm")}],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_steps_of(name: str) -> None:
    dialect, text, expected = CASES[name]
    steps = steps_of(dialect, text)
    assert len(steps) == len(expected)
    for step, fields in zip(steps, expected, strict=True):
        assert {field: getattr(step, field) for field in fields} == fields


def test_only_what_is_far_below_both_neighbours_was_merely_dispatched() -> None:
    for seconds, flagged in (
        ((50.0, 1.0, 1.1, 1.0), []),  # compilation, then even steps
        ((1.0, 0.1, 1.0), [1]),
        ((1.0, 0.1, 0.1, 1.0), []),  # two of a kind: no neighbour shows it
        ((0.1, 10.0, 10.0), [0]),
        ((1.0, 1.0, 0.01), [2]),  # the last, against the one before
        ((1.0,), []),
    ):
        steps = steps_of("maxtext", "\n".join(maxtext(step, time) for step, time in enumerate(seconds)))
        assert [step.step for step in steps if "step_time_s:asynchronous" in step.flags] == flagged


def test_human_numbers() -> None:
    for text, value in (
        *(("8.79K", 8790.0), ("480B", 4.8e11), ("1.6M", 1.6e6), ("0.0001", 0.0001), ("15.4", 15.4), ("2T", 2e12)),
        *(("K", None), ("", None)),
    ):
        assert human(text) == value


MESH = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 1, "context_parallel_size": 1}


def test_settings_and_facts() -> None:
    for dialect, text, stated in (
        (
            "maxtext",
            "Devices: [TpuDevice(id=0, process_index=0, coords=(0,0,0), core_on_chip=0)]",
            {"vendor": "google"},
        ),
        (
            "torchtitan",  # the older line leaves out axes of size one
            "[INFO ] Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]",
            {**MESH, "dp_shard": 4, "data_parallel_shards": 4, "data_parallel_size": 4, "world_size": 8},
        ),
        (
            "torchtitan",  # a pipeline cuts the local batch
            "Building device mesh with parallelism: pp=2, dp_replicate=1, dp_shard=4, cp=1, tp=1, ep=2, etp=1\n"
            "Using pipeline schedule Interleaved1F1B with 10 microbatches and 8 stages.\n"
            "Trainer is initialized with local batch size 160, global batch size 1280, gradient accumulation steps 2, "
            "sequence length 256, total steps 50 (warmup 5)",
            {
                **MESH,
                "tensor_model_parallel_size": 1,
                "pipeline_model_parallel_size": 2,
                "world_size": 8,
                "dp_replicate": 1,
                "dp_shard": 4,
                "data_parallel_replicas": 1,
                "data_parallel_shards": 4,
                "data_parallel_size": 4,
                "expert_model_parallel_size": 2,
                "micro_batch_size": 16,
                "num_micro_batches": 20,
                "global_batch_size": 1280,
                "seq_length": 256,
                "train_iters": 50,
                "lr_warmup_iters": 5,
            },
        ),
        (
            "torchtitan",  # of January 2025
            "Training starts at step 1, with local batch size 8, global batch size 16, sequence length 2048, "
            "total steps 10 (warmup 2)",
            {"global_batch_size": 16, "seq_length": 2048, "train_iters": 10, "lr_warmup_iters": 2},
        ),
        (
            "torchtitan",  # how many pieces is not said
            "Building 2-D device mesh with ['pp', 'dp'], [2, 4]\n"
            "Trainer is initialized with local batch size 4, global batch size 16, gradient accumulation steps 1, "
            "sequence length 256, total steps 50 (warmup 5)",
            {
                **MESH,
                "tensor_model_parallel_size": 1,
                "pipeline_model_parallel_size": 2,
                "world_size": 8,
                "data_parallel_size": 4,
                "global_batch_size": 16,
                "seq_length": 256,
                "train_iters": 50,
                "lr_warmup_iters": 5,
            },
        ),
        ("torchtitan", "[titan] root - INFO - Training completed", {"completed": "all"}),
        (
            "torchtitan",
            "[titan] root - WARNING - Ran out of data; last step was canceled.\nTraining completed",
            {"completed": True},
        ),
        (
            "gpt_neox",
            "Using topology: {ProcessCoord(pipe=0, data=0, model=0): 0, ProcessCoord(pipe=0, data=1, model=0): 1}\n"
            " > total params: 70,426,624",
            {"world_size": 2, "parameters": 70426624},
        ),
        (
            "torchtitan",  # Primus' dump of its configuration
            "[20251031 07:04:34][rank-1/8][INFO ] arguments training.local_batch_size......................... 4\n"
            "[20251031 07:04:34][rank-1/8][INFO ] arguments training.global_batch_size........................ -1\n"
            "[20251031 07:04:34][rank-1/8][INFO ] arguments optimizer.beta2................................... 0.95\n"
            "[20251031 07:04:34][rank-1/8][INFO ] arguments training.seed..................................... None",
            {"micro_batch_size": 4, "adam_beta2": 0.95},
        ),
        (
            "torchtitan",
            "[titan] root - WARNING - Peak flops undefined for: NVIDIA GeForce RTX 5090, fallback to A100",
            {"printed_mfu_against": "A100 (the device was not known)"},
        ),
    ):
        events = [event for event in read(dialect, text) if isinstance(event, Setting | Fact)]
        assert {event.name: event.value for event in events} == stated


def test_torchtitan_goes_on_after_a_checkpoint() -> None:
    assert Resumed(12500, 1) in read("torchtitan", "[titan] root - INFO - Training starts at step 12501")


def test_an_epoch_that_goes_back_is_another_run() -> None:
    text = f"{hf(2.5, 0.1)}\n{hf(2.4, 0.2)}\n{hf(2.5, 0.1)}\n{hf(2.4, 0.2)}"
    assert sum(isinstance(event, NewRun) for event in read("hf", text)) == 1
    assert [[step.step for step in run.steps] for run in parse_text(text)] == [[0, 1], [0, 1]]


def test_two_runs_in_one_log_keep_what_is_theirs() -> None:
    one = FIXTURES.joinpath("hf_trainer.log").read_text()
    other = one.replace("batch size per device = 8", "batch size per device = 4").replace("612.25", "600.5")
    runs = parse_text(one + other)
    assert [(len(run.steps), len(run.validations), run.completed) for run in runs] == [(3, 1, True)] * 2
    assert [run.effective["micro_batch_size"].value for run in runs] == [8, 4]
    assert [run.facts["train_runtime_s"] for run in runs] == [612.25, 600.5]


def test_a_summary_alone_is_a_record_without_steps() -> None:
    (run,) = parse_text("{'train_runtime': 2577.75, 'train_samples_per_second': 95.3, 'train_loss': 1.0}")
    assert (run.dialect, run.steps, run.completed, run.facts["train_runtime_s"]) == ("hf", (), True, 2577.75)
