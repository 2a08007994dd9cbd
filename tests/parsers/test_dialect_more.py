"""NeMo Automodel, OLMo, Lingua and Levanter: what their lines mean where the plain fixtures do not show it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.parsers.helpers import parse_text

_AUTOMODEL = "2026-11-02 10:00:14 | INFO | root | step {0} | epoch 0 | loss 2.5 | grad_norm 1.5 | lr {1} | "
_AUTOMODEL += "mem 30.50 GiB | tps 8000.00(4000.00/gpu) | num_label_tokens 65536\n"
_TRAINING_JSONL = '{"step": 7, "epoch": 0, "timestamp": "2026-11-02T10:00:14.000Z", "loss": 2.5, "grad_norm": 1.5, '
_TRAINING_JSONL += '"lr": 0.0001, "mem": 30.5, "tps": 8000.0, "tps_per_gpu": 4000.0, "mfu": null, '
_TRAINING_JSONL += '"num_tokens_per_step": 2000, "num_label_tokens": 1900}\n'
_METRICS_JSONL = '{"global_step": 30, "acc_step": 0, "speed/wps": 18000.5, "speed/FLOPS": 1.9e+14, '
_METRICS_JSONL += '"optim/grad_norm": 0.5, "optim/lr": 0.0003, "memory/max_reserved_gib": 61.5, "loss/out": 3.5}\n'
_OLMO = "nid17:0 out: 2025-01-20 10:29:10.590 nid17:0 olmo.train:967 INFO [step=50/60,epoch=0]\n"
_OLMO += "nid17:0 out:     train/CrossEntropyLoss=2.633\nnid17:0 out:     System/Peak GPU Memory (MB)=42,394\n"
_TRACKER = '0 - levanter.json_logger - INFO :: {"tracker": "json_logger", "event": "log", "step": 4, "metrics": '
_TRACKER += '{"train/loss": 5.25, "global_step": 4, "optim/learning_rate": 0.0006}}\n'
_DURATION = '{"tracker": "json_logger", "event": "log", "step": 4, "metrics": {"throughput/duration": 0.75}}\n'
_BAR = "Progress on:train {0}it/{1}it rate:{2} remaining:01:06 elapsed:02:02 postfix:loss={3}\n"

CASES: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "automodel 0.1.0 counts from 1": (
        _AUTOMODEL.format(1, "1.00e-05") + _AUTOMODEL.format(2, "2.00e-05"),
        [{"step": 0, "iteration": 1, "lr_used": None}, {"step": 1, "iteration": 2, "lr_used": 1e-5}],
    ),
    "automodel's /gpu is none with tensor parallelism": (
        f"  tp_size: 2\n{_AUTOMODEL.format(7, '1.00e-05')}",
        [{"step": 7, "tokens_per_s_per_gpu": None, "memory_kind": "allocated"}],
    ),
    "automodel's training.jsonl has the time": (
        _TRAINING_JSONL,
        [{"step": 7, "loss": 2.5, "step_time_s": 0.25, "tokens_per_s_per_gpu": 4000.0, "memory_bytes": 61 << 29}],
    ),
    "automodel's lines of batches are no steps": (
        "INFO:root:step 12 | epoch 0 | loss 0.4358 | grad_norm 23.8750 | mem: 15.48 GiB | tps 9068.99\n",
        [],
    ),
    "lingua's metrics.jsonl": (
        _METRICS_JSONL,
        [{"step": 29, "loss": 3.5, "lr": 0.0003, "tflops_per_gpu": 190.0, "memory_kind": "reserved"}],
    ),
    "olmo behind a prefix, allocated MB of 1e6": (
        _OLMO,
        [{"step": 49, "loss": 2.633, "memory_bytes": 42_394_000_000, "memory_kind": "allocated"}],
    ),
    "olmo without its indent": (
        "olmo.train:816\tINFO\t[step=817847/1430511]\ntrain/CrossEntropyLoss=2.341\ntrain/Perplexity=10.39\n",
        [{"iteration": 817847, "loss": 2.341}],
    ),
    "levanter's loss is the step's before": (
        _BAR.format("12.0", "24.0", "5.5s/it", "10.5"),
        [{"step": 10, "iteration": 12, "loss": 10.5, "flags": ()}],
    ),
    "levanter's loss of a fast step is its own": (
        _BAR.format("12.0", "24.0", "49.0it/s", "10.5"),
        [{"step": 11, "iteration": 12, "loss": 10.5}],
    ),
    "levanter's thousands are rounded, and each counts once": (
        "".join(_BAR.format(at, "2.06k", "5.5s/it", loss) for at, loss in (("1.23k", 3.5), ("1.23k", 3.4))),
        [{"step": 1228, "iteration": 1230, "loss": 3.5, "flags": ("step:rounded",)}],
    ),
    "levanter's other hosts print it, too": (
        "".join(_BAR.format(at, "24.0", "5.5s/it", loss) for at, loss in (("7.00", 3.5), ("6.00", 3.6), ("7.00", 3.5))),
        [{"step": 5, "loss": 3.5}],
    ),
    "levanter's tracker": (
        _TRACKER + _DURATION,
        [{"step": 4, "loss": 5.25, "lr": 0.0006, "step_time_s": 0.75}],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_line(case: str) -> None:
    text, expected = CASES[case]
    (run,) = parse_text(text)
    assert [
        {name: getattr(step, name) for name in at} for step, at in zip(run.steps, expected, strict=True)
    ] == expected


def test_max_steps_is_a_ceiling_where_the_rate_is_scheduled() -> None:
    ceiling = "2026-11-02 10:00:09 | INFO | root | - Max train steps: 9\n"
    total = "2026-11-02 10:00:09 | INFO | root | Building LR scheduler with total_steps=2, warmup_steps=1, decay\n"
    none = "2026-11-02 10:00:09 | INFO | root | LR scheduler: <unavailable>\n"
    steps = _AUTOMODEL.format(0, "1.00e-05") + _AUTOMODEL.format(1, "2.00e-05")
    begins = (total + ceiling, ceiling + total, ceiling, none + ceiling)
    assert [parse_text(begin + steps)[0].train_iters for begin in begins] == [2, 2, None, 9]


def test_the_cause_of_an_olmo_run() -> None:
    (run,) = parse_text(
        f"{_OLMO}[10:41] CRITICAL [olmo.util:158, rank=0] Uncaught OLMoThreadError: data thread 3 failed\n"
    )
    assert "data thread 3 failed" in (run.faults.root or "")
