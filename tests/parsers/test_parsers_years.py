"""Read what forks print, and what programs printed in other years. The lines are written after real ones: DeepSpeed 0.3
to 0.7, Composer 0.10, MaxText of 2023, BigScience's Megatron-DeepSpeed of 2021, swiss-ai's Megatron of 2025."""

from __future__ import annotations

from typing import Any

import pytest

from parsers import Parsed
from tests.parsers.helpers import all_runs, parse_text


def dump(*arguments: str, width: int = 32, end: str = "") -> str:
    lines = (
        f"  {name} {'.' * (width - len(name))} {value}{end}" for name, _, value in (a.partition("=") for a in arguments)
    )
    return "\n".join(
        ["---------------- arguments ----------------", *lines, "------------- end of arguments ------------\n"]
    )


def configured(*entries: str) -> str:
    lines = (f"[2021-05-27 19:49:22,949] [INFO] [config.py:904:print]   {entry}" for entry in entries)
    return "DeepSpeed is enabled.\n" + "\n".join(lines) + "\n"


def reported(step: int, lr: float, skipped: int = 0) -> str:
    values = f"step={step}, skipped={skipped}, lr=[{lr}], mom=[(0.9, 0.95)]"
    return f"[2022-08-29 06:58:56,121] [INFO] [logging.py:68:log_dist] [Rank 0] {values}\n"


def timed(steps: str, running: float, own: str = "") -> str:
    values = f"{steps}{running},{own} MemAllocated=1.5GB, MaxMemAllocated=2.0GB"
    return f"[2022-08-29 06:58:56,176] [INFO] [timer.py:198:stop] {values}\n"


def iteration(number: int, rest: str) -> str:
    skipped = "number of skipped iterations:   0 | number of nan iterations:   0 |"
    return f" iteration {number:8d}/    1000 | {rest} | loss scale: 1.0 | grad norm: 0.500 | {skipped}\n"


def nanotron(text: str, rank: str = "DP=0|PP=0|TP=0") -> str:
    return "".join(f"08/31/2024 14:37:22 [INFO|{rank}|host-1]: {line}\n" for line in text.splitlines())


NANOTRON = """Config:
Config(general=GeneralArgs(project='a (b)',
                           seed=7,
                           ignore_sanity_checks=True),
       lighteval=LightEvalConfig(parallelism=ParallelismArgs(dp=8, tp=1, pp=1), batch_size=16),
       parallelism=ParallelismArgs(dp=2,
                                   pp=3,
                                   tp=4,
                                   pp_engine=<engine.OneForwardOneBackward object at 0x7f>,
                                   expert_parallel_size=1),
       model=ModelArgs(model_config=LlamaConfig(hidden_size=64,
                                                num_hidden_layers=6,
                                                num_key_value_heads=2,
                                                pad_token_id=None),
                       init_method=RandomInit(std=0.025),
                       dtype=torch.bfloat16),
       checkpoints=CheckpointsArgs(checkpoints_path=PosixPath('checkpoints')),
       tokens=TokensArgs(sequence_length=256, train_steps=15, micro_batch_size=2),
       data_stages=[DatasetStageArgs(name='Stable', data=DataArgs(seed=99))],
       profiler=None)
LlamaConfig(hidden_size=65)
"""
NANOTRON_STEP = (
    "iteration: 1 / 15 | consumed_tokens: 512 | elapsed_time_per_iteration_ms: 471 | tokens_per_sec: 109 | "
    "lm_loss: 5.25 | lr: 0.0001 | hardware_tflops_per_gpu: 1.5 | grad_norm: 2.9\n"
)
NANOTRON_SETTINGS = {
    "seed": 7,
    "hidden_size": 64,
    "num_layers": 6,
    "num_query_groups": 2,
    "init_method_std": 0.025,
    "params_dtype": "bfloat16",
    "data_parallel_size": 2,
    "pipeline_model_parallel_size": 3,
    "tensor_model_parallel_size": 4,
    "seq_length": 256,
    "train_iters": 15,
    "micro_batch_size": 2,
}
COMPOSER = """[batch=6/50]: lr-DecoupledAdamW/group0: 0.0005
[batch=6/50]: trainer/global_step: 6
[batch=6/50]: memory/reserved_mem: 2000000000
[batch=6/50]: memory/allocated_mem: 6059054353408
[batch=6/50]: loss/train/total: 9.5000
[batch=7/50]: wall_clock/train: 15.2500
[batch=7/50]: lr-DecoupledAdamW/group0: 0.0006
[batch=7/50]: trainer/global_step: 7
[batch=7/50]: metrics/eval/LanguageCrossEntropy: 9.2500
[batch=7/50]: trainer/global_step: 7
[trace]: algorithm_traces/GradientClipping/Event.AFTER_TRAIN_BATCH:1

[batch=7/50]: loss/train/total: 9.0000
"""
OVERRIDES = "[Primus:Runtime] Applying CLI overrides: {'train_iters': 9, 'env': {'seq_length': 7}, 'lr': '3e-5'}\n"
CONDENSED = (
    "iteration  4700/ 4768 | elapsed time per iteration (ms): 1467.5/1466.1 |\n"
    "  TFLOP/s/GPU: 626.1 | tokens per GPU (tokens/s/GPU): 178596.5 | lm loss: 3.3624\n"
)
MDS_NODE = dump("num_layers=64", "model_parallel_size=4", "pipe_parallel_size=2") + configured(
    "train_batch_size ............. 1024", "train_micro_batch_size_per_gpu  8", "world_size ................... 4"
)
MDS_SETTINGS = {
    "num_layers": 64,
    "tensor_model_parallel_size": 4,
    "pipeline_model_parallel_size": 2,
    "global_batch_size": 1024,
    "micro_batch_size": 8,
    "data_parallel_size": 4,
}
NEOX = "NeoXArgs.from_ymls() ['a.yml']\n" + dump(
    *("pipe_parallel_size=0", "num_layers=6", "optimizer={'type': 'Adam', 'params': {'lr': 0.1}}"),
    *("precision=fp16", "moe_num_experts=8", "moe_top_k=2"),
    end="........updated",
)
PIPE = "steps: 1 loss: 9.5000 iter time (s): 1.500 samples/sec: 8.000\n"

