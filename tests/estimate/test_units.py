"""Dimension check: a time counted in milliseconds is a thousand times the number in seconds, and bytes are bytes."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

import estimate.step_time as of_a_step
from estimate.fitted import Parameters, shipped
from estimate.jobs import Jobs
from estimate.memory import FP32, memory
from estimate.step_time import step_time
from tests.estimate.test_step_time import job, many

RATES = ("peak_flops", "peak_bf16_flops", "memory_bandwidth", "link_bandwidth", "nic_bandwidth")
DURATIONS: tuple[str, ...] = ("collective_latency", "send_latency", "step_overhead", "micro_overhead")
DURATIONS += ("launch_dense", "launch_moe", "launch_expert", "launch_expert_scales")
MS = 1000.0


def in_ms(jobs: Jobs) -> Jobs:
    return replace(jobs, **{name: getattr(jobs, name) / MS for name in RATES})


def parameters_in_ms() -> Parameters:
    known = shipped()
    factors = dict.fromkeys(DURATIONS, MS) | {"host_link": 1 / MS}

    def factor(name: str) -> float:
        return factors.get(name.partition(".")[0], 1.0)

    kinds = {n: msgspec.structs.replace(kind, prior=kind.prior * factor(n)) for n, kind in known.kinds.items()}
    values = {n: msgspec.structs.replace(value, value=value.value * factor(n)) for n, value in known.values.items()}
    return msgspec.structs.replace(known, kinds=kinds, values=values)


def test_a_step_in_milliseconds_is_a_thousand_times_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = many(200)
    seconds = step_time(jobs, shipped()).total
    monkeypatch.setattr(of_a_step, "A100", of_a_step.A100 / MS)  # a rate, too: FLOP/s
    milliseconds = step_time(in_ms(jobs), parameters_in_ms()).total
    np.testing.assert_allclose(milliseconds, MS * seconds, rtol=1e-9)


def test_activations_are_bytes_of_elements() -> None:
    """In fp32 every element that is kept has twice the bytes; sums of norms and of attention are fp32 in both."""
    both = [memory(job(precision=precision)) for precision in ("bf16", "fp32")]
    for name in ("attention", "mlp", "norms"):
        short, long = (getattr(one, name)[0, 0] for one in both)
        assert short < long <= 2 * short
        assert long > 1.9 * short
    assert both[1].weights[0, 0] / both[0].weights[0, 0] == FP32 / 2
