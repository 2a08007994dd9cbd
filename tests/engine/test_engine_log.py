"""What the engine prints can be read back: Megatron's own lines, and our marks in full precision."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
from layouts import (
    BFLOAT16,
    DENSE,
    EP2,
    EXPERTS,
    LLAMA_LIKE,
    MIXTURE,
    QWEN_LIKE,
    RECOMPUTE,
    SHORT,
    TP2_SP,
    VARIANTS,
    VP2,
)

pytestmark = pytest.mark.engine
ITERATION = re.compile(
    r" \[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}\] iteration +(\d+)/ +(\d+) \| consumed samples: +(\d+) \|"
    r" elapsed time per iteration \(ms\): ([\d.]+) \| learning rate: (\S+) \| global batch size: +(\d+) \|"
    r" lm loss: (\S+) \| loss scale: 1\.0 \| grad norm: (\S+) \|"
    r" number of skipped iterations:   0 \| number of nan iterations:   0 \|"
)


def expected_rate(step: int, settings: dict[str, Any]) -> float:
    """The canonical schedule: linear warm-up that never is 0, then cosine to min_lr."""
    lr, least, warmup = settings["lr"], settings["min_lr"], settings["lr_warmup_iters"]
    if step < warmup:
        return lr * (step + 1) / (warmup + 1)
    share = min(1.0, (step - warmup) / (settings["lr_decay_iters"] - warmup))
    return least + (lr - least) * 0.5 * (1 + math.cos(math.pi * share))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        TP2_SP,
        DENSE["DP2+overlapped"],
        {**VP2, **LLAMA_LIKE},
        {**RECOMPUTE, **SHORT},
        BFLOAT16,
        {**EXPERTS, **MIXTURE["CP2xEP2"]},
        {**VARIANTS["deepseek"][0], **EP2},
        QWEN_LIKE,
        VARIANTS["unfused"][0],
    ],
    ids=["single", "TP2+SP", "DP2+ov", "VP2+tied", "recompute", "bf16", "CP2xEP2", "deepseek", "qwen", "unfused"],
)
def test_dump_is_effective_and_equals_the_settings(run: Callable[..., Any], changes: dict[str, Any]) -> None:
    done = run(**changes)
    wanted = {name: str(value) for name, value in done.settings.items()}
    wanted["params_dtype"] = f"torch.{wanted['params_dtype']}"
    extra = {
        "transformer_impl": "local",
        "bf16": str(done.settings["params_dtype"] == "bfloat16"),
        "distributed_backend": "gloo",
        "moe_grouped_gemm": "None" if done.settings["num_experts"] is None else "False",
        "moe_token_dispatcher_type": "None" if done.settings["num_experts"] is None else "alltoall",
        **dict.fromkeys(
            ("attention_softmax_in_fp32", "average_in_collective", "gradient_accumulation_fusion"), "False"
        ),
    }
    assert done.arguments == {**wanted, **extra}


def test_dump_has_megatrons_form(run: Callable[..., Any]) -> None:
    lines = run().out.splitlines()
    first = lines.index("------------------------ arguments ------------------------")
    last = lines.index("-------------------- end of arguments ---------------------")
    rows = lines[first + 1 : last]
    assert rows == sorted(rows, key=str.lower)
    assert "  seq_length ...................................... 64" in rows


def test_iteration_lines_are_megatrons(run: Callable[..., Any]) -> None:
    done = run()
    matches = [ITERATION.fullmatch(line) for line in done.iteration_lines]
    assert len(matches) == 20
    for number, (match, step) in enumerate(zip(matches, done.marks("step"), strict=True), start=1):
        assert match
        assert [int(match[index]) for index in (1, 2, 3, 6)] == [number, 20, 8 * number, 8]
        assert float(match[5]) == pytest.approx(expected_rate(number, done.settings), rel=1e-5)
        assert float(match[7]) == pytest.approx(step["loss"], rel=1e-5)
        assert float(match[8]) == pytest.approx(step["grad_norm"], abs=1e-3)


def test_elapsed_times_sum_to_the_wall_time(run: Callable[..., Any]) -> None:
    done = run()
    elapsed_s = [float(match[4]) / 1000 for line in done.iteration_lines if (match := ITERATION.fullmatch(line))]
    ends = [step["end_monotonic_s"] for step in done.marks("step")]
    assert sum(elapsed_s[1:]) == pytest.approx(ends[-1] - ends[0], abs=0.002)


def test_step_marks(run: Callable[..., Any]) -> None:
    steps = run().marks("step")
    assert [step["iteration"] for step in steps] == list(range(1, 21))
    assert all(step["memory_kind"] == "rss" and 1e8 < step["memory_bytes"] < 1e10 for step in steps)
    assert not any("nonfinite" in step for step in steps)


def test_rates_used_are_the_canonical_ones(run: Callable[..., Any]) -> None:
    done = run()
    for index, step in enumerate(done.marks("step")):
        assert step["lr_used"] == pytest.approx(expected_rate(index, done.settings), abs=1e-12)


@pytest.mark.parametrize("warmup", [0, 1, 5])
def test_schedule(settings_of: Callable[..., dict[str, Any]], warmup: int, schedules: dict[int, Any]) -> None:
    settings = settings_of(lr_warmup_iters=warmup, lr_decay_iters=26)
    expected = [expected_rate(step, settings) for step in range(30)]
    assert schedules[warmup]["lr"] == pytest.approx(expected, rel=0, abs=1e-12)
    assert schedules[warmup]["lr"][0] == pytest.approx(settings["lr"] / (warmup + 1), rel=0, abs=1e-12)
    assert set(schedules[warmup]["weight_decay"]) == {settings["weight_decay"]}


@pytest.fixture(scope="module")
def schedules(in_rank: Callable[[str], str], settings_of: Callable[..., dict[str, Any]]) -> dict[int, Any]:
    """Rates and weight decays of 30 steps for each warm-up, by the engine's scheduler over one parameter group."""
    lr = settings_of()["lr"]
    cases = [settings_of(lr_warmup_iters=w, lr_warmup_init=lr / (w + 1), lr_decay_iters=26) for w in (0, 1, 5)]
    code = f"""
import json
import engine_standin
engine_standin.install()
from types import SimpleNamespace
from engine_optimizer import build_scheduler
from engine_settings import Settings
found = {{}}
for case in {cases!r}:
    group = {{}}
    scheduler = build_scheduler(Settings(**case), SimpleNamespace(param_groups=[group]))
    steps = []
    for _ in range(30):
        steps.append(dict(group))
        scheduler.step(1)
    found[case["lr_warmup_iters"]] = {{name: [step[name] for step in steps] for name in ("lr", "weight_decay")}}
print(json.dumps(found))
"""
    return {int(warmup): rows for warmup, rows in json.loads(in_rank(code)).items()}


