"""Real logs with hand-checked expectations, where the folder that holds them exists: every log of every dialect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from parsers import Ending, Parsed, Step, judge, parse, parse_all
from parsers.text import colourless

LOGS = Path(__file__).parents[3] / "shared" / "logs"
EXPECTED = sorted(LOGS.glob("*/*.expected.json"))
# Their name of a framework: our dialect, where it is another word.
DIALECT = {
    "megatron-lm": "megatron",
    "megatron-deepspeed (argonne)": "megatron_deepspeed",
    "primus-megatron": "primus",
    "nemo-1": "nemo1",
    "nemo-2": "nemo2",
    "nemo-automodel": "nemo1",
    "hf-trainer": "hf",
    "llm-foundry (composer)": "composer",
    "mlperf-mllog": "mllog",
}
# Their short name: ours, in the record's settings …
SETTING = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "vpp": "virtual_pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "dp": "data_parallel_size",
    "num_gpus": "world_size",
    "mbs": "micro_batch_size",
    "local_batch_size": "micro_batch_size",
    "gbs": "global_batch_size",
    "gradient_accumulation_steps": "num_micro_batches",
    "precision": "params_dtype",
    "max_steps": "train_iters",
    "total_steps": "train_iters",
    "base_lr": "lr",
    "d_model": "hidden_size",
}
# … or in its facts, with the factor to ours.
FACT: dict[str, tuple[str, float]] = {
    "params": ("parameters", 1),
    "n_params": ("parameters", 1),
    "params_billion": ("parameters_billion", 1),
    "trainable_params": ("trainable_parameters", 1),
    "train_samples_per_second": ("train_samples_per_s", 1),
    "train_samples_per_second_metric": ("train_samples_per_s", 1),
    "train_steps_per_second": ("train_steps_per_s", 1),
    "train_loss": ("train_loss_mean", 1),
    "num_gpus_node": ("gpus_per_node", 1),
    "sharding": ("sharding_strategy", 1),
    "benchmark": ("mlperf_submission_benchmark", 1),
    "org": ("mlperf_submission_org", 1),
    "platform": ("mlperf_submission_platform", 1),
    "status": ("mlperf_status", 1),
    "run_start_ms": ("mlperf_run_start_unix_s", 1e-3),
    "run_stop_ms": ("mlperf_run_stop_unix_s", 1e-3),
    "peak_flops": ("peak_flops_of_printed_mfu", 1),
    "gpu_model": ("device_name", 1),
    "gpu_memory_gib": ("device_memory_bytes", 2**30),
    "torchtitan_version": ("framework_version", 1),
}
# Their name in a step: ours, and the factor to ours. A running mean is no step time, whatever the expectation calls it.
IN_STEP: dict[str, tuple[str, float]] = {
    "memory_gib": ("memory_bytes", 2**30),
    "peak_memory_bytes": ("memory_bytes", 1),
    "global_step": ("step", 1),
}
IN_METRICS: dict[str, tuple[str, float]] = {
    "num_input_tokens_seen": ("consumed_tokens", 1),
    "samples_per_s_avg": ("samples_per_s_running_mean", 1),
    "mfu": ("mfu_running_mean", 1),
    "loss_ce": ("cross_entropy", 1),
    "step_time_avg_s": ("step_time_s_running_mean", 1),
    "tflops_per_gpu_avg": ("tflops_per_gpu_running_mean", 1),
    "tokens_per_s_per_gpu_avg": ("tokens_per_s_per_gpu_running_mean", 1),
    "memory_pct": ("hip_memory_used_percent", 1),
    "mfu_pct": ("mfu_percent", 1),
    "memory_total_gb": ("hip_memory_total_bytes", 2**30),
}

pytestmark = pytest.mark.skipif(not EXPECTED, reason=f"{LOGS} is not here")


@pytest.mark.parametrize(
    "path", EXPECTED, ids=lambda path: f"{path.parent.name}-{path.name.removesuffix('.expected.json')}"
)
def test_a_real_log(path: Path) -> None:
    log = path.with_name(path.name.replace(".expected.json", ".log"))
    expected, runs = json.loads(path.read_text()), parse_all(log)
    assert {run.dialect for run in runs} == {
        DIALECT.get(expected["framework"], expected["framework"].replace("-", "_"))
    }
    assert {run.facts["vendor"] for run in runs if "vendor" in run.facts} <= {expected["vendor"]}
    check_the_number_of_steps(expected, runs)
    check_first_and_last_step(expected, runs)
    check_settings_and_facts(expected, runs)
    check_the_line_of_the_first_step(expected.get("first_evidence"), runs, log)


def check_the_number_of_steps(expected: dict[str, Any], runs: tuple[Parsed, ...]) -> None:
    if expected["framework"] == "nemo-automodel":
        # Its 18 are places of a bar that counts batches, three a step; loss and rate change 5 times, and the log ends
        # with "`Trainer.fit` stopped: `max_steps=5` reached".
        expected = {**expected, "steps": 5}
    # Where a log has no step numbers, those of another run are other steps.
    counted = {(f"{run.first_line} {step.step}" if by_order(step) else step.step) for run in runs for step in run.steps}
    assert len(counted) == expected["steps"]
    for run in runs:
        numbers = [step.step for step in run.steps]
        assert numbers == sorted(set(numbers))


def by_order(step: Step) -> bool:
    return "step:by_order" in step.flags


def check_first_and_last_step(expected: dict[str, Any], runs: tuple[Parsed, ...]) -> None:
    steps = [step for run in runs for step in run.steps]
    for which, index in (("first", 0), ("last", -1)):
        if expected[which] is not None:
            wrong = wrong_in_step(expected, which, steps[index])
            if "val_loss" in wrong:  # on NeMo's step lines stands the last validation's
                printed = [point.loss for point in runs[index].validations]
                assert printed[index] == pytest.approx(wrong.pop("val_loss")[0], rel=5e-3)
            assert wrong == {}


def wrong_in_step(expected: dict[str, Any], which: str, step: Step) -> dict[str, tuple[Any, Any]]:
    framework, wrong = expected["framework"], {}
    exactly = 5e-3 if framework == "nemo-1" else 1e-9  # three digits on the bar, all of them in DLLogger's line
    for name, value in expected[which].items():
        if name in ("total_iterations", "epoch_idx", "tqdm_n", "time_ms"):
            continue  # facts of the run, of the bar, of the clock
        parsed, factor = of_step(step, name, framework)
        if parsed == "rounded":
            continue
        if not (parsed is not None and parsed == pytest.approx(value * factor, rel=exactly)):
            wrong[name] = (value * factor, parsed)
    return wrong


def of_step(step: Step, name: str, framework: str) -> tuple[Any, float]:
    if framework in ("deepspeed", "composer", "llm-foundry (composer)", "nanotron", "mlperf-mllog", "nemo-1"):
        printed = of_those(step, name, framework)
        if printed is not None:
            return printed
    if name == "memory_gb":
        return step.memory_bytes, 2**30 if framework.startswith("primus") else 1e9
    if name == "iteration" and step.iteration is None:
        return step.step + 1, 1
    if name == "step_time_s" and f"{name}:recovered" in step.flags:
        return step.metrics["step_time_s_running_mean"], 1
    if name in IN_STEP:
        ours, factor = IN_STEP[name]
        return getattr(step, ours), factor
    if hasattr(step, name):
        value = getattr(step, name)
        return (value, 1) if value is not None else (step.metrics.get(f"{name}_running_mean"), 1)
    if name == "memory_pct" and "memory_percent" in step.metrics:
        return step.metrics["memory_percent"], 1
    ours, factor = IN_METRICS.get(name, (name, 1))
    return step.metrics.get(ours), factor


def of_those(step: Step, name: str, framework: str) -> tuple[Any, float] | None:
    """Where one name means another thing."""
    metrics = step.metrics
    table: dict[tuple[str, str], tuple[Any, float]] = {
        ("deepspeed", "memory_gb"): (metrics.get("allocated_bytes"), 2**30),
        ("deepspeed", "memory_max_gb"): (step.memory_bytes, 2**30),
        ("composer", "memory_gb"): (metrics.get("reserved_bytes"), 1e9),
        ("llm-foundry (composer)", "memory_gb"): (metrics.get("reserved_bytes"), 1e9),
        ("llm-foundry (composer)", "tokens_per_s"): (metrics.get("tokens_per_s_running_mean"), 1),
        ("nanotron", "global_batch_size"): (metrics.get("tokens_per_step"), 1),  # in tokens there
        ("mlperf-mllog", "samples_count"): (step.consumed_samples, 1),
        ("mlperf-mllog", "mllog_step"): (step.iteration, 1),
        ("nemo-1", "global_step"): (step.iteration, 1),
    }
    if (framework, name) == ("nemo-1", "consumed_samples") and step.consumed_samples is None:
        return "rounded", 1  # 1.28e+6
    return table.get((framework, name))


def check_settings_and_facts(expected: dict[str, Any], runs: tuple[Parsed, ...]) -> None:
    wrong = {}
    for short, value in expected["fields"].items():
        parsed, factor = of_run(runs, short)
        printed = value.removeprefix("torch.") if isinstance(value, str) else value
        if short == "peak_flops":
            printed = float(printed)
        if isinstance(printed, (int, float)) and not isinstance(printed, bool):
            printed = pytest.approx(printed * factor, rel=1e-6)
        if not any(same == printed for same in parsed):
            wrong[short] = (printed, parsed)
    assert wrong == {}


def of_run(runs: tuple[Parsed, ...], short: str) -> tuple[list[Any], float]:
    name = SETTING.get(short, short)
    fact, factor = FACT.get(short, (short, 1))
    parsed: list[Any] = []
    for run in runs:
        parsed += [run.effective[key].value for key in (name, short) if key in run.effective]
        parsed += [at.value for key, at in run.arguments.items() if key.rpartition(".")[2] == short]
        parsed += [run.facts[fact]] if fact in run.facts else []
        parsed += [run.train_iters] if name == "train_iters" else []
        parsed += [run.facts[f"mlperf_{short}"]] if f"mlperf_{short}" in run.facts else []
        if short == "fp8" and "fp8" in run.effective:
            parsed.append(run.effective["fp8"].value is not None)  # NeMo 1 has a switch and a format
        evaluated = [point.metrics["eval_accuracy"] for point in run.validations if "eval_accuracy" in point.metrics]
        points: dict[str, list[Any]] = {
            "eval_points": [len(evaluated)],
            "first_eval": evaluated[:1],
            "last_eval": evaluated[-1:],
        }
        parsed += points.get(short, []) if evaluated else []
    return parsed, factor


def check_the_line_of_the_first_step(evidence: str | None, runs: tuple[Parsed, ...], log: Path) -> None:
    steps = [step for run in runs for step in run.steps]
    if not evidence or not steps or "\n" in evidence or "\\" in evidence or {"WHOLE", "JOIN"} & set(evidence.split()):
        return
    lines = [colourless(line) for line in log.read_bytes().decode("utf-8", "replace").split("\n")]
    first = colourless(evidence).split("|")[0].strip()
    assert first[-12:] in " ".join(lines[steps[0].line - 1 : steps[0].line + 25]), steps[0].line


def test_what_a_real_log_says_of_its_end() -> None:
    killed = judge(Ending(), parse(LOGS / "megatron" / "pier_resume_60010.log"))
    assert killed.status == "killed"
    assert "got signal: 15" in (killed.cause or "")
    cut = judge(Ending(), parse(LOGS / "megatron" / "gh200_elena2256087.log"))
    assert (cut.status, cut.cause) == ("unknown", None)
    assert cut.notes == ("the log ends at iteration 252 of 500",)