# What is read of a log: the framework, its settings (those given), and of each run the steps with the fields given.
CASES: dict[str, tuple[str, str, dict[str, Any], list[list[dict[str, Any]]]]] = {
    "swiss-ai's Megatron": (
        "3:  [2026-05-29 03:52:45]"
        + iteration(
            300,
            "consumed samples: 307200 | consumed tokens: 1.258B | elapsed time per iteration (ms): 131064.1 | "
            "eta: 0:00:00 | tokens/sec/gpu: 8000.5 | throughput per GPU (TFLOP/s/GPU): 412.3 | lm loss: 1.500000E+00",
        ),
        "megatron",
        {},
        [
            [
                {
                    "loss": 1.5,
                    "tokens_per_s_per_gpu": 8000.5,
                    "tflops_per_gpu": 412.3,
                    "metrics": {"consumed_tokens": 1.258e9},
                }
            ]
        ],
    ),
    "Megatron-DeepSpeed of 2021": (
        MDS_NODE + PIPE + iteration(1, "elapsed time per iteration (ms): 1500.0 | lm-loss: 9.512345E+00"),
        "megatron_deepspeed",
        MDS_SETTINGS,
        [[{"step": 0, "loss": 9.512345, "step_time_s": 1.5}]],
    ),
    "the first node of Megatron-DeepSpeed": (
        MDS_NODE
        + PIPE
        + timed("epoch=0/micro_step=4/global_step=2, RunningAvgSamplesPerSec=", 8.5, " CurrSamplesPerSec=8.75,"),
        "megatron_deepspeed",
        MDS_SETTINGS,
        [[{"step": 0, "loss": 9.5, "step_time_s": 1.5}, {"step": 1, "loss": None, "metrics": {"samples_per_s": 8.75}}]],
    ),
    "an iteration line below DeepSpeed's": (
        timed("epoch=0/micro_step=1/global_step=1, RunningAvgSamplesPerSec=", 8.5)
        + iteration(1, "consumed tokens:        65536 | lm loss: 9.500000E+00"),
        "megatron_deepspeed",
        {},
        [[{"step": 0, "loss": 9.5, "metrics": {"consumed_tokens": 65536.0}}]],
    ),
    "GPT-NeoX without pipeline, its first node": (
        NEOX + PIPE,
        "gpt_neox",
        {"pipeline_model_parallel_size": 1, "num_layers": 6, "optimizer": "adam", "params_dtype": "float16"}
        | {"num_experts": 8, "moe_router_topk": 2},
        [[{"step": 0, "loss": 9.5}]],
    ),
    "GPT-NeoX with one expert, which is none": (
        NEOX.replace(" 8..", " 1..") + PIPE,
        "gpt_neox",
        {"num_experts": None},
        [[{"step": 0, "loss": 9.5}]],
    ),
    "DeepSpeed of 2022 counts micro-steps": (
        reported(1, 2e-05)
        + timed("0/3, RunningAvgSamplesPerSec=", 232.5, " CurrSamplesPerSec=1.5,")
        + reported(2, 5e-05)
        + timed("0/4, RunningAvgSamplesPerSec=", 230.5, " CurrSamplesPerSec=2.5,")
        + timed("0/5, RunningAvgSamplesPerSec=", 229.5, " CurrSamplesPerSec=3.5,")
        + timed("0/6, RunningAvgSamplesPerSec=", 228.5, " CurrSamplesPerSec=4.5,"),
        "deepspeed",
        {},
        [
            [
                {"step": 0, "lr": 2e-05, "metrics": {"samples_per_s_running_mean": None, "skipped_total": 0.0}},
                {"step": 1, "lr": 5e-05, "metrics": {"samples_per_s_running_mean": 230.5, "samples_per_s": None}},
                {"step": 2, "lr": None, "metrics": {"samples_per_s_running_mean": 228.5}},
            ]
        ],
    ),
    "DeepSpeed 0.7.7 prints each step": (
        "".join(timed(f"0/{n}, RunningAvgSamplesPerSec=", 8.5, f" CurrSamplesPerSec={n}.5,") for n in (3, 4))
        + reported(5, 1e-05)
        + timed("0/5, RunningAvgSamplesPerSec=", 8.5, " CurrSamplesPerSec=5.5,"),
        "deepspeed",
        {},
        [[{"iteration": n, "metrics": {"samples_per_s": n + 0.5}} for n in (3, 4, 5)]],
    ),
    "DeepSpeed 0.7.7 without a report": (
        "".join(timed(f"0/{n}, RunningAvgSamplesPerSec=", 8.5) for n in (17, 18, 19)),
        "deepspeed",
        {},
        [[{"iteration": n} for n in (17, 18, 19)]],
    ),
    "DeepSpeed up to 0.6": (
        reported(40, 5e-05, 2) + timed("0/40, SamplesPerSec=", 83.5),
        "deepspeed",
        {},
        [
            [
                {
                    "step": 39,
                    "memory_bytes": 2 << 30,
                    "metrics": {"samples_per_s_running_mean": 83.5, "skipped_total": 2.0},
                }
            ]
        ],
    ),
    "two engines of DeepSpeed-Chat": (
        "".join(
            reported(n, lr=1e-07 * n, skipped=4)
            + timed(f"epoch=0/micro_step={n}/global_step={n}, RunningAvgSamplesPerSec=", 86.5)
            + reported(n, lr=3e-07 * n, skipped=3)
            for n in (10, 20, 30)
        ),
        "deepspeed",
        {},
        [
            [{"iteration": n, "lr": 1e-07 * n, "metrics": {"skipped_total": 4.0}} for n in (10, 20, 30)],
            [{"iteration": n, "lr": 3e-07 * n, "metrics": {"skipped_total": 3.0}} for n in (10, 20, 30)],
        ],
    ),
    "Bridge until October 2025": (
        "Step Time : 14.26s GPU utilization: 58.2TFLOP/s/GPU\n"
        + iteration(20, "elapsed time per iteration (ms): 14260.3 | lm loss: 8.750000E-02"),
        "megatron_bridge",
        {},
        [[{"step": 19, "tflops_per_gpu": 58.2, "loss": 0.0875}]],
    ),
    "MaxText of 2023": (
        "completed step: 7, seconds: 2.167, TFLOP/s: 36.722, loss: 2.191\n",
        "maxtext",
        {},
        [[{"step": 7, "tflops_per_gpu": 36.722, "loss": 2.191}]],
    ),
    "Composer up to 0.11": (
        COMPOSER,
        "composer",
        {},
        [
            [
                {"step": 6, "loss": 9.5, "lr": 0.0006, "metrics": {"reserved_bytes": 2e9, "allocated_bytes": None}},
                {"step": 7, "loss": 9.0, "lr": None},
            ]
        ],
    ),
    "nanotron's Config": (
        nanotron(NANOTRON) + nanotron("x=ParallelismArgs(tp=9)", "DP=1|PP=0|TP=0") + nanotron(NANOTRON_STEP),
        "nanotron",
        NANOTRON_SETTINGS,
        [[{"loss": 5.25}]],
    ),
    "Primus' command line, and its condensed lines": (
        OVERRIDES + CONDENSED,
        "primus",
        {"train_iters": 9, "lr": 3e-05, "seq_length": None},
        [
            [
                {
                    "step": 4699,
                    "step_time_s": 1.4675,
                    "tflops_per_gpu": 626.1,
                    "tokens_per_s_per_gpu": 178596.5,
                    "loss": 3.3624,
                }
            ]
        ],
    ),
    "Primus' command line for TorchTitan": (
        "[Primus:Runtime] Applying CLI overrides: {'training': {'steps': 15, 'seq_len': -1}, 'lr': 1}\n"
        "[titan] 2026 - root - INFO - step:  1  loss:  3.12459  memory: 26.01GiB(82.96%)  tps: 2,528  mfu: 5.03%\n",
        "primus",
        {"train_iters": 15, "seq_length": None},
        [[{"step": 0, "loss": 3.12459}]],
    ),
}