def test_facts(run: Callable[..., Any]) -> None:
    facts, data = run(**TP2_SP).marks("facts")
    assert len(data["data_first_batch"]) == 64
    assert facts["megatron_core"] == "0.15.3"
    assert facts["backend"] == "gloo"
    assert facts["cuda_stand_in"] is True
    assert facts["omp_num_threads"] == 1
    assert facts["cpu_count"] >= 1
    assert facts["nccl"] is None
    assert facts["device_count"] is None
    assert facts["device_memory_bytes"] > 2**30


def test_every_model_parallel_rank_counts_its_parameters(run: Callable[..., Any]) -> None:
    counts = re.findall(r"^ > number of parameters on \(.*\) model parallel rank (\S+ \S+): (\d+)$", run().out, re.M)
    assert [rank for rank, _ in counts] == ["(0, 0)"]
    split = re.findall(r"model parallel rank (\S+ \S+): (\d+)$", run(**VP2, **LLAMA_LIKE).out, re.M)
    assert sorted(rank for rank, _ in split) == ["(0, 0)", "(0, 1)"]


def test_ends_with_megatrons_line_and_without_noise(run: Callable[..., Any]) -> None:
    done = run(**TP2_SP)
    assert re.search(r"^\[after training is done\] datetime: \d{4}-\d\d-\d\d \d\d:\d\d:\d\d$", done.out, re.M)
    assert "arning" not in done.err
