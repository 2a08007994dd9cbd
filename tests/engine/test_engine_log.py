"""Test that what the engine prints can be read back: Megatron's own lines, and our marks in full precision."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.engine import layouts as at
from tests.rehearsal.stacks import canonical_rate

pytestmark = pytest.mark.engine
ITERATION = re.compile(
    r" \[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}\] iteration +(\d+)/ +(\d+) \| consumed samples: +(\d+) \|"
    r" elapsed time per iteration \(ms\): ([\d.]+) \| learning rate: (\S+) \| global batch size: +(\d+) \|"
    r" lm loss: (\S+) \| loss scale: 1\.0 \| grad norm: (\S+) \|"
    r" number of skipped iterations:   0 \| number of nan iterations:   0 \|"
)


CHANGES: dict[str, dict[str, Any]] = {
    "single": {},
    "TP2+SP": at.TP2_SP,
    "DP2+ov": at.DENSE["DP2+overlapped"],
    "VP2+tied": {**at.VP2, **at.LLAMA_LIKE},
    "recompute": {**at.RECOMPUTE, **at.SHORT},
    "bf16": at.BFLOAT16,
    "CP2xEP2": {**at.EXPERTS, **at.MIXTURE["CP2xEP2"]},
    "deepseek": {**at.VARIANTS["deepseek"][0], **at.EP2},
    "qwen": at.QWEN_LIKE,
    "unfused": at.VARIANTS["unfused"][0],
}
LONG = ("DP2+ov", "VP2+tied", "CP2xEP2")  # a minute each


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in CHANGES])
def test_dump_is_effective_and_equals_the_settings(run: Callable[..., Any], name: str) -> None:
    done = run(**CHANGES[name])
    wanted = {name: str(value) for name, value in done.settings.items() if name != "keep_checkpoints"}
    wanted["params_dtype"] = f"torch.{wanted['params_dtype']}"
    if not done.settings["use_distributed_optimizer"]:
        wanted |= dict.fromkeys(("data_parallel_shards", "data_parallel_replicas"), "None")
    extra = {
        "transformer_impl": "local",
        "bf16": str(done.settings["params_dtype"] == "bfloat16"),
        "distributed_backend": "gloo",
        "moe_grouped_gemm": "None" if done.settings["num_experts"] is None else "False",
        "moe_token_dispatcher_type": "None" if done.settings["num_experts"] is None else "alltoall",
        **dict.fromkeys(
            ("attention_softmax_in_fp32", "average_in_collective", "gradient_accumulation_fusion", "enable_autocast"),
            "False",
        ),
        **dict.fromkeys(("cross_entropy_loss_fusion", "tp_comm_overlap", "use_precision_aware_optimizer"), "False"),
        **dict.fromkeys(("cross_entropy_fusion_impl", "fp8_param_gather"), "None"),
        **dict.fromkeys(("main_params_dtype", "main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"), "float32"),
        "cuda_graph_impl": "none",
        "rotary_percent": "1.0",
        "rotary_interleaved": "False",
        "decoupled_lr": "None",
        "decoupled_weight_decay": "True",
        "moe_router_force_load_balancing": "None" if done.settings["num_experts"] is None else "False",
    }
    assert done.arguments == {**wanted, **extra}


def test_dump_has_megatrons_form(run: Callable[..., Any]) -> None:
    lines = run().out.splitlines()
    first = lines.index("------------------------ arguments ------------------------")
    last = lines.index("-------------------- end of arguments ---------------------")
    rows = lines[first + 1 : last]
    assert rows == sorted(rows, key=str.lower)
    assert "  seq_length ...................................... 64" in rows


def test_iteration_lines_are_megatrons_and_marks_are_exact(run: Callable[..., Any]) -> None:
    done = run()
    matches, steps = [ITERATION.fullmatch(line) for line in done.iteration_lines], done.marks("step")
    assert len(matches) == 20
    for number, (match, step) in enumerate(zip(matches, steps, strict=True), start=1):
        assert match
        assert [int(match[index]) for index in (1, 2, 3, 6)] == [number, 20, 8 * number, 8]
        assert float(match[5]) == pytest.approx(canonical_rate(done.settings, number), rel=1e-5)
        assert float(match[7]) == pytest.approx(step["loss"], rel=1e-5)
        assert float(match[8]) == pytest.approx(step["grad_norm"], abs=1e-3)
        assert step["iteration"] == number and "nonfinite" not in step
        assert step["lr_used"] == pytest.approx(canonical_rate(done.settings, number - 1), abs=1e-12)
        assert step["memory_kind"] == "rss" and 1e8 < step["memory_bytes"] < 1e10
    elapsed_s = sum(float(match[4]) / 1000 for match in matches[1:] if match)
    assert elapsed_s == pytest.approx(steps[-1]["end_monotonic_s"] - steps[0]["end_monotonic_s"], abs=0.002)


def test_the_schedule_is_the_canonical_one(
    in_rank: Callable[[str], str], settings_of: Callable[..., dict[str, Any]]
) -> None:
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
for case in {cases!r}:
    group, steps = {{}}, []
    scheduler = build_scheduler(Settings(**case), SimpleNamespace(param_groups=[group]))
    for _ in range(30):
        steps.append((group["lr"], group["weight_decay"]))
        scheduler.step(1)
    print(json.dumps(steps))
"""
    for settings, line in zip(cases, in_rank(code).splitlines(), strict=True):
        rates, decays = zip(*json.loads(line), strict=True)
        assert rates == pytest.approx([canonical_rate(settings, step) for step in range(30)], rel=0, abs=1e-12)
        assert set(decays) == {settings["weight_decay"]}


def test_facts(run: Callable[..., Any]) -> None:
    facts, data = run(**at.TP2_SP).marks("facts")
    assert len(data["data_first_batch"]) == 64
    stated = {"megatron_core": "0.15.3", "backend": "gloo", "cuda_stand_in": True, "omp_num_threads": 1}
    assert facts == facts | stated | {"nccl": None, "device_count": None}
    assert facts["cpu_count"] >= 1 and facts["device_memory_bytes"] > 2**30


def test_every_model_parallel_rank_counts_its_parameters(run: Callable[..., Any]) -> None:
    for done, ranks in ((run(), ["(0, 0)"]), (run(**at.VP2, **at.LLAMA_LIKE), ["(0, 0)", "(0, 1)"])):
        counts = re.findall(r"^ > number of parameters on \(.*\) model parallel rank (\S+ \S+): \d+$", done.out, re.M)
        assert sorted(counts) == ranks


def test_ends_with_megatrons_line_and_without_noise(run: Callable[..., Any]) -> None:
    done = run(**at.TP2_SP)
    assert re.search(r"^\[after training is done\] datetime: \d{4}-\d\d-\d\d \d\d:\d\d:\d\d$", done.out, re.M)
    assert "arning" not in done.err