def test_megatron_deepspeed_that_died_before_its_first_step() -> None:
    died = dump("deepspeed=True", "num_layers=28", width=48) + "AssertionError: 28 is not divisible by 8\n"
    assert parse_text(died)[0].framework == "megatron_deepspeed"
    assert parse_text(died.replace("True", "False"))[0].framework == "megatron"


def test_the_steps_of_a_node_are_all_where_its_arguments_say_so() -> None:
    assert [parse_text(MDS_NODE + dump(f"train_iters={n}") + PIPE)[0].train_iters for n in (1, 9)] == [1, 9]


def stated(run: Parsed, name: str) -> Any:
    return run.effective[name].value if name in run.effective else None


@pytest.mark.parametrize("name", CASES)
def test_other_years_are_read(name: str) -> None:
    text, framework, settings, runs = CASES[name]
    parsed = parse_text(text)
    assert [run.framework for run in parsed] == [framework] * len(runs)
    assert {key: stated(parsed[0], key) for key in settings} == settings
    for run, steps in zip(parsed, runs, strict=True):
        assert len(run.steps) == len(steps)
        for step, expected in zip(run.steps, steps, strict=True):
            values = {field: getattr(step, field) for field in expected if field != "metrics"}
            assert values == {field: value for field, value in expected.items() if field != "metrics"}
            metrics = expected.get("metrics", {})
            assert {key: step.metrics.get(key) for key in metrics} == metrics


def test_an_evaluation_of_composers_first_years_is_no_step() -> None:
    (run,) = parse_text(COMPOSER)
    (point,) = run.validations
    assert (point.step, point.loss, point.split, run.train_iters) == (6, 9.25, "eval", 50)


def test_a_report_that_a_restart_repeats_makes_no_second_engine() -> None:
    step = timed("epoch=0/micro_step=10/global_step=10, RunningAvgSamplesPerSec=", 8.5)
    (run,) = parse_text(reported(10, 1e-5) + step + reported(10, 1e-5, 1) + step.replace("8.5", "9.5"))
    assert len(run.steps) == 1


def test_two_runs_of_a_first_node_keep_their_own_settings() -> None:
    steps = PIPE + PIPE.replace("steps: 1 ", "steps: 2 ")
    first, second = parse_text(MDS_NODE + steps + MDS_NODE.replace(" 64", " 48") + steps)
    assert [stated(run, "num_layers") for run in (first, second)] == [64, 48]
    assert [len(run.steps) for run in (first, second)] == [2, 2]


def test_an_argument_that_was_cut_has_no_value() -> None:
    whole = dump("seed=7", "num_layers=64")
    (run,) = all_runs(whole[: whole.index("64") + 1].encode())
    assert (stated(run, "seed"), "num_layers" in run.effective) == (7, False)
